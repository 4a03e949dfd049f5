"""Whole training steps by the clock: forward, loss, backward and fused AdamW on random tokens, under bf16 autocast.

Ours run with their defaults, as a user gets them. Within a setting all entrants start from the same weights and tokens,
and those that attend to everything must give the same first loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import OURS, Entrant, WrongResult, take_turns
from benchmarks.nanogpt import NanoGPT
from benchmarks.timing import Sample, allocated, clocked, free, peak_bytes, warmed
from longshort.model import GPT, GPTConfig
from longshort.train.machine.precision import autocast
from longshort.train.optimizer import build_optimizer
from longshort.train.settings.config import OptimizerConfig

NANOGPT = "nanoGPT-style"
COMPILED, EAGER = "compiled", "eager"
GRAPHS = "compiled, CUDA graphs"
BLOCKS = "compiled block by block"
"""Layers of one kind are compiled once, those of other models included."""
RECOMPUTED = "compiled, recomputed"
_LOSS_ERROR = 1e-2
"""Largest accepted difference between the first losses of entrants that compute the same."""
_WARMUP_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A model and the tokens of a step."""

    batch: int
    context: int
    window: int | None = None
    """That of 'ls'."""
    sizes: dict[str, Any] = field(default_factory=dict)
    """Layers, width, heads and the like, in the names of `GPTConfig`."""

    def __str__(self) -> str:
        return f"{self.batch} x {self.context:,}"

    @property
    def tokens(self) -> int:
        return self.batch * self.context

    def config(self, heads: str, **changes: Any) -> GPTConfig:
        """The model; `heads` is 'ls' (one global head, the rest with the window), 'plain', or any other word for the
        reach that is among the sizes."""
        reach = {"n_global": 1, "window": self.window} if heads == "ls" else {}
        return GPTConfig(context=self.context, **(self.sizes | reach | changes))


@dataclass(frozen=True, kw_only=True)
class Way:
    """A model and how its step is run."""

    name: str
    heads: str
    how: str
    vocab_size: int | None = None
    """That of the setting if None."""

    @property
    def about(self) -> dict[str, Any]:
        """What identifies the way, ready for JSON."""
        return {"name": self.name, "heads": self.heads, "how": self.how}


STEPS = tuple(
    Way(name=name, heads=heads, how=how)
    for how in (COMPILED, EAGER)
    for name, heads in ((NANOGPT, "plain"), (OURS, "ls"), (OURS, "plain"))
)


class Trainee:
    """One way's model, optimizer and data."""

    def __init__(self, way: Way, setting: Setting, *, device: str, compiler: str = "inductor") -> None:
        changes = {} if way.vocab_size is None else {"vocab_size": way.vocab_size}
        config = setting.config(way.heads, **changes)
        self.device = torch.device(device)
        torch.manual_seed(0)
        with self.device:
            ours = GPT(config)
            self.model: nn.Module = NanoGPT(config) if way.name == NANOGPT else ours
        if isinstance(self.model, NanoGPT):
            self.model.take(ours)
        self.optimizer = build_optimizer(self.model, OptimizerConfig(), self.device)
        generator = torch.Generator(device).manual_seed(0)
        size = (setting.batch, setting.context)
        draw = partial(torch.randint, config.vocab_size, size, generator=generator, device=device)
        self.batch: tuple[Tensor, Tensor] = (draw(), draw())
        if way.how == RECOMPUTED:
            ours.gradient_checkpointing = True
        self.call: Any = self.model
        if way.how == BLOCKS:
            for block in ours.blocks:
                block.compile(backend=compiler, dynamic=False)
        elif way.how != EAGER:
            options: dict[str, Any] = (
                {"mode": "reduce-overhead"} if way.how == GRAPHS and compiler == "inductor" else {}
            )
            self.call = torch.compile(self.model, backend=compiler, dynamic=False, **options)

    def step(self) -> Tensor:
        """One step; the loss."""
        torch.compiler.cudagraph_mark_step_begin()
        with autocast("auto", self.device):
            loss = self.call(*self.batch)[1]
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def measure_steps(
    setting: Setting,
    ways: Sequence[Way] = STEPS,
    *,
    device: str,
    rounds: int,
    steps: int,
    compiler: str = "inductor",
    make: Callable[..., Any] = Trainee,
    timer: Callable[..., Sample] = clocked,
) -> list[dict[str, Any]]:
    """The rows of one setting, ready for JSON: milliseconds of a step, and the bytes that it needs at its peak:
    weights, optimizer, activations."""
    entrants = [Entrant(way.name, way.heads, required=way.name == OURS) for way in ways]

    def begin(way: Way, entrant: Entrant) -> None:
        free(device)  # of what earlier entrants needed only to compile
        before = allocated(device)
        trainee = make(way, setting, device=device, compiler=compiler)
        entrant.facts["first_loss"] = trainee.step().item()
        warmed(trainee.step, _WARMUP_STEPS - 1)
        entrant.facts["peak_bytes"] = peak_bytes(trainee.step, device, before)
        entrant.sample = timer(trainee.step, device, calls=steps)

    for way, entrant in zip(ways, entrants, strict=True):
        entrant.attempt(partial(begin, way, entrant))
    _check_losses(zip(ways, entrants, strict=True))
    take_turns(entrants, rounds)
    rows = []
    for way, entrant in zip(ways, entrants, strict=True):
        row = {"tokens": str(setting), "window": setting.window, **way.about}
        row["vocab_size"] = way.vocab_size or setting.sizes.get("vocab_size")
        rows.append(row | entrant.row())
    return rows


def _check_losses(entrants: Iterable[tuple[Way, Entrant]]) -> None:
    """The same heads over the same vocabulary must give the same first loss."""
    first: dict[tuple[str, int | None], tuple[str, float]] = {}
    for way, entrant in entrants:
        if entrant.failed is not None:
            continue
        loss = entrant.facts["first_loss"]
        name, expected = first.setdefault((way.heads, way.vocab_size), (f"{way.name}, {way.how}", loss))
        if not abs(loss - expected) <= _LOSS_ERROR:
            raise WrongResult(f"{way.name}, {way.how}: first loss {loss:.4f}, but {expected:.4f} by {name}")


@contextmanager
def as_a_user_trains() -> Iterator[None]:
    """TF32 for fp32 products, as nanoGPT allows it, and room for a graph of every model."""
    from torch._dynamo import config as dynamo

    precision, limit = torch.get_float32_matmul_precision(), dynamo.recompile_limit
    torch.set_float32_matmul_precision("high")
    dynamo.recompile_limit = 64
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        dynamo.recompile_limit = limit
