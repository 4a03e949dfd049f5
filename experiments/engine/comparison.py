"""What a verdict compares: final losses of two variants seed by seed, and largest logits with two fixed bounds.

With two or more common seeds, losses are compared by the 95 % interval of their paired differences, and a case that the
interval does not decide is None. With one seed the difference itself decides, and `records` calls the verdict seen
once.
"""

from __future__ import annotations

import math
import statistics

from experiments.engine.measures import Row
from experiments.engine.records import FAILS, HOLDS, PARTLY, UNDECIDED, Finding, verdict_of
from experiments.engine.tables import shown

CALM, EXPLODED = 50.0, 200.0
"""The paper's own numbers: LS-attention's largest |logit| stays below the first, plain attention's passes the second.
Every claim about logits is judged by these, over all steps of a run: a longer run may lose what a shorter one has."""


def equal_steps(*rows: Row) -> bool:
    """Did all runs of these variants take the same number of steps?"""
    return len({step for row in rows for step in row["steps"]}) <= 1


def peak(row: Row) -> float:
    """The largest |logit| of a variant, for a verdict: one that is not finite counts as infinite."""
    return math.inf if row["logits_lost"] or row["max_logit"] is None else float(row["max_logit"])


def is_calm(row: Row) -> bool:
    """Did the logits of every seed stay below the bound for LS-attention?"""
    return peak(row) < CALM


def has_exploded(row: Row) -> bool:
    """Did the logits of every seed pass the bound for plain attention? Logits that are not finite count as passing."""
    return min(math.inf if value is None else value for value in row.get("max_logits", [peak(row)])) > EXPLODED


def losses_by_seed(row: Row) -> dict[int, float]:
    """Finite final losses by seed; data of earlier versions have them only for variants with a single seed.

    >>> losses_by_seed({"seeds": [0, 1], "final_losses": [4.0, None]})
    {0: 4.0}
    >>> losses_by_seed({"seeds": [3], "final_loss": 5.0})
    {3: 5.0}
    """
    finals = row["final_losses"] if "final_losses" in row else [row["final_loss"]] * (len(row["seeds"]) == 1)
    return {seed: loss for seed, loss in zip(row["seeds"], finals, strict=False) if loss is not None}


_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t at 97.5 % for 1, 2, ... degrees of freedom."""


def paired(mine: Row, theirs: Row) -> Row | None:
    """Differences of final losses seed by seed, their mean and its 95 % interval; None with fewer than two seeds.

    >>> found = paired({"seeds": [0, 1], "final_losses": [3.5, 3.4]}, {"seeds": [1, 0], "final_losses": [3.5, 3.6]})
    >>> [round(number, 6) for number in (found["mean"], *found["interval"])]
    [-0.1, -0.1, -0.1]
    """
    own, others = losses_by_seed(mine), losses_by_seed(theirs)
    differences = [own[seed] - others[seed] for seed in sorted(own.keys() & others.keys())]
    if len(differences) < 2:
        return None
    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    half = _T95[min(len(differences) - 1, len(_T95)) - 1] * spread / math.sqrt(len(differences))
    return {"differences": differences, "mean": mean, "interval": (mean - half, mean + half)}


def interval(mine: Row, theirs: Row) -> tuple[float, float]:
    """The interval in nats of the difference of two final losses: the 95 % interval of the paired differences with two
    or more common seeds, else the one difference twice. A loss that is not finite is larger than any other.

    >>> interval({"seeds": [0], "final_loss": 3.5}, {"seeds": [0], "final_loss": 3.75})
    (-0.25, -0.25)
    """
    own, other = (math.inf if row["final_loss"] is None else row["final_loss"] for row in (mine, theirs))
    found = paired(mine, theirs) if math.isfinite(own) and math.isfinite(other) else None
    if found is not None:
        low, high = found["interval"]
        return low, high
    return (0.0, 0.0) if own == other else (own - other, own - other)


def is_lower(mine: Row, theirs: Row) -> bool | None:
    """Is the final loss of the first lower? None where the interval over seeds contains 0."""
    low, high = interval(mine, theirs)
    return True if high < 0 else False if low >= 0 else None


def by_ratio(mine: Row, theirs: Row, *, holds: float, partly: float) -> str:
    """The verdict by the ratio of final perplexities; the whole interval over seeds must satisfy a bound."""
    low, high = interval(mine, theirs)
    if high <= math.log(holds):
        return HOLDS
    return PARTLY if high < math.log(partly) else FAILS if low >= math.log(partly) else UNDECIDED


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
