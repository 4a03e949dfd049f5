"""Plans within a budget, chosen by where the attention of each head was measured to go.

Query heads that share a KV head get one window, so that the cache shrinks with it. Two ways to spend a budget are
tried, each with and without the first keys, beside the pattern that `reach.budget` gives without any measurement;
which is best, the loss must say.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longshort.heads import HeadPlan
from longshort.hf.inspection.measure import FIRST, Measured
from longshort.reach import Costs, LayerReach, costs
from longshort.reach import budget as pattern_within
from longshort.reach.budgets import SMALLEST, check_budget
from longshort.reach.costs import mean_visible

NEGLIGIBLE = 1e-6
"""Attention that is not worth a wider window."""
Fits = Callable[[Sequence[HeadPlan]], bool]
WAYS = {
    "even": "every head loses at most the same share of its attention",
    "total": "all heads together lose the least attention",
    "pattern": "the pattern that experiments support, whatever was measured",
}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a plan may cost at the measured length; see `reach.budget`."""

    share: float | None = None
    """Keys that a query sees, and so FLOPs of attention, as a share of full attention's."""
    cache_bytes: float | None = None
    """Bytes of cache per token, over all layers."""

    def __post_init__(self) -> None:
        check_budget(self.cache_bytes, self.share)

    @classmethod
    def parse(cls, text: str) -> Budget:
        """A budget as it is typed: a share, or a name and a number, or both with a comma between them.

        >>> Budget.parse("0.25"), Budget.parse("share=0.5,cache_bytes=4096")
        (Budget(share=0.25, cache_bytes=None), Budget(share=0.5, cache_bytes=4096.0))
        """
        values: dict[str, float] = {}
        for part in text.split(","):
            name, _, number = part.rpartition("=")
            name = name.strip() or "share"
            try:
                if name in values or name not in ("share", "cache_bytes"):
                    raise ValueError
                values[name] = float(number)
            except ValueError:
                raise ValueError(
                    f"--budget must be a share from 0 to 1, share=NUMBER or cache_bytes=NUMBER, got {text!r}"
                ) from None
        return cls(**values)

    def allows(self, found: Costs) -> bool:
        """Whether a plan of these costs fits."""
        return found.share <= (self.share or 1.0) and found.cache_bytes <= (self.cache_bytes or float("inf"))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plan that fits the budget."""

    way: str
    """One of `WAYS`."""
    first: int
    """First keys that local heads see besides their window."""
    plans: tuple[HeadPlan, ...]
    costs: Costs
    lost: float
    """Attention beyond the windows, as a mean over heads."""


def plan_costs(plans: Sequence[HeadPlan], measured: Measured, value_bytes: int) -> Costs:
    """What plans cost at the measured length."""
    layers = [LayerReach(plan=plan) for plan in plans]
    sizes: dict[str, Any] = {"n_kv_heads": measured.n_kv_heads, "head_dim": measured.head_dim}
    return costs(layers, context=measured.length, value_bytes=value_bytes, **sizes)


def candidates(measured: Measured, budget: Budget, *, value_bytes: int = 2) -> list[Candidate]:
    """Plans within the budget; an error if no plan of windows of 8 keys or more fits."""
    found: list[Candidate] = []

    def fits(plans: Sequence[HeadPlan]) -> bool:
        return budget.allows(plan_costs(plans, measured, value_bytes))

    for first in (0, FIRST):
        menu = _Menu(measured, first, cached=budget.share is None)
        for way, search in (("even", menu.even), ("total", menu.total)):
            plans = search(fits)
            if plans is not None and plans not in [other.plans for other in found]:
                found.append(_candidate(way, first, plans, measured, value_bytes))
    plans = _pattern(measured, budget, value_bytes)
    if plans is not None and fits(plans):
        found.append(_candidate("pattern", 0, plans, measured, value_bytes))
    if not found:
        narrowest = _Menu(measured, 0, cached=False).plans(lambda group: 0)
        least = plan_costs(narrowest, measured, value_bytes)
        raise ValueError(
            f"the budget must allow windows of {SMALLEST} keys, which take {least.share:.1%} of full attention's keys "
            f"and {least.cache_bytes:,.0f} bytes of cache per token; got {_in_words(budget)}"
        )
    return found


def _in_words(budget: Budget) -> str:
    given = {"share": budget.share, "cache_bytes": budget.cache_bytes}
    return " and ".join(f"{name}={value:g}" for name, value in given.items() if value is not None)


def _candidate(way: str, first: int, plans: tuple[HeadPlan, ...], measured: Measured, value_bytes: int) -> Candidate:
    beyond, lost = measured.beyond(first=bool(first)), 0.0
    for layer, plan in enumerate(plans):
        for head, window in enumerate(plan.windows):
            lost += 0.0 if window is None else float(beyond[layer, head, min(window, measured.length)])
    heads = sum(plan.n_heads for plan in plans)
    return Candidate(
        way=way, first=first, plans=plans, costs=plan_costs(plans, measured, value_bytes), lost=lost / heads
    )


def _pattern(measured: Measured, budget: Budget, value_bytes: int) -> tuple[HeadPlan, ...] | None:
    """The pattern of `reach.budget`, within what the model's heads see."""
    try:
        chosen = pattern_within(
            n_layers=len(measured.plans),
            n_heads=measured.plans[0].n_heads,
            context=measured.length,
            n_kv_heads=measured.n_kv_heads,
            head_dim=measured.head_dim,
            value_bytes=value_bytes,
            share=budget.share,
            cache_bytes=budget.cache_bytes,
        )
    except ValueError:
        return None
    return tuple(
        replace(own, windows=tuple(map(_narrower, own.windows, layer.plan.windows)))
        for own, layer in zip(measured.plans, chosen.layers, strict=True)
    )


def _narrower(one: int | None, other: int | None) -> int | None:
    return min((w for w in (one, other) if w is not None), default=None)


class _Group:
    """The query heads of one KV head: the windows that they may get, what each costs and loses."""

    def __init__(self, measured: Measured, layer: int, group: int, first: int, *, cached: bool) -> None:
        plan, size = measured.plans[layer], measured.plans[layer].n_heads // measured.n_kv_heads
        self.heads = range(group * size, (group + 1) * size)
        own = plan.kv_windows(measured.n_kv_heads)[group]
        whole = min(own or measured.length, measured.length)
        beyond = measured.beyond(first=bool(first))[layer]
        self.windows: list[int | None] = []
        window = SMALLEST
        while window < whole:
            self.windows.append(window)
            window *= 2
        lost = [[float(beyond[head, w]) for head in self.heads] for w in self.windows if w is not None]
        self.lost = [sum(each) for each in lost] + [0.0]
        self.worst = [max(each) for each in lost] + [0.0]
        self.windows.append(own)
        if cached:
            self.keys = [float(min((w or whole) + first, whole)) for w in self.windows]
        else:
            self.keys = [size * mean_visible(w, measured.length, first) for w in self.windows]


Pick = dict[_Group, int]
"""The number of a window for every group."""


class _Menu:
    """The windows that every KV head of a model may get; `cached`: their price is that of the cache."""

    def __init__(self, measured: Measured, first: int, *, cached: bool) -> None:
        self.measured, self.first = measured, first
        kv_heads = range(measured.n_kv_heads)
        self.groups = [
            [_Group(measured, layer, g, first, cached=cached) for g in kv_heads] for layer in range(len(measured.plans))
        ]

    def plans(self, pick: Callable[[_Group], int]) -> tuple[HeadPlan, ...]:
        """The plans in which every group has the window of the number that `pick` gives."""
        return tuple(self._layer(own, row, pick) for own, row in zip(self.measured.plans, self.groups, strict=True))

    def _layer(self, own: HeadPlan, row: Sequence[_Group], pick: Callable[[_Group], int]) -> HeadPlan:
        windows = list(own.windows)
        for group in row:
            for head in group.heads:
                windows[head] = _narrower(own.windows[head], group.windows[pick(group)])
        firsts = own.firsts or (0,) * own.n_heads
        changed = [window != before for window, before in zip(windows, own.windows, strict=True)]
        seen = tuple(max(f, self.first) if cut else f for f, cut in zip(firsts, changed, strict=True))
        return replace(own, windows=tuple(windows), firsts=seen if any(seen) else None)

    def even(self, fits: Fits) -> tuple[HeadPlan, ...] | None:
        """The smallest loss of any head's attention that fits."""
        limits = sorted({lost for group in self._all() for lost in group.worst})
        picks = ({g: _narrowest_within(g, most) for g in self._all()} for most in limits)
        return self._filled(self._first_that_fits(list(picks), fits), fits)

    def total(self, fits: Fits) -> tuple[HeadPlan, ...] | None:
        """The smallest sum of what heads lose that fits, at one price of a key for all."""
        prices = sorted({price for group in self._all() for price in _prices(group)})
        picks = ({g: _best(g, price) for g in self._all()} for price in prices)
        return self._filled(self._first_that_fits(list(picks), fits), fits)

    def _first_that_fits(self, picks: list[Pick], fits: Fits) -> Pick | None:
        """Of picks from the dearest to the cheapest, the first that fits."""
        place = bisect_left(picks, True, key=lambda pick: fits(self.plans(pick.__getitem__)))
        return picks[place] if place < len(picks) else None

    def _filled(self, pick: Pick | None, fits: Fits) -> tuple[HeadPlan, ...] | None:
        """What is left of the budget, spent where a key saves most: heads that are alike would all pass or all fail."""
        if pick is None:
            return None
        wider = [(g, option, now) for g, now in pick.items() for option in range(now + 1, len(g.windows))]
        for group, option, _ in sorted(wider, key=lambda one: -_saved_per_key(*one)):
            tried, saved = pick | {group: option}, group.lost[pick[group]] - group.lost[option]
            if saved > NEGLIGIBLE and fits(self.plans(tried.__getitem__)):
                pick = tried
        return self.plans(pick.__getitem__)

    def _all(self) -> Iterator[_Group]:
        return (group for row in self.groups for group in row)


def _prices(group: _Group) -> list[float]:
    """Prices of a key at which the best window of the group may change, and one just above the highest."""
    found = [0.0]
    for i, keys in enumerate(group.keys):
        for more, lost in zip(group.keys[i + 1 :], group.lost[i + 1 :], strict=True):
            if more > keys:
                found.append((group.lost[i] - lost) / (more - keys) * (1 + 1e-9))
    return found


def _best(group: _Group, price: float) -> int:
    return min(range(len(group.keys)), key=lambda i: (group.lost[i] + price * group.keys[i], group.keys[i]))


def _narrowest_within(group: _Group, most: float) -> int:
    return next(i for i, lost in enumerate(group.worst) if lost <= most)


def _saved_per_key(group: _Group, option: int, now: int) -> float:
    return (group.lost[now] - group.lost[option]) / max(group.keys[option] - group.keys[now], 1e-9)
