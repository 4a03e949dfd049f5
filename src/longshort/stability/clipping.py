"""Gradient clipping: one norm for all tensors, or each tensor against its own history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from longshort.parallel.shards import is_sharded, local, tensor_norms


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Joint norm of all gradients."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if any(map(is_sharded, gradients)):
        return torch.linalg.vector_norm(tensor_norms(gradients))
    return torch.nn.utils.get_total_norm(gradients)


def layer_norms(blocks: Iterable[nn.Module]) -> Tensor:
    """Gradient norm of each block, (blocks,)."""
    return torch.stack([gradient_norm(block.parameters()) for block in blocks])


def clip_by_global_norm(parameters: Iterable[nn.Parameter], norm: Tensor, limit: float) -> None:
    """Scale all gradients, whose joint norm is `norm`, so that it is at most `limit`."""
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_([local(p.grad) for p in parameters if p.grad is not None], scale)


class TensorClip:
    """Clips each tensor's gradient to `ratio` times the running mean of its own norm (as AdaGC, arXiv 2502.11034).

    During the first `warmup` steps the global norm is clipped to `limit` instead, and the running means start from the
    smallest norms seen. Everything stays on the device; a norm that is 0 or not finite never enters a mean.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        limit: float = 1.0,
        ratio: float = 1.05,
        momentum: float = 0.98,
        warmup: int = 100,
    ) -> None:
        if not ratio > 0 or not 0 <= momentum < 1 or warmup < 1:
            raise ValueError(
                "ratio must be > 0, momentum at least 0 and below 1, and warmup >= 1, "
                f"got {ratio}, {momentum} and {warmup}"
            )
        self.parameters = list(parameters)
        self.limit, self.ratio, self.momentum, self.warmup = limit, ratio, momentum, warmup
        self.steps = 0
        device = self.parameters[0].device
        self.means = torch.full((len(self.parameters),), torch.inf, dtype=torch.float32, device=device)

    def clip(self) -> None:
        """Clip all gradients in place and remember their norms."""
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        norms = tensor_norms(gradients)
        total = torch.linalg.vector_norm(norms)
        self.steps += 1
        if self.steps <= self.warmup:
            scale = (self.limit / (total + 1e-6)).clamp(max=1.0).expand_as(norms)
            clipped = norms * scale
            updated = torch.minimum(self.means, clipped)
        else:
            scale = (self.ratio * self.means / (norms + 1e-12)).clamp(max=1.0)
            clipped = norms * scale
            moved = self.momentum * self.means + (1 - self.momentum) * clipped
            updated = torch.where(self.means.isfinite(), moved, clipped)
        # No gradient says nothing of how large it is: with means of 0, nothing would ever pass again.
        self.means = torch.where(updated.isfinite() & (clipped > 0), updated, self.means)
        for gradient, factor in zip(gradients, scale.unbind(), strict=True):
            local(gradient).mul_(factor)

    def state_dict(self) -> dict[str, Any]:
        """Everything that later steps depend on; `means` is a tensor, the rest are numbers."""
        return {"steps": self.steps, "means": self.means}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.steps = int(state["steps"])
        self.means = state["means"].to(self.means)
