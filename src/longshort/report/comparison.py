"""The numbers of a report: what each variant reached over its seeds, for a table and in a paragraph.

A value is None if it was not measured and NaN if it was not finite; the two are kept apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from longshort.runs import Run

MAX_LISTED = 4  # variants or runs that a sentence names one by one


@dataclass(frozen=True)
class Spread:
    """Mean, lowest and highest of the finite values of a variant's runs."""

    mean: float
    low: float
    high: float
    count: int
    not_finite: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        measured = [value for value in values if value is not None]
        finite = [value for value in measured if math.isfinite(value)]
        if not measured:
            return None
        lost = len(measured) - len(finite)
        if not finite:
            return cls(math.nan, math.nan, math.nan, 0, lost)
        return cls(math.fsum(finite) / len(finite), min(finite), max(finite), len(finite), lost)

    def overlaps(self, other: Spread) -> bool:
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The runs that differ by seed only, and what they reached."""

    name: str
    runs: tuple[Run, ...]

    def spread(self, measure: str) -> Spread | None:
        """The spread of the property `measure` of the runs."""
        return Spread.of(getattr(run, measure) for run in self.runs)

    @property
    def spikes(self) -> int:
        return sum(len(run.spikes) for run in self.runs)

    @property
    def parameters(self) -> str:
        return " / ".join(f"{count:,}" for count in sorted({run.parameters for run in self.runs}))

    @property
    def steps(self) -> str:
        return " / ".join(f"{step:,}" for step in sorted({run.last_step for run in self.runs}))

    @property
    def seeds(self) -> str:
        return ", ".join(str(run.seed) for run in self.runs)

    @property
    def status(self) -> str:
        states = [_state(run) for run in self.runs]
        counts = {state: states.count(state) for state in dict.fromkeys(states)}
        return ", ".join(state if count == len(states) else f"{count} {state}" for state, count in counts.items())


def _state(run: Run) -> str:
    return run.status if run.diverged_at is None else f"diverged at step {run.diverged_at:,}"


def group(runs: Sequence[Run]) -> list[Variant]:
    """Variants in the order in which they were named."""
    names = dict.fromkeys(run.variant for run in runs)
    return [Variant(name=name, runs=tuple(run for run in runs if run.variant == name)) for name in names]


def number(value: float, digits: int = 4) -> str:
    """Plain notation with `digits` significant digits and thousands apart.

    >>> number(2.0), number(12345.678), number(0.01236), number(3.2e9)
    ('2.000', '12,346', '0.01236', '3.200e+09')
    """
    if not math.isfinite(value):
        return "not finite"
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}"
    exponent = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def with_spread(spread: Spread | None, digits: int = 4) -> str:
    """`mean (low to high)` in one string, for prose."""
    if spread is None:
        return "not measured"
    if not spread.count:
        return "not finite"
    lost = f", {spread.not_finite} not finite" if spread.not_finite else ""
    if spread.count == 1:
        return number(spread.mean, digits) + lost
    return f"{number(spread.mean, digits)} ({number(spread.low, digits)} to {number(spread.high, digits)}{lost})"


def summary(variants: Sequence[Variant]) -> str:
    """One paragraph: what each variant reached, and how far the data support the comparison."""
    runs = [run for variant in variants for run in variant.runs]
    rewarded = all(run.final_reward is not None for run in runs)
    reached = _rewards(variants) if rewarded else _losses(variants)
    return " ".join([_opening(variants, runs), *reached, *_logits(variants), _spikes(variants, runs)])


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _listed(names: Sequence[str]) -> str:
    """
    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _opening(variants: Sequence[Variant], runs: Sequence[Run]) -> str:
    seeds = sorted({len(variant.runs) for variant in variants})
    each = " each" if len(variants) > 1 else ""
    over = _plural(seeds[0], "seed") + each if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds{each}"
    steps = sorted({run.last_step for run in runs})
    until = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
    what = f"{_plural(len(variants), 'variant')}, {over}" if len(variants) > 1 else f"{variants[0].name}, {over}"
    return f"{what}, trained for {until} steps."


def _rewards(variants: Sequence[Variant]) -> list[str]:
    """What reinforcement learning reached: rewards instead of losses."""
    found = [(variant, spread) for variant in variants if (spread := variant.spread("final_reward")) is not None]
    found.sort(key=lambda pair: -pair[1].mean)
    best, spread = found[0]
    if len(found) == 1:
        return [f"Its final validation reward is {with_spread(spread, 3)}."]
    others = "; ".join(_others(found[1:], 3))
    return [f"{best.name} has the highest final validation reward, {with_spread(spread, 3)}.", f"{others}."]


def _losses(variants: Sequence[Variant]) -> list[str]:
    measured = [(variant, variant.spread("final_loss")) for variant in variants]
    known = [(variant, spread) for variant, spread in measured if spread is not None]
    kind = "final validation loss"
    if not known:
        kind = "training loss at the end"
        known = [(v, spread) for v in variants if (spread := v.spread("training_loss")) is not None]
    finite = sorted(((v, s) for v, s in known if s.count), key=lambda pair: pair[1].mean)
    if not finite:
        return [f"No {kind} is finite." if known else "No loss was recorded."]
    best, spread = finite[0]
    name, second = "accuracy", best.spread("final_accuracy")
    if second is None:
        name, second = "perplexity", best.spread("final_perplexity")
    aside = f", {name} {with_spread(second)}" if second is not None and second.count else ""
    if len(variants) == 1:
        return [f"Its {kind} is {with_spread(spread)}{aside}."]
    said = [f"{best.name} has the lowest {kind}, {with_spread(spread)}{aside}."]
    others = [*_others(finite[1:]), *(f"{v.name} has no finite one" for v, other in known if not other.count)]
    if others:
        said.append(f"{'; '.join(others)}.")
    if lacking := {variant.name for variant in variants} - {variant.name for variant, _ in known}:
        names = _listed(sorted(lacking)) if len(lacking) <= MAX_LISTED else f"{len(lacking)} variants"
        said.append(f"None was recorded for {names}.")
    if len(finite) > 1:
        said += _caveat(best, spread, finite[1:])
    return said


def _others(found: Sequence[tuple[Variant, Spread]], digits: int = 4) -> list[str]:
    """What the variants after the best reached, in order; of many the ends only."""
    if len(found) <= MAX_LISTED:
        return [f"{variant.name} has {with_spread(spread, digits)}" for variant, spread in found]
    ends = [f"{number(spread.mean, digits)} ({variant.name})" for variant, spread in (found[0], found[-1])]
    return [f"The {len(found)} others range from {' to '.join(ends)}"]


def _caveat(best: Variant, spread: Spread, others: Sequence[tuple[Variant, Spread]]) -> list[str]:
    if len({run.last_step for variant, _ in others for run in variant.runs} | {r.last_step for r in best.runs}) > 1:
        return ["The runs did not reach the same step, so these losses are not after equal training."]
    if spread.count == 1 or any(other.count == 1 for _, other in others):
        return ["With one seed, a difference may be chance."]
    close = [variant.name for variant, other in others if spread.overlaps(other)]
    if close:
        return [f"Over seeds, the range of {best.name} overlaps with that of {_listed(close)}."]
    return [f"Over seeds, the range of {best.name} overlaps with no other."]


def _logits(variants: Sequence[Variant]) -> list[str]:
    found = [(variant, variant.spread("largest_logit")) for variant in variants]
    known = [(variant, spread) for variant, spread in found if spread is not None]
    if not known:
        return []
    said = [f"{number(s.high, 3) if s.count else 'not finite'} for {v.name}" for v, s in known]
    if len(variants) == 1:
        return [f"The largest |logit| seen is {number(known[0][1].high, 3)}."]
    finite = sorted(((s.high, text) for (_, s), text in zip(known, said, strict=True) if s.count))
    if len(finite) > MAX_LISTED:
        lost = [text for (_, s), text in zip(known, said, strict=True) if not s.count]
        said = [f"from {finite[0][1]} to {finite[-1][1]}", *lost]
    return [f"The largest |logit| seen: {', '.join(said)}."]


def _spikes(variants: Sequence[Variant], runs: Sequence[Run]) -> str:
    counts = [f"{variant.spikes} for {variant.name}" for variant in variants if variant.spikes]
    said = []
    diverged = [f"{run.label} at step {run.diverged_at:,}" for run in runs if run.diverged_at is not None]
    if diverged:
        said.append(f"Diverged: {', '.join(diverged)}.")
    if counts:
        said.append(f"Loss spikes recorded: {variants[0].spikes if len(variants) == 1 else ', '.join(counts)}.")
    elif not diverged:
        said.append("No loss spike was recorded.")
    unfinished = [f"{run.label} ({run.status})" for run in runs if run.status not in ("finished", "diverged")]
    if unfinished:
        many = f"{len(unfinished)} of {len(runs)} runs"
        said.append(f"Not finished: {many if len(unfinished) > MAX_LISTED else ', '.join(unfinished)}.")
    return " ".join(said)


def notes(runs: Sequence[Run]) -> tuple[str, ...]:
    """How runs diverged, where the largest logit leaves some out, and what is odd about the runs' files."""
    stories = [f"{run.label}: {run.end.reason}" for run in runs if run.end is not None and run.end.reason]
    lost = [
        f"{run.label}: some logits were not finite; its max |logit| is the largest finite one"
        for run in runs
        if not run.logits_are_finite and math.isfinite(run.largest_logit or 0)
    ]
    return (*stories, *lost, *(note for run in runs for note in run.notes))


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections to dotted keys.

    >>> flatten({"model": {"d": 64}, "seed": 1})
    {'model.d': 64, 'seed': 1}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
