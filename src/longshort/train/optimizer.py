"""AdamW with weight decay on matrices only, and its state under the parameters' own names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longshort.train.config import OptimizerConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig, device: torch.device) -> torch.optim.AdamW:
    """Two groups, decayed and not; fused where the device has such a kernel."""
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
