"""A number with its unit and where it comes from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MEASURED, ASSUMED, COMPUTED = "measured", "assumed", "computed"
"""Timed on a GPU (the note names the file); taken from a data sheet or a guess; worked out from those by a formula."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of a plan."""

    name: str
    value: float
    unit: str
    origin: str
    note: str = ""
    """The formula or the source."""


def total(figures: Iterable[Figure]) -> float:
    """The sum of their values."""
    return sum(figure.value for figure in figures)
