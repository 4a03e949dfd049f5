"""What models answer: shares of right answers by kind, length and distance, seed by seed. Tables and a figure of them,
and what they show of plans beside full attention, of other lengths and of YaRN.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any, NamedTuple

from experiments.engine import comparison, figures, measures, tables
from experiments.engine.evidence import FEWEST_SEEDS, Difference, every, paired, verdict_of
from experiments.engine.measures import Row
from experiments.engine.records import Data, Finding
from experiments.engine.tables import percent
from longshort.data.tasks.retrieval import KINDS

CLOSE, NEARLY = 0.02, 0.1
"""Two points of accuracy, between plans; ten, between lengths."""
WITHIN: dict[str, bool | None] = {"within": True, "below": False, "undecided": None}
EARLIER: dict[str, bool | None] = {"sooner": True, "not sooner": False, "undecided": None}
"""What may be found of a plan, in words."""
STEPS = comparison.Unit(1, 0, " steps")
LEARNED = 0.5
"""The share that full attention must have right for a kind to decide anything."""
NOTHING = 0.01
"""Less than this at every distance needs no table."""
APART, PARTED = 0.1, 0.5
"""Seeds further apart are shown one by one; seeds that part have no interval."""
OTHER_LENGTHS = {
    0.5: "At half the length",
    2: "At twice the length, past the context of the training",
    4: "At four times the length",
    8: "At eight times the length",
}
"""What is also asked, in lengths of the fine-tuning."""
RECALL = "recall"
NEEDLES = tuple(kind for kind in KINDS if kind.startswith("needle"))
LENGTHENED, CHAINED = "needles-books", "variables"
"""The kinds that the figure shows by length."""
YARN_MARK = ", YaRN"

RULE = (
    f"within if the paired 95 % intervals over at least {FEWEST_SEEDS} seeds all lie above -2 points, not if one lies "
    "below, undecided otherwise: holds if for all of these plans, partly if for some; only where full attention has "
    f"{LEARNED:.0%} right"
)
SOONER = (
    f"steps to {LEARNED:.0%} right, twice the last step if never: sooner if the paired 95 % interval over at least "
    f"{FEWEST_SEEDS} seeds lies below 0, undecided if it contains 0 or the mean is not more than the steps between two "
    "evaluations: holds if for all of these plans, partly if for some"
)
FAR_RULE = (
    f"more if the paired 95 % interval of the difference over at least {FEWEST_SEEDS} seeds lies above 0, undecided if "
    "it contains 0"
)
SLOWED_RULE = (
    "needles found, the mean of the four kinds, the others with the rotary angles of global heads slowed for 16,384 "
    f"tokens: {FAR_RULE}"
)


def _at_length(row: Row, kind: str, times: float = 1, *, yarn: bool = False) -> list[float]:
    """Shares seed by seed at the length of the fine-tuning, or so many times it; with YaRN, where that was asked."""
    found: list[float] = (
        row.get("shares_yarn" if yarn else "shares", {}).get(kind, {}).get(str(int(times * row["length"])), [])
    )
    return found


def _at_distance(row: Row, name: str) -> list[float]:
    found: list[float] = row["distances"].get(name, [])
    return found


def _shown(values: Sequence[float], seeds: int = 0) -> str:
    """The mean; the seeds too, where they part, or how many there are, where only some of them were asked.

    >>> _shown([0.99, 0.97]), _shown([1.0, 0.0]), _shown([0.99], 3)
    ('98.0 %', '50.0 % (100, 0)', '99.0 % (1 of 3 seeds)')
    """
    if not values:
        return ""
    parted = max(values) - min(values) > APART
    notes = [", ".join(f"{100 * value:.0f}" for value in values)] if parted else []
    notes += [f"{len(values)} of {seeds} seeds"] if len(values) < seeds else []
    return percent(statistics.fmean(values)) + (f" ({'; '.join(notes)})" if notes else "")


def table(data: Data) -> str:
    kinds = [kind for kind in KINDS if any(kind in row["shares"] for row in data["rows"])]
    lines = [
        (row["variant"], len(row["seeds"]), *(_shown(_at_length(row, kind)) for kind in kinds), row["diverged"])
        for row in data["rows"]
    ]
    return tables.markdown(("plan", "seeds", *kinds, "diverged"), lines)


def more(data: Data) -> str:
    rows = data["rows"]
    names = sorted({name for row in rows for name in row["distances"]}, key=_near)
    parts = [_differences(rows)] if any(row["variant"] == "full" for row in rows) else []
    for key, words in (("distances", "Recall"), ("distances_before", "Recall before the fine-tuning")):
        near = [(row["variant"], *(_shown(row.get(key, {}).get(name, ())) for name in names)) for row in rows]
        most = max((share for row in rows for shares in row.get(key, {}).values() for share in shares), default=None)
        if most is not None and most < NOTHING:
            parts.append(f"{words}: at most {100 * most:.1f} % at any distance.")
        elif most is not None:
            text = f"{words}, by the distance back to the pair, in tokens"
            parts.append(f"{text}:\n\n{tables.markdown(('plan', *names), near)}")
    for times, words in OTHER_LENGTHS.items():
        lines = [
            (
                f"{row['variant']}{YARN_MARK if yarn else ''}",
                *(_shown(_at_length(row, kind, times, yarn=yarn), len(row["seeds"])) for kind in KINDS),
            )
            for yarn in (False, True)
            for row in rows
            if any(_at_length(row, kind, times, yarn=yarn) for kind in KINDS)
        ]
        if lines:
            parts.append(f"{words}:\n\n{tables.markdown(('plan', *KINDS), lines)}")
    when = [(row["variant"], *(", ".join(map(str, row["half_at"].get(kind, ()))) for kind in KINDS)) for row in rows]
    words = "The first evaluated step at which half of the answers are right, seed by seed; twice the last one if never"
    parts.append(f"{words}:\n\n{tables.markdown(('plan', *KINDS), when)}")
    return "\n\n".join(parts)


def _differences(rows: Sequence[Row]) -> str:
    full = next(row for row in rows if row["variant"] == "full")
    lines = [(row["variant"], *(_points(row, full, kind) for kind in KINDS)) for row in rows if row is not full]
    words = (
        "Points above full attention, and the paired 95 % interval over seeds; the seeds themselves where there are "
        f"fewer than {FEWEST_SEEDS} or they are more than {100 * PARTED:.0f} points apart"
    )
    return f"{words}:\n\n{tables.markdown(('plan', *KINDS), lines)}"


def _points(mine: Row, full: Row, kind: str) -> str:
    pair = _pair(mine, full, partial(_at_length, kind=kind))
    if pair is None:
        return ""
    mean = f"{100 * pair.mean:+.1f}"
    own, others = (dict(zip(row["seeds"], _at_length(row, kind), strict=True)) for row in (mine, full))
    seeds = sorted({*own} & {*others})
    if any(max(shares.values()) - min(shares.values()) > PARTED for shares in (own, others)):
        return f"{mean} ({', '.join(f'{100 * (own[seed] - others[seed]):+.0f}' for seed in seeds)})"
    if pair.seeds < FEWEST_SEEDS:
        return ", ".join(f"{100 * value:+.1f}" for value in pair.values)
    return f"{mean} ({100 * pair.low:+.1f} to {100 * pair.high:+.1f})"


def _near(distance: str) -> int:
    return int(distance.partition("-")[0])


def _pair(mine: Row, theirs: Row, values: Callable[[Row], Sequence[float]]) -> Difference | None:
    """The paired differences of any values that rows have seed by seed."""
    if any(len(values(row)) != len(row["seeds"]) for row in (mine, theirs)):
        return None
    own, others = (dict(zip(row["seeds"], values(row), strict=True)) for row in (mine, theirs))
    return paired(own, others)


class _Case(NamedTuple):
    """What was found of one plan, and the difference that says so."""

    found: bool | None
    pair: Difference
    place: str = ""
    """Where it was measured: a kind, or a distance."""


def _lowest(pairs: Mapping[str, Difference | None], by: float = CLOSE) -> _Case:
    """Is a plan at most so much below at every place? With the difference whose interval reaches farthest down."""
    measured = {name: pair for name, pair in pairs.items() if pair is not None}
    lowest = min(measured, key=lambda name: measured[name].low)
    cases = [None if pair is None else pair.is_at_least(-by) for pair in pairs.values()]
    return _Case(every(cases), measured[lowest], f" at {lowest}")


def _told(
    cases: Mapping[str, _Case], words: Mapping[str, bool | None], unit: comparison.Unit = comparison.POINTS
) -> dict[str, str]:
    """A finding in words, plan by plan: with intervals, and with means alone for the table of all claims."""

    def told(names: Sequence[str], how: Callable[[Difference], str]) -> str:
        return ", ".join(f"{name} ({how(cases[name].pair)}{cases[name].place})" for name in names)

    found = {name: case.found for name, case in cases.items()}
    ways = {"ours": unit.whole, "brief": unit.mean}
    return {key: comparison.told_by_case(found, words, partial(told, how=how)) for key, how in ways.items()}


def _judged(
    data: Data, judged: Sequence[str], compared: Callable[[Row, Row], Mapping[str, Difference | None]]
) -> Finding | None:
    """Each of the judged plans against full attention; None where one has not run."""
    rows = measures.by_name(data)
    if not {"full", *judged} <= rows.keys():
        return None
    pairs = {name: compared(rows[name], rows["full"]) for name in judged}
    if not any(pairs.values()):
        return _not_learned(rows, judged)
    if any(not found or all(pair is None for pair in found.values()) for found in pairs.values()):
        return None
    cases = {name: _lowest(found) for name, found in pairs.items()}
    shared = [pair.seeds for found in pairs.values() for pair in found.values() if pair is not None]
    seeds = (*comparison.seeds_of(*(rows[name] for name in (*judged, "full"))), *shared)
    return Finding(**_told(cases, WITHIN), verdict=verdict_of([case.found for case in cases.values()]), seeds=seeds)


def _not_learned(rows: Mapping[str, Row], judged: Sequence[str]) -> Finding:
    """Full attention itself has too little right to compare with."""
    seeds = comparison.seeds_of(*(rows[name] for name in (*judged, "full")))
    return Finding(ours=f"full attention has less than {LEARNED:.0%} right", verdict=verdict_of([None]), seeds=seeds)


def _learned(row: Row, kind: str) -> bool:
    shares = _at_length(row, kind)
    return bool(shares) and statistics.fmean(shares) >= LEARNED


def distance(data: Data, judged: Sequence[str]) -> Finding | None:
    def compared(mine: Row, full: Row) -> dict[str, Difference | None]:
        if not _learned(full, RECALL):
            return {}
        names = sorted({*mine["distances"]} & {*full["distances"]}, key=_near)
        return {f"a distance of {name}": _pair(mine, full, partial(_at_distance, name=name)) for name in names}

    return _judged(data, judged, compared)


def every_kind(data: Data, judged: Sequence[str]) -> Finding | None:
    def compared(mine: Row, full: Row) -> dict[str, Difference | None]:
        kinds = [kind for kind in KINDS if kind != RECALL and _learned(full, kind)]
        return {kind: _pair(mine, full, partial(_at_length, kind=kind)) for kind in kinds}

    return _judged(data, judged, compared)


def holds_out(data: Data, judged: Sequence[str]) -> Finding | None:
    """Needles at eight times the length against the same model's at the length."""
    rows, times = measures.by_name(data), max(OTHER_LENGTHS)
    cases, seeds = {}, []
    for name in judged:
        row = rows.get(name)
        if row is None or not row["seeds"]:  # its runs were not asked yet
            return None
        if any(len(_at_length(row, kind, times)) != len(row["seeds"]) for kind in NEEDLES):
            return None
        pairs = {kind: _drop(row, kind, times) for kind in NEEDLES}
        cases[name] = _lowest(pairs, NEARLY)
        seeds += [pair.seeds for pair in pairs.values() if pair is not None]
    verdict = verdict_of([case.found for case in cases.values()])
    return Finding(**_told(cases, WITHIN), verdict=verdict, seeds=tuple(seeds))


def farther(
    data: Data, names: Sequence[str], others: Sequence[str], *, kinds: Sequence[str] = NEEDLES, slowed: bool = True
) -> Finding | None:
    """Right answers at eight times the length, the mean of these kinds: plans against others, these with YaRN if
    `slowed`."""
    rows, pairs = measures.by_name(data), {}
    for name, other in product(names, others):
        if name in rows and other in rows:
            mine, theirs = _far(rows[name], kinds), _far(rows[other], kinds, yarn=slowed)
            if (pair := paired(mine, theirs)) is not None:
                pairs[f"{name} and {other}"] = pair
    more = "the first has more"
    return comparison.judged(pairs, len(names) * len(others), more, lower=False, unit=comparison.POINTS)


def _far(row: Row, kinds: Sequence[str], *, yarn: bool = False) -> dict[int, float]:
    """The mean over kinds, by seed."""
    times = max(OTHER_LENGTHS)
    seeds = row.get("seeds_of_shares_yarn" if yarn else "seeds_of_shares", {}).get(str(times * row["length"]), ())
    shares = [_at_length(row, kind, times, yarn=yarn) for kind in kinds]
    return dict(zip(seeds, map(statistics.fmean, zip(*shares, strict=True)), strict=True))


def _drop(row: Row, kind: str, times: float) -> Difference | None:
    far, near = (dict(zip(row["seeds"], _at_length(row, kind, at), strict=True)) for at in (times, 1))
    return paired(far, near)


def one_behind_two(data: Data, one: str, two: str) -> Finding | None:
    rows = measures.by_name(data)
    if not {one, two, "full"} <= rows.keys():
        return None
    pair = _pair(rows[one], rows[two], lambda row: _at_length(row, RECALL))
    if pair is None:
        return None
    seeds = (*comparison.seeds_of(rows[one], rows[two]), pair.seeds)
    if not any(_learned(rows[name], RECALL) for name in (one, two)):
        return Finding(ours=f"neither has {LEARNED:.0%} right", verdict=verdict_of([None]), seeds=seeds)
    return Finding(ours=f"{100 * pair.mean:+.1f} points", verdict=verdict_of([pair.is_below()]), seeds=seeds)


def sooner(data: Data, judged: Sequence[str]) -> Finding | None:
    rows = measures.by_name(data)
    if not {"full", *judged} <= rows.keys():
        return None
    if not _learned(rows["full"], RECALL):
        return _not_learned(rows, judged)
    pairs = {name: _pair(rows[name], rows["full"], lambda row: row["half_at"].get(RECALL, ())) for name in judged}
    found = {name: pair for name, pair in pairs.items() if pair is not None}
    if len(found) < len(judged):
        return None
    seeds = comparison.seeds_of(*(rows[name] for name in (*judged, "full")))
    seeds = (*seeds, *(pair.seeds for pair in found.values()))
    between = _between_evaluations(data)
    cases = {name: _Case(pair.is_below() if abs(pair.mean) > between else None, pair) for name, pair in found.items()}
    verdict = verdict_of([case.found for case in cases.values()])
    return Finding(**_told(cases, EARLIER, STEPS), verdict=verdict, seeds=seeds)


def _between_evaluations(data: Data) -> int:
    """Steps from one evaluation to the next, at most."""
    evaluated = [[step for step, _ in curve["kinds"].get(RECALL, ())] for curve in data.get("curves", ())]
    return max((b - a for steps in evaluated for a, b in pairwise(steps)), default=0)


def figure(data: Data, lined: Sequence[str], far: Sequence[str] = ()) -> Any:
    """Recall by plan and distance; right answers over the steps for the plans of `lined`, and by length for those of
    `far` (else the same), where a name may end in the mark of YaRN."""
    from longshort.report.charts import drawing

    rows = data["rows"]
    names = [row["variant"] for row in rows if row["variant"] in lined]
    cells = [
        {"plan": f"{row['variant']}, {seed}", "distance": name, "accuracy": row["distances"][name][place]}
        for row in rows
        for place, seed in enumerate(row["seeds"])
        for name in sorted(row["distances"], key=_near)
    ]
    axes: dict[str, Any] = {"x": "distance", "y": "plan", "x_title": "distance, in tokens", "y_title": "plan, seed"}
    axes |= {"value": "accuracy", "value_title": "right", "log": False, "domain": (0.0, 1.0)}
    height = max(400, 14 * sum(len(row["seeds"]) for row in rows))
    recall = figures.heat(cells, title=RECALL, width=260, height=height, **axes)
    steps = [
        {"series": curve["variant"], "detail": str(curve["seed"]), "step": step, "accuracy": share}
        for curve in data["curves"]
        if curve["variant"] in names
        for step, share in curve["kinds"].get(CHAINED, ())
    ]
    lengthened = [name for name in far if _by_length(data, LENGTHENED, [name])] or names
    together = list(dict.fromkeys([*names, *lengthened]))
    shape: dict[str, Any] = {"y": "accuracy", "share": True, "height": height // 2 - 60, "together": together}
    panels = []
    if steps:
        axes = {"x": "step", "x_title": "step", "y_title": "right answers, validation", "width": 570}
        panels.append(figures.lines(steps, title=f"{CHAINED}, while they learn", names=names, **axes, **shape))
    shape |= {"log_x": True, "points": True, "x": "length", "x_title": "length, in tokens", "width": 265}
    shape |= {"names": lengthened}
    by_length = [
        figures.lines(lengths, title=f"{kind}, by length", y_title="" if place else "right answers, test", **shape)
        for place, kind in enumerate((LENGTHENED, CHAINED))
        if (lengths := _by_length(data, kind, shape["names"]))
    ]
    alt = drawing()
    if by_length:
        panels.append(alt.hconcat(*by_length))
    own: dict[str, Any] = {"color": "independent", "strokeDash": "independent"}
    return alt.hconcat(recall, alt.vconcat(*panels).resolve_scale(**own)).resolve_scale(**own)


def _by_length(data: Data, kind: str, names: Sequence[str]) -> list[Row]:
    """The mean over seeds and their range at every length, plan by plan."""
    rows, found = measures.by_name(data), []
    for name in names:
        row = rows.get(name.removesuffix(YARN_MARK), {})
        shares = row.get("shares_yarn" if name.endswith(YARN_MARK) else "shares", {}).get(kind, {})
        for length in sorted(shares, key=int):
            point = {"series": name, "detail": "", "length": int(length), "accuracy": statistics.fmean(shares[length])}
            found.append(point | {"low": min(shares[length]), "high": max(shares[length])})
    return found
