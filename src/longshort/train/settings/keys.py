"""Every key of a training configuration, ready to print: name, type, default, range and meaning.

All of it is read from the configuration records: a key's meaning is the docstring under its field.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
import types
import typing
from typing import Any, NamedTuple

from longshort.heads import HeadPlan
from longshort.losses import LossSettings
from longshort.losses.settings import RANGES as LOSS_RANGES
from longshort.model import GPTConfig
from longshort.model.config import RANGES as MODEL_RANGES
from longshort.model.presets import PRESETS
from longshort.nn import RopeScaling
from longshort.reach import PATTERNS
from longshort.train.settings.config import TrainConfig
from longshort.train.settings.ranges import CHOICES, RANGES


class Key(NamedTuple):
    """One key, in YAML's terms: null for None, true and false."""

    name: str
    """`section.key`."""
    type: str
    default: str
    range: str
    """Empty if every value of the type is allowed; null, if the type includes it, is always allowed."""
    meaning: str


def records() -> dict[str, type]:
    """The record of each section, in the order in which they are shown."""
    sections = typing.get_type_hints(TrainConfig)
    return {"model": GPTConfig, "loss": LossSettings} | sections


@functools.cache
def config_keys() -> tuple[Key, ...]:
    """Every key, section by section.

    >>> next(key for key in config_keys() if key.name == "run.precision")[1:4]
    ('str', 'auto', 'one of auto, fp32, bf16')
    """
    keys = [_PRESET]
    for section, record in records().items():
        hints, meanings = typing.get_type_hints(record), field_docs(record)
        for field in sorted(dataclasses.fields(record), key=lambda field: field.name != "name"):
            name = f"{section}.{field.name}"
            if name == "model.loss":  # shown as the section loss
                continue
            keys.append(
                Key(
                    name=name,
                    type=_TYPES.get(name) or _type(hints[field.name]),
                    default=_DEFAULTS.get(name) or _default(field),
                    range=_range(name, hints[field.name]),
                    meaning=_in_yaml(meanings.get(field.name, "")),
                )
            )
    return tuple(keys)


def field_docs(record: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, inherited ones included, each as one line."""
    found: dict[str, str] = {}
    for cls in reversed(record.__mro__):
        if not dataclasses.is_dataclass(cls):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(tree, ast.ClassDef)
        for before, node in zip(tree.body, tree.body[1:], strict=False):
            match before, node:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


_PRESET = Key(
    name="model.preset",
    type="str or null",
    default="null",
    range=f"one of {', '.join(PRESETS)}",
    meaning="A named model size, from which every key of the section that is not set takes its value.",
)
_TYPES = {"model.reach": "str, mapping, list or null"}
_DEFAULTS = {"model.vocab_size": "that of the data or of the preset"}
_REACH = "{windows: [null, 16, 16, 16]}, one entry per head; also decays, slopes, firsts"
_PATTERN = "{pattern: long_short, n_global: 1, window: 64, nope: true} or {like: gemma-3, window: 512}"
_OWN_RANGES = {
    "model.n_global": "an integer from 0 to model.n_heads",
    "model.plan": f"a mapping such as {_REACH}",
    "model.plans": "a list of mappings as in model.plan, one per layer",
    "model.reach": f"{', '.join(PATTERNS)}, or a model such as gemma-3; or a mapping such as {_PATTERN}",
}


def _type(kind: Any) -> str:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return " or ".join(_type(part) for part in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        parts = typing.get_args(kind)
        return f"list of {_type(parts[0])}s" if ... in parts else f"[{', '.join(map(_type, parts))}]"
    return {type(None): "null", HeadPlan: "plan", RopeScaling: "mapping"}.get(kind) or kind.__name__


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is dataclasses.MISSING:
        return "that of the preset"
    if isinstance(value, tuple):
        return str(list(value))
    return _in_yaml(str(value))


def _range(name: str, kind: Any) -> str:
    section, _, key = name.partition(".")
    if name in CHOICES:
        return f"one of {', '.join(CHOICES[name])}"
    if name in RANGES:
        return RANGES[name].words
    words = MODEL_RANGES[key].words if section == "model" and key in MODEL_RANGES else LOSS_RANGES.get(key, "")
    if section in ("model", "loss") and words:
        return _in_yaml(words.removeprefix("None or "))
    return _OWN_RANGES.get(name, "true or false" if kind is bool else "")


def _in_yaml(text: str) -> str:
    words = {"None": "null", "True": "true", "False": "false"}
    return re.sub(r"\b(None|True|False)\b", lambda match: words[match[0]], text)
