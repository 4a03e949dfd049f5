"""Does thinking in mixtures of tokens add anything to reinforcement learning?

SofT-GRPO (arXiv 2511.06411) reports a higher Pass@32 than GRPO at an equal Pass@1. But at its tau of 0.1 a mixture is
nearly one token, the score of its paper is that of the token with added noise, and its rollouts are truncated while
GRPO's are not. Here the parts are taken apart, on a task where a thought may hold several things at once (frontiers)
and on one where it may not (chains). `settings` says what is trained, `cells` in which order, `cell` runs one training,
`results` reads them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from experiments.engine import measures, tables
from experiments.engine.evidence import FAILS, HOLDS, UNDECIDED, verdict_of
from experiments.engine.records import Claim, Data, Experiment, Finding
from experiments.engine.tables import percent
from experiments.soft_thinking.cells import measure
from experiments.soft_thinking.results import KS, READINGS, Gain, collect, gain, judged, own_reading
from experiments.soft_thinking.settings import RATE_SEED, START, TASKS, TAU
from longshort.rl import FORMS

NAME = "soft-thinking"
A, B = TASKS
SOFT = ("soft-code", "soft-paper")
LARGER = (f"{TAU}0.5", f"{TAU}1")
COLLAPSED = 0.8
NOISIER = 0.5
SMOOTHED = 10
"""Steps over which the figure averages rewards."""


def table(data: Data) -> str:
    """Means over the seeds that are judged; over all where none is."""
    of_judged = measures.by_name(judged(data))
    header = ("variant", "seeds", "lr", *(f"Pass@{k}, {reading}" for reading in READINGS for k in KS), "reward kept")
    lines = [
        (
            row["variant"],
            len(row["seeds"]),
            f"{row['rate']:g}",
            *(_mean(row["passes"][reading].get(str(k))) for reading in READINGS for k in KS),
            _mean(row.get("kept")),
        )
        for row in (of_judged.get(row["variant"], row) for row in data["rows"])
    ]
    return tables.markdown(header, lines)


def _mean(values: Sequence[float] | None) -> str:
    return percent(statistics.fmean(values)) if values else ""


def more(data: Data) -> str:
    """Every seed, every difference to GRPO, the choice of learning rates, and the signal to noise of each score."""
    parts = [f"Seed by seed, each variant read in its own way:\n\n{_seed_table(data)}"]
    lines = []
    for row in judged(data)["rows"]:
        if row["method"] not in (START, "grpo"):
            found = [gain(judged(data), row["variant"], f"{row['task']}-grpo", k) for k in KS]
            lines.append((row["variant"], *("" if one is None else str(one) for one in found)))
    parts.append(
        "Difference to `grpo` in points, of the seeds that are judged, each variant read in its own way, paired by "
        "seed, with its 95 % interval over seeds:\n\n"
        f"{tables.markdown(('variant', *(f'Pass@{k}' for k in KS)), lines)}"
    )
    tried = [(f"{r['task']}, {r['family']}", f"{r['rate']:g}", percent(r["right"])) for r in data["rates"]]
    parts.append(
        f"Learning rates tried on seed {RATE_SEED}, and the share of right samples on validation problems:\n\n"
        f"{tables.markdown(('task and family', 'lr', 'right'), tried)}"
    )
    parts.append(
        f"Signal to noise of the policy gradient of one sequence, by score, at the start:\n\n{_signal_table(data)}"
    )
    return "\n\n".join(parts)


def _seed_table(data: Data) -> str:
    lines = [
        (
            row["variant"],
            ", ".join(map(str, row["seeds"])),
            *(", ".join(map(percent, row["passes"][own_reading(row["method"])].get(str(k), []))) for k in KS),
        )
        for row in data["rows"]
    ]
    return tables.markdown(("variant", "seeds", *(f"Pass@{k}" for k in KS)), lines)


def _signal_table(data: Data) -> str:
    lines = [
        (f"{row['task']}, seed {seed}", *(_ratio(found[form]) for form in FORMS))
        for row in data["rows"]
        if row["method"] == START
        for seed, found in zip(row["seeds"], row["signal"], strict=True)
        if found is not None
    ]
    return tables.markdown(("task and seed", *FORMS), lines)


def _ratio(value: float | None) -> str:
    return "not seen" if value is None else f"{value:.3g}"


def soft_against(data: Data, rival: str, k: int, bound: float, words: str = "") -> Finding | None:
    """Is the Pass@k of both forms of SofT-GRPO on frontiers at least so far above a rival's?"""
    found = {name: gain(data, f"{A}-{name}", f"{A}-{rival}", k) for name in SOFT}
    if any(one is None for one in found.values()):
        return None
    cases = [one.is_at_least(bound) for one in found.values() if one is not None]
    return _finding(found, cases, words)


def pass_32(data: Data) -> Finding | None:
    """Against the better of the two GRPO variants, by its mean."""
    rows = measures.by_name(data)
    rivals = {name: rows[f"{A}-{name}"] for name in ("grpo", "grpo-truncated") if f"{A}-{name}" in rows}
    if len(rivals) < 2 or "32" not in rivals["grpo"]["passes"]["hard"]:
        return None
    better = max(rivals, key=lambda name: statistics.fmean(rivals[name]["passes"]["hard"]["32"]))
    return soft_against(data, better, 32, 1.0, f" against {better}")


def noisier(data: Data) -> Finding | None:
    """In every seed, or in none."""
    row = measures.by_name(data).get(f"{A}-{START}")
    seeds = [] if row is None else [s for seed, s in zip(row["seeds"], row["signal"], strict=True) if seed != RATE_SEED]
    found = [s for s in seeds if s is not None]
    if not found:
        return None
    shares = [_share(s["paper"], s["categorical"]) for s in found]
    ours = (
        f"{', '.join('not seen' if share is None else f'{share:.2f}' for share in shares)} of the categorical score's"
    )
    cases = [None if share is None else share < NOISIER for share in shares]
    verdict = HOLDS if all(cases) else FAILS if not any(cases) and None not in cases else UNDECIDED
    return Finding(ours=ours, verdict=verdict, seeds=(len(found),))


def _share(paper: float | None, categorical: float | None) -> float | None:
    """None where there were too few rollouts to see the signal of the categorical score."""
    return paper / categorical if paper is not None and categorical else None


def tau(data: Data) -> Finding | None:
    on_a = {f"{A} {name}": gain(data, f"{A}-{name}", f"{A}-soft-paper", 1) for name in LARGER}
    on_b = {f"{B} {LARGER[1]}": gain(data, f"{B}-{LARGER[1]}", f"{B}-soft-paper", 1)}
    if any(one is None for one in (*on_a.values(), *on_b.values())):
        return None
    cases = [one.is_at_least(2.0) for one in on_a.values() if one is not None]
    helps_b = [one.is_at_least(1.0) for one in on_b.values() if one is not None]
    cases += [None if case is None else not case for case in helps_b]
    return _finding({**on_a, **on_b}, cases)


def collapse(data: Data) -> Finding | None:
    rows = measures.by_name(data)
    found = {name: rows[f"{A}-{name}"]["kept"] for name in LARGER if f"{A}-{name}" in rows}
    if len(found) < len(LARGER):
        return None
    cases = []
    for kept in found.values():
        down = [share < COLLAPSED for share in kept]
        cases.append(True if all(down) else None if any(down) else False)
    ours = "; ".join(f"{name} keeps {', '.join(percent(share) for share in kept)}" for name, kept in found.items())
    seeds = tuple(len(kept) for kept in found.values())
    return Finding(ours=ours, verdict=verdict_of(cases), seeds=seeds)


def _finding(found: dict[str, Gain | None], cases: Sequence[bool | None], words: str = "") -> Finding:
    known = {name: one for name, one in found.items() if one is not None}
    ours = "; ".join(f"{name} {one}" for name, one in known.items()) + words
    seeds = tuple(one.over_seeds.seeds for one in known.values())
    return Finding(ours=ours, verdict=verdict_of(cases), seeds=seeds)


def _of_judged(judge: Callable[[Data], Finding | None]) -> Callable[[Data], Finding | None]:
    return lambda data: judge(judged(data))


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing
    from longshort.report.figures import frame

    alt = drawing()
    order = [row["variant"] for row in data["rows"]]
    points = [
        {"variant": row["variant"], "right": 100 * share, "reading": reading, "seed": str(seed), "k": f"Pass@{k}"}
        for row in data["rows"]
        for reading in READINGS
        for k in row["passes"][reading]
        for seed, share in zip(row["seeds"], row["passes"][reading][k], strict=True)
    ]
    x = alt.X("right:Q", title="% of test problems", scale=alt.Scale(zero=False))
    y = alt.Y("variant:N", title=None, sort=order, axis=alt.Axis(labelOverlap=False))
    colour = alt.Color("reading:N", title="read", sort=list(READINGS))
    dots = frame(points).mark_point(filled=True, size=40, opacity=0.8).encode(x=x, y=y, color=colour)
    column = alt.Column("k:N", title=None, sort=[f"Pass@{k}" for k in KS])
    panels = dots.properties(width=170, height=20 * len(order)).facet(column=column)
    return alt.vconcat(panels, _curves(data)).resolve_scale(color="independent")


def _curves(data: Data) -> Any:
    """Rewards over steps on frontiers, a panel for each seed: what is most different, so that it can be told apart.

    From a start that missed its goal all lines lie at the bottom; where no other has run, they are drawn too.
    """
    from longshort.report.charts import drawing
    from longshort.report.figures import frame

    alt = drawing()
    shown = [f"{A}-{name}" for name in ("grpo", "grpo-truncated", "soft-code", "soft-paper", "gaussian")]
    of_task = [curve for curve in data["curves"] if curve["variant"] in shown]
    missed = data.get("missed", {}).get(A, [])
    rewards = [
        {"variant": curve["variant"], "step": step, "reward": reward, "seed": f"seed {curve['seed']}"}
        for curve in [curve for curve in of_task if curve["seed"] not in missed] or of_task
        for step, reward in enumerate(_smoothed(curve["rewards"]), 1)
    ]
    x, y = alt.X("step:Q", title="step"), alt.Y("reward:Q", title=f"reward in training, {A}")
    colour = alt.Color("variant:N", title=None, sort=shown)
    lines = frame(rewards).mark_line().encode(x=x, y=y, color=colour)
    return lines.properties(width=170, height=150).facet(column=alt.Column("seed:N", title=None))


def _smoothed(values: Sequence[float]) -> list[float]:
    return [statistics.fmean(values[max(0, i - SMOOTHED + 1) : i + 1]) for i in range(len(values))]


_SIDE = (
    "every seed and the 95 % intervals over problems and over seeds must lie on one side of the bound, else it is "
    "undecided"
)
_BOTH = "holds if for both forms (the code's and the paper's), partly if for one"
EXPERIMENT = Experiment(
    name=NAME,
    question="Does thinking in mixtures of tokens add anything to reinforcement learning?",
    method=(
        "A GPT of 5M parameters (6 layers, width 256, 8 heads, learned positions) learns each task from its solutions "
        "until 40 % of single samples are right, once per seed, and all variants of that seed start there. Then GRPO "
        "over the full vocabulary; GRPO drawn from and scored on top-k 5 and top-p 0.95; SofT-GRPO as its authors' "
        "code has it (clamped noise, mean over components) and as its paper has it (sum); the paper's form with tau "
        "0.5 and 1 in place of 0.1; soft inputs with the categorical score of the largest weight; and Gaussian soft "
        "tokens (arXiv 2509.19170). Groups of 8 for 64 problems per step, two updates per rollout, clip 0.2, KL "
        "0.001, as published, for all. The learning rate is the best of three on validation problems, chosen on a "
        "seed of its own for GRPO, SofT-GRPO (paper) and Gaussian; other variants take their family's. Every model is "
        "read on the same 1,024 test problems with 32 samples each, soft (mixtures drawn as in its training; as in "
        "the paper for GRPO) and hard (tokens), both at temperature 1 from the same truncation; Pass@k is the "
        "unbiased estimate. A run that diverged solves nothing. Rules were fixed before the runs, but for one: a seed "
        "whose start misses the 40 % within 8,000 steps is shown seed by seed, but not judged, nor part of the means "
        "of the first table. That was written after two of the first four seeds missed it; then seeds 3 to 6 were run "
        "on frontiers."
    ),
    cost="H200: 10 minutes for three seeds, twelve cells at a time under MPS, and as long for four more seeds of "
    "frontiers, thirty-two at a time; CPU --quick: minutes",
    caption=(
        "Pass@1, 8 and 32 on test problems, a dot for each seed, read soft and hard (above); reward of five variants "
        "over the steps of reinforcement learning on frontiers, mean of ten steps, where the start reached its goal "
        "(below)."
    ),
    claims={
        "pass@1": Claim(
            text="SofT-GRPO does not lose Pass@1",
            paper="61.39 against 61.28 % (1.5B), 32.83 against 32.60 % (3B), 73.74 against 73.69 % (7B), one run each",
            rule=f"on frontiers, Pass@1 read soft, less that of GRPO read hard, at least -1 point: {_SIDE}; {_BOTH}",
            judge=_of_judged(partial(soft_against, rival="grpo", k=1, bound=-1.0)),
        ),
        "pass@32": Claim(
            text="SofT-GRPO has a higher Pass@32 than the better GRPO",
            paper="85.18 against 82.39 % (1.5B), 57.06 against 55.32 % (3B), 90.18 against 88.12 % (7B), one run each",
            rule=f"on frontiers, at least 1 point above the GRPO variant of higher mean Pass@32: {_SIDE}; {_BOTH}",
            judge=_of_judged(pass_32),
        ),
        "truncation": Claim(
            text="that gain is not the truncation's",
            paper="GRPO was not truncated, SofT-GRPO was",
            rule=f"on frontiers, Pass@32 at least 1 point above truncated GRPO: {_SIDE}; {_BOTH}",
            judge=_of_judged(partial(soft_against, rival="grpo-truncated", k=32, bound=1.0)),
        ),
        "noisier": Claim(
            text="the Gumbel score is noisier than the categorical one",
            paper="`gumbel-score`: signal to noise 4.0 to 15.3 times lower",
            rule="signal to noise of the policy gradient with the paper's score below half of that with the "
            "categorical one, on the same soft rollouts of the start, on frontiers: holds if in every seed",
            judge=_of_judged(noisier),
        ),
        "tau": Claim(
            text="a larger tau helps where a thought can hold several things, and not where it cannot",
            paper="tau 0.25 collapsed",
            rule=f"Pass@1 of tau 0.5 and of tau 1 at least 2 points above tau 0.1 on frontiers, and of tau 1 less than "
            f"1 point above it on chains: {_SIDE}; holds if all three, partly if some",
            judge=_of_judged(tau),
        ),
        "collapse": Claim(
            text="training with a larger tau collapses",
            paper="tau 0.25 collapsed",
            rule="mean reward of the last tenth of the steps below 80 % of that of the best tenth, in every seed, for "
            "tau 0.5 and tau 1 on frontiers: holds if for both, partly if for one",
            judge=_of_judged(collapse),
        ),
    },
    collect=collect,
    table=table,
    more=more,
    figure=figure,
    measure=measure,
)
