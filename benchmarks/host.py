"""Host time of one attention call, in microseconds, at shapes so small that the GPU never has to be waited for.

Called eagerly, and inside a compiled model: there the time of one more layer is that of a stack of many
attention layers minus that of a stack of few, divided by the difference in layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness import DTYPES, OURS, Entrant, WrongResult, take_turns
from benchmarks.peers import FLEX, OURS_WITH_STATS, Attend, block_mask
from benchmarks.shapes import Shape
from benchmarks.timing import clocked, warmed
from longshort.ops import attention

SDPA = "SDPA"
EAGER, INSIDE = "eager", "inside a compiled model"
_ERROR = 3e-2
_WARMUP_CALLS = 10


@dataclass(frozen=True, kw_only=True)
class Calls:
    """What is timed."""

    shape: Shape = Shape(batch=2, heads=6, length=256, head_dim=64, window=64)  # noqa: RUF009
    """Of eager calls."""
    inside: Shape = Shape(batch=1, heads=6, length=128, head_dim=64, window=64)  # noqa: RUF009
    """Of calls inside a compiled model."""
    layers: tuple[int, int] = (8, 24)
    """Depths of the two stacks."""
    calls: int = 200
    """Eager calls per sample; between them nothing waits for the device."""
    stacked_calls: int = 30


class _Inputs:
    """Queries, keys and values, and the calls on them that are timed."""

    def __init__(self, shape: Shape, device: str) -> None:
        generator = torch.Generator(device).manual_seed(0)
        size = (shape.batch, shape.heads, shape.length, shape.head_dim)
        options: dict[str, Any] = {"generator": generator, "device": device, "dtype": DTYPES[device]}
        self.inputs = torch.randn((3, *size), **options).unbind()
        self.gradient = torch.randn(size, **options)
        self.leaves = [x.clone().requires_grad_() for x in self.inputs]

    def forward(self, attend: Attend) -> Tensor:
        with torch.no_grad():
            return attend(*self.inputs)

    def forward_backward(self, attend: Attend) -> None:
        torch.autograd.grad(attend(*self.leaves), self.leaves, self.gradient)


def measure_eager(calls: Calls, *, device: str, rounds: int, compiler: str = "inductor") -> list[dict[str, Any]]:
    """Rows of forward without gradients and of forward and backward, for ours, with statistics, and the peers."""
    inputs, shape = _Inputs(calls.shape, device), calls.shape
    entrants = []

    def begin(entrant: Entrant, attend: Attend, work: str, call: Callable[[Attend], object]) -> None:
        q, k, v = inputs.inputs
        expected = attention(q, k, v, shape.plan(work), backend="reference").out
        _check(entrant.name, inputs.forward(attend), expected)
        entrant.sample = clocked(warmed(partial(call, attend), _WARMUP_CALLS), device, calls=calls.calls)

    for name, work, attend in _entrants(shape, device, compiler):
        for direction, call in (("forward", inputs.forward), ("forward + backward", inputs.forward_backward)):
            entrant = Entrant(name, direction, required=name in (OURS, OURS_WITH_STATS))
            entrant.attempt(partial(begin, entrant, attend, work, call))
            entrants.append(entrant)
    take_turns(entrants, rounds)
    about = {"shape": str(shape), "how": EAGER}
    return [about | {"name": e.name, "direction": e.work, **_microseconds(e)} for e in entrants]


def _entrants(shape: Shape, device: str, compiler: str) -> Sequence[tuple[str, str, Attend]]:
    """Name, work as in `Shape.plan`, and the call."""
    from torch.nn.attention.flex_attention import flex_attention

    plan, mask = shape.plan("ls"), block_mask(shape.plan("ls"), shape.length, device)
    flex: Any = flex_attention if device == "cpu" else torch.compile(flex_attention, dynamic=False, backend=compiler)
    return (
        (OURS, "ls", lambda q, k, v: attention(q, k, v, plan).out),
        (OURS_WITH_STATS, "ls", lambda q, k, v: attention(q, k, v, plan, stats=True).out),
        (FLEX, "ls", lambda q, k, v: flex(q, k, v, block_mask=mask)),
        (SDPA, "full", _sdpa),
    )


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _check(name: str, out: Tensor, expected: Tensor) -> None:
    error = ((out.float() - expected.float()).abs() / expected.float().abs().clamp_min(1)).max().item()
    if not error <= _ERROR:
        raise WrongResult(f"{name} is wrong: error {error:.1e} > {_ERROR:.0e}")


class Stack(nn.Module):
    """Attention layers and nothing else."""

    def __init__(self, layers: int, attend: Attend) -> None:
        super().__init__()
        self.layers, self.attend = layers, attend

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.layers):
            x = self.attend(x, x, x)
        return x


def measure_inside(calls: Calls, *, device: str, rounds: int, compiler: str = "inductor") -> list[dict[str, Any]]:
    """Rows of one call inside a compiled model, forward and backward."""
    plan, rows = calls.inside.plan("ls"), []
    attends: dict[str, Attend] = {OURS: lambda q, k, v: attention(q, k, v, plan).out, SDPA: _sdpa}
    for name, attend in attends.items():
        times = _one_layer(attend, calls, device=device, rounds=rounds, compiler=compiler)
        row = {"shape": str(calls.inside), "how": INSIDE, "name": name}
        rows += [row | {"direction": direction, "microseconds": us} for direction, us in times.items()]
    return rows


def _one_layer(attend: Attend, calls: Calls, *, device: str, rounds: int, compiler: str) -> dict[str, list[float]]:
    """Microseconds that one more layer adds to a stack, forward and backward, in rounds."""
    inputs = _Inputs(calls.inside, device)
    x, gradient = inputs.leaves[0], inputs.gradient
    stacks = [torch.compile(Stack(n, attend), dynamic=False, backend=compiler) for n in calls.layers]

    def forward_backward(stack: Any) -> None:
        torch.autograd.grad(stack(x), x, gradient)

    entrants = [
        Entrant("", sample=clocked(warmed(call, _WARMUP_CALLS), device, calls=calls.stacked_calls), required=True)
        for stack in stacks
        for call in (partial(stack, x), partial(forward_backward, stack))
    ]
    take_turns(entrants, rounds)
    few, many = calls.layers
    forwards, boths = (
        [1e3 * (b - a) / (many - few) for a, b in zip(one.milliseconds, other.milliseconds, strict=True)]
        for one, other in ((entrants[0], entrants[2]), (entrants[1], entrants[3]))
    )
    return {"forward": forwards, "backward": [b - a for a, b in zip(forwards, boths, strict=True)]}


def _microseconds(entrant: Entrant) -> dict[str, Any]:
    row = entrant.row()
    if "milliseconds" in row:
        row["microseconds"] = [1e3 * ms for ms in row.pop("milliseconds")]
    return row
