"""What each attention head may see.

A `HeadPlan` gives every query head its reach: everything (global), or a window of keys (local) and optionally the first
keys of the sequence (streaming). Logits may decay with distance (LaS) or have a linear bias (ALiBi). Pure data and
validation; the op and the modules read it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from longshort.numeric import is_int, is_real

_T = TypeVar("_T")
_LARGEST_RATE = 1e30
"""The largest decay or slope: kernels hold it in fp32, and infinity times a distance of 0 would be NaN."""


@dataclass(frozen=True, kw_only=True)
class HeadPlan:
    """One entry per query head; frozen and hashable.

    >>> plan = HeadPlan.long_short(n_heads=6, n_global=1, window=50)
    >>> plan.windows
    (None, 50, 50, 50, 50, 50)
    >>> plan[1:3]
    HeadPlan(windows=(50, 50), decays=None, slopes=None, firsts=None)
    >>> HeadPlan.from_dict(plan.to_dict()) == plan
    True
    """

    windows: tuple[int | None, ...]
    """Visible keys per head, the current one included; None sees everything (global)."""
    decays: tuple[float, ...] | None = None
    """LaS: logits are multiplied by exp(-decay * distance) before the softmax. None: no head decays."""
    slopes: tuple[float, ...] | None = None
    """ALiBi: slope * distance is subtracted from the logits. None: no head is biased."""
    firsts: tuple[int, ...] | None = None
    """Keys at the start of a sequence that a local head sees besides its window (StreamingLLM). None: no head does."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "windows", _checked_windows(self.windows))
        for name in ("decays", "slopes"):
            object.__setattr__(self, name, _checked_rates(name, getattr(self, name), len(self.windows)))
        object.__setattr__(self, "firsts", _checked_firsts(self.firsts, self.windows))

    @classmethod
    def full(cls, n_heads: int) -> HeadPlan:
        """Plain multi-head attention: every head is global."""
        return cls(windows=(None,) * _positive("n_heads", n_heads))

    @classmethod
    def long_short(cls, n_heads: int, n_global: int, window: int) -> HeadPlan:
        """LS-attention (arXiv 2505.15548): `n_global` global heads first, the rest local with `window` visible keys."""
        _positive("n_heads", n_heads)
        if not is_int(n_global) or not 0 <= n_global <= n_heads:
            raise ValueError(f"n_global must be an integer from 0 to n_heads={n_heads}, got {n_global!r}")
        return cls(windows=(None,) * n_global + (_positive("window", window),) * (n_heads - n_global))

    @classmethod
    def streaming(cls, n_heads: int, first: int, recent: int, n_global: int = 0) -> HeadPlan:
        """Heads that see the `first` keys of a sequence and the `recent` ones (StreamingLLM, arXiv 2309.17453).

        `n_global` global heads come before them, as in DuoAttention (arXiv 2410.10819).

        >>> HeadPlan.streaming(n_heads=3, first=4, recent=64, n_global=1).firsts
        (0, 4, 4)
        """
        plan = cls.long_short(n_heads, n_global, _positive("recent", recent))
        return replace(plan, firsts=(_positive("first", first),) * n_heads)

    @classmethod
    def las(cls, n_heads: int, max_decay: float, window: int | None = None) -> HeadPlan:
        """LaS attention (arXiv 2311.16620): the first head does not decay, the last decays at `max_decay`.

        In between, each head decays twice as fast as the one before. (The paper spreads the rates exponentially over
        (0, max_decay] and says no more; the ratio of two is our choice.) A single head does not decay.

        All heads are global, or see `window` keys each, which makes the cost linear in the length.

        >>> HeadPlan.las(n_heads=4, max_decay=0.001).decays
        (0.0, 0.00025, 0.0005, 0.001)
        """
        _positive("n_heads", n_heads)
        if not is_real(max_decay) or not 0 <= max_decay <= _LARGEST_RATE:
            raise ValueError(f"max_decay must be a number from 0 to {_LARGEST_RATE:g}, got {max_decay!r}")
        if window is not None:
            _positive("window", window)
        decays = (0.0, *(max_decay * 2.0 ** (i - n_heads + 1) for i in range(1, n_heads)))
        return cls(windows=(window,) * n_heads, decays=decays)

    def with_alibi(self) -> HeadPlan:
        """The same plan with the ALiBi slopes of Press et al. (arXiv 2108.12409) for this number of heads.

        The paper gives the first head the steepest slope, and so the shortest reach. Here local heads take the steep
        slopes and global heads the gentle ones; otherwise the few global heads, which come first, would see least far.

        >>> HeadPlan.full(4).with_alibi().slopes
        (0.25, 0.0625, 0.015625, 0.00390625)
        >>> HeadPlan.long_short(n_heads=4, n_global=1, window=8).with_alibi().slopes
        (0.00390625, 0.25, 0.0625, 0.015625)
        """
        local_first = sorted(range(self.n_heads), key=lambda head: self.windows[head] is None)
        slopes = dict(zip(local_first, sorted(_alibi_slopes(self.n_heads), reverse=True), strict=True))
        if self.n_global == self.n_heads:
            slopes = dict(enumerate(_alibi_slopes(self.n_heads)))
        ordered = tuple(slopes[head] for head in range(self.n_heads))
        return replace(self, slopes=ordered)

    @property
    def n_heads(self) -> int:
        """Number of query heads."""
        return len(self.windows)

    @property
    def n_global(self) -> int:
        """Number of heads that see everything."""
        return sum(w is None for w in self.windows)

    @property
    def first_keys(self) -> tuple[int, ...]:
        """First keys that each head sees besides its window; 0 without."""
        return self.firsts or (0,) * self.n_heads

    def within(self, window: int) -> HeadPlan:
        """The plan with every window cut to at most this length.

        >>> HeadPlan(windows=(None, 8)).within(64).windows
        (64, 8)
        """
        return replace(self, windows=tuple(narrower(own, window) for own in self.windows))

    def kv_windows(self, n_kv_heads: int) -> tuple[int | None, ...]:
        """Reach of each KV head under grouped queries: the largest reach among its query heads.

        >>> HeadPlan(windows=(None, 8, 4, 2)).kv_windows(2)
        (None, 4)
        """
        groups = self._groups(self.windows, n_kv_heads)
        return tuple(None if None in group else max(w for w in group if w is not None) for group in groups)

    def kv_firsts(self, n_kv_heads: int) -> tuple[int, ...]:
        """First keys that each KV head must keep besides its window: the most among its query heads, 0 if it is global.

        >>> HeadPlan(windows=(None, 8, 4, 2), firsts=(0, 3, 0, 1)).kv_firsts(2)
        (0, 1)
        """
        most = [max(group) for group in self._groups(self.first_keys, n_kv_heads)]
        reaches = zip(self.kv_windows(n_kv_heads), most, strict=True)
        return tuple(0 if window is None else first for window, first in reaches)

    def of_heads(self, heads: Sequence[int]) -> HeadPlan:
        """The plan of these heads, in this order.

        >>> HeadPlan(windows=(None, 8, 4)).of_heads([2, 0]).windows
        (4, None)
        """
        rows = ((name, getattr(self, name)) for name in ("windows", "decays", "slopes", "firsts"))
        return HeadPlan(**{name: row and tuple(row[head] for head in heads) for name, row in rows})

    def _groups(self, row: Sequence[_T], n_kv_heads: int) -> list[Sequence[_T]]:
        if not is_int(n_kv_heads) or n_kv_heads < 1 or self.n_heads % n_kv_heads:
            raise ValueError(f"n_kv_heads must be a divisor of the plan's {self.n_heads} heads, got {n_kv_heads!r}")
        size = self.n_heads // n_kv_heads
        return [row[i : i + size] for i in range(0, self.n_heads, size)]

    def __getitem__(self, index: slice) -> HeadPlan:
        if not isinstance(index, slice):
            raise TypeError(f"index must be a slice, as in plan[2:5], got {index!r}")
        return self.of_heads(range(self.n_heads)[index])

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and None, ready for JSON or YAML; `firsts` only where a head has some."""
        values: dict[str, Any] = {
            "windows": list(self.windows),
            "decays": self.decays and list(self.decays),
            "slopes": self.slopes and list(self.slopes),
        }
        return values if self.firsts is None else values | {"firsts": list(self.firsts)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HeadPlan:
        """The inverse of `to_dict`."""
        unknown = set(data) - {"windows", "decays", "slopes", "firsts"}
        if unknown or "windows" not in data:
            raise ValueError(
                f"plan must have the keys windows, decays, slopes and firsts, got {', '.join(map(str, data))}"
            )
        return cls(**data)


def narrower(a: int | None, b: int | None) -> int | None:
    """The smaller of two windows, or of other bounds; None is no bound."""
    return b if a is None else a if b is None else min(a, b)


def _positive(name: str, value: int) -> int:
    if not is_int(value) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value!r}")
    return value


def _checked_windows(windows: Iterable[int | None]) -> tuple[int | None, ...]:
    if isinstance(windows, str | Set | Mapping) or not isinstance(windows, Iterable):
        raise ValueError(f"windows must be a sequence with one entry per head, got {windows!r}")
    checked = tuple(windows)
    if not checked:
        raise ValueError("windows must have at least one entry, got an empty sequence")
    for head, window in enumerate(checked):
        if window is not None and (not is_int(window) or window < 1):
            raise ValueError(f"windows[{head}] must be None (global) or an integer >= 1, got {window!r}")
    return checked


def _checked_rates(name: str, rates: Iterable[float] | None, n_heads: int) -> tuple[float, ...] | None:
    if rates is None:
        return None
    checked = _one_per_head(name, rates, n_heads)
    for head, rate in enumerate(checked):
        if not is_real(rate) or not 0 <= rate <= _LARGEST_RATE:
            raise ValueError(f"{name}[{head}] must be a number from 0 to {_LARGEST_RATE:g}, got {rate!r}")
    # All zeros means "none": plans that compute the same thing compare equal and take the same fast paths.
    return tuple(float(rate) for rate in checked) if any(checked) else None


def _one_per_head(name: str, values: Iterable[_T], n_heads: int) -> tuple[_T, ...]:
    if isinstance(values, str | Set | Mapping) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be None or a sequence with one entry per head, got {values!r}")
    entries = tuple(values)
    if len(entries) != n_heads:
        raise ValueError(f"{name} must have one entry per head, {n_heads} as windows has, got {len(entries)}")
    return entries


def _checked_firsts(firsts: Iterable[int] | None, windows: tuple[int | None, ...]) -> tuple[int, ...] | None:
    if firsts is None:
        return None
    checked = _one_per_head("firsts", firsts, len(windows))
    for head, first in enumerate(checked):
        if not is_int(first) or not 0 <= first < 2**30:
            raise ValueError(f"firsts[{head}] must be an integer from 0 to 2^30 - 1, got {first!r}")
    # A global head sees the first keys anyway: plans that compute the same thing compare equal.
    checked = tuple(0 if window is None else first for first, window in zip(checked, windows, strict=True))
    return checked if any(checked) else None


def _alibi_slopes(n_heads: int) -> tuple[float, ...]:
    """Geometric for a power of two; otherwise, as in the paper's code, every other slope of the next power is added."""
    base = 2 ** math.floor(math.log2(n_heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / base) for i in range(base)]
    finer = [2.0 ** (-8.0 * (i + 1) / (2 * base)) for i in range(0, 2 * base, 2)]
    return tuple(slopes + finer[: n_heads - base])
