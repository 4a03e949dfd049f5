"""What a training run is: sections of frozen records, read from YAML, overridden by `section.key=value`.

An unknown key or a value of the wrong type is an error that names the key and, if one is close, the key meant.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longshort.data.tasks import TASKS, TaskSettings, classes_of, task_length
from longshort.losses import LossSettings
from longshort.model import GPTConfig
from longshort.model.config import LOSS_ALIASES, MLP_ALIAS, WAYS_OF_REACH, with_one_mlp
from longshort.train.settings.nearest import check_keys, check_sections, nearest
from longshort.train.settings.parallel import ParallelConfig, check_parallel
from longshort.train.settings.ranges import CHOICES, RANGES, check_value
from longshort.train.settings.rl import RLConfig, check_rl
from longshort.train.settings.shipped import find_config
from longshort.train.settings.values import ConfigError, mapping, parse_yaml, read_yaml, typed
from longshort.train.settings.vocabulary import DataSource, Message, with_vocabulary


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where tokens come from and how they are cut into batches."""

    path: str | None = None
    """Folder made by `longshort data`; if None, the text of Python's standard library, as bytes."""
    length: int | None = None
    """Tokens per sequence; the model's context if None."""
    batch_size: int = 16
    """Sequences per optimizer step, over all processes and micro-batches."""
    segments: bool = False
    """Keep attention within each document, so that documents packed into one sequence do not see each other."""
    corruption: float = 0.0
    """Share of the training tokens replaced by random ones, the same in every epoch; validation text stays clean."""
    share: float = 1.0
    """Share of the training text that is read, from its beginning; a small one is read more often in as many steps."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig(TaskSettings):
    """Train on questions with answers instead of text. `task: listops` is short for `task: {name: listops}`."""

    name: str | None = None
    """Task to train on; text if None. `task=listops` on the command line sets it."""
    causal: bool = False
    """Classifiers only: no token sees what follows it. Tasks without classes train a causal language model anyway."""
    norm: str = "layer"
    """Classifiers only: layer norm or batch norm."""
    start: str | None = None
    """Checkpoint or run whose weights the model starts with, to fine-tune it; new weights if None."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW or Muon. Weight decay acts on tensors of two or more dimensions, embeddings included, as in the author's
    code.
    """

    kind: str = "adamw"
    """adamw, or muon: Muon for the matrices of the blocks (queries, keys and values each by themselves) and AdamW for
    embeddings, head, norms and biases."""
    lr: float = 6e-4
    """Peak learning rate, reached at the end of the warm-up."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of Adam's running means of the gradient and its square."""
    eps: float = 1e-8
    """Added to the denominator of Adam's update."""
    weight_decay: float = 0.1
    """Decoupled weight decay of matrices and embeddings; biases and norms have none."""
    muon_scale: str = "match_rms"
    """Size of Muon's updates of n x m matrices: match_rms (0.2 * sqrt(max(n, m)), for the learning rate and weight
    decay of AdamW, arXiv 2502.16982) or spectral (sqrt(max(1, n / m)), for a muon_lr of about 0.02)."""
    muon_lr: float | None = None
    """Peak learning rate of the matrices that Muon trains; lr if None."""
    muon_momentum: float = 0.95
    """Decay rate of Muon's running mean of the gradient; the momentum is Nesterov's."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate over steps: a linear warm-up, then `kind`."""

    kind: str = "constant"
    """Learning rate after the warm-up: constant, cosine (falls to floor * lr at the last step) or wsd (constant, then
    a linear decay to floor * lr)."""
    warmup: int = 100
    """Steps over which the learning rate rises linearly to its peak."""
    floor: float = 0.1
    """Final learning rate of cosine and wsd, as a fraction of lr."""
    decay: float = 0.2
    """Share of all steps, at the end of the run, over which wsd decays."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How long to train, on what device, and where to write."""

    out: str = "runs/default"
    """Folder for the run's metrics and checkpoints. A run found there is resumed."""
    variant: str | None = None
    """Name under which comparisons and reports group the seeds of one setting."""
    steps: int = 1000
    """Number of optimizer steps."""
    seed: int = 0
    """Seed of the weights, the data order and dropout."""
    device: str = "auto"
    """auto (CUDA if there is a GPU, else cpu), cpu, cuda, or one GPU by its number, as in cuda:1."""
    precision: str = "auto"
    """bf16 (autocast), fp32, or auto (bf16 on CUDA, fp32 on the CPU)."""
    deterministic: bool = False
    """Make two runs on the same kind of GPU equal bit for bit; an operation that PyTorch cannot make deterministic is
    an error."""
    accumulate: int = 1
    """Micro-batches per optimizer step; more of them need less memory."""
    matmul: str = "auto"
    """Precision of fp32 matrix products on CUDA: high (TF32), highest (fp32), or auto (high in a run in bf16, highest
    in a run in fp32)."""
    compile: bool | str = "auto"
    """Compile the model with torch.compile: true, false, or auto, which compiles on CUDA if the steps will take about
    two minutes or more, and not on the CPU or for reinforcement learning."""
    compile_scope: str = "auto"
    """model compiles the whole model, for the fastest step; block compiles one block and reuses its code for the
    others, for the fastest start; auto takes block for sharded runs, for reinforcement learning, and on CUDA for runs
    that will take less than about 200 s for each layer that is like another one, without CUDA graphs and
    checkpoint_activations."""
    cuda_graphs: bool | str = "auto"
    """Replay the compiled step as CUDA graphs: true, false, or auto, which does so for small models, whose steps
    otherwise wait for Python: under about 20 ms of computing per step, in one process, without dropout, segments and
    checkpoint_activations. Needs compile and accumulate=1."""
    checkpoint_activations: bool | str = False
    """Recompute each block in the backward pass instead of keeping its activations: slower, but needs less memory;
    attention recomputes all but the outputs of attention."""
    eval_every: int = 100
    """Steps between evaluations on the validation split; 0 means only at the end."""
    eval_batches: int = 8
    """Batches per evaluation, the same ones every time."""
    save_every: int = 500
    """Steps between checkpoints; 0 means only the last and the best."""
    save_best: bool = True
    """Also save whenever the validation loss is the lowest so far."""
    keep: int = 2
    """How many of the newest checkpoints to keep; the best one, if saved, is kept as well."""
    tensorboard: bool = False
    """Also write TensorBoard events."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""


@dataclass(frozen=True, kw_only=True)
class TelemetryConfig:
    """What is measured besides the loss."""

    logits_every: int = 10
    """Steps between recordings of every head's largest and smallest logit; 0 means never. QK-clip and the guard read
    the largest at every step regardless."""
    entropy_every: int = 0
    """Steps between recordings of every head's attention entropy, on one sequence; 0 means never."""
    layer_gradients: bool = False
    """Record the gradient norm of every layer."""


@dataclass(frozen=True, kw_only=True)
class StabilityConfig:
    """What acts against loss spikes, large gradients and large logits."""

    guard: str = "off"
    """What to do on a loss spike: off (nothing), warn, skip (drop the step) or rollback (return to the last checkpoint
    and drop that batch). On a GPU, losses are read one step late: rollback then also undoes the step after the spike,
    and skip decides on the GPU, except with clip=tensor, qk_clip or sigma_reparam, where it waits for every loss."""
    guard_threshold: float = 8.0
    """A spike is this many robust standard deviations above the median of the accepted losses."""
    guard_window: int = 200
    """Accepted steps over which the median is taken."""
    guard_warmup: int = 50
    """Accepted steps before a finite loss can count as a spike."""
    guard_cap: int = 10
    """Consecutive spikes after which the new loss level is accepted; with rollback, the number of rollbacks after which
    the run stops."""
    guard_cooldown: int = 20
    """Steps after a rollback during which every finite loss is accepted."""
    nonfinite_cap: int = 10
    """Consecutive steps with a non-finite loss or gradient after which the run stops as diverged; 0 means never."""
    clip: str = "global"
    """Gradient clipping: global (by the norm of all gradients), tensor (each tensor by its past norms, as in AdaGC) or
    none."""
    clip_norm: float = 1.0
    """Largest gradient norm that global clipping allows."""
    qk_clip: float | None = None
    """Bound on every head's largest logit, enforced on its weights after each step (100 in Kimi K2); off if None."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole run. The section `loss` is part of the model's record: `loss.exponent=0.5` sets `model.loss.exponent`.

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
    rl: RLConfig = field(default_factory=RLConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def __post_init__(self) -> None:
        run, data = self.run, self.data
        for key in (*CHOICES, *RANGES):
            section, _, name = key.partition(".")
            check_value(key, getattr(getattr(self, section), name))
        if self.stability.guard_warmup > self.stability.guard_window:
            raise ConfigError(
                f"stability.guard_warmup must be at most stability.guard_window={self.stability.guard_window}, or it "
                f"never ends, got {self.stability.guard_warmup}"
            )
        if run.cuda_graphs is True and not (run.compile and run.accumulate == 1):
            got = f"run.compile={run.compile} and run.accumulate={run.accumulate}".lower()
            raise ConfigError(f"run.cuda_graphs=true must come with run.compile and run.accumulate=1, got {got}")
        if data.batch_size % run.accumulate:
            raise ConfigError(
                f"data.batch_size must be a multiple of run.accumulate={run.accumulate}, got {data.batch_size}"
            )
        _check_task(self)
        check_rl(self, DataConfig())
        check_parallel(self)

    @property
    def loss(self) -> LossSettings:
        """The section `loss`."""
        return self.model.loss

    @property
    def length(self) -> int:
        """Tokens per sequence."""
        if self.task.name is not None:
            return task_length(self.task.name, self.task)
        return self.data.length or self.model.context

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], message: Message = lambda text: None) -> TrainConfig:
        """From nested plain values; `model` may name a `preset`, whose fields the other keys override.

        A `model.vocab_size` that is missing or null is taken from the data, and `message` is called to say so.
        """
        sections = typing.get_type_hints(cls)
        check_sections(data, _names())
        if "model" not in data:
            raise ConfigError("the section model is missing; for example model: {preset: tiny}")
        data = _in_present_names(data)
        values: dict[str, Any] = {}
        for name, kind in sections.items():
            if name != "model" and data.get(name) is not None:
                values[name] = _section(name, kind, _named_values(name, data[name]))
        texts, task = values.get("data", DataConfig()), values.get("task", TaskConfig())
        problems = values.get("rl", RLConfig())
        source = DataSource(texts.path, task.name, task, problems.task, problems.task_options)
        model = with_vocabulary(data["model"], source, message)
        return cls(model=_model(model, data["loss"]), **values)

    @classmethod
    def load(
        cls, source: str | Path, overrides: Sequence[str] = (), message: Message = lambda text: None
    ) -> TrainConfig:
        """From a YAML file, or the name of a configuration of the package, and `section.key=value` overrides.

        `message` is as in `from_dict`.
        """
        path = find_config(source)
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
        values["rl"]["noise_clamp"] = None if self.rl.noise_clamp is None else list(self.rl.noise_clamp)
        return values


@functools.cache
def _names() -> dict[str, list[str]]:
    """The keys of every section."""
    sections = typing.get_type_hints(TrainConfig)
    names = {name: list(typing.get_type_hints(kind)) for name, kind in sections.items()}
    return {**names, "model": [*names["model"], "preset"], "loss": list(typing.get_type_hints(LossSettings))}


def _overridden(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    result = {name: {} if section is None else _named_values(name, section) for name, section in data.items()}
    result = _in_present_names(result) if "model" in result else result
    given: set[str] = set()
    for override in overrides:
        name, separator, text = override.partition("=")
        name = "task.name" if name == "task" else name
        section, dot, key = name.partition(".")
        if section == "model" and key in LOSS_ALIASES:
            section, key = "loss", LOSS_ALIASES[key]
        if section == "model" and key == MLP_ALIAS:
            key = "mlp"
        if not (separator and dot and key):
            near = nearest(name, _names()) if separator and not dot else None
            meant = f"; did you mean {near}={text}?" if near else ""
            raise ConfigError(f"an override must be section.key=value, got {override!r}{meant}")
        value, (key, _, option) = parse_yaml(name, text), key.partition(".")
        if option:  # of a key that holds options by name
            held = result.get(section, {}).get(key) or {}
            value = {**mapping(f"{section}.{key}", held), option: value}
        result.setdefault(section, {})[key] = value
        given |= {key} if section == "model" else set()
    model = result.get("model", {})
    ways = {way for way in WAYS_OF_REACH if way in given and model[way] is not None}
    for way in WAYS_OF_REACH.keys() - ways if ways else ():  # one way takes the place of another, as over a preset
        for key in WAYS_OF_REACH[way]:
            model.pop(key, None)
    return result


def _in_present_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data with the loss settings of `model` moved to the section `loss`, and other older names of the section
    `model` replaced. Defaults of the loss, which older files spell out, count as not given.
    """
    model = mapping("model", data["model"])
    try:
        model = with_one_mlp(model)
    except ValueError as error:
        raise ConfigError(f"model.{error}") from None
    loss, own = (
        {} if values is None else mapping(name, values)
        for name, values in (("loss", data.get("loss")), ("model.loss", model.pop("loss", None)))
    )
    check_keys("loss", own, _names())
    found = {f"model.loss.{name}": (name, value) for name, value in own.items()}
    found |= {f"model.{alias}": (name, model.pop(alias)) for alias, name in LOSS_ALIASES.items() if alias in model}
    for where, (name, value) in found.items():
        default = getattr(LossSettings(), name, None)
        given = loss.get(name, default)
        if value != default and given not in (default, value):
            raise ConfigError(f"{where}={value!r} and loss.{name}={given!r} set the same thing; give loss.{name} alone")
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
    for name in ("path", "length", "segments", "corruption", "share"):
        if getattr(data, name) != getattr(DataConfig(), name):
            raise ConfigError(f"data.{name} must not be set with a task; use the keys of the section task")
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
    check_keys("model", values, _names())
    plain = {
        key: value if key in ("plan", "plans", "reach", "rope_scaling") else typed(f"model.{key}", value, hints[key])
        for key, value in values.items()
    }
    plain["loss"] = _section("loss", LossSettings, loss)
    try:
        return GPTConfig.from_dict(plain) if preset is None else GPTConfig.preset(preset, **plain)
    except ValueError as error:
        field = re.split(r"[ \[.]", str(error))[0]
        raise ConfigError(f"model.{error}" if field in hints or field == "preset" else f"model: {error}") from None


def _section(name: str, kind: type, values: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    check_keys(name, values, _names())
    found = {key: typed(f"{name}.{key}", value, hints[key]) for key, value in values.items()}
    try:
        return kind(**found)
    except ValueError as error:
        raise ConfigError(f"{name}.{error}") from None
