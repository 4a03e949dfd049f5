"""What a training run is: sections of frozen records, read from YAML, overridden by `section.key=value`.

An unknown key or a value of the wrong type is an error that names the key and, if one is close, the key meant.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longshort.data.tasks import TASKS, classes_of, task_length
from longshort.losses import LossSettings
from longshort.model import GPTConfig
from longshort.model.config import LOSS_ALIASES, MLP_ALIAS, WAYS_OF_REACH, with_one_mlp
from longshort.train.settings.nearest import check_keys, check_sections, nearest
from longshort.train.settings.parallel import ParallelConfig, check_parallel
from longshort.train.settings.ranges import CHOICES, RANGES, check_value
from longshort.train.settings.rl import RLConfig, check_rl
from longshort.train.settings.sections import (
    DataConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    StabilityConfig,
    TaskConfig,
    TelemetryConfig,
    check_no_text,
)
from longshort.train.settings.shipped import find_config
from longshort.train.settings.values import ConfigError, mapping, parse_yaml, read_yaml, typed
from longshort.train.settings.vocabulary import Message, with_vocabulary


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
        if self.model.positions == "learned" and (data.length or 0) > self.model.context:
            raise ConfigError(
                f"data.length must be at most model.context={self.model.context}, which positions are learned for, got "
                f"{data.length}"
            )
        _check_task(self)
        check_rl(self.rl, run, data, self.task, self.model)
        check_parallel(self.parallel, self.task, self.model, self.length)

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
        model = with_vocabulary(data["model"], texts, task, values.get("rl", RLConfig()), message)
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


_PATHS = (("data", "path"), ("task", "path"), ("run", "out"))
"""Keys that may begin with ~, which shells leave as it is after section.key=."""


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
    for section, key in _PATHS:
        if isinstance(path := result.get(section, {}).get(key), str):
            result[section][key] = os.path.expanduser(path)
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
    check_no_text(data, "a task; use the keys of the section task")
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
