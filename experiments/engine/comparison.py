"""What experiments compare: losses, accuracies and largest logits of two variants seed by seed (`evidence` says what
the differences show), and largest logits with two fixed bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from experiments.engine.evidence import FEWEST_SEEDS, Difference, paired, verdict_of
from experiments.engine.measures import Row, by_name
from experiments.engine.records import Data, Finding
from experiments.engine.tables import shown

CALM, EXPLODED = 50.0, 200.0
"""The paper's own numbers: LS-attention's largest |logit| stays below the first, plain attention's passes the second.
Every claim about logits is judged by these, over all steps of a run: a longer run may lose what a shorter one has."""


WHOLE_TEXT = "first_positions"
"""Known of a variant only where its losses are of the whole validation text, in all runs."""


def equal_steps(*rows: Row) -> bool:
    """Did all runs of these variants take the same number of steps? One that diverged may stop early: without a finite
    loss it is behind any other after any number.

    >>> equal_steps({"steps": [9, 9], "final_losses": [3.5, 3.6]}, {"steps": [9, 2], "final_losses": [3.5, None]})
    True
    """
    return len({step for row in rows for step in steps_to_a_loss(row)}) <= 1


def steps_to_a_loss(row: Row) -> list[int]:
    """The steps of the runs that have a finite loss."""
    steps: list[int] = row["steps"]
    losses = row.get("final_losses", steps)  # rows of tasks have none
    return [step for step, loss in zip(steps, losses, strict=True) if loss is not None]


def peak(row: Row) -> float:
    """The largest |logit| of a variant, for a verdict: one that is not finite counts as infinite."""
    return math.inf if row["logits_lost"] or row["max_logit"] is None else float(row["max_logit"])


def is_calm(row: Row) -> bool | None:
    """Did the logits of every seed stay below the bound for LS-attention? None where those of a run were never read."""
    return None if _is_unread(row) else peak(row) < CALM


def has_exploded(row: Row) -> bool | None:
    """Did the logits of every seed pass the bound for plain attention? Logits that are not finite count as passing.
    None where those of a run were never read."""
    if _is_unread(row):
        return None
    return min(math.inf if value is None else value for value in row["max_logits"]) > EXPLODED


def _is_unread(row: Row) -> bool:
    """Is there a run whose logits are not known, rather than not finite?"""
    peaks: list[float | None] = row["max_logits"]
    return peaks.count(None) > row["logits_lost"]


def losses_by_seed(row: Row) -> dict[int, float]:
    """Finite final losses by seed.

    >>> losses_by_seed({"seeds": [0, 1], "final_losses": [4.0, None]})
    {0: 4.0}
    """
    return {seed: loss for seed, loss in zip(row["seeds"], row["final_losses"], strict=True) if loss is not None}


def accuracies_by_seed(row: Row) -> dict[int, float]:
    """Accuracies by seed; empty where one was not measured, since the row does not say whose.

    >>> accuracies_by_seed({"seeds": [0, 4], "accuracies": [0.5, 0.75]})
    {0: 0.5, 4: 0.75}
    """
    seeds, shares = row["seeds"], row["accuracies"]
    return dict(zip(seeds, shares, strict=True)) if len(seeds) == len(shares) else {}


def peaks_by_seed(row: Row) -> dict[int, float]:
    """The logarithm of the largest |logit| by seed; one that is not finite counts as infinite."""
    peaks = zip(row["seeds"], row["max_logits"], strict=True)
    return {seed: math.inf if value is None else math.log(max(value, 1e-9)) for seed, value in peaks}


def difference(mine: Row, theirs: Row) -> Difference | None:
    """Of final losses, in nats; a loss that is not finite is larger than any other.

    >>> difference({"seeds": [0], "final_losses": [3.5]}, {"seeds": [0], "final_losses": [None]}).mean
    -inf
    """
    own, others = (_every_loss(row) for row in (mine, theirs))
    return paired(own, others)


def interval_of(found: Difference) -> str:
    """The ends of an interval for a table; fewer than three seeds have none.

    >>> [interval_of(Difference(-0.02, -0.051, 0.011, (-0.02,) * seeds)) for seeds in (3, 2)]
    ['-0.051 to +0.011', '']
    """
    return f"{found.low:+.3f} to {found.high:+.3f}" if found.seeds >= FEWEST_SEEDS else ""


def _every_loss(row: Row) -> dict[int, float]:
    return {**dict.fromkeys(row["seeds"], math.inf), **losses_by_seed(row)}


def is_lower(mine: Row, theirs: Row) -> bool | None:
    """Is the final loss of the first lower? None where no seed is common, or the interval does not say."""
    found = difference(mine, theirs)
    return None if found is None else found.is_below()


def has_lower_peak(mine: Row, theirs: Row) -> bool | None:
    """Is the largest |logit| of the first lower? None where no seed is common, the logits of a run were never read, or
    the interval does not say."""
    if _is_unread(mine) or _is_unread(theirs):
        return None
    found = paired(peaks_by_seed(mine), peaks_by_seed(theirs))
    return None if found is None else found.is_below()


def against(data: Data, name: str, others: Sequence[str]) -> dict[str, Difference]:
    """The difference of `name` to each of the others, where both have run with the same seeds and as far."""
    rows = by_name(data)
    alike = [other for other in others if {name, other} <= rows.keys() and are_alike(rows[name], rows[other])]
    found = {other: difference(rows[name], rows[other]) for other in alike}
    return {other: pair for other, pair in found.items() if pair is not None}


def are_alike(mine: Row, theirs: Row) -> bool:
    """Were both trained equally long, and are the losses of both of the whole validation text, or of a part?"""
    return equal_steps(mine, theirs) and (WHOLE_TEXT in mine) == (WHOLE_TEXT in theirs)


def against_each(data: Data, name: str, others: Sequence[str], words: str, *, lower: bool) -> Finding | None:
    """Whether `name` has the lower loss (or the higher one) than each of the others; None where one has not run."""
    return judged(against(data, name, others), len(others), words, lower=lower)


class Unit(NamedTuple):
    """What differences are shown in."""

    times: float
    digits: int
    name: str
    most: float = math.inf
    """No difference can be larger; an interval that goes past it gives way to the values."""

    def number(self, value: float, more: int = 0) -> str:
        """
        >>> NATS.number(-0.0001), NATS.number(-0.0001, more=1)
        ('+0.000', '-0.0001')
        """
        digits = self.digits + more
        return f"{round(self.times * value, digits) + 0.0:+.{digits}f}"

    def mean(self, found: Difference) -> str:
        return f"{self.number(found.mean)}{self.name}"

    def whole(self, found: Difference) -> str:
        """The mean and its interval, or the values of one seed or two; ends that decide get the digits that show it.

        >>> POINTS.whole(Difference(-0.02, -0.051, 0.011, (-0.02,) * 3))
        '-2.0, -5.1 to +1.1 points'
        >>> NATS.whole(Difference(1.0, 0.5, 1.5, (0.5, 1.5)))
        '+0.500, +1.500'
        >>> NATS.whole(Difference(-0.0075, -0.0148, -0.0002, (-0.0075,) * 3))
        '-0.0075, -0.0148 to -0.0002'
        >>> POINTS.whole(Difference(-0.3, -1.7, 1.1, (0.0, 0.0, -0.9)))
        '-30.0, by seed +0.0, +0.0, -90.0 points'
        """
        values = f"{', '.join(map(self.number, found.values))}{self.name}"
        if found.seeds < FEWEST_SEEDS:
            return values
        if max(abs(found.low), abs(found.high)) > self.most:
            return f"{self.number(found.mean)}, by seed {values}"
        more, nearest = 0, min(abs(found.low), abs(found.high))
        while found.sign() and round(self.times * nearest, self.digits + more) == 0:
            more += 1
        mean, low, high = (self.number(value, more) for value in (found.mean, found.low, found.high))
        return f"{mean}, {low} to {high}{self.name}"


NATS, POINTS = Unit(1, 3, ""), Unit(100, 1, " points", most=1)
MOST_NAMED = 3
"""Differences of one kind that a table of all claims names."""


def judged(
    pairs: Mapping[str, Difference],
    expected: int,
    words: str,
    *,
    lower: bool,
    unit: Unit = NATS,
) -> Finding | None:
    """In which comparisons the first has the lower value (or the higher one), whatever they are of."""
    if len(pairs) < expected:
        return None
    signs = {1: not lower, -1: lower, 0: None}
    cases = {name: signs[pair.sign()] for name, pair in pairs.items()}
    kinds = {words: True, "the other way round": False, "undecided": None}
    ours, brief = (
        told_by_case(cases, kinds, told)
        for told in (partial(_each, pairs, unit=unit), partial(_briefly, pairs, unit=unit))
    )
    seeds = tuple(pair.seeds for pair in pairs.values())
    short = brief if len(pairs) > MOST_NAMED else ""
    return Finding(ours=ours, verdict=verdict_of(list(cases.values())), seeds=seeds, brief=short)


def told_by_case(
    cases: Mapping[str, bool | None], kinds: Mapping[str, bool | None], told: Callable[[Sequence[str]], str]
) -> str:
    """What was found of each name, those with the same answer together, each kind of answer in its words.

    >>> told_by_case({"a": True, "b": None, "c": True}, {"lower": True, "undecided": None}, ", ".join)
    'lower: a, c; undecided: b'
    """
    parts = {words: [name for name, case in cases.items() if case is value] for words, value in kinds.items()}
    return "; ".join(f"{words}: {told(names)}" for words, names in parts.items() if names)


def _each(pairs: Mapping[str, Difference], names: Sequence[str], unit: Unit) -> str:
    return ", ".join(f"{name} ({unit.whole(pairs[name])})" for name in names)


def _briefly(pairs: Mapping[str, Difference], names: Sequence[str], unit: Unit) -> str:
    """Means alone, and of many their ends."""
    if len(names) <= MOST_NAMED:
        return ", ".join(f"{name} ({unit.mean(pairs[name])})" for name in names)
    means = [pairs[name].mean for name in names]
    ends = f"{unit.number(min(means))} to {unit.number(max(means))}{unit.name}"
    return f"{len(names)} of {len(pairs)} (means of {ends})"


LOGITS_RULE = (
    f"largest |logit| of LS-attention over all steps and seeds below {CALM:g}, that of plain attention in every seed "
    f"above {EXPLODED:g} or not finite (the paper's numbers, used as bounds on every page)"
)


def logits_against(ls: Row, plain: Row) -> Finding:
    """Compare LS-attention's largest |logit| and plain attention's, each with its bound."""
    steps = sorted({*ls["steps"], *plain["steps"]})
    taken = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    ours = f"LS {shown(ls['max_logit'], 3)}, plain {shown(plain['max_logit'], 3)}, the largest in {taken} steps"
    verdict = verdict_of([is_calm(ls), has_exploded(plain)])
    return Finding(ours=ours, verdict=verdict, seeds=seeds_of(ls, plain))


def seeds_of(*rows: Row) -> tuple[int, ...]:
    """How many seeds each of these variants has."""
    return tuple(len(row["seeds"]) for row in rows)
