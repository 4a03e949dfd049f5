"""Descent from many random starts on one fixed risk: do all of them end at the same value?

Linear and deep linear networks on a few points with wrong labels and outliers, full batch, float64, all starts and
exponents at once. A start is settled if a second descent, with a fresh step size, finds nothing lower; a settled start
above the lowest risk found is stuck. Letters: P starts of all exponents, N points, D features, K classes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from experiments.engine.measurement import keep_seeds, machine, on_one_thread
from experiments.engine.records import Message, Options
from longshort.files import write_json
from longshort.losses import BASES, transform_scores

POINTS, FEATURES, CLASSES = 60, 6, 4
NETWORKS: dict[str, tuple[int, ...]] = {
    "one layer": (),
    "deep, width 6": (6,),
    "deep, width 12": (12, 12),
    "narrow, width 2": (2,),
}
"""Hidden widths. Input and output are 6 and 4 wide: 2 is narrower than both, the others no narrower than the input."""
BASE_LOSSES = {name: ("cross_entropy", "logistic") if name == "one layer" else ("cross_entropy",) for name in NETWORKS}
EXPONENTS = (0.0, 0.25, 0.5, 0.6, 0.75, 0.9, 1.0)
SPOILT = {"wrong labels": (0.2, 0.0), "wrong labels and outliers": (0.2, 0.1)}
"""Shares of wrong labels and of outliers; an outlier is ten times as far out and has a wrong label."""
SCALES = (0.1, 10.0)
"""The standard deviation of a start's scores is log-uniform between these."""
STARTS, STEPS, QUICK_STARTS, QUICK_STEPS = 16, 1000, 3, 20
RATES = (0.1, 0.02)
"""Adam's learning rates in the first and the second descent, each falling along a cosine."""
STUCK_GAP, SETTLED = 0.01, 1e-3
"""Nats: how far above the lowest risk counts as stuck, and how much a settled start may still fall."""
RESULTS = "results.json"


def points(kind: str, seed: int) -> tuple[Tensor, Tensor]:
    """(N, D) and (N,): clouds around one centre per class, then spoilt; a constant feature serves as bias."""
    wrong, far = SPOILT[kind]
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (POINTS,), generator=generator)
    centres = 1.5 * torch.randn(CLASSES, FEATURES, generator=generator, dtype=torch.float64)
    x = centres[y] + torch.randn(POINTS, FEATURES, generator=generator, dtype=torch.float64)
    order = torch.randperm(POINTS, generator=generator)
    outliers, mislabelled = order[: int(far * POINTS)], order[: int((far + wrong) * POINTS)]
    y[mislabelled] = (y[mislabelled] + torch.randint(1, CLASSES, (len(mislabelled),), generator=generator)) % CLASSES
    x[outliers] *= 10
    x[:, -1] = 1.0
    return x, y


def start(widths: Sequence[int], starts: int, seed: int) -> list[Tensor]:
    """(starts, in, out) matrices of each layer, such that scores of a typical point have the start's own scale."""
    generator = torch.Generator().manual_seed(seed)
    low, high = (math.log(scale) for scale in SCALES)
    scale = (low + (high - low) * torch.rand(starts, generator=generator, dtype=torch.float64)).exp()
    sizes = (FEATURES, *widths, CLASSES)
    layers = [
        torch.randn(starts, i, o, generator=generator, dtype=torch.float64) / i**0.5
        for i, o in itertools.pairwise(sizes)
    ]
    root = scale ** (1 / len(layers))
    return [layer * root[:, None, None] for layer in layers]


def risks(layers: Sequence[Tensor], x: Tensor, y: Tensor, base: str, exponents: Sequence[float]) -> Tensor:
    """(P,) mean losses, one per network; starts of one exponent are adjacent."""
    scores = x.expand(len(layers[0]), *x.shape)
    for layer in layers:
        scores = scores @ layer
    groups = zip(scores.chunk(len(exponents)), exponents, strict=True)
    transformed = torch.cat([transform_scores(group, e) for group, e in groups])
    return torch.func.vmap(BASES[base], in_dims=(0, None))(transformed, y)


def descend(
    layers: Sequence[Tensor], risk: Callable[[Sequence[Tensor]], Tensor], *, rate: float, steps: int
) -> tuple[list[Tensor], Tensor]:
    """Run Adam with a cosine schedule; return, for each network, the point of lowest risk on its way and that risk."""
    moving = [layer.clone().requires_grad_() for layer in layers]
    optimizer = torch.optim.Adam(moving, lr=rate)
    kept, lowest = [layer.clone() for layer in layers], torch.full((len(layers[0]),), math.inf, dtype=torch.float64)
    for step in range(steps + 1):
        values = risk(moving)
        better = values.detach() < lowest
        lowest = torch.where(better, values.detach(), lowest)
        for mine, now in zip(kept, moving, strict=True):
            mine.copy_(torch.where(better[:, None, None], now.detach(), mine))
        if step == steps:
            break
        optimizer.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        values.sum().backward()
        optimizer.step()
    return kept, lowest


def explore(
    network: str, base: str, kind: str, *, starts: int, steps: int, seed: int, exponents: Sequence[float] = EXPONENTS
) -> list[dict[str, Any]]:
    """One row for each exponent: where the starts ended."""
    x, y = points(kind, seed)
    first = [layer.repeat(len(exponents), 1, 1) for layer in start(NETWORKS[network], starts, seed)]

    def risk(layers: Sequence[Tensor]) -> Tensor:
        return risks(layers, x, y, base, exponents)

    with torch.no_grad():
        before = risk(first)
    middle, once = descend(first, risk, rate=RATES[0], steps=steps)
    last, twice = descend(middle, risk, rate=RATES[1], steps=steps)
    moved = torch.stack([(a - b).abs().amax((1, 2)) for a, b in zip(last, first, strict=True)]).amax(0) > 0
    rows = []
    for e, risk_0, risk_1, risk_2, left in zip(
        exponents, *(v.chunk(len(exponents)) for v in (before, once, twice, moved)), strict=True
    ):
        settled = risk_1 - risk_2 < SETTLED
        stuck = settled & (risk_2 > risk_2.min() + STUCK_GAP)
        rows.append(
            {
                "network": network,
                "base": base,
                "data": kind,
                "seed": seed,
                "e": e,
                "starts": starts,
                "first": float(risk_0.mean()),
                "lowest": float(risk_2.min()),
                "highest": float(risk_2.max()),
                "settled": int(settled.sum()),
                "stuck": int(stuck.sum()),
                "unmoved": int((~left).sum()),
            }
        )
    return rows


def measure(options: Options, message: Message) -> None:
    """Explore every network, base loss, kind of data and seed."""
    starts, steps = (QUICK_STARTS, QUICK_STEPS) if options.quick else (STARTS, STEPS)
    steps = options.steps or steps
    rows = []
    keep_seeds(options.out / RESULTS, options)
    with on_one_thread(options) as seconds:
        for network, kind, seed in itertools.product(NETWORKS, SPOILT, options.seeds):
            for base in BASE_LOSSES[network]:
                rows += explore(network, base, kind, starts=starts, steps=steps, seed=seed)
                message(f"{network}, {base}, {kind}, seed {seed}: {seconds():.0f} s")
        took, on = round(seconds(), 1), machine()
    settings = {"starts": starts, "steps": steps, "rates": list(RATES), "points": POINTS, "seeds": list(options.seeds)}
    write_json(options.out / RESULTS, {"seconds": took, "machine": on, "settings": settings, "rows": rows})
