"""What a training run is: sections of frozen records, read from YAML, overridden by `section.key=value`.

An unknown key or a value of the wrong type is an error that names the key and the nearest one that exists.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longshort.data.tasks import TASKS, TaskSettings, classes_of, task_length
from longshort.losses import LossSettings
from longshort.model import GPTConfig
from longshort.model.classifier import NORMS
from longshort.model.config import LOSS_ALIASES
from longshort.train.ranges import RANGES, check_range
from longshort.train.values import (
    ConfigError,
    check_known,
    check_one_of,
    mapping,
    parse_yaml,
    read_yaml,
    typed,
)
from longshort.train.vocabulary import Message, with_vocabulary


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
    deterministic: bool = False
    """Two runs on one kind of GPU are equal to the bit, where PyTorch has such operations; else an error names them."""
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
    nonfinite_cap: int = 10
    """Steps in a row with a loss or gradient that is not finite, after which the run stops as diverged; 0: never."""
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
        run, data = self.run, self.data
        for key, choices in _CHOICES.items():
            check_one_of(key, self._value(key), choices)
        check_one_of("run.device", run.device.split(":")[0], ("auto", "cpu", "cuda"))
        for key in RANGES:
            check_range(key, self._value(key))
        if self.stability.guard_warmup > self.stability.guard_window:
            raise ConfigError(
                f"stability.guard_warmup must be at most stability.guard_window={self.stability.guard_window}, or it "
                f"never ends, got {self.stability.guard_warmup}"
            )
        if run.cuda_graphs and not (run.compile and run.accumulate == 1):
            got = f"run.compile={run.compile} and run.accumulate={run.accumulate}".lower()
            raise ConfigError(f"run.cuda_graphs needs run.compile=true and run.accumulate=1, got {got}")
        if data.batch_size % run.accumulate:
            raise ConfigError(
                f"data.batch_size must be a multiple of run.accumulate={run.accumulate}, got {data.batch_size}"
            )
        _check_task(self)

    def _value(self, key: str) -> Any:
        """That of `section.key`."""
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name)

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
    def from_dict(cls, data: Mapping[str, Any], message: Message = lambda text: None) -> TrainConfig:
        """From nested plain values; `model` may name a `preset`, whose fields the others override.

        A `model.vocab_size` that is not given, or null, is that of the data, and `message` is told so.
        """
        sections = typing.get_type_hints(cls)
        check_known("section", data, [*sections, "loss"])
        if "model" not in data:
            raise ConfigError("the section model is missing; for example model: {preset: tiny}")
        data = _loss_in_its_section(data)
        values: dict[str, Any] = {}
        for name, kind in sections.items():
            if name != "model" and data.get(name) is not None:
                values[name] = _section(name, kind, _named_values(name, data[name]))
        texts, task = values.get("data", DataConfig()), values.get("task", TaskConfig())
        model = with_vocabulary(data["model"], texts.path, task.name, task, message)
        return cls(model=_model(model, data["loss"]), **values)

    @classmethod
    def load(cls, path: Path, overrides: Sequence[str] = (), message: Message = lambda text: None) -> TrainConfig:
        """From a YAML file and `section.key=value` overrides; `message` as in `from_dict`."""
        return cls.from_dict(_overridden(mapping(str(path), read_yaml(path)), overrides), message)

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


_CHOICES = {
    "schedule.kind": ("constant", "cosine", "wsd"),
    "run.precision": ("auto", "fp32", "bf16"),
    "run.compile_scope": ("model", "block"),
    "stability.guard": ("off", "warn", "skip", "rollback"),
    "stability.clip": ("global", "tensor", "none"),
}


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
        result.setdefault(section, {})[key] = parse_yaml(name, text)
    return result


def _loss_in_its_section(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data with what `model` says of the loss in the section `loss`; a default, which older files spell out, says
    nothing.
    """
    model = mapping("model", data["model"])
    loss, own = (
        {} if values is None else mapping(name, values)
        for name, values in (("loss", data.get("loss")), ("model.loss", model.pop("loss", None)))
    )
    check_known("model.loss", own, typing.get_type_hints(LossSettings))
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
    return {"name": section} if name == "task" and isinstance(section, str) else mapping(name, section)


def _check_task(config: TrainConfig) -> None:
    task, data, model = config.task, config.data, config.model
    if task.name is None:
        given = [key for key, value in dataclasses.asdict(task).items() if value != getattr(TaskConfig(), key)]
        if given:
            raise ConfigError(f"task.{given[0]} needs task.name, one of {', '.join(TASKS)}")
        return
    check_one_of("task.name", task.name, tuple(TASKS))
    check_one_of("task.norm", task.norm, NORMS)
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
    check_known("model", values, [*hints, "preset"])
    plain = {
        key: value if key in ("plan", "plans") else typed(f"model.{key}", value, hints[key])
        for key, value in values.items()
    }
    plain["loss"] = _section("loss", LossSettings, loss)
    try:
        return GPTConfig.from_dict(plain) if preset is None else GPTConfig.preset(preset, **plain)
    except ValueError as error:
        field = str(error).split(" ")[0].split("[")[0]
        raise ConfigError(f"model.{error}" if field in hints or field == "preset" else f"model: {error}") from None


def _section(name: str, kind: type, values: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    check_known(name, values, hints)
    found = {key: typed(f"{name}.{key}", value, hints[key]) for key, value in values.items()}
    try:
        return kind(**found)
    except ValueError as error:
        raise ConfigError(f"{name}.{error}") from None
