"""What does a Gumbel score add to a policy gradient, where the mixture is next to one token? Five tokens, on a CPU.

SofT-GRPO (arXiv 2511.06411) scores a mixture by the density of its Gumbel noise. As tau goes to 0 the mixture is the
token of largest value, a draw from p, which has a log-probability of its own. Here the gradients of both scores are
compared on the same draws, in fp64, where the exact gradient is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.engine import figures, measures, tables
from experiments.engine.evidence import FAILS, HOLDS, interval, verdict_of
from experiments.engine.measurement import keep_seeds, machine, on_one_thread
from experiments.engine.measures import Row
from experiments.engine.records import Claim, Data, Experiment, Finding, Message, Options
from longshort.files import write_json
from longshort.generation import AUTHORS_CLAMP, SoftThinking
from longshort.rl import FORMS, Signal, soft_log_probs

NAME, RESULTS = "gumbel-score", "gumbel-score.json"
POLICIES = {
    "mixed": (0.5, 0.3, 0.1, 0.06, 0.04),
    "even": (0.2, 0.2, 0.2, 0.2, 0.2),
    "sure": (0.9, 0.05, 0.02, 0.02, 0.01),
}
"""Probabilities of five tokens."""
RIGHT = (0, 1, 4)
"""Tokens that are rewarded, one in each case."""
DRAWS, QUICK_DRAWS = 1_000_000, 20_000
TAU, ERRORS = 1e-6, 3.0
"""Next to 0; and the standard errors that a mean may be off."""


def score_gradients(p: Tensor, form: str, draws: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens (N,) that mixtures stand for, and the gradient (N, 5) of each mixture's score by the logits."""
    # The authors' code clamps the noise as it is drawn and as it is scored.
    thinking = SoftThinking(end=len(p), top_p=1.0, tau=TAU, clamp=AUTHORS_CLAMP if form == "code" else None)
    logits = p.log().expand(draws, -1).clone().requires_grad_()
    ids, values = thinking.draw(logits.detach(), generator=generator)
    scores = soft_log_probs(logits, torch.eye(len(p), dtype=p.dtype), ids, values, form=form)  # type: ignore[arg-type]
    (gradients,) = torch.autograd.grad(scores.sum(), logits)
    return thinking.token(ids, values), gradients


def cases(name: str, seed: int, draws: int) -> list[dict[str, Any]]:
    """One row for each form and each rewarded token of a policy."""
    p = torch.tensor(POLICIES[name], dtype=torch.float64)
    rows = []
    for form in FORMS:
        tokens, gradients = score_gradients(p, form, draws, torch.Generator().manual_seed(seed))
        given = [gradients[tokens == token] for token in range(len(p))]
        for right in RIGHT:
            advantages = torch.eye(len(p), dtype=p.dtype)[right] - p[right]
            exact = p * advantages - p * (p @ advantages)
            drawn = advantages[tokens, None] * gradients
            mean, variance = drawn.mean(0), drawn.var(0)
            rows.append(
                {
                    "policy": name,
                    "right": right,
                    "p_right": p[right].item(),
                    "form": form,
                    "seed": seed,
                    "ratio": Signal(mean.square().sum().item(), variance.sum().item()).ratio,
                    "length": (mean.norm() / exact.norm()).item(),
                    "cosine": torch.cosine_similarity(mean, exact, dim=0).item(),
                }
            )
            if form == "paper":
                rows[-1]["off"] = ((mean - exact) / (variance / draws).sqrt()).tolist()  # in standard errors
        rows[-len(RIGHT)]["shares"] = [len(part) / draws for part in given]
        if form == "paper":
            # Given the token, how far the score's mean is from the gradient of log p of that token, in standard errors.
            expected = torch.eye(len(p), dtype=p.dtype) - p
            rows[-len(RIGHT)]["conditional"] = [
                ((part.mean(0) - expected[token]) / (part.std(0) / len(part) ** 0.5)).tolist()
                for token, part in enumerate(given)
            ]
    return rows


def measure(options: Options, message: Message) -> None:
    """Draw for every policy and seed."""
    draws = QUICK_DRAWS if options.quick else DRAWS
    keep_seeds(options.out / RESULTS, options)
    with on_one_thread(options) as seconds:
        rows = []
        for name in POLICIES:
            for seed in options.seeds:
                rows += cases(name, seed, draws)
            message(f"{name} after {seconds():.0f} s")
        results = {
            "seconds": round(seconds(), 1),
            "machine": machine(),
            "settings": {"draws": draws, "tau": TAU, "seeds": list(options.seeds), "policies": POLICIES},
            "cases": rows,
        }
    write_json(options.out / RESULTS, results)


def collect(folder: Path) -> Data:
    """All cases, and their means over seeds."""
    results = measures.results_in(folder, RESULTS, NAME)
    made = {key: results[key] for key in ("seconds", "machine", "settings")} | {"commands": measures.commands(folder)}
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for case in results["cases"]:
        groups.setdefault((case["policy"], case["right"], case["form"]), []).append(case)
    rows = [
        {key: of[0][key] for key in ("policy", "right", "p_right", "form")}
        | {key: sum(case[key] for case in of) / len(of) for key in ("ratio", "length", "cosine")}
        for of in groups.values()
    ]
    return {"provenance": made, "rows": rows, "cases": results["cases"]}


def by_form(data: Data) -> list[dict[str, Row]]:
    """For each policy and rewarded token, the row of each form."""
    found: dict[tuple[str, int], dict[str, Row]] = {}
    for row in data["rows"]:
        found.setdefault((row["policy"], row["right"]), {})[row["form"]] = row
    return list(found.values())


def by_seed(data: Data, key: str) -> dict[tuple[str, int, str], list[float]]:
    """A measured value by policy, rewarded token and form, seed by seed."""
    found: dict[tuple[str, int, str], list[float]] = {}
    for case in data["cases"]:
        found.setdefault((case["policy"], case["right"], case["form"]), []).append(case[key])
    return found


def table(data: Data) -> str:
    header = (
        *("policy", "p of the rewarded token", "signal to noise: categorical", "paper", "code"),
        *("categorical / paper", "length of the mean gradient, code / exact", "cosine"),
    )
    lines = [
        (
            of["paper"]["policy"],
            tables.shown(of["paper"]["p_right"]),
            *(tables.shown(of[form]["ratio"], 3) for form in ("categorical", "paper", "code")),
            f"{of['categorical']['ratio'] / of['paper']['ratio']:.1f}",
            *(tables.shown(of["code"][key], 2) for key in ("length", "cosine")),
        )
        for of in by_form(data)
    ]
    policies = "; ".join(f"{name}: {', '.join(f'{p:g}' for p in shares)}" for name, shares in POLICIES.items())
    about = (
        f"Signal to noise: squared length of the mean gradient by the variance of a single one. Policies: {policies}. "
        "The advantage is the reward, 1 or 0, less its expectation."
    )
    return f"{about}\n\n{tables.markdown(header, lines)}"


def shares_table(data: Data) -> str:
    """How often each token is drawn, without and with the authors' clamp."""
    lines = []
    for name, p in POLICIES.items():
        lines.append((name, "p", *(f"{share:.4f}" for share in p)))
        for form, label in (("paper", "unclamped"), ("code", "clamped")):
            of = [
                case["shares"]
                for case in data["cases"]
                if case["policy"] == name and case["form"] == form and "shares" in case
            ]
            lines.append((name, label, *(f"{sum(column) / len(of):.4f}" for column in zip(*of, strict=True))))
    header = ("policy", "draw", *(f"token {i}" for i in range(5)))
    return f"Shares of draws in which a token has the largest value:\n\n{tables.markdown(header, lines)}"


def _seeds(data: Data) -> tuple[int, ...]:
    return (len(data["provenance"]["settings"]["seeds"]),)


def _beyond(numbers: Sequence[float]) -> int:
    return sum(abs(number) > ERRORS for number in numbers)


def unbiased(data: Data) -> Finding:
    means = [off for case in data["cases"] if case["form"] == "paper" for off in case["off"]]
    given = [
        off
        for case in data["cases"]
        if case["form"] == "paper" and "conditional" in case
        for of_token in case["conditional"]
        for off in of_token
    ]
    found = [_beyond(numbers) / len(numbers) for numbers in (means, given)]
    return Finding(
        seeds=_seeds(data),
        ours=f"{_beyond(means)} of {len(means)} numbers of the gradients and {_beyond(given)} of {len(given)} of the "
        f"conditional means are off by more than {ERRORS:g} standard errors",
        verdict=HOLDS if max(found) <= 0.01 else FAILS,
    )


def noisier(data: Data) -> Finding:
    ratios = [of["categorical"]["ratio"] / of["paper"]["ratio"] for of in by_form(data)]
    logs = {key: [math.log(ratio) for ratio in of] for key, of in by_seed(data, "ratio").items()}
    found = [
        interval([other - own for other, own in zip(logs[policy, right, "categorical"], of, strict=True)])
        for (policy, right, form), of in logs.items()
        if form == "paper"
    ]
    return Finding(
        seeds=_seeds(data),
        ours=f"{min(ratios):.1f} to {max(ratios):.1f} times lower",
        verdict=verdict_of([one.is_above(math.log(2)) for one in found]),
    )


def shrinks(data: Data) -> Finding:
    lengths = [of["code"]["length"] for of in by_form(data)]
    found = [interval(of) for (_, _, form), of in by_seed(data, "length").items() if form == "code"]
    return Finding(
        seeds=_seeds(data),
        ours=f"{1 / max(lengths):.1f} to {1 / min(lengths):.0f} times shorter",
        verdict=verdict_of([one.is_below(0.5) for one in found]),
    )


def biased(data: Data) -> Finding:
    rare = [
        (name, token, p, case["shares"][token])
        for case in data["cases"]
        if case["form"] == "code" and "shares" in case
        for name, shares in POLICIES.items()
        if name == case["policy"]
        for token, p in enumerate(shares)
        if p < 0.1
    ]
    rarer = sum(share < p for *_, p, share in rare)
    by_token: dict[tuple[str, int], list[float]] = {}
    for name, token, p, share in rare:
        by_token.setdefault((name, token), []).append(share - p)
    example = [share for name, _, p, share in rare if name == "mixed" and p == 0.04]
    return Finding(
        seeds=_seeds(data),
        ours=f"rarer in {rarer} of {len(rare)} cases; p .04 becomes {sum(example) / len(example):.4f}".replace(
            "0.", "."
        ),
        verdict=verdict_of([interval(of).is_below() for of in by_token.values()]),
    )


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing

    panels = []
    for name in POLICIES:
        rows = [
            {"series": row["form"], "detail": "", "p": row["right"], "value": max(row["ratio"], 1e-6)}
            for row in data["rows"]
            if row["policy"] == name
        ]
        axes: dict[str, Any] = {"x": "p", "y": "value", "x_title": "rewarded token", "y_title": "signal to noise"}
        panels.append(figures.lines(rows, log=True, points=True, names=FORMS, title=name, width=200, **axes))
    return drawing().hconcat(*panels)


EXPERIMENT = Experiment(
    name=NAME,
    question="What does a Gumbel score add to a policy gradient, where the mixture is next to one token?",
    method=(
        f"A policy over five tokens has one rewarded token. {DRAWS:,} mixtures per policy and seed are drawn at tau "
        f"{TAU:g} in fp64, and scored in three forms: the sum of Gumbel log-densities (paper), their clamped mean over "
        "tokens with log p > -3, with the noise clamped as it is drawn (code), and log p of the token of largest value "
        "(categorical). Gradients are by the logits of the policy. The rules were written after a look at one seed."
    ),
    cost="CPU: about a minute on one core for three seeds; --quick: seconds",
    caption="Signal to noise of the policy gradient in three forms, by policy and rewarded token. Means over seeds.",
    claims={
        "unbiased": Claim(
            text="as tau goes to 0 the Gumbel score's gradient is the categorical one in mean, and given the token",
            paper="arXiv 2511.06411 does not say",
            rule=f"holds if at most 1 % of the numbers are off by more than {ERRORS:g} standard errors",
            judge=unbiased,
        ),
        "noisier": Claim(
            text="its signal to noise is less than half of the categorical score's",
            paper="arXiv 2511.06411 does not say",
            rule="holds if in every case, partly if in some",
            judge=noisier,
        ),
        "shrinks": Claim(
            text="the clamped mean of the authors' code makes the gradient less than half as long",
            paper="arXiv 2511.06411 does not say",
            rule="holds if in every case, partly if in some",
            judge=shrinks,
        ),
        "biased": Claim(
            text="the clamp of the authors' code makes tokens of p < .1 rarer than p",
            paper="arXiv 2511.06411 does not say",
            rule="holds if for every policy, such token and seed; partly if for some",
            judge=biased,
        ),
    },
    collect=collect,
    table=table,
    more=shares_table,
    figure=figure,
    measure=measure,
)
