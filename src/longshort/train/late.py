"""Reads what a step measured one step late, so that the host launches the next step instead of waiting for the GPU.

The copies to the host begin when a step is launched and are waited for after the next one is; on a CPU the numbers are
there at once. Which step is handed out depends on the order of the calls alone, never on time, so several processes do
the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

Logits = tuple[Tensor, Tensor]
"""The largest and smallest attention logit of each head, (L, H) each."""


class Numbers(NamedTuple):
    """What a step measures."""

    loss: Tensor
    norm: Tensor
    """Of all gradients, before clipping."""
    logits: Logits | None
    layers: Tensor | None
    """(L,) gradient norm of each layer."""


@dataclass(kw_only=True)
class Step:
    """A step that was launched."""

    number: int
    """From 1."""
    batch: int
    indices: tuple[int, ...]
    """The sequences of its batch."""
    start: float
    """When its launch began, by time.perf_counter."""
    rate: float
    numbers: Numbers
    """On the device."""
    entropy: Tensor | None = None
    """(L, H), of the model after the step."""


class Late:
    """Holds the newest step until the one after it is launched."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._at_once = device, at_once(device)
        self._held: tuple[Step, _Copy] | None = None

    @property
    def holds(self) -> bool:
        """Whether a step is held."""
        return self._held is not None

    def exchange(self, step: Step, *, wait: bool = False) -> tuple[Step, Numbers] | None:
        """Take a step that was just launched; hand out the one before it, or on a CPU and with `wait` this one."""
        ready, self._held = self._held, (step, _Copy(step.numbers))
        if wait or self._at_once:
            assert ready is None, "the step before must be handed out first"
            ready, self._held = self._held, None
        return None if ready is None else (ready[0], ready[1].read())

    def last(self) -> tuple[Step, Numbers] | None:
        """Wait for all that was launched and hand out the step that is held, if any."""
        ready, self._held = self._held, None
        if ready is None:
            return None
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return ready[0], ready[1].read()

    def forget(self) -> None:
        """Drop the step that is held, since it was undone."""
        self._held = None


def at_once(device: torch.device) -> bool:
    """Whether reading a number from the device waits for nothing."""
    return device.type == "cpu"


class _Copy:
    """Numbers on their way to the host."""

    def __init__(self, numbers: Numbers) -> None:
        loss, norm, logits, layers = numbers
        self._numbers = Numbers(
            _to_host(loss),
            _to_host(norm),
            None if logits is None else (_to_host(logits[0]), _to_host(logits[1])),
            None if layers is None else _to_host(layers),
        )
        self._there = torch.cuda.Event() if loss.is_cuda else None
        if self._there is not None:
            self._there.record()

    def read(self) -> Numbers:
        if self._there is not None:
            self._there.synchronize()
        return self._numbers


def _to_host(x: Tensor) -> Tensor:
    return x.to("cpu", non_blocking=True)  # from a GPU, into pinned memory
