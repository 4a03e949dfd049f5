"""The self-check behind `longshort check`: does this installation compute what the definition says?

Every fast backend is compared with the float64 reference on outputs, gradients, log-sum-exps and logit statistics; the
model must run forward and backward and have the size that the paper gives. Shapes are small, so it takes seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from rich import box
from rich.table import Table
from torch import Tensor

from longshort.heads import HeadPlan
from longshort.model import GPT, GPTConfig
from longshort.ops import attention

BACKENDS = ("blocked", "auto")
FLOAT32_ERROR = 2e-5
"""Allowed distance from the float64 reference, relative to the largest entry: twenty times one rounding error."""
KEYS = 257
"""Odd, so that no block size divides it."""
PAPER_6M_PARAMETERS = 6_496_704
"""Of the author's 6-layer model, without the position table (arXiv 2505.15548)."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One row of the table."""

    subject: str
    """What was checked."""
    name: str
    """Which of its properties was checked."""
    error: float
    """Largest deviation found; infinite if a number was NaN or an exception was raised."""
    allowed: float
    """Largest deviation that passes."""
    seconds: float
    """How long the check took."""
    failure: str = ""
    """The exception, if one was raised."""

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed


@dataclass(frozen=True, kw_only=True)
class AttentionCase:
    """One call of the op, with as many keys as `KEYS`."""

    name: str
    """What this case covers."""
    plan: HeadPlan
    """Reach of each query head."""
    n_kv_heads: int | None = None
    """If None, one KV head per query head."""
    queries: int = KEYS
    """Positions that ask."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of `attention`."""


def run_checks() -> Iterator[Check]:
    """All checks, one at a time, so that a caller can show them as they finish."""
    for case in attention_cases():
        for backend in BACKENDS:
            yield _timed(f"attention {backend}", case.name, FLOAT32_ERROR, partial(deviation, case, backend))
    yield _timed("model tiny", "loss before training", 0.5, _initial_loss_deviation)
    yield _timed("model paper-6m", f"{PAPER_6M_PARAMETERS:,} parameters", 0.0, _parameter_count_deviation)


def attention_cases() -> list[AttentionCase]:
    """One case for each feature of the op.

    >>> [case.plan.n_heads for case in attention_cases()]
    [6, 6, 6, 6, 6, 6, 6]
    """
    long_short = HeadPlan.long_short(n_heads=6, n_global=1, window=50)
    documents = torch.arange(KEYS) // 100
    documents[-20:] = -1
    return [
        AttentionCase(name="1 global, 5 local", plan=long_short),
        AttentionCase(name="mixed windows", plan=HeadPlan(windows=(1, 2, None, 64, 257, 1000))),
        AttentionCase(name="grouped, 33 queries", plan=long_short, n_kv_heads=2, queries=33),
        AttentionCase(name="two-sided", plan=long_short, options={"causal": False}),
        AttentionCase(name="softcap", plan=long_short, options={"softcap": 5.0}),
        AttentionCase(name="ALiBi", plan=long_short.with_alibi()),
        AttentionCase(name="segments, padding", plan=long_short, options={"segments": documents.expand(2, -1)}),
    ]


def deviation(case: AttentionCase, backend: str) -> float:
    """Largest distance of `backend` in float32 from the reference in float64, over everything the op returns."""
    found = _op_results(case, backend, torch.float32)
    expected = _op_results(case, "reference", torch.float64)
    return max(_distance(found[name], expected[name]) for name in expected)


def table(checks: list[Check]) -> Table:
    """The checks as a table for the terminal."""
    result = Table(
        "", "check", "max error", "allowed", "ms", "", title="longshort self-check", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for column in result.columns[2:5]:
        column.justify = "right"
    for check in checks:
        verdict = "[green]pass[/]" if check.passed else "[red]FAIL[/]"
        numbers = f"{check.error:.1e}", f"{check.allowed:.1e}", f"{1000 * check.seconds:.0f}"
        result.add_row(check.subject, check.name, *numbers, verdict)
    return result


def _timed(subject: str, name: str, allowed: float, measure: Callable[[], float]) -> Check:
    start = time.perf_counter()
    failure = ""
    try:
        error = measure()
    except Exception as exception:  # a broken part must show as a row, not hide the rows after it
        error, failure = math.inf, f"{type(exception).__name__}: {exception}"
    seconds = time.perf_counter() - start
    return Check(subject=subject, name=name, error=error, allowed=allowed, seconds=seconds, failure=failure)


def _op_results(case: AttentionCase, backend: str, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    n_kv_heads = case.n_kv_heads or case.plan.n_heads
    shapes = [(2, case.plan.n_heads, case.queries, 32), *[(2, n_kv_heads, KEYS, 32)] * 2]
    q, k, v = (torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes)
    result = attention(q, k, v, case.plan, stats=True, backend=backend, **case.options)
    assert result.stats is not None and result.stats.min is not None
    upstream = torch.randn(result.out.shape, generator=generator).to(dtype)
    gradients = torch.autograd.grad(result.out, (q, k, v), upstream)
    return {
        "output": result.out.detach(),
        "lse": result.lse,
        "largest logit": result.stats.max,
        "smallest logit": result.stats.min,
        **dict(zip(("q gradient", "k gradient", "v gradient"), gradients, strict=True)),
    }


def _distance(found: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the largest finite entry; equal infinities count as 0, NaN as infinite."""
    expected = expected.double()
    difference = (found.double() - expected).abs().masked_fill(found.double() == expected, 0.0)
    scale = expected[expected.isfinite()].abs().max().clamp(min=1.0)
    return float((difference / scale).nan_to_num(nan=math.inf, posinf=math.inf).max())


def _initial_loss_deviation() -> float:
    config = GPTConfig.preset("tiny")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT(config)
        tokens = torch.randint(config.vocab_size, (2, 65))
    loss = model(tokens[:, :-1], tokens[:, 1:]).loss
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is None or not parameter.grad.isfinite().all():
            raise ArithmeticError(f"{name} has no finite gradient")
    return abs(loss.item() - math.log(config.vocab_size))


def _parameter_count_deviation() -> float:
    with torch.device("meta"):
        model = GPT(GPTConfig.preset("paper-6m"))
    return abs(model.n_parameters(position_table=False) - PAPER_6M_PARAMETERS)
