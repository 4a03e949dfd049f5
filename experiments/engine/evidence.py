"""From seeds to a verdict: paired differences, their 95 % interval, and what may be said of a claim.

With three seeds or more, a case is true if the whole interval satisfies it, false if no part of it does, and None
(undecided) otherwise. Of two seeds the same is asked of both differences, and the verdict only says "seen twice"; of
one seed the difference decides, and the verdict says "seen once".
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

HOLDS, PARTLY, FAILS = "holds", "holds partly", "does not hold"
UNDECIDED, NOT_RUN = "undecided", "not run yet"
ONCE = {HOLDS: "seen once", PARTLY: "seen once, in part", FAILS: "not seen, one seed"}
TWICE = {HOLDS: "seen twice", PARTLY: "seen twice, in part", FAILS: "not seen, two seeds"}
"""What a verdict becomes where one side of a comparison has one seed or two."""
LEVEL = 0.95
CHANCE = 0.05
"""Counts differ if that has at most this probability by chance."""
FEWEST_SEEDS = 3
"""Fewer decide nothing: the t-interval of two mostly shows whether two differences happen to be alike."""

Seed = TypeVar("Seed", bound=Hashable)


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its 95 % interval, or of the range of two values."""

    mean: float
    low: float
    high: float

    def is_below(self, bound: float = 0.0) -> bool | None:
        """
        >>> [Interval(0, low, high).is_below() for low, high in ((-2, -1), (-1, 1), (0, 0), (1, 2))]
        [True, None, False, False]
        """
        return _decided(self.high < bound, self.low < bound)

    def is_above(self, bound: float = 0.0) -> bool | None:
        return _decided(self.low > bound, self.high > bound)

    def is_at_most(self, bound: float) -> bool | None:
        return _decided(self.high <= bound, self.low <= bound)

    def is_at_least(self, bound: float) -> bool | None:
        return _decided(self.low >= bound, self.high >= bound)

    def sign(self) -> int:
        """1 or -1 if the interval lies on that side of 0, and 0 if it contains it."""
        return (self.low > 0) - (self.high < 0)


@dataclass(frozen=True)
class Difference(Interval):
    """Paired differences and the interval of their mean."""

    values: tuple[float, ...]
    """Seed by seed."""

    @property
    def seeds(self) -> int:
        return len(self.values)


def _decided(all_of_it: bool, any_of_it: bool) -> bool | None:
    return True if all_of_it else None if any_of_it else False


def interval(values: Sequence[float]) -> Interval:
    """The mean and its t-interval; of two values their range, of one that value alone.

    An infinite value among others makes the interval infinite to both sides.

    >>> found = interval([1.0, 2.0, 3.0])
    >>> found.mean, round(found.low, 3), round(found.high, 3)
    (2.0, -0.484, 4.484)
    >>> interval([0.5, 1.5])
    Interval(mean=1.0, low=0.5, high=1.5)
    """
    if not values or any(math.isnan(value) for value in values):
        raise ValueError(f"values must be numbers, at least one, got {list(values)}")
    if min(values) == max(values):
        return Interval(values[0], values[0], values[0])
    if not all(map(math.isfinite, values)):
        return Interval(sum(values), -math.inf, math.inf)
    mean = statistics.fmean(values)
    if len(values) < FEWEST_SEEDS:
        return Interval(mean, min(values), max(values))
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = quantile(len(values) - 1) * error
    return Interval(mean, mean - half, mean + half)


def paired(mine: Mapping[Seed, float], theirs: Mapping[Seed, float]) -> Difference | None:
    """Mine less theirs over the seeds that both have; None if there are none. Two infinite values are a tie.

    >>> paired({0: 3.5, 1: 3.25}, {1: 3.5, 2: 9.0})
    Difference(mean=-0.25, low=-0.25, high=-0.25, values=(-0.25,))
    """
    common = [seed for seed in mine if seed in theirs]
    if not common:
        return None
    values = [0.0 if mine[seed] == theirs[seed] else mine[seed] - theirs[seed] for seed in common]
    found = interval(values)
    return Difference(found.mean, found.low, found.high, tuple(values))


@cache
def quantile(freedom: int) -> float:
    """Student's t that |t| exceeds in 5 % of cases, for so many degrees of freedom.

    >>> [round(quantile(freedom), 3) for freedom in (1, 2, 4, 1000)]
    [12.706, 4.303, 2.776, 1.962]
    """
    low, high = 0.0, 16.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < LEVEL else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The probability that |t| is no larger than this: the finite sum for whole degrees of freedom (Abramowitz and
    Stegun 26.7.3 and 26.7.4)."""
    odd, angle = freedom % 2, math.atan(t / math.sqrt(freedom))
    term, total = math.cos(angle) ** odd, 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    share = math.sin(angle) * total
    return 2 / math.pi * (angle + share) if odd else share


def every(cases: Collection[bool | None]) -> bool | None:
    """Are all of these true? None where one is undecided and none is false.

    >>> every([True, True]), every([True, None]), every([None, False])
    (True, None, False)
    """
    return False if False in cases else None if None in cases else True


def verdict_of(cases: Collection[bool | None], *, of: int | None = None) -> str:
    """The verdict on a claim that was tested in several cases: it holds in all of them, in some, or in none.

    Where fewer cases have run than the rule requires (`of`), the claim may already hold partly, and is open otherwise.

    >>> verdict_of([True, False]), verdict_of([True, True], of=3), verdict_of([False, None])
    ('holds partly', 'not run yet', 'undecided')
    """
    if any(cases) and not all(cases):
        return PARTLY
    if not cases or len(cases) < (of or 0):
        return NOT_RUN
    return HOLDS if all(cases) else UNDECIDED if None in cases else FAILS


def majority(signs: Sequence[int]) -> str:
    """The verdict on a claim that holds partly where it is better (1) in more cases than worse (-1). It fails only if
    the undecided ones (0) could not change that.

    >>> majority([1, 1]), majority([1, 1, -1]), majority([0, -1, -1]), majority([0, 0, -1])
    ('holds', 'holds partly', 'does not hold', 'undecided')
    """
    better, worse = signs.count(1), signs.count(-1)
    if better > worse:
        return HOLDS if better == len(signs) else PARTLY
    return FAILS if len(signs) - worse <= worse else UNDECIDED


def by_chance(some: int, of: int, others: int, of_others: int) -> float:
    """The probability that at least so many of the first runs are among those with an event, if it strikes all runs
    alike (Fisher's exact test, one-sided).

    >>> by_chance(3, 3, 0, 3), round(by_chance(2, 3, 0, 3), 3), by_chance(0, 3, 0, 3)
    (0.05, 0.2, 1.0)
    """
    struck, runs = some + others, of + of_others
    ways = (math.comb(of, k) * math.comb(of_others, struck - k) for k in range(some, min(of, struck) + 1))
    return sum(ways) / math.comb(runs, struck)


def by_bounds(difference: Interval, *, holds: float, partly: float) -> str:
    """The verdict on a difference that should be small: at most the first bound, or at least below the second.

    >>> [by_bounds(Interval(0, low, high), holds=1, partly=2) for low, high in ((0, 1), (0, 1.5), (1.5, 3), (2, 3))]
    ['holds', 'holds partly', 'undecided', 'does not hold']
    """
    if difference.is_at_most(holds):
        return HOLDS
    return {True: PARTLY, False: FAILS, None: UNDECIDED}[difference.is_below(partly)]


def by_seeds(verdict: str, seeds: Collection[int]) -> str:
    """The verdict, or its weaker form where a side has fewer than three seeds; without seeds (timings) as it is.

    >>> by_seeds(HOLDS, (3, 1)), by_seeds(FAILS, (2, 2)), by_seeds(UNDECIDED, (1,)), by_seeds(HOLDS, (3, 5))
    ('seen once', 'not seen, two seeds', 'undecided', 'holds')
    """
    fewest = min(seeds, default=FEWEST_SEEDS)
    return verdict if fewest >= FEWEST_SEEDS else (TWICE if fewest == 2 else ONCE).get(verdict, verdict)
