"""Do LaS attention's decay and smoothing each help, and together more, in causal attention as its paper has it?

LaS attention (arXiv 2311.16620) is defined for causal attention, and its models probably had batch norm. In
`long-range` most variants are two-sided, all have layer norm, and the sequences of ListOps have at most 512 tokens,
over which a decay of 0.001 per token, the paper's probable one, takes no more than 40 % from a logit. Here all variants
are causal, and sequences have the lengths of Long Range Arena (arXiv 2011.04006).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from experiments import las_sweep, long_range
from experiments.classifiers import BASE, KINDS, POINT, QUICK_BASE, on_task
from experiments.engine import comparison
from experiments.engine.evidence import Difference, paired, verdict_of
from experiments.engine.records import Claim, Data, Finding, Variants
from longshort.data.tasks import classes_of
from longshort.train import TrainConfig

TASKS: dict[str, dict[str, Any]] = {"listops": {"test": 10_000}, "image": {}}
"""As published, but for ListOps' 2,000 test examples: with 10,000 the standard error is at most half a point."""
COMPARED = ("none", "sinusoidal", "alibi", "decay", "smoothing", "las", "las-before")
NAMES = tuple(f"{task}-{kind}" for task in TASKS for kind in COMPARED)
CAUSAL: dict[str, Any] = {"name": "listops", "causal": True, "norm": "batch"}
SIZES = {"context": 2000, "n_layers": 4, "width": 128}
"""Of the paper's probable model, half the width and two thirds of the layers; S4's model of ListOps has this width."""

Pairs = tuple[tuple[str, str], ...]
PARTS: Pairs = (("decay", "none"), ("smoothing", "none"))
WHOLE: Pairs = (("las", "decay"), ("las", "smoothing"))
POSITIONS: Pairs = (("las", "sinusoidal"), ("las", "alibi"))
ORDERS: Pairs = (("las-before", "las"),)


def variants(base: TrainConfig) -> Variants:
    """Every kind of attention on ListOps and, where `--data` names its folder, on the pixels of CIFAR-10."""
    tasks = [task for task in TASKS if task != "image" or base.task.path]
    return {
        f"{task}-{kind}": _pooling(KINDS[kind](on_task(base, task, TASKS[task])), las_sweep.REPORTED[task][1])
        for task in tasks
        for kind in COMPARED
    }


def _pooling(config: TrainConfig, width: int) -> TrainConfig:
    """The same with this width, if it is smoothed at all."""
    smoothed = config.model.smoothing is not None
    return replace(config, model=replace(config.model, smoothing=width)) if smoothed else config


def learned(data: Data) -> list[str]:
    """Tasks on which at least one variant does more than guess."""
    return [
        task
        for task, kinds in long_range.by_task(data).items()
        if max(kinds.values()) >= 1 / (classes_of(task) or 1) + long_range.LEARNED
    ]


def only_guessed(data: Data) -> list[str]:
    """Tasks on which every variant has run and none does more than guess."""
    whole = [task for task, kinds in long_range.by_task(data).items() if kinds.keys() >= {*COMPARED}]
    return [task for task in whole if task not in learned(data)]


def _is_level(difference: Difference) -> bool | None:
    return difference.is_at_least(-POINT)


def judged(data: Data, pairs: Pairs, case: Callable[[Difference], bool | None] = Difference.is_above) -> Finding | None:
    """The first of each pair less the second, on every learned task, each a case of the claim."""
    shares = {(row["task"], row["kind"]): comparison.accuracies_by_seed(row) for row in data["rows"]}
    found: dict[str, Difference] = {}
    for task in learned(data):
        for mine, theirs in pairs:
            difference = paired(shares.get((task, mine), {}), shares.get((task, theirs), {}))
            if difference is not None:
                found[f"{task}: {mine} less {theirs}"] = difference
    if not found:
        return None
    counted = len(TASKS) - len(only_guessed(data))
    verdict = verdict_of([case(difference) for difference in found.values()], of=len(pairs) * counted)
    ours = "; ".join(f"{name} {_points(difference)}" for name, difference in found.items())
    return Finding(ours=ours, verdict=verdict, seeds=tuple(difference.seeds for difference in found.values()))


def _points(difference: Difference) -> str:
    """
    >>> _points(paired({0: 0.5, 1: 0.625, 2: 0.75}, {0: 0.375, 1: 0.5, 2: 0.625}))
    '+12.5 (+12.5 to +12.5)'
    """
    mean, low, high = (100 * value for value in (difference.mean, difference.low, difference.high))
    return f"{mean:+.1f}" + (f" ({low:+.1f} to {high:+.1f})" if difference.seeds > 1 else "")


def _rule(pairs: Sequence[tuple[str, str]], how: str) -> str:
    named = " and ".join(f"{mine} {how} {theirs}" for mine, theirs in pairs)
    return (
        f"test accuracy of {named}, by the whole paired 95 % interval over the seeds: holds if so on both tasks, "
        f"partly if in some cases. A task on which no variant is {100 * long_range.LEARNED:.0f} points above guessing "
        "does not count"
    )


EXPERIMENT = replace(
    long_range.EXPERIMENT,
    name="las-causal",
    question="Do LaS attention's decay and smoothing each help in causal attention, and together more?",
    method=(
        "A classifier with causal attention in every variant: plain heads without positions, with sinusoidal and with "
        "ALiBi positions; LaS's decay (B 0.001), its smoothing (P 5 on ListOps, 3 on pixels: the paper's probable "
        "values), both with the pooling after the softmax, and both with the pooling before it. Pooling is over a "
        "position and those before it, so that no token sees what follows; whether the paper's is centred is unknown "
        "to us. Batch norm stands in the place of layer norm, as the paper probably has it, with statistics over all "
        "tokens of a batch that are not padding. The class is read from the mean of the last hidden states over those "
        "tokens, as S4's code for Long Range Arena pools (github.com/state-spaces/s4, `decoder: mode: pool`); what "
        "LaS's code does is unknown to us. AdamW at 1e-3 with weight decay 0.01, no dropout, a cosine schedule, 32 "
        "sequences per step. ListOps (arXiv 2011.04006) has its published 500 to 2,000 tokens and 96,000 training "
        "examples, with 10,000 test examples instead of 2,000; with `--data`, CIFAR-10 has 1,024 grey pixels and "
        "45,000 training examples. Model and training are smaller than the paper's, to fit the GPU time there is: 4 "
        "layers of width 128 with 8 heads, where the paper's model is probably 6 of 256 with 8; and 18,000 steps, "
        "which are 6 epochs of ListOps and 12.8 of CIFAR-10 (4.5 and 9 times the examples that `long-range` saw), "
        "where S4 trains for 40 and 200. For 10 and 21 epochs of the larger model, `--steps 30000 model.n_layers=6 "
        "model.width=256`, `--plan` estimates four hours of an H200 with three seeds. Variants can be compared with "
        "each other, not with published numbers."
    ),
    cost="H200 with MPS, seven runs at a time: about 15 minutes per seed for 'listops-*' and 9 for 'image-*', by "
    "estimate; CPU --quick: a minute or two",
    claims={
        "parts": Claim(
            text="LaS's decay and its smoothing each help causal attention on long-range tasks",
            paper="LaS (arXiv 2311.16620): both parts help",
            rule=_rule(PARTS, "above that of"),
            judge=partial(judged, pairs=PARTS),
        ),
        "together": Claim(
            text="decay and smoothing together help causal attention more than either",
            paper="LaS (arXiv 2311.16620): both parts help",
            rule=_rule(WHOLE, "above that of"),
            judge=partial(judged, pairs=WHOLE),
        ),
        "positions": Claim(
            text="causal LaS attention is ahead of plain heads with positions",
            paper="LaS (arXiv 2311.16620): best among transformers",
            rule=_rule(POSITIONS, "above that of"),
            judge=partial(judged, pairs=POSITIONS),
        ),
        "order": Claim(
            text="LaS with its pooling before the softmax is as good as with its pooling after it",
            paper="left open: descriptions of LaS differ in the order",
            rule=_rule(ORDERS, "at most a point below that of"),
            judge=partial(judged, pairs=ORDERS, case=_is_level),
        ),
    },
    collect=partial(long_range.collect, names=NAMES),
    variants=variants,
    base={**BASE, "task": CAUSAL, "model": {**BASE["model"], **SIZES}},
    quick_base={**QUICK_BASE, "task": {**QUICK_BASE["task"], **CAUSAL}},
    on_request=(),
    steps=18_000,
)
