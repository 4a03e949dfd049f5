"""What a training run is: sections of frozen records, read from YAML, overridden by `section.key=value`.

An unknown key or a value of the wrong type is an error that names the key and the nearest one that exists.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from longshort.data.tasks import TASKS, TaskSettings, classes_of, task_length
from longshort.losses import LossSettings
from longshort.model import GPTConfig
from longshort.model.classifier import NORMS
from longshort.model.config import LOSS_ALIASES


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where tokens come from and how they are cut into batches."""

    path: str | None = None
    """Folder that `longshort data` made; None is the standard library of the running Python, as bytes."""
    length: int | None = None
    """Tokens in a row; the model's context if None."""
    batch_size: int = 16
    """Rows in one optimizer step, over all ranks and micro-batches."""
    segments: bool = False
    """Attention stays within a document, and the documents packed in a row do not see each other."""
    corruption: float = 0.0
    """Share of training tokens that random ones replace, the same in every epoch; validation text stays clean."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig(TaskSettings):
    """Examples with answers in place of text. `task=listops`, on the command line or in YAML, means `task.name`."""

    name: str | None = None
    """One of `longshort.data.tasks.TASKS`; None trains on text."""
    causal: bool = False
    """Classifiers: a token sees nothing that follows it. Tasks with marked positions are causal in any case."""
    norm: str = "layer"
    """Classifiers: layer or batch."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW; weight decay acts on tensors of two or more dimensions, embeddings too, as the paper's author has it."""

    lr: float = 6e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate over steps: a linear warm-up, then `kind`."""

    kind: str = "constant"
    """constant, cosine (down to floor * lr at the last step) or wsd (warm-up, stable, decay)."""
    warmup: int = 100
    """Steps of linear warm-up."""
    floor: float = 0.1
    """Final learning rate of cosine and wsd, as a fraction of lr."""
    decay: float = 0.2
    """wsd: the share of all steps, at the end, in which the rate falls linearly to the floor."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How long, on what, and where to."""

    out: str = "runs/default"
    """Folder of the run: metrics, checkpoints. A run found there is resumed."""
    variant: str | None = None
    """Name under which seeds of the same set-up are grouped in comparisons and reports."""
    steps: int = 1000
    """Optimizer steps."""
    seed: int = 0
    """Seed of the weights, the data order and dropout."""
    device: str = "auto"
    """auto (CUDA where there is one), cpu, or cuda."""
    precision: str = "auto"
    """bf16 autocast, fp32, or auto (bf16 on CUDA, fp32 on the CPU)."""
    accumulate: int = 1
    """Micro-batches in an optimizer step."""
    compile: bool = False
    """torch.compile the model."""
    compile_scope: str = "model"
    """model: all of it, the faster step; block: one block, whose code serves all that are like it, the faster start."""
    cuda_graphs: bool = False
    """Replay the compiled step as CUDA graphs: for small models on one GPU, which wait more for Python than for it."""
    checkpoint_activations: bool = False
    """Recompute blocks in the backward pass instead of keeping their activations."""
    eval_every: int = 100
    """Steps between evaluations on the validation split; 0: none but the last."""
    eval_batches: int = 8
    """Batches of one evaluation; the same ones every time."""
    save_every: int = 500
    """Steps between checkpoints; 0: none but the last and the best."""
    save_best: bool = True
    """Also save whenever the validation loss is the lowest so far."""
    keep: int = 2
    """How many of the newest checkpoints to keep; the best by validation loss is kept besides, if it was saved."""
    tensorboard: bool = False
    """Also write TensorBoard events."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""


@dataclass(frozen=True, kw_only=True)
class TelemetryConfig:
    """What is measured beside the loss."""

    logits_every: int = 10
    """Steps between readings of every head's logit extremes; every step with QK-clip or the guard on; 0: never."""
    entropy_every: int = 0
    """Steps between readings of every head's attention entropy on one row; 0: never."""
    layer_gradients: bool = False
    """Record the gradient norm of every layer."""


@dataclass(frozen=True, kw_only=True)
class StabilityConfig:
    """What steps in."""

    guard: str = "off"
    """On a loss spike: off, warn, skip (drop the step), rollback (return to the last checkpoint and drop the batch)."""
    guard_threshold: float = 8.0
    """How many robust standard deviations above the median of accepted losses is a spike."""
    guard_window: int = 200
    """Accepted steps that the median is taken over."""
    guard_warmup: int = 50
    """Accepted steps before anything finite can be a spike."""
    guard_cap: int = 10
    """Spikes in a row after which the new level is accepted; for rollback, rollbacks after which the run stops."""
    guard_cooldown: int = 20
    """Steps after a rollback in which finite losses are accepted as they are."""
    clip: str = "global"
    """Gradient clipping: global (one norm), tensor (each against its own past, as AdaGC), none."""
    clip_norm: float = 1.0
    """Largest global gradient norm."""
    qk_clip: float | None = None
    """Bound on the largest logit of a head, enforced on its weights after each step (100 in Kimi K2)."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole run. Its section `loss` is a record of the model's: `loss.exponent=0.5` sets `model.loss.exponent`.

    >>> config = TrainConfig.from_dict({"model": {"preset": "tiny"}, "run": {"steps": 10}})
    >>> config.with_overrides(["optimizer.lr=3e-3", "model.window=16"]).optimizer.lr
    0.003
    """

    model: GPTConfig
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    run: RunConfig = field(default_factory=RunConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    stability: StabilityConfig = field(default_factory=StabilityConfig)
    task: TaskConfig = field(default_factory=TaskConfig)

    def __post_init__(self) -> None:
        run, data, stability = self.run, self.data, self.stability
        _one_of("schedule.kind", self.schedule.kind, ("constant", "cosine", "wsd"))
        _one_of("run.precision", run.precision, ("auto", "fp32", "bf16"))
        _one_of("run.compile_scope", run.compile_scope, ("model", "block"))
        _one_of("stability.guard", stability.guard, ("off", "warn", "skip", "rollback"))
        _one_of("stability.clip", stability.clip, ("global", "tensor", "none"))
        _one_of("run.device", run.device.split(":")[0], ("auto", "cpu", "cuda"))
        for name, value in (("run.steps", run.steps), ("data.batch_size", data.batch_size), ("run.keep", run.keep)):
            _at_least(name, value, 1)
        for name, value in (("run.accumulate", run.accumulate), ("run.eval_batches", run.eval_batches)):
            _at_least(name, value, 1)
        for name, value in (
            ("schedule.warmup", self.schedule.warmup),
            ("run.save_every", run.save_every),
            ("run.eval_every", run.eval_every),
            ("telemetry.logits_every", self.telemetry.logits_every),
            ("telemetry.entropy_every", self.telemetry.entropy_every),
        ):
            _at_least(name, value, 0)
        for name, rate in (("optimizer.lr", self.optimizer.lr), ("stability.clip_norm", stability.clip_norm)):
            if not rate > 0:
                raise ConfigError(f"{name} must be > 0, got {rate}")
        if not 0 <= data.corruption <= 1:
            raise ConfigError(f"data.corruption must be from 0 to 1, got {data.corruption}")
        if run.cuda_graphs and not (run.compile and run.accumulate == 1):
            got = f"run.compile={run.compile} and run.accumulate={run.accumulate}".lower()
            raise ConfigError(f"run.cuda_graphs needs run.compile=true and run.accumulate=1, got {got}")
        if data.batch_size % run.accumulate:
            raise ConfigError(
                f"data.batch_size must be a multiple of run.accumulate={run.accumulate}, got {data.batch_size}"
            )
        _check_task(self)

    @property
    def loss(self) -> LossSettings:
        """The section `loss`."""
        return self.model.loss

    @property
    def length(self) -> int:
        """Tokens in a row."""
        if self.task.name is not None:
            return task_length(self.task.name, self.task)
        return self.data.length or self.model.context

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainConfig:
        """From nested plain values; `model` may name a `preset`, whose fields the others override."""
        sections = typing.get_type_hints(cls)
        _known("section", data, [*sections, "loss"])
        if "model" not in data:
            raise ConfigError("the section model is missing; for example model: {preset: tiny}")
        data = _loss_in_its_section(data)
        values: dict[str, Any] = {"model": _model(data["model"], data["loss"])}
        for name, kind in sections.items():
            if name != "model" and data.get(name) is not None:
                values[name] = _section(name, kind, _named_values(name, data[name]))
        return cls(**values)

    @classmethod
    def load(cls, path: Path, overrides: Sequence[str] = ()) -> TrainConfig:
        """From a YAML file and `section.key=value` overrides."""
        try:
            data = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        except OSError as error:
            raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
        return cls.from_dict(_overridden(_mapping(str(path), data), overrides))

    def with_overrides(self, overrides: Sequence[str]) -> TrainConfig:
        """The same configuration with `section.key=value` changes."""
        return self.from_dict(_overridden(self.to_dict(), overrides))

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, ready for JSON or YAML."""
        values = {name: dataclasses.asdict(getattr(self, name)) for name in typing.get_type_hints(type(self))}
        values["model"] = self.model.to_dict()
        values["loss"] = values["model"].pop("loss")
        values["optimizer"]["betas"] = list(self.optimizer.betas)
        return values


class _Loader(yaml.SafeLoader):
    """YAML 1.2's true and false only: 1.1 reads `guard: off` as false."""


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def _overridden(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    result = {name: {} if section is None else _named_values(name, section) for name, section in data.items()}
    result = _loss_in_its_section(result) if "model" in result else result
    for override in overrides:
        name, separator, text = override.partition("=")
        name = "task.name" if name == "task" else name
        section, dot, key = name.partition(".")
        if section == "model" and key in LOSS_ALIASES:
            section, key = "loss", LOSS_ALIASES[key]
        if not (separator and dot and key):
            raise ConfigError(f"an override looks like section.key=value, got {override!r}")
        try:
            value = yaml.load(text, _Loader)
        except yaml.YAMLError:
            raise ConfigError(f"the value of {name} is not YAML: {text!r}") from None
        result.setdefault(section, {})[key] = value
    return result


def _loss_in_its_section(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data with what `model` says of the loss in the section `loss`; a default, which older files spell out, says
    nothing.
    """
    model, loss = _mapping("model", data["model"]), _mapping("loss", data.get("loss") or {})
    own = _mapping("model.loss", model.pop("loss", None) or {})
    found = {f"model.loss.{name}": (name, value) for name, value in own.items()}
    found |= {f"model.{alias}": (name, model.pop(alias)) for alias, name in LOSS_ALIASES.items() if alias in model}
    for where, (name, value) in found.items():
        default = getattr(LossSettings(), name, None)
        given = loss.get(name, default)
        if value != default and given not in (default, value):
            raise ConfigError(f"{where}={value!r} and loss.{name}={given!r} are one setting: give loss.{name} alone")
        loss[name] = given if value == default else value
    return {**data, "model": model, "loss": loss}


def _named_values(name: str, section: Any) -> dict[str, Any]:
    """The keys of a section; a task may be given by its name alone."""
    return {"name": section} if name == "task" and isinstance(section, str) else _mapping(name, section)


def _check_task(config: TrainConfig) -> None:
    task, data, model = config.task, config.data, config.model
    if task.name is None:
        given = [key for key, value in dataclasses.asdict(task).items() if value != getattr(TaskConfig(), key)]
        if given:
            raise ConfigError(f"task.{given[0]} needs task.name, one of {', '.join(TASKS)}")
        return
    _one_of("task.name", task.name, tuple(TASKS))
    _one_of("task.norm", task.norm, NORMS)
    for name in ("path", "length", "segments", "corruption"):
        if getattr(data, name) != getattr(DataConfig(), name):
            raise ConfigError(f"data.{name} must not be set with a task, whose own settings are those of section task")
    if classes_of(task.name) is None and (task.causal or task.norm != "layer"):
        raise ConfigError(f"task.causal and task.norm are for classifiers; {task.name} trains the language model")
    try:
        length = task_length(task.name, task)
    except ValueError as error:
        raise ConfigError(f"task: {error}") from None
    if model.positions == "learned" and length > model.context:
        raise ConfigError(
            f"model.context must be at least {length}, the length of the task {task.name}, where positions are "
            f"learned, got {model.context}"
        )


def _model(values: dict[str, Any], loss: dict[str, Any]) -> GPTConfig:
    preset = values.pop("preset", None)
    hints = typing.get_type_hints(GPTConfig)
    _known("model", values, [*hints, "preset"])
    plain = {
        key: value if key in ("plan", "plans") else _typed(f"model.{key}", value, hints[key])
        for key, value in values.items()
    }
    plain["loss"] = _section("loss", LossSettings, loss)
    try:
        return GPTConfig.from_dict(plain) if preset is None else GPTConfig.preset(preset, **plain)
    except ValueError as error:
        raise ConfigError(f"model: {error}") from None


def _section(name: str, kind: type, values: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    _known(name, values, hints)
    typed = {key: _typed(f"{name}.{key}", value, hints[key]) for key, value in values.items()}
    try:
        return kind(**typed)
    except ValueError as error:
        raise ConfigError(f"{name}.{error}") from None


def _typed(name: str, value: Any, kind: Any) -> Any:
    """The value as the annotated type, or an error; YAML reads 3e-4 as text, which is taken as the number it is."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        if value is None:
            return None
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if kind is float and not isinstance(value, bool):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    if typing.get_origin(kind) is tuple and isinstance(value, list | tuple):
        kinds = typing.get_args(kind)
        if len(value) == len(kinds):
            return tuple(_typed(f"{name}[{i}]", v, k) for i, (v, k) in enumerate(zip(value, kinds, strict=True)))
    elif isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    expected = getattr(kind, "__name__", str(kind))
    raise ConfigError(f"{name} must be {expected}, got {value!r}")


def _known(where: str, given: Mapping[str, Any], known: Any) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), list(known), n=1, cutoff=0.0)
            what = "no section" if where == "section" else f"{where} has no key"
            raise ConfigError(f"{what} {key!r}; the nearest is {near[0]!r}")


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must hold key: value pairs, got {value!r}")
    return dict(value)


def _one_of(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")
