"""AdamW with weight decay on matrices only, the guard that judges its steps, and the state of both for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longshort.stability import SpikeGuard, TensorClip
from longshort.train.config import OptimizerConfig, StabilityConfig

_CLIP_MEANS = "tensor_clip/means"


def build_optimizer(model: nn.Module, config: OptimizerConfig, device: torch.device) -> torch.optim.AdamW:
    """AdamW with two groups, with and without weight decay; fused if the device has such a kernel."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=device.type in ("cpu", "cuda"),
    )


def build_guard(config: StabilityConfig) -> SpikeGuard:
    """The guard, which judges every step whether or not its verdict is acted on."""
    return SpikeGuard(
        window=config.guard_window,
        threshold=config.guard_threshold,
        warmup=config.guard_warmup,
        cap=config.guard_cap,
    )


class OptimizerState(NamedTuple):
    """All state besides the weights that later steps depend on."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    guard: SpikeGuard
    clip: TensorClip | None

    def packed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name, and numbers ready for JSON."""
        tensors, numbers = optimizer_tensors(self.optimizer, self.model), {"guard": self.guard.state_dict()}
        if self.clip is not None:
            clip = self.clip.state_dict()
            tensors[_CLIP_MEANS], numbers["tensor_clip_steps"] = clip["means"], clip["steps"]
        return tensors, numbers

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """The inverse of `packed`."""
        moments = {name: tensor for name, tensor in tensors.items() if name != _CLIP_MEANS}
        if self.clip is not None and _CLIP_MEANS in tensors:
            self.clip.load_state_dict({"means": tensors[_CLIP_MEANS], "steps": numbers["tensor_clip_steps"]})
        load_optimizer_tensors(self.optimizer, self.model, moments)
        self.guard.load_state_dict(numbers["guard"])


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The state as flat named tensors: `NAME/exp_avg` and so on."""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`; Adam's step counter stays where the optimizer keeps it."""
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for key, value in tensors.items():
        name, _, part = key.rpartition("/")
        parameter = parameters[name]
        on_device = part != "step" or optimizer.defaults["fused"]
        optimizer.state[parameter][part] = value.to(parameter.device) if on_device else value
