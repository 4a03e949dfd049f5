"""Sigma-reparametrisation (arXiv 2303.06296): W_hat = gamma / sigma(W) * W, which bounds how fast logits can grow.

sigma is tracked by power iteration: one step of it per optimizer step, by `update_sigma`, outside the forward pass. So
the forward pass changes no state: recomputation under gradient checkpointing, gradient accumulation and compilation
see the same W_hat, and evaluation leaves the model as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longshort.ops.autocast import without_autocast


class SigmaLinear(nn.Linear):
    """A linear layer whose weight has spectral norm gamma (learned, 1 at the start).

    Several matrices may be fused by rows, each with its own sigma and gamma: `rows` are their heights. The state is
    the leading right singular vector v of each, a persistent buffer, so that a resumed run is the same run; sigma is
    |W v|, and its gradient u v^T flows.

    >>> layer = SigmaLinear(16, rows=(16, 8, 8))
    >>> norms = [torch.linalg.matrix_norm(w, 2).item() for w in layer.effective_weight().split(layer.rows)]
    >>> [round(norm, 4) for norm in norms]
    [1.0, 1.0, 1.0]
    """

    right_singular: Tensor

    def __init__(self, in_features: int, *, rows: Sequence[int], bias: bool = False) -> None:
        super().__init__(in_features, sum(rows), bias=bias)
        self.rows = list(rows)
        self.gamma = nn.Parameter(torch.ones(len(self.rows)))
        self.register_buffer("right_singular", torch.zeros(len(self.rows), in_features))
        self.reset_sigma()

    @torch.no_grad()
    def reset_sigma(self) -> None:
        """gamma to 1 and v to the exact singular vectors: to be called whenever the weight is set from outside."""
        nn.init.ones_(self.gamma)
        if self.weight.is_meta:
            return
        weight = self._gathered()
        if weight is not self.weight:  # to the host, where that of one process is drawn: the same bits
            weight = weight.cpu()
        for matrix, vector in zip(self._matrices(weight), self.right_singular, strict=True):
            # The smaller Gram matrix: a full SVD of a wide layer takes many times as long.
            if matrix.shape[0] < matrix.shape[1]:
                leading = matrix.mT @ torch.linalg.eigh(matrix @ matrix.mT).eigenvectors[:, -1]
            else:
                leading = torch.linalg.eigh(matrix.mT @ matrix).eigenvectors[:, -1]
            vector.copy_(F.normalize(leading, dim=0))

    @torch.no_grad()
    def update_sigma(self) -> None:
        """One step of power iteration towards the current weight's leading singular vectors."""
        for matrix, vector in zip(self._matrices(self._gathered()), self.right_singular, strict=True):
            right = vector.to(matrix.dtype)
            vector.copy_(F.normalize(matrix.mT @ (matrix @ right), dim=0))

    def sigma(self) -> Tensor:
        """The estimate of each fused matrix's spectral norm, (matrices,)."""
        with without_autocast(self.weight):
            pairs = zip(self._matrices(), self.right_singular, strict=True)
            return torch.stack([torch.linalg.vector_norm(matrix @ v.to(matrix.dtype)) for matrix, v in pairs])

    def effective_weight(self) -> Tensor:
        """W_hat, of the shape and dtype of the weight."""
        scales = self.gamma / self.sigma().clamp_min(torch.finfo(torch.float32).tiny)
        parts = zip(self.weight.split(self.rows), scales.unbind(), strict=True)
        return torch.cat([matrix * scale.to(matrix.dtype) for matrix, scale in parts])

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.effective_weight(), self.bias)

    def _gathered(self) -> Tensor:
        """The whole weight: a sharded one has no fused matrices to split into."""
        gather = getattr(self.weight, "full_tensor", None)
        return self.weight if gather is None else gather()

    def _matrices(self, weight: Tensor | None = None) -> tuple[Tensor, ...]:
        weight = self.weight if weight is None else weight
        return weight.to(torch.promote_types(weight.dtype, torch.float32)).split(self.rows)


def linear(in_features: int, rows: Sequence[int], *, bias: bool, sigma_reparam: bool) -> nn.Linear:
    """A linear layer for matrices fused by rows, plain or sigma-reparametrised; its `rows` are their heights."""
    if sigma_reparam:
        return SigmaLinear(in_features, rows=rows, bias=bias)
    layer = nn.Linear(in_features, sum(rows), bias=bias)
    layer.rows = list(rows)  # type: ignore[assignment]
    return layer


def update_sigma(module: nn.Module) -> None:
    """Advance the power iteration of every sigma-reparametrised layer by one step: call it after `optimizer.step()`."""
    for layer in module.modules():
        if isinstance(layer, SigmaLinear):
            layer.update_sigma()
