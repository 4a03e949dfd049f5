"""The loss of a language model's head, forward and backward, by itself: ours, all logits at once, and the fused
implementations of Liger and of Apple's cut cross-entropy where they are installed.

The hidden state is bf16 and the head fp32, as under autocast; its gradient is part of the work.

Shapes: N tokens, d features, V classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import DTYPES, OURS, Entrant, WrongResult, take_turns
from benchmarks.timing import allocated, clocked, free, peak_bytes, warmed
from longshort.losses import linear_cross_entropy

LIGER, CCE = "Liger", "cut cross-entropy"
FULL, FULL_COMPILED = "all logits", "all logits, compiled"
_LOSS_ERROR, _GRADIENT_ERROR = 1e-2, 0.1
"""Largest accepted differences from all logits: of the loss, and of a gradient relative to its norm (some add up the
head's gradient in bf16).
"""

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


class NotInstalled(Exception):
    """An optional package is not there."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The problem."""

    tokens: int = 32_768
    features: int = 768
    vocabularies: tuple[int, ...] = (50_304, 50_257)


def measure_loss(
    head: Head, classes: int, *, device: str, rounds: int, compiler: str = "inductor"
) -> list[dict[str, Any]]:
    """The rows of one vocabulary: milliseconds of forward and backward, and the bytes needed beside inputs and
    gradients.
    """
    dtype, generator = DTYPES[device], torch.Generator(device).manual_seed(0)
    options: dict[str, Any] = {"generator": generator, "device": device}
    hidden = torch.randn((head.tokens, head.features), **options).to(dtype).requires_grad_()
    weight = (0.02 * torch.randn((classes, head.features), **options)).requires_grad_()
    targets = torch.randint(classes, (head.tokens,), **options)

    def both(loss: Loss) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            value = loss(hidden, weight, targets)
        d_hidden, d_weight = torch.autograd.grad(value, (hidden, weight))
        return value.detach(), d_hidden, d_weight

    expected = both(_full)
    entrants = []
    for name, make in _losses(compiler).items():
        entrant = Entrant(name, required=name == OURS)

        def begin(entrant: Entrant = entrant, make: Callable[[], Loss] = make) -> None:
            call = partial(both, make())
            entrant.facts["gradient_error"] = _check(entrant.name, call(), expected)
            warmed(call)
            free(device)
            entrant.facts["peak_bytes"] = peak_bytes(call, device, allocated(device))
            entrant.sample = clocked(call, device, calls=3)

        entrant.attempt(begin)
        entrants.append(entrant)
    take_turns(entrants, rounds)
    about = {"tokens": head.tokens, "features": head.features, "vocab_size": classes}
    return [about | {"name": entrant.name, **_row(entrant)} for entrant in entrants]


def _losses(compiler: str) -> dict[str, Callable[[], Loss]]:
    return {
        OURS: lambda: linear_cross_entropy,
        FULL: lambda: _full,
        FULL_COMPILED: lambda: torch.compile(_full, dynamic=False, backend=compiler),
        LIGER: _liger,
        CCE: _cut,
    }


def _full(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).float(), targets)


def _liger() -> Loss:
    _require("liger_kernel", "liger-kernel")
    loss = import_module("liger_kernel.transformers.fused_linear_cross_entropy").LigerFusedLinearCrossEntropyLoss()
    return lambda hidden, weight, targets: loss(weight.to(hidden.dtype), hidden, targets)


def _cut() -> Loss:
    _require("cut_cross_entropy", "cut-cross-entropy")
    loss = import_module("cut_cross_entropy").linear_cross_entropy
    return lambda hidden, weight, targets: loss(hidden, weight.to(hidden.dtype), targets)


def _require(module: str, package: str) -> None:
    if find_spec(module) is None:
        raise NotInstalled(f"pip install {package}")


def _check(name: str, found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """The larger relative error of the two gradients; raises `WrongResult` if something is off."""
    if not abs(found[0].item() - expected[0].item()) <= _LOSS_ERROR:
        raise WrongResult(f"{name} is wrong: loss {found[0].item():.4f}, but {expected[0].item():.4f} by {FULL}")
    errors = []
    for which, one, other in zip(("hidden state", "head"), found[1:], expected[1:], strict=True):
        one, other = one.float(), other.float()
        apart = (torch.linalg.vector_norm(one - other) / torch.linalg.vector_norm(other)).item()
        if not apart <= _GRADIENT_ERROR:
            raise WrongResult(f"{name} is wrong: gradients of the {which} are apart by {apart:.1%}")
        errors.append(apart)
    return max(errors)


def _row(entrant: Entrant) -> dict[str, Any]:
    row = entrant.row()
    if str(row.get("failed", "")).startswith(NotInstalled.__name__):
        row["failed"] = f"not installed: {row['failed'].partition(': ')[2]}"
    return row
