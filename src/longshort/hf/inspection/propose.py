"""Plans within a budget, chosen by where the attention of each head was measured to go.

Query heads that share a KV head get one window, so that the cache shrinks with it. Two ways to spend a budget are
tried, each with and without the first keys, beside the pattern that `reach.budget` gives without any measurement;
which is best, the loss must say.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from longshort.heads import HeadPlan, narrower
from longshort.hf.inspection.measure import FIRST, Measured
from longshort.reach import Costs, LayerReach, costs
from longshort.reach import budget as pattern_within
from longshort.reach.budgets import SMALLEST, check_budget
from longshort.reach.costs import plan_visible

NEGLIGIBLE = 1e-6
"""Attention that is not worth a wider window."""
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


def candidates(
    measured: Measured,
    budget: Budget,
    *,
    value_bytes: int = 2,
    firsts: Sequence[int] = (0, FIRST),
    bound: Collection[int] = (),
) -> list[Candidate]:
    """Plans within the budget; an error if no plan of windows of 8 keys or more fits.

    `firsts` are the numbers of first keys that local heads may see besides, each of which is tried. In the `bound`
    layers global heads stay global.
    """
    found: list[Candidate] = []
    for first in firsts:
        menu = _Menu(measured, budget, first, value_bytes, bound)
        for way, search in (("even", menu.even), ("total", menu.total)):
            plans = search()
            if plans is not None and plans not in [other.plans for other in found]:
                found.append(_candidate(way, first, plans, measured, value_bytes))
    plans = _pattern(measured, budget, value_bytes, bound)
    if plans is not None and budget.allows(plan_costs(plans, measured, value_bytes)):
        found.append(_candidate("pattern", 0, plans, measured, value_bytes))
    if not found:
        narrowest = _Menu(measured, budget, 0, value_bytes, bound).plans(lambda group: 0)
        least = plan_costs(narrowest, measured, value_bytes)
        beside = " beside the heads that must stay global" if any(plan.n_global for plan in narrowest) else ""
        raise ValueError(
            f"the budget must allow windows of {SMALLEST} keys{beside}, which take {least.share:.1%} of full "
            f"attention's keys and {least.cache_bytes:,.0f} bytes of cache per token; got {_in_words(budget)}"
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


def _pattern(
    measured: Measured, budget: Budget, value_bytes: int, bound: Collection[int]
) -> tuple[HeadPlan, ...] | None:
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
    made = []
    for number, (own, layer) in enumerate(zip(measured.plans, chosen.layers, strict=True)):
        pairs = zip(own.windows, layer.plan.windows, strict=True)
        windows = (None if w is None and number in bound else narrower(w, new) for w, new in pairs)
        made.append(replace(own, windows=tuple(windows)))
    return tuple(made)


class _Group:
    """The query heads of one KV head: the windows that they may get, from the narrowest to their own, what each loses
    of their attention, and the keys that queries see and a cache holds with it. `bound` ones stay global."""

    def __init__(self, measured: Measured, beyond: Tensor, layer: int, group: int, first: int, bound: bool) -> None:
        plan, length = measured.plans[layer], measured.length
        size = plan.n_heads // measured.n_kv_heads
        self.heads = range(group * size, (group + 1) * size)
        own = plan.kv_windows(measured.n_kv_heads)[group]
        self.windows: list[int | None] = []
        window = SMALLEST
        while window < min(own or length, length) and not (bound and own is None):
            self.windows.append(window)
            window *= 2
        lost = [[float(beyond[layer, head, w]) for head in self.heads] for w in self.windows]
        self.lost = [sum(each) for each in lost] + [0.0]
        self.worst = [max(each) for each in lost] + [0.0]
        self.windows.append(own)
        self.seen, self.held = [], []
        for sees in self.windows:
            cut = narrowed(plan, dict.fromkeys(self.heads, sees), first).of_heads(self.heads)
            self.seen.append(plan_visible(cut, length))
            (reach,), (more,) = cut.kv_windows(1), cut.kv_firsts(1)
            self.held.append(length if reach is None else min(reach + more, length))
        self.keys: Sequence[float] = self.seen
        """What counts as the price of a window."""


def narrowed(plan: HeadPlan, windows: Mapping[int, int | None], first: int) -> HeadPlan:
    """The plan with windows for some heads, no wider than they were; heads that lose keys see the `first` ones.

    >>> narrowed(HeadPlan(windows=(None, 8, 32)), {0: 16, 1: 16}, 4)
    HeadPlan(windows=(16, 8, 32), decays=None, slopes=None, firsts=(4, 0, 0))
    """
    new = tuple(narrower(w, windows.get(head)) for head, w in enumerate(plan.windows))
    seen = tuple(max(f, first) if w != old else f for f, w, old in zip(plan.first_keys, new, plan.windows, strict=True))
    return replace(plan, windows=new, firsts=seen if any(seen) else None)


Pick = dict[_Group, int]
"""The number of a window for every group."""


class _Menu:
    """The windows that every KV head of a model may get, and what the budget allows of them."""

    def __init__(
        self, measured: Measured, budget: Budget, first: int, value_bytes: int, bound: Collection[int]
    ) -> None:
        self.measured, self.first = measured, first
        beyond = measured.beyond(first=bool(first))
        self.rows = [
            [_Group(measured, beyond, layer, g, first, layer in bound) for g in range(measured.n_kv_heads)]
            for layer in range(len(measured.plans))
        ]
        self.groups = [group for row in self.rows for group in row]
        full = plan_costs([HeadPlan.full(plan.n_heads) for plan in measured.plans], measured, value_bytes)
        keys = sum(plan.n_heads for plan in measured.plans) * full.full_visible_keys
        self.most_seen = keys * (budget.share or 1.0)
        bytes_held = len(self.groups) * measured.length / full.full_cache_bytes
        self.most_held = bytes_held * (budget.cache_bytes or float("inf"))
        if budget.share is None:
            for group in self.groups:
                group.keys = group.held

    def plans(self, pick: Callable[[_Group], int]) -> tuple[HeadPlan, ...]:
        """The plans in which every group has the window of the number that `pick` gives."""
        made = []
        for own, row in zip(self.measured.plans, self.rows, strict=True):
            windows = {head: group.windows[pick(group)] for group in row for head in group.heads}
            made.append(narrowed(own, windows, self.first))
        return tuple(made)

    def even(self) -> tuple[HeadPlan, ...] | None:
        """The smallest loss of any head's attention that fits."""
        return self._filled(self._smallest({lost for group in self.groups for lost in group.worst}, _narrowest_within))

    def total(self) -> tuple[HeadPlan, ...] | None:
        """The smallest sum of what heads lose that fits, at one price of a key for all."""
        return self._filled(self._smallest({price for group in self.groups for price in _prices(group)}, _best))

    def _smallest(self, limits: set[float], choice: Callable[[_Group, float], int]) -> Pick | None:
        """What the groups choose at the smallest limit at which it fits; a higher limit makes a cheaper choice."""

        def pick(limit: float) -> Pick:
            return {group: choice(group, limit) for group in self.groups}

        ordered = sorted(limits)
        place = bisect_left(ordered, True, key=lambda limit: self._fits(*_taken(pick(limit))))
        return pick(ordered[place]) if place < len(ordered) else None

    def _fits(self, seen: float, held: float) -> bool:
        return seen <= self.most_seen * (1 + 1e-12) and held <= self.most_held * (1 + 1e-12)

    def _filled(self, pick: Pick | None) -> tuple[HeadPlan, ...] | None:
        """What is left of the budget, spent where a key saves most: heads that are alike would all pass or all fail."""
        if pick is None:
            return None
        seen, held = _taken(pick)
        wider = [(g, option, now) for g, now in pick.items() for option in range(now + 1, len(g.windows))]
        for group, option, _ in sorted(wider, key=lambda one: -_saved_per_key(*one)):
            now = pick[group]
            more = seen + group.seen[option] - group.seen[now], held + group.held[option] - group.held[now]
            if group.lost[now] - group.lost[option] > NEGLIGIBLE and self._fits(*more):
                pick[group] = option
                seen, held = more
        return self.plans(pick.__getitem__)


def _taken(pick: Pick) -> tuple[float, float]:
    """Keys that queries see, and that a cache holds."""
    return sum(g.seen[option] for g, option in pick.items()), sum(g.held[option] for g, option in pick.items())


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
