"""Reads what a step measured one step late, so that the host launches the next step instead of waiting for a GPU.

The copies to the host begin when a step is launched and are waited for after the next one is; on a CPU the numbers are
there at once. Which step is handed out depends on the order of the calls alone, never on time, so several processes do
the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

Logits = tuple[Tensor, Tensor | None]
"""The largest and smallest attention logit of each head, (L, H) each; None where only the largest are measured."""


class Numbers(NamedTuple):
    """What a step measures."""

    loss: Tensor
    norm: Tensor
    """Of all gradients, before clipping."""
    logits: Logits | None
    layers: Tensor | None
    """(L,) gradient norm of each layer."""


class Mark:
    """A moment: on a GPU, when it gets there, else now."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        self._time = time.perf_counter()
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(device))

    def wait(self) -> None:
        """Wait until the moment has come."""
        if self._event is not None:
            self._event.synchronize()

    def since(self, earlier: Mark) -> float:
        """Seconds between two moments that have come."""
        if self._event is None or earlier._event is None:
            return self._time - earlier._time
        return earlier._event.elapsed_time(self._event) / 1e3


@dataclass(kw_only=True)
class Step:
    """A step that was launched."""

    number: int
    """From 1."""
    batch: int
    indices: tuple[int, ...]
    """The sequences of its batch."""
    start: Mark
    rate: float
    numbers: Numbers
    """On the device."""
    entropy: Tensor | None = None
    """(L, H), of the model after the step."""


@dataclass(frozen=True)
class Ready:
    """A step whose numbers can be read."""

    step: Step
    numbers: Numbers
    """On the host."""
    _begin: Mark
    _end: Mark | None

    def seconds(self) -> float:
        """How long the step took: from when the step before it was measured, or from its start, if it was launched
        later, to when it was measured itself, or to now, if it was handed out at once.
        """
        return (self._end or Mark(torch.device("cpu"))).since(self._begin)


class Late:
    """Holds the newest step until the one after it is launched."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._at_once = device, at_once(device)
        self._held: Ready | None = None
        self._newest: Mark | None = None

    @property
    def holds(self) -> bool:
        """Whether a step is held."""
        return self._held is not None

    def exchange(self, step: Step, *, wait: bool = False) -> Ready | None:
        """Take a step that was just launched; hand out the one before it, or on a CPU and with `wait` this one."""
        numbers = _to_host(step.numbers)
        if self._at_once:
            return Ready(step, numbers, step.start, None)
        begin, self._newest = self._newest or step.start, Mark(self._device)
        ready, self._held = self._held, Ready(step, numbers, begin, self._newest)
        if wait:
            assert ready is None, "the step before must be handed out first"
            ready, self._held = self._held, None
        if ready is not None and ready._end is not None:
            ready._end.wait()
        return ready

    def last(self) -> Ready | None:
        """Wait for all that was launched and hand out the step that is held, if any. The next one is timed anew."""
        held, self._held, self._newest = self._held, None, None
        if held is None:
            return None
        end = Mark(self._device)
        end.wait()
        return replace(held, _end=end)

    def forget(self) -> None:
        """Drop the step that is held, since it was undone. The next one is timed anew."""
        self._held = self._newest = None


def at_once(device: torch.device) -> bool:
    """Whether reading a number from the device waits for nothing."""
    return device.type == "cpu"


def _to_host(numbers: Numbers) -> Numbers:
    """Begin to copy the numbers; from a GPU, into pinned memory."""
    loss, norm, logits, layers = numbers
    low = None if logits is None or logits[1] is None else logits[1].to("cpu", non_blocking=True)
    return Numbers(
        loss.to("cpu", non_blocking=True),
        norm.to("cpu", non_blocking=True),
        None if logits is None else (logits[0].to("cpu", non_blocking=True), low),
        None if layers is None else layers.to("cpu", non_blocking=True),
    )
