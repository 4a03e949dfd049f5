"""What counts as a number where an argument is checked: True and False do not."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TypeGuard


def is_int(value: object) -> TypeGuard[int]:
    """Python's own integers, which torch.compile can trace."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_real(value: object) -> TypeGuard[float]:
    """Python's own integers and floats, NaN and infinity included."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_integral(value: object) -> TypeGuard[int]:
    """Any integer, numpy's too."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Any real number, numpy's too."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_count(name: str, value: object, least: int = 1, most: int = 2**31 - 1) -> None:
    """Raise unless it is an integer in this range; without one, unless there can be so many of something."""
    if not is_integral(value) or not least <= value <= most:
        limit = "2^31 - 1" if most == 2**31 - 1 else str(most)
        raise ValueError(f"{name} must be an integer from {least} to {limit}, got {value!r}")
