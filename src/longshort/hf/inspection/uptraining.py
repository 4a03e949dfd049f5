"""Short training of a model with shorter reaches, which can be stopped and resumed."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from threading import Event

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longshort.hf.inspection.record import Progress
from longshort.train.checkpoints.checkpoint import newest_checkpoint, prune_checkpoints, save_checkpoint
from longshort.train.machine.signals import told_to_stop
from longshort.train.optimizer import load_optimizer_tensors, optimizer_tensors

BATCH, RATE = 4, 1e-4
SAVED_EVERY = 300.0
"""Seconds of training between checkpoints."""


class Interrupted(RuntimeError):
    """Training was told to stop; the same conversion resumes it."""


def train(
    model: PreTrainedModel,
    sequences: Tensor,
    checkpoints: Path,
    *,
    steps: int,
    batch: int = BATCH,
    rate: float = RATE,
    progress: Progress = lambda what, done, total: None,
) -> list[float]:
    """Train on sequences (B, T), in their order and over again; returns the loss of each step.

    The model stays in evaluation mode: dropout is off, which our attention does not have. Resumes from the newest of
    the `checkpoints`, bit for bit on a CPU. Told to stop, by Ctrl-C or SIGTERM, it saves one and raises `Interrupted`.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    losses, stop, saved = _resume(model, optimizer, checkpoints), Event(), time.monotonic()
    half = torch.autocast("cuda", torch.bfloat16) if model.device.type == "cuda" else nullcontext()
    with told_to_stop(stop.set):
        for step in range(len(losses), steps):
            rows = sequences[torch.arange(step * batch, (step + 1) * batch) % len(sequences)]
            with half:
                loss = model(rows, labels=rows, use_cache=False).loss
            if not bool(loss.isfinite()):
                raise ValueError(
                    f"the loss must stay finite, got {loss.item()} at step {step + 1}: lower --lr from {rate:g}"
                )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = rate * (1 - step / steps)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            progress(f"training, loss {losses[-1]:.3f}", step + 1, steps)
            if step + 1 < steps and (stop.is_set() or time.monotonic() - saved >= SAVED_EVERY):
                _save(model, optimizer, checkpoints, losses)
                saved = time.monotonic()
                if stop.is_set():
                    raise Interrupted(f"interrupted at step {step + 1} of {steps}")
    return losses


def _save(model: PreTrainedModel, optimizer: torch.optim.Optimizer, checkpoints: Path, losses: list[float]) -> None:
    weights: dict[str, Tensor] = dict(model.named_parameters())
    moments = optimizer_tensors(optimizer, model)
    save_checkpoint(checkpoints, step=len(losses), model=weights, trainer=moments, state={"losses": losses})
    prune_checkpoints(checkpoints, keep=1, best=None)


@torch.no_grad()
def _resume(model: PreTrainedModel, optimizer: torch.optim.Optimizer, checkpoints: Path) -> list[float]:
    """Load the newest checkpoint, if there is one; the losses so far."""
    found = newest_checkpoint(checkpoints)
    if found is None:
        return []
    for name, parameter in model.named_parameters():
        parameter.copy_(found.model[name])
    load_optimizer_tensors(optimizer, model, found.trainer)
    return list(found.state["losses"])
