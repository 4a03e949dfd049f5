"""Muon for matrices (Keller Jordan, 2024; arXiv 2502.16982 for language models) and AdamW for the rest, in one.

PyTorch's own `torch.optim.Muon` (since 2.9) takes one matrix at a time, always in bf16, and knows neither matrices
fused by rows nor `found_inf`. This one takes all matrices of one shape together and never waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from longshort.parallel.owners import batches_of_equal_shards, gather_to_owners, place_of, scatter_from_owners
from longshort.parallel.shards import is_sharded, local

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the odd polynomial of degree 5 that is iterated (https://kellerjordan.github.io/posts/muon): so steep at 0 that
few iterations suffice, at the price of singular values that end between about 0.7 and 1.2 instead of at 1."""
ITERATIONS = 5
SCALES = ("match_rms", "spectral")
Tensors = tuple[Tensor, ...] | list[Tensor]
_SMALLEST_NORM = 1e-7
_LARGEST_BATCH = 2**25
"""Numbers that are orthogonalised at once: enough to keep a GPU busy, and little memory."""


class Muon(torch.optim.Optimizer):
    """Muon in the groups that have `rows`, AdamW in all others.

    `rows` has, for each parameter of its group, the heights of the matrices that are fused in it by rows, such as
    (768, 256, 256) for queries, keys and values: each is orthogonalised by itself. With gradient G and momentum M

        M <- momentum * M + (1 - momentum) * G
        W <- (1 - lr * weight_decay) * W - lr * scale * orthogonal(momentum * M + (1 - momentum) * G)

    Where the tensor `found_inf` is set and 1, everything stays as it is, as in fused AdamW: the device decides.

    Args:
        groups: with `params` and, for Muon, `rows`; any option below may be given for one group.
        lr: learning rate.
        momentum: of Muon.
        scale: size of Muon's updates, see `update_scale`.
        betas: of AdamW.
        eps: of AdamW.
        weight_decay: decoupled, of both.
        fused: whether AdamW is the fused one, which `found_inf` needs.

    >>> layer = torch.nn.Linear(8, 12)
    >>> muon = Muon([{"params": [layer.weight], "rows": [(8, 4)]}, {"params": [layer.bias]}], lr=0.01)
    >>> layer(torch.randn(4, 8)).square().mean().backward()
    >>> muon.step()
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        lr: float = 1e-3,
        momentum: float = 0.95,
        scale: str = "match_rms",
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        fused: bool = True,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "scale": scale, "betas": betas, "eps": eps}
        super().__init__(groups, options | {"weight_decay": weight_decay, "fused": fused, "rows": None})
        for group in self.param_groups:
            _check(group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step with the gradients that are there; a parameter without one stays as it is."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf = getattr(self, "found_inf", None)
        for group in self.param_groups:
            if group["rows"] is None:
                self._step_adamw(group, found_inf)
            else:
                self._step_muon(group, None if found_inf is None else found_inf > 0)
        return loss

    def _step_adamw(self, group: Mapping[str, Any], found_inf: Tensor | None) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        for parameter in parameters:
            if not self.state[parameter]:
                steps = torch.zeros((), device=parameter.device if group["fused"] else "cpu")
                moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                self.state[parameter] = {"step": steps} | moments
        states = [self.state[parameter] for parameter in parameters]
        adamw(
            parameters,
            [p.grad for p in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            found_inf=found_inf,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _step_muon(self, group: Mapping[str, Any], stays: Tensor | None) -> None:
        """Step all matrices of each shape together."""
        by_shape: dict[torch.Size, list[tuple[Tensor, ...]]] = {}
        sharded: list[tuple[Tensor, Sequence[int]]] = []
        for parameter, rows in zip(group["params"], group["rows"], strict=True):
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            if is_sharded(parameter):
                sharded.append((parameter, rows))
                continue
            parts = (x.split(list(rows)) for x in (parameter, parameter.grad, state["momentum"]))
            for matrix in zip(*parts, strict=True):
                by_shape.setdefault(matrix[0].shape, []).append(matrix)
        for shape, matrices in by_shape.items():
            at_once = max(1, _LARGEST_BATCH // shape.numel())
            for first in range(0, len(matrices), at_once):
                weights, gradients, momenta = zip(*matrices[first : first + at_once], strict=True)
                _step_matrices(weights, gradients, momenta, group, stays)
        for batch in batches_of_equal_shards(sharded):
            self._step_shards(batch, group, stays)

    def _step_shards(
        self, batch: Sequence[tuple[Tensor, Sequence[int]]], group: Mapping[str, Any], stays: Tensor | None
    ) -> None:
        """The step of sharded parameters of one shape, at most one per process: each gathers one whole matrix,
        orthogonalises it and sends the rows of its update back.
        """
        parameters = [parameter for parameter, _ in batch]
        weights, gradients = [local(p) for p in parameters], [local(p.grad) for p in parameters]
        momenta = [local(self.state[p]["momentum"]) for p in parameters]
        averaged, directions = _directions(momenta, gradients, group["momentum"])
        mine = gather_to_owners(directions, like=parameters[0])
        if mine is not None:
            mine = _orthogonal_update(mine, batch[place_of(parameters[0])][1], group["scale"])
        updates = scatter_from_owners(mine, directions, like=parameters[0])
        _move(weights, momenta, averaged, updates, group, group["lr"], stays)


def _step_matrices(
    weights: tuple[Tensor, ...],
    gradients: tuple[Tensor, ...],
    momenta: tuple[Tensor, ...],
    options: Mapping[str, Any],
    stays: Tensor | None,
) -> None:
    """The step of matrices of one shape, unless `stays`; see `Muon`."""
    averaged, directions = _directions(momenta, gradients, options["momentum"])
    updates = orthogonalised(torch.stack(directions)).to(weights[0].dtype).unbind()
    rate = options["lr"] * update_scale(weights[0].shape, options["scale"])
    _move(weights, momenta, averaged, updates, options, rate, stays)


def _directions(momenta: Tensors, gradients: Tensors, momentum: float) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The momenta after this step, and Nesterov's directions."""
    averaged = torch._foreach_lerp(momenta, gradients, 1 - momentum)
    return averaged, torch._foreach_lerp(gradients, averaged, momentum)


def _orthogonal_update(direction: Tensor, rows: Sequence[int], scale: str) -> Tensor:
    """The update of one parameter, each of its fused matrices orthogonalised and scaled by itself."""
    parts = [
        update_scale(matrix.shape, scale) * orthogonalised(matrix[None])[0].to(matrix.dtype)
        for matrix in direction.split(list(rows))
    ]
    return torch.cat(parts)


def _move(
    weights: Tensors,
    momenta: Tensors,
    averaged: Tensors,
    updates: Tensors,
    options: Mapping[str, Any],
    rate: float,
    stays: Tensor | None,
) -> None:
    """Decay the weights, subtract `rate` times the updates, and keep the new momenta, unless `stays`."""
    moved = torch._foreach_mul(weights, 1 - options["lr"] * options["weight_decay"])
    torch._foreach_add_(moved, updates, alpha=-rate)
    for old, new in ((momenta, averaged), (weights, moved)):
        if stays is not None:
            new = tuple(torch.where(stays, before, after) for before, after in zip(old, new, strict=True))
        torch._foreach_copy_(old, new)


def orthogonalised(matrices: Tensor) -> Tensor:
    """U V^T of each of the matrices (B, N, M) = U S V^T, roughly: their singular values become about 1.

    Computed by a Newton-Schulz iteration, in bf16 on CUDA and in fp32 elsewhere.

    >>> values = torch.linalg.svdvals(orthogonalised(torch.randn(3, 8, 32)))
    >>> bool((values > 0.6).all() and (values < 1.3).all())
    True
    """
    on_gpu = matrices.device.type == "cuda"
    x = matrices.to(torch.bfloat16 if on_gpu else torch.promote_types(matrices.dtype, torch.float32))
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x  # so that the Gram matrix is the smaller one
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=_SMALLEST_NORM)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def update_scale(shape: Sequence[int], scale: str) -> float:
    """Factor of the learning rate for the orthogonal update of a matrix (N, M).

    match_rms: 0.2 sqrt(max(N, M)), with which the entries of the update are about as large as AdamW's, so that its
    learning rate and weight decay serve (arXiv 2502.16982).
    spectral: sqrt(max(1, N / M)), Keller Jordan's, for learning rates of about 0.02.

    >>> update_scale((400, 100), "match_rms"), update_scale((400, 100), "spectral")
    (4.0, 2.0)
    """
    rows, columns = shape
    return 0.2 * math.sqrt(max(rows, columns)) if scale == "match_rms" else math.sqrt(max(1.0, rows / columns))


def _check(group: Mapping[str, Any]) -> None:
    if group["scale"] not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {group['scale']!r}")
    if group["rows"] is None:
        return
    if len(group["rows"]) != len(group["params"]):
        raise ValueError(f"rows must have an entry per parameter, {len(group['params'])}, got {len(group['rows'])}")
    for parameter, rows in zip(group["params"], group["rows"], strict=True):
        if parameter.ndim != 2 or sum(rows) != parameter.shape[0]:
            raise ValueError(
                "rows must be the heights of the matrices fused in a parameter of two dimensions, got "
                f"{tuple(rows)} for the shape {tuple(parameter.shape)}"
            )
