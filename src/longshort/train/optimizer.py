"""The optimizer, with weight decay on matrices only, the guard that judges its steps, and the state of both for
checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from longshort.stability import SpikeGuard, TensorClip
from longshort.train.muon import Muon
from longshort.train.settings.config import ConfigError, OptimizerConfig, StabilityConfig

_CLIP_MEANS = "tensor_clip/means"


def build_optimizer(model: nn.Module, config: OptimizerConfig, device: torch.device) -> torch.optim.Optimizer:
    """AdamW, fused if the device has such a kernel, in groups with and without weight decay; or Muon for the matrices
    of the blocks and that AdamW for all else.

    A group's `lr_ratio`, if it has one, is its learning rate as a multiple of `config.lr`.
    """
    matrices = _block_matrices(model) if config.kind == "muon" else {}
    others = [p for p in model.parameters() if p.requires_grad and p not in matrices]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    options: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
    options["fused"] = device.type in ("cpu", "cuda")
    if config.kind == "adamw":
        return torch.optim.AdamW(groups, **options)
    if not matrices:
        raise ConfigError("optimizer.kind=muon needs a model whose blocks have trainable matrices, got one without")
    rate = config.lr if config.muon_lr is None else config.muon_lr
    of_muon = {"params": list(matrices), "rows": list(matrices.values()), "weight_decay": config.weight_decay}
    of_muon |= {"lr": rate, "lr_ratio": rate / config.lr}
    return Muon([of_muon, *groups], momentum=config.muon_momentum, scale=config.muon_scale, **options)


def _block_matrices(model: nn.Module) -> dict[Tensor, list[int]]:
    """The weights of the linear layers in the model's blocks, each with the heights of the matrices fused in it: the
    layer's `rows`, if it has any.
    """
    layers = [layer for block in getattr(model, "blocks", ()) for layer in block.modules()]
    return {
        layer.weight: getattr(layer, "rows", [layer.out_features])
        for layer in layers
        if isinstance(layer, nn.Linear) and layer.weight.requires_grad
    }


def describe_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """The optimizer in words.

    >>> describe_optimizer(torch.optim.AdamW([torch.zeros(3)]))
    'AdamW'
    """
    if not isinstance(optimizer, Muon):
        return type(optimizer).__name__
    counts = {True: [0, 0], False: [0, 0]}
    for group in optimizer.param_groups:
        count = counts[group["rows"] is not None]
        count[0] += len(group["params"]) if group["rows"] is None else sum(map(len, group["rows"]))
        count[1] += sum(parameter.numel() for parameter in group["params"])
    (matrices, of_matrices), (others, of_others) = counts[True], counts[False]
    return f"Muon for {matrices} matrices ({of_matrices:,} weights), AdamW for {others} other tensors ({of_others:,})"


def build_guard(config: StabilityConfig) -> SpikeGuard:
    """The guard that judges steps, unless it is off."""
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
