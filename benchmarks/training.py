"""Training throughput on one GPU: one GPT with LS-attention and with plain attention, in several implementations; and
what the logit statistics add to a training step.

A step is forward, loss, backward and fused AdamW on random tokens, under bf16 autocast; only the plan and the backend
differ. FLOPs of a step, forward and backward: 6 for each token and weight in a matrix product (all weights but the
embedding tables; a tied table is the head's matrix), and 12 D for each pair of a query and a key that it sees, in each
head of dimension D (two products forward, four backward). MFU relates them to the GPU's dense bf16 peak; `mfu_as_plain`
counts every pair that plain attention would see, whether computed or not. With `--compile`, blocks that call
FlexAttention have a graph break there (`longshort.ops.flex`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from benchmarks.harness import OURS, Entrant, Recorder, median_ratio, take_turns
from benchmarks.pages import Page, Results, markdown
from benchmarks.peers import CUDNN, FA2, FLEX, set_up_blocks
from benchmarks.timing import clocked, warmed
from longshort.heads import HeadPlan
from longshort.model import GPT, GPTConfig
from longshort.train.config import OptimizerConfig
from longshort.train.flops import flops_per_token, peak_flops
from longshort.train.optimizer import build_optimizer
from longshort.train.precision import autocast

_WARMUP_STEPS = 3
_LOSS_ERROR, _GRADIENT_ERROR = 1e-2, 5e-2
"""Largest accepted differences within one plan at the first step: of the loss, and of the first projection's gradient
relative to its norm, which a wrong mask changes more than the loss of an untrained model."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A model and the sequences it is trained on."""

    preset: str
    context: int
    tokens: int
    """Tokens per step, the same for every implementation."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of the preset to change."""

    def __str__(self) -> str:
        return f"{self.preset}:{self.context}"

    def config(self, plan: str, backend: str = "auto") -> GPTConfig:
        """The model; `plan` is 'ls', the preset's own, or 'plain'."""
        config = GPTConfig.preset(self.preset, context=self.context, backend=backend, **self.overrides)
        if plan == "ls":
            return config
        full = HeadPlan.full(config.n_heads)
        return GPTConfig.preset(self.preset, context=self.context, backend=backend, plan=full, **self.overrides)


# On a large GPU the loss need not save memory, and matrix products with a vocabulary of 50,257 are slow.
_CHUNK: dict[str, Any] = {"loss_chunk": 1 << 13}
_PAPER: dict[str, Any] = {"preset": "paper-6m", "tokens": 1 << 16, "overrides": _CHUNK}
_GPT2: dict[str, Any] = {"preset": "gpt2-small", "tokens": 1 << 15, "overrides": _CHUNK | {"vocab_size": 50_304}}
SETTINGS = (
    Setting(context=2048, **_PAPER),
    Setting(context=8192, **_PAPER),
    Setting(context=2048, **_GPT2),
    Setting(context=8192, **_GPT2),
    Setting(context=32768, **_GPT2),
)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One way to attend inside a model."""

    name: str
    plan: str
    """'ls' or 'plain'."""
    backend: str | None = None
    """Backend of the model; None is the package's own."""
    sdpa: SDPBackend | None = None
    """Which of PyTorch's kernels serves backend="sdpa"."""

    def __str__(self) -> str:
        return f"{self.name}-{self.plan}"


KERNELS = (
    Kernel(name=OURS, plan="ls"),
    Kernel(name=FLEX, plan="ls", backend="flex"),
    Kernel(name=OURS, plan="plain"),
    Kernel(name=CUDNN, plan="plain", backend="sdpa", sdpa=SDPBackend.CUDNN_ATTENTION),
    Kernel(name=FA2, plan="plain", backend="sdpa", sdpa=SDPBackend.FLASH_ATTENTION),
)


class FirstStep(NamedTuple):
    """What kernels of one plan must agree on."""

    loss: float
    gradient: Tensor
    """Gradient of the first layer's projection to queries, keys and values."""


class Trainee:
    """One kernel's model, optimizer and data; all kernels of a setting start from the same weights."""

    def __init__(self, kernel: Kernel, setting: Setting, *, device: str, backend: str, compiled: bool) -> None:
        config = setting.config(kernel.plan, kernel.backend or backend)
        torch.manual_seed(0)
        with torch.device(device):
            self.model: Any = GPT(config)
        self.device = torch.device(device)
        self.optimizer = build_optimizer(self.model, OptimizerConfig(), self.device)
        generator = torch.Generator(device).manual_seed(0)
        size = (setting.tokens // setting.context, setting.context)
        self.tokens, self.targets = (
            torch.randint(config.vocab_size, size, generator=generator, device=device) for _ in range(2)
        )
        set_up_blocks(self.model, kernel.sdpa, compiled=compiled)

    def step(self) -> tuple[Tensor, Tensor]:
        """One step; the loss, and the gradient of the first layer's projection to queries, keys and values."""
        with autocast("auto", self.device):
            loss = self.model(self.tokens, self.targets).loss
        loss.backward()
        gradient = self.model.blocks[0].attention.qkv.weight.grad
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach(), gradient


def disagreement(first: FirstStep, other: FirstStep) -> str | None:
    """How far apart two kernels of one plan are at the first step, if by more than rounding."""
    difference, size = (torch.linalg.vector_norm(x) for x in (first.gradient - other.gradient, other.gradient))
    apart = (difference / size).item()
    if abs(first.loss - other.loss) <= _LOSS_ERROR and apart <= _GRADIENT_ERROR:
        return None
    return f"wrong: first loss {first.loss:.4f} and not {other.loss:.4f}, gradients apart by {apart:.1%}"


def run(
    record: Recorder,
    settings: Sequence[Setting] = SETTINGS,
    *,
    kernels: Sequence[Kernel] = KERNELS,
    device: str = "cuda",
    **options: Any,
) -> Results:
    """Measure every setting; `options` are those of `measure`."""
    record.begin(PAGE, device)
    for setting in settings:
        record.piece("rows", str(setting), partial(measure, setting, kernels, device=device, **options))
        torch.compiler.reset()
    return record.end()


def measure(
    setting: Setting,
    kernels: Sequence[Kernel] = KERNELS,
    *,
    device: str = "cuda",
    backend: str = "triton",
    compiled: bool = False,
    rounds: int = 3,
    steps: int = 2,
) -> list[dict[str, Any]]:
    """The rows of one setting, ready for JSON; a kernel that disagrees with the first of its plan is not timed."""
    if setting.tokens % setting.context:
        raise ValueError(f"tokens must be a multiple of the context {setting.context}, got {setting.tokens}")
    entrants = [Entrant(kernel.name, kernel.plan, required=kernel.name == OURS) for kernel in kernels]
    first: dict[str, FirstStep] = {}

    def begin(kernel: Kernel, entrant: Entrant) -> None:
        trainee = Trainee(kernel, setting, device=device, backend=backend, compiled=compiled)
        loss, gradient = trainee.step()
        mine = FirstStep(loss.item(), gradient)
        warmed(trainee.step, _WARMUP_STEPS - 1)
        entrant.facts["first_loss"] = mine.loss
        entrant.sample = clocked(trainee.step, device, calls=steps)
        wrong = disagreement(mine, first.setdefault(kernel.plan, mine))
        if wrong is not None:
            entrant.fail(wrong)

    for kernel, entrant in zip(kernels, entrants, strict=True):
        entrant.attempt(partial(begin, kernel, entrant))
    take_turns(entrants, rounds)
    flops = {plan: step_flops(setting, plan) for plan in ("ls", "plain")}
    rows = [_row(setting, entrant, flops, peak_flops(torch.device(device)), compiled) for entrant in entrants]
    ours = next((row for row in rows if (row["arm"], row["plan"]) == (OURS, "ls")), {})
    for row in rows:
        if "failed" not in row and "milliseconds" in ours:
            row["ls_speedup"] = median_ratio(row["milliseconds"], ours["milliseconds"])
    return rows


def step_flops(setting: Setting, plan: str) -> float:
    """FLOPs of one step, as described at the top of this module."""
    with torch.device("meta"):
        model = GPT(setting.config(plan))
    return setting.tokens * flops_per_token(model, setting.context)


def _row(
    setting: Setting, entrant: Entrant, flops: dict[str, float], peak: float | None, compiled: bool
) -> dict[str, Any]:
    row: dict[str, Any] = {"setting": str(setting), "arm": entrant.name, "plan": entrant.work, "compiled": compiled}
    if entrant.failed is not None:
        return row | entrant.row()
    seconds = 1e-3 * entrant.median
    return row | {
        "overrides": setting.overrides,
        "batch": setting.tokens // setting.context,
        **entrant.row(),
        "tokens_per_second": setting.tokens / seconds,
        "mfu": peak and flops[entrant.work] / seconds / peak,
        "mfu_as_plain": peak and flops["plain"] / seconds / peak,
    }


def table(results: Results) -> str:
    """One line per row."""
    header = (
        "model:context",
        "attention",
        "by",
        "ms per step",
        "tokens/s",
        "MFU",
        "MFU as if plain",
        "LS is faster by",
    )
    lines = []
    for row in results["rows"]:
        named = (row["setting"], row["plan"], row["arm"])
        if "failed" in row:
            lines.append((*named, row["failed"], "", "", "", ""))
            continue
        shares = ("" if row[key] is None else f"{row[key]:.1%}" for key in ("mfu", "mfu_as_plain"))
        faster = f"{row['ls_speedup']:.2f}x" if "ls_speedup" in row else ""
        median = f"{statistics.median(row['milliseconds']):.1f}"
        lines.append((*named, median, f"{row['tokens_per_second']:,.0f}", *shares, faster))
    return markdown(header, lines)


_ABOUT = """Forward, loss, backward and fused AdamW under bf16 autocast on random tokens, with equally many tokens per
step. Implementations take turns; medians over rounds."""
PAGE = Page(
    name="training-throughput",
    title="Training throughput",
    command="python -m benchmarks training --rounds 3 --steps 2 --out benchmarks/results/training-throughput.json",
    about=lambda results: _ABOUT,
    tables=table,
)


_SMALL: dict[str, Any] = {"vocab_size": 257, "context": 1024, "n_layers": 2, "width": 64, "n_heads": 4}
PLANS = {
    "plain": HeadPlan.full(4),
    "ls": HeadPlan.long_short(n_heads=4, n_global=1, window=16),
}


def run_statistics(record: Recorder, *, device: str = "cpu", rounds: int = 15, every: int = 10) -> Results:
    """What the logit statistics cost: forward and backward with and without them, taking turns."""
    results = record.begin(STATISTICS_PAGE, device, rounds=rounds, every=every)
    results["rows"] = {
        name: statistics_cost(plan, device=device, rounds=rounds, every=every) for name, plan in PLANS.items()
    }
    return record.end()


def statistics_cost(plan: HeadPlan, *, device: str, rounds: int, every: int) -> dict[str, float]:
    """Median milliseconds of a step, median ratio with to without, and the overhead at one reading in `every` steps."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(**_SMALL, plan=plan)).to(device)
    tokens = torch.randint(257, (2, 1025), device=device)

    def step(stats: bool) -> None:
        output = model(tokens[:, :-1], tokens[:, 1:], stats=stats)
        output.loss.backward()
        if stats:
            output.stats.tolist()

    samples = {stats: clocked(warmed(partial(step, stats)), device) for stats in (False, True)}
    entrants = [Entrant(str(stats), required=True, sample=sample) for stats, sample in samples.items()]
    take_turns(entrants, rounds)
    without, with_statistics = entrants
    ratio = median_ratio(with_statistics.milliseconds, without.milliseconds)
    return {
        "milliseconds": without.median,
        "milliseconds_with_statistics": with_statistics.median,
        "ratio": ratio,
        "overhead_at_default": (ratio - 1) / every,
    }


def _statistics_table(results: Results) -> str:
    last = f"overhead at one reading in {results['every']} steps"
    rows = [
        (
            name,
            f"{row['milliseconds']:.1f}",
            f"{row['milliseconds_with_statistics']:.1f}",
            f"{row['ratio']:.2f}",
            f"{100 * row['overhead_at_default']:.1f} %",
        )
        for name, row in results["rows"].items()
    ]
    return markdown(("attention", "step, ms", "with statistics, ms", "ratio", last), rows)


STATISTICS_PAGE = Page(
    name="telemetry",
    title="What the logit statistics cost",
    command="python -m benchmarks training --statistics --rounds 15 --out benchmarks/results/telemetry.json",
    about=lambda results: "Forward and backward of the demo's model, 2 sequences of 1,024 tokens.",
    tables=_statistics_table,
)
