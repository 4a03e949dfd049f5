"""How well softmax(QK^T) of width d expresses a dense, banded attention pattern, with Q and K free.

No data and no model: only what the product can express. The target gives every query random weights on its last keys.
Without a window the fit must also learn that all other keys get nothing; with one, the mask says so.
Shapes: n positions, d width, w keys of the band.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from experiments.engine.anatomy import effective_rank
from experiments.engine.measurement import keep_seeds, machine, on_one_thread
from experiments.engine.records import Message, Options
from longshort.files import write_json

BAND = 32
LENGTHS, WIDTHS, STEPS = (64, 128, 256, 512, 1024), (4, 8, 16, 24, 32, 48), 400
QUICK_LENGTHS, QUICK_WIDTHS, QUICK_STEPS = (64, 96), (4, 8), 20
RATE = 0.1
"""Adam's learning rate, which falls along a cosine."""
CLOSE = 0.01
"""Nats: a pattern counts as expressed if the mean KL divergence of its rows is below this."""
RESULTS = "results.json"


def target(n: int, band: int, seed: int) -> Tensor:
    """(n, w) weights of the last w keys, nearest last; keys before the first position get none."""
    scores = torch.randn(n, band, generator=torch.Generator().manual_seed(seed))
    missing = torch.arange(band) < band - 1 - torch.arange(n)[:, None]
    return scores.masked_fill(missing, -torch.inf).softmax(-1)


def learn(n: int, d: int, *, windowed: bool, seed: int, steps: int, band: int) -> dict[str, Any]:
    """Fit free Q and K to a target by Adam with a cosine schedule; return the error, the largest |logit| and rank."""
    wanted = target(n, band, seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    q, k = (torch.randn(n, d, generator=generator).requires_grad_() for _ in range(2))
    optimizer = torch.optim.Adam([q, k], lr=RATE)
    entropy = -torch.special.xlogy(wanted, wanted).sum() / n
    scores = _band_scores if windowed else _all_scores
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        loss = -(wanted * scores(q, k, band)[1]).sum() / n - entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        largest, logs = scores(q, k, band)
        error = float(-(wanted * logs).sum() / n - entropy)
        rank = effective_rank(torch.linalg.svdvals(torch.linalg.qr(q).R @ torch.linalg.qr(k).R.mT))
    return {
        "n": n,
        "d": d,
        "windowed": windowed,
        "seed": seed,
        "error": max(error, 0.0),
        "max_logit": float(largest),
        "rank": float(rank),
    }


def _all_scores(q: Tensor, k: Tensor, band: int) -> tuple[Tensor, Tensor]:
    """The largest |logit| of causal attention, and the log weights of the band's keys, (n, w)."""
    n = len(q)
    logits = q @ k.T / q.shape[1] ** 0.5
    visible = torch.ones(n, n, dtype=torch.bool).tril()
    logs = logits.masked_fill(~visible, -torch.inf).log_softmax(-1)
    keys = torch.arange(n)[:, None] + torch.arange(1 - band, 1)
    in_band = logs.gather(1, keys.clamp(min=0)).masked_fill(keys < 0, 0.0)
    return logits.detach().masked_fill(~visible, 0.0).abs().max(), in_band


def _band_scores(q: Tensor, k: Tensor, band: int) -> tuple[Tensor, Tensor]:
    """The same with only the band's keys visible: n w scores in all."""
    n, d = q.shape
    keys = torch.cat((k.new_zeros(band - 1, d), k)).unfold(0, band, 1)  # (n, d, w)
    logits = torch.einsum("nd,ndw->nw", q, keys) / d**0.5
    missing = torch.arange(band) < band - 1 - torch.arange(n)[:, None]
    logs = logits.masked_fill(missing, -torch.inf).log_softmax(-1).masked_fill(missing, 0.0)
    return logits.detach().masked_fill(missing, 0.0).abs().max(), logs


def measure(options: Options, message: Message) -> None:
    """Fit every length, width and seed, with and without the window."""
    lengths, widths = (QUICK_LENGTHS, QUICK_WIDTHS) if options.quick else (LENGTHS, WIDTHS)
    steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    fits: list[dict[str, Any]] = []
    keep_seeds(options.out / RESULTS, options)
    with on_one_thread(options) as seconds:
        for n in lengths:
            for d, seed, windowed in itertools.product(widths, options.seeds, (False, True)):
                fits.append(learn(n, d, windowed=windowed, seed=seed, steps=steps, band=BAND))
            message(f"n {n}: {len(fits)} fits in {seconds():.0f} s")
        results = {
            "seconds": round(seconds(), 1),
            "machine": machine(),
            "settings": {"band": BAND, "steps": steps, "rate": RATE, "seeds": list(options.seeds)},
            "fits": fits,
        }
    write_json(options.out / RESULTS, results)


def rank_needed(errors: Sequence[tuple[float, float]]) -> float | None:
    """The width at which the error falls to `CLOSE`, interpolated between two widths on a log-log scale.

    >>> rank_needed([(8, 0.1), (16, 0.001)])
    11.3137...
    """
    ordered = sorted(errors)
    if ordered[0][1] <= CLOSE:
        return float(ordered[0][0])
    for (d0, e0), (d1, e1) in itertools.pairwise(ordered):
        if e1 <= CLOSE < e0:
            share = math.log(e0 / CLOSE) / math.log(e0 / max(e1, 1e-12))
            return float(d0 * (d1 / d0) ** share)
    return None
