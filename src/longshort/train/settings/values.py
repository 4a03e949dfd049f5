"""Checks plain YAML values against the types of a record; errors are one line and name section and key.

docs/notes/decisions.md says why this is not left to a library.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key."""


class _Loader(yaml.SafeLoader):
    """Only true and false are booleans, as in YAML 1.2: 1.1 reads `guard: off` as false. Duplicate keys are errors."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((value for place, (tag, value) in enumerate(keys) if (tag, value) in keys[:place]), None)
        if twice is not None:
            raise yaml.MarkedYAMLError(problem=f"the key {twice!r} is given twice", problem_mark=node.start_mark)
        return node

    def compose_node(self, parent: Any, index: Any) -> Any:
        # A few lines of nested aliases can expand to a value that fills all memory when a message quotes it.
        node: Any = super().compose_node(parent, index)
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        pairs = isinstance(node, yaml.MappingNode)
        inside = [child for pair in children for child in pair] if pairs else children
        node.size = 1 + sum(getattr(child, "size", 1) for child in inside)
        if node.size > _LARGEST:
            raise yaml.MarkedYAMLError(
                problem=f"its aliases stand for more than {_LARGEST:,} values", problem_mark=node.start_mark
            )
        return node


_LARGEST = 1_000_000
_BOOL = "tag:yaml.org,2002:bool"
_IN_WORDS = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# As in YAML 1.2, 1e6 and 3e-4 are numbers: 1.1 wants a point and a sign, and reads them as text.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def read_yaml(path: Path) -> Any:
    """What the file holds."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not text in UTF-8: {error}") from None
    try:
        return yaml.load(text, _Loader)
    except Exception as error:
        raise ConfigError(f"{path}: not valid YAML: {_reason(error)}") from None


def parse_yaml(name: str, text: str) -> Any:
    """The value that `text` gives for the key `name`. Plain text has no comments: a path may hold ` #`."""
    try:
        value = yaml.load(text, _Loader)
    except Exception as error:
        reason = f" ({_reason(error)})" if isinstance(error, RecursionError) else ""
        raise ConfigError(f"{name} must be valid YAML, got {text[:100]!r}{reason}") from None
    return text.strip() if isinstance(value, str) and value and text.strip().startswith(value) else value


def _reason(error: Exception) -> str:
    """One line. PyYAML raises all kinds of exceptions: for deep nesting, long numbers, odd tags."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return " ".join(str(error).split()) or type(error).__name__


def typed(name: str, value: Any, kind: Any) -> Any:
    """The value as the annotated type, or an error; YAML reads 3e-4 as text, which counts as a number here."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kinds = typing.get_args(kind)
        if value is None and type(None) in kinds:
            return None
        kind = type(value) if type(value) in kinds else next(k for k in kinds if k is not type(None))
    if typing.get_origin(kind) is dict:
        return mapping(name, value)
    if kind is float and not isinstance(value, bool):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    if typing.get_origin(kind) is tuple and isinstance(value, list | tuple):
        kinds = typing.get_args(kind)
        if len(value) == len(kinds):
            return tuple(typed(f"{name}[{i}]", v, k) for i, (v, k) in enumerate(zip(value, kinds, strict=True)))
    elif isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        if kind is str and not is_text(str(value)):
            raise ConfigError(f"{name} must be text in UTF-8 without NUL, got {value!r}")
        return value
    pair = typing.get_args(kind) if typing.get_origin(kind) is tuple else ()
    expected = f"a list of {len(pair)} numbers" if pair else _IN_WORDS.get(kind, getattr(kind, "__name__", str(kind)))
    raise ConfigError(f"{name} must be {expected}, got {value!r}")


def is_text(value: str) -> bool:
    """Whether it can be used in a file name, a log and a terminal."""
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def mapping(name: str, value: Any) -> dict[str, Any]:
    """A copy of the value, which must be a mapping."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must hold key: value pairs, got {value!r}")
    return dict(value)


def check_one_of(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise on a value that is not among the choices."""
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
