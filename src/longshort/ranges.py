"""What a value must be, in words and as a test. Which values these are, each module's own table says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from longshort.numeric import is_int


class Range(NamedTuple):
    """What a value must be, in words and as a test that NaN fails.

    >>> optional(count(8, "8")).check("heads", 9)
    Traceback (most recent call last):
    ValueError: heads must be None or an integer from 1 to 8, got 9
    """

    words: str
    holds: Callable[[Any], bool]

    def check(self, name: str, value: object) -> None:
        """Raise unless the value is in it."""
        check(name, value, self.words, self.holds(value))


SWITCH = Range("True or False", lambda value: isinstance(value, bool))
AT_LEAST_1 = Range("an integer >= 1", lambda value: is_int(value) and value >= 1)


def count(most: int = 2**31 - 1, words: str = "2^31 - 1") -> Range:
    """An integer of this range; without one, as many as there can be of something."""
    return Range(f"an integer from 1 to {words}", lambda value: is_int(value) and 1 <= value <= most)


def one_of(choices: Iterable[str]) -> Range:
    """One of these names."""
    return Range(f"one of {', '.join(choices)}", lambda value: value in tuple(choices))


def optional(right: Range) -> Range:
    """None, or what is in the range."""
    return Range(f"None or {right.words}", lambda value: value is None or right.holds(value))


def check(name: str, value: object, right: str, holds: object) -> None:
    """Raise where it does not hold; `right` says in words what the value must be."""
    if not holds:
        raise ValueError(f"{name} must be {right}, got {value!r}")
