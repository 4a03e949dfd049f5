"""The keys of a configuration as text: a list, one key in full, and a commented YAML file to start from."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import textwrap
from typing import Any

from longshort.train.settings.config import TrainConfig
from longshort.train.settings.keys import Key, config_keys, records
from longshort.train.settings.nearest import check_keys, check_sections
from longshort.train.settings.shipped import shipped_names, shipped_path
from longshort.train.settings.values import ConfigError, mapping, read_yaml

_WIDTH = 80
_HEADINGS = {"model": "The model and the reach of its heads."}
_SHORT = {
    r"an integer from (\d+) to 2\^\d\d - 1": r"at least \1",
    r"an integer of 64 bits, .*": "",
    r"a number from 1e-\d+ to 1e\+\d+": "above 0",
    r"a number from 0 to 1e\+\d+": "at least 0",
    r"(?:an integer|a number|two numbers) (.*)": r"\1",
    r"true or false": "",
}
"""Ranges without the machine's limits, which only the full text of a key gives."""


def describe(name: str | None = None) -> str:
    """Every key, the keys of one section, or one key in full; lines are at most 80 characters long."""
    if name is None:
        return "\n\n".join(_section(section) for section in records())
    section, _, key = name.partition(".")
    names = {section: [_own_name(key) for key in _keys(section)] for section in records()}
    check_sections({section: {}}, names)
    if not key:
        return _section(section)
    check_keys(section, {key: None}, names)
    return _in_full(next(found for found in _keys(section) if found.name == name))


def starting_file(name: str) -> str:
    """A configuration of the package as a YAML file with every key and its meaning.

    A key that the configuration leaves at its default is commented out, as `#key: value`, so both mean the same.
    """
    if name not in shipped_names():
        raise ConfigError(f"--preset must be one of {', '.join(shipped_names())}, got {name!r}")
    path, values = shipped_path(name), TrainConfig.load(name).to_dict()
    given = mapping(name, read_yaml(path))
    head = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    lines = [*head, "#", "# A line such as #key: value shows a default; remove the # to change it."]
    for section in records():
        own = given.get(section) or {}
        own = {"name": own} if isinstance(own, str) else own
        lines += ["", f"{section}:"]
        for key in _keys(section):
            key_name = _own_name(key)
            value = own.get(key_name, values[section].get(key_name))
            lines += _wrapped(f"{key.meaning}{_limits(key)}", "  # ")
            lines.append(f"  {'' if key_name in own else '#'}{key_name}: {_as_yaml(value)}")
    return "\n".join(lines)


def _keys(section: str) -> list[Key]:
    return [key for key in config_keys() if key.name.startswith(f"{section}.")]


def _own_name(key: Key) -> str:
    return key.name.partition(".")[2]


def _section(section: str) -> str:
    first_line = (inspect.getdoc(records()[section]) or "").split("\n")[0]
    lines = _wrapped(f"{section}: {_HEADINGS.get(section, first_line)}", "")
    for key in _keys(section):
        lines += _wrapped(f"{key.name} = {key.default}{_limits(key)}", "  ", " " * 6)
        lines += _wrapped(key.meaning, " " * 6)
    return "\n".join(lines)


def _in_full(key: Key) -> str:
    parts = {"type": key.type, "default": key.default, "range": key.range or "any"}
    lines = [line for label, text in parts.items() for line in _wrapped(f"{label + ':':9}{text}", "  ", " " * 11)]
    return "\n".join([key.name, *_wrapped(key.meaning, "  "), *lines])


def _limits(key: Key) -> str:
    """Type and range in brackets, to put after a name and default."""
    short = key.range
    for pattern, words in _SHORT.items():
        short, found = re.subn(f"^{pattern}$", words, short)
        if found:
            break
    return f" ({', '.join(part for part in (key.type, short) if part)})"


def _as_yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _wrapped(text: str, first: str, rest: str | None = None) -> list[str]:
    rest = first if rest is None else rest
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
