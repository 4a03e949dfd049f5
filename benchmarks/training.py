"""Training throughput on one GPU: the same GPT with LS-attention and with plain attention, by several implementations.

A step is forward, loss, backward and fused AdamW on random tokens, under bf16 autocast; only the function that the
attention layers call differs. FLOPs of a step, forward and backward: 6 for each token and weight in a matrix product
(all but the embedding tables; a tied table is the head's matrix), and 12 D for each pair of a query and a key that it
sees, in each head of dimension D (two products forward, four backward). MFU relates them to the GPU's dense bf16 peak;
`mfu_as_plain` counts every pair that plain attention would see, whether the arm computes it or not.

Run `python -m benchmarks.training --out docs/results/training-throughput.json`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

import longshort.nn.attention as layer
from benchmarks.attention import machine, median_ratio
from benchmarks.gpu import require
from benchmarks.gpu_check import failure
from benchmarks.gpu_peers import allow_many_graphs, flex, sdpa
from benchmarks.registry import Attend
from longshort.files import write_atomically, write_json
from longshort.heads import HeadPlan
from longshort.model import GPT, GPTConfig
from longshort.ops import AttentionResult
from longshort.train.config import OptimizerConfig
from longshort.train.flops import flops_per_token, peak_flops
from longshort.train.optimizer import build_optimizer
from longshort.train.precision import autocast

_WARMUP_STEPS = 3
_LOSS_ERROR, _GRADIENT_ERROR = 1e-2, 5e-2
"""Largest accepted differences between arms of one plan at the first step: of the loss, and of the first projection's
gradient relative to its norm, which a wrong mask changes more than the loss of a model that knows nothing yet."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A model and the rows it is trained on."""

    preset: str
    context: int
    tokens: int
    """Tokens of a step, the same for every arm."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Fields of the preset that are changed."""

    def __str__(self) -> str:
        return f"{self.preset}:{self.context}"

    def config(self, plan: str, backend: str = "auto") -> GPTConfig:
        """The model; `plan` is 'ls', the preset's own, or 'plain'."""
        config = GPTConfig.preset(self.preset, context=self.context, backend=backend, **self.overrides)
        if plan == "ls":
            return config
        full = HeadPlan.full(config.n_heads)
        return GPTConfig.preset(self.preset, context=self.context, backend=backend, plan=full, **self.overrides)


# On a large GPU the loss need not save memory, and a vocabulary of 50,257 makes slow matrix products.
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
class Arm:
    """One way to attend."""

    name: str
    plan: str
    """'ls' or 'plain'."""
    build: Callable[[GPTConfig, str, bool], Attend | None] = lambda config, device, compiled: None
    """What the layers call in place of the package's own op, given whether the model is compiled; None is that op."""


def _flex(config: GPTConfig, device: str, compiled: bool) -> Attend:
    return flex(config.layer_plans[0], config.context, device, inside_compile=compiled)


ARMS = (
    Arm(name="longshort", plan="ls"),
    Arm(name="FlexAttention", plan="ls", build=_flex),
    Arm(name="longshort", plan="plain"),
    Arm(name="cuDNN", plan="plain", build=lambda *_: sdpa(SDPBackend.CUDNN_ATTENTION)),
    Arm(name="FA2", plan="plain", build=lambda *_: sdpa(SDPBackend.FLASH_ATTENTION)),
)


def standing_in(attend: Attend) -> Callable[..., AttentionResult]:
    """`attend` with the signature of the op, for causal attention over whole rows without statistics."""

    def attention(q: Tensor, k: Tensor, v: Tensor, plan: HeadPlan, **options: Any) -> AttentionResult:
        assert options["softcap"] is None and options["segments"] is None and not options["stats"], options
        return AttentionResult(attend(q, k, v), q.new_empty(0), None)

    return attention


@contextmanager
def attending(attention: Callable[..., AttentionResult] | None) -> Iterator[None]:
    """Inside, attention layers call this function instead of the op; None changes nothing."""
    module: Any = layer
    original = module.attention
    module.attention = attention or original
    try:
        yield
    finally:
        module.attention = original


class Trainee:
    """One arm's model, optimizer and data; every arm of a setting starts from the same weights."""

    def __init__(self, arm: Arm, setting: Setting, *, device: str, backend: str, compiled: bool) -> None:
        config = setting.config(arm.plan, backend)
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
        attend = arm.build(config, device, compiled)
        self.attention = None if attend is None else standing_in(attend)
        if compiled:
            allow_many_graphs()
            for block in self.model.blocks:  # block by block: one graph for all layers, compiled once
                block.compile(dynamic=False)

    def step(self) -> tuple[Tensor, Tensor]:
        """One step; the loss, and the gradient of the first layer's projection to queries, keys and values."""
        with attending(self.attention), autocast("auto", self.device):
            loss = self.model(self.tokens, self.targets).loss
        loss.backward()
        gradient = self.model.blocks[0].attention.qkv.weight.grad
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach(), gradient

    def time(self, steps: int) -> float:
        """Milliseconds of a step, on average over `steps`."""
        _finish(self.device)
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        _finish(self.device)
        return 1e3 * (time.perf_counter() - start) / steps


class FirstStep(NamedTuple):
    """What arms of one plan must agree on."""

    loss: float
    gradient: Tensor
    """Of the first layer's projection to queries, keys and values."""


def disagreement(first: FirstStep, other: FirstStep) -> str | None:
    """How far two arms of one plan are apart at the first step, if that is more than rounding."""
    difference, size = (torch.linalg.vector_norm(x) for x in (first.gradient - other.gradient, other.gradient))
    apart = (difference / size).item()
    if abs(first.loss - other.loss) <= _LOSS_ERROR and apart <= _GRADIENT_ERROR:
        return None
    return f"wrong: first loss {first.loss:.4f} and not {other.loss:.4f}, gradients apart by {apart:.1%}"


@dataclass
class _Entrant:
    """An arm on its way through one setting."""

    arm: Arm
    trainee: Trainee | None = None
    first: FirstStep | None = None
    milliseconds: list[float] = field(default_factory=list)
    failed: str | None = None

    def attempt(self, step: Callable[[], object]) -> None:
        """Take a step, unless an earlier one failed."""
        if self.failed is None:
            self.failed = failure(step, required=self.arm.name == "longshort")
        if self.failed is not None:
            self.trainee = None  # and its memory

    def begin(self, setting: Setting, **options: Any) -> None:
        self.trainee = Trainee(self.arm, setting, **options)
        loss, gradient = self.trainee.step()
        self.first = FirstStep(loss.item(), gradient)
        for _ in range(_WARMUP_STEPS - 1):
            self.trainee.step()

    def compare(self, other: _Entrant) -> None:
        """Fail where the two arms do not start alike."""
        assert self.first is not None and other.first is not None
        self.failed = disagreement(self.first, other.first)

    def run(self, steps: int) -> None:
        assert self.trainee is not None
        self.milliseconds.append(self.trainee.time(steps))


def measure(
    setting: Setting,
    arms: Iterable[Arm] = ARMS,
    *,
    device: str = "cuda",
    backend: str = "triton",
    compiled: bool = False,
    rounds: int = 3,
    steps: int = 2,
) -> list[dict[str, Any]]:
    """The rows of one setting, ready for JSON; an arm that disagrees with the first of its plan is not timed."""
    if setting.tokens % setting.context:
        raise ValueError(f"tokens must be a multiple of the context {setting.context}, got {setting.tokens}")
    entrants = [_Entrant(arm) for arm in arms]
    for entrant in entrants:
        entrant.attempt(partial(entrant.begin, setting, device=device, backend=backend, compiled=compiled))
    for plan in ("ls", "plain"):
        alike = [entrant for entrant in entrants if entrant.arm.plan == plan and entrant.failed is None]
        for entrant in alike[1:]:
            entrant.compare(alike[0])
    for _ in range(rounds):
        for entrant in entrants:
            entrant.attempt(partial(entrant.run, steps))
    flops = {plan: step_flops(setting, plan) for plan in ("ls", "plain")}
    rows = [_row(setting, entrant, flops, peak_flops(torch.device(device)), compiled) for entrant in entrants]
    ours = next((row for row in rows if (row["arm"], row["plan"]) == ("longshort", "ls")), {})
    for row in rows:
        if "failed" not in row and "milliseconds" in ours:
            row["ls_speedup"] = median_ratio(row["milliseconds"], ours["milliseconds"])
    return rows


def step_flops(setting: Setting, plan: str) -> float:
    """Arithmetic of one step, as the module says."""
    with torch.device("meta"):
        model = GPT(setting.config(plan))
    return setting.tokens * flops_per_token(model, setting.context)


def _row(
    setting: Setting, entrant: _Entrant, flops: dict[str, float], peak: float | None, compiled: bool
) -> dict[str, Any]:
    arm = entrant.arm
    row: dict[str, Any] = {"setting": str(setting), "arm": arm.name, "plan": arm.plan, "compiled": compiled}
    if entrant.failed is not None or entrant.first is None:
        return row | {"failed": entrant.failed}
    seconds = 1e-3 * statistics.median(entrant.milliseconds)
    return row | {
        "overrides": setting.overrides,
        "batch": setting.tokens // setting.context,
        "milliseconds": entrant.milliseconds,
        "tokens_per_second": setting.tokens / seconds,
        "mfu": peak and flops[arm.plan] / seconds / peak,
        "mfu_as_plain": peak and flops["plain"] / seconds / peak,
        "first_loss": entrant.first.loss,
    }


def run(
    settings: Iterable[Setting] = SETTINGS,
    *,
    arms: Iterable[Arm] = ARMS,
    device: str = "cuda",
    command: str = "",
    progress: Callable[[str], None] = lambda line: None,
    keep: Callable[[dict[str, Any]], object] = lambda results: None,
    **options: Any,
) -> dict[str, Any]:
    """Measure every setting; `keep` is given the results so far after each. `options` are those of `measure`."""
    require(device)
    start = time.monotonic()
    results: dict[str, Any] = {"machine": machine(device), "command": command, "seconds": 0.0, "rows": []}
    for setting in settings:
        progress(f"{setting} ...")
        rows = measure(setting, arms, device=device, **options)
        results["rows"] += rows
        results["seconds"] = round(time.monotonic() - start, 1)
        for row in rows:
            speed = row.get("failed") or f"{row['tokens_per_second']:,.0f} tokens/s"
            progress(f"{setting} {row['arm']} ({row['plan']}): {speed}")
        progress(f"{setting} done, {results['seconds']:.0f} s in all")
        keep(results)
        torch.compiler.reset()
    return results


def table(results: dict[str, Any]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| model:context | attention | by | ms a step | tokens/s | MFU | MFU as if plain | LS is faster by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        named = f"| {row['setting']} | {row['plan']} | {row['arm']} |"
        if "failed" in row:
            lines.append(f"{named} {row['failed']} | | | | |")
            continue
        shares = " | ".join("" if row[key] is None else f"{row[key]:.1%}" for key in ("mfu", "mfu_as_plain"))
        faster = f"{row['ls_speedup']:.2f}x" if "ls_speedup" in row else ""
        median = statistics.median(row["milliseconds"])
        lines.append(f"{named} {median:.1f} | {row['tokens_per_second']:,.0f} | {shares} | {faster} |")
    return "\n".join(lines)


def save(results: dict[str, Any], path: Path) -> list[Path]:
    """Write the results as JSON, and as a Markdown table beside it."""
    about = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    text = f"# Training throughput\n\n    {results['command']}\n\n{about}. Forward, loss, backward and fused AdamW"
    text += " under bf16 autocast, random tokens, as many a step for all arms, which take turns; medians over rounds."
    text += f" Data: [{path.name}]({path.name}).\n\n{table(results)}\n"
    return [write_json(path, results), write_atomically(path.with_suffix(".md"), text)]


def _named(names: str | None, among: Sequence[Any], what: str) -> list[Any]:
    """Those of these names, separated by commas; all if None."""
    known = {str(x) if isinstance(x, Setting) else f"{x.name}-{x.plan}": x for x in among}
    wanted = list(known) if names is None else names.split(",")
    for name in wanted:
        if name not in known:
            raise ValueError(f"{what} must be among {', '.join(known)}, got {name!r}")
    return [known[name] for name in wanted]


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file for the result; a .md table goes beside it")
    parser.add_argument("--only", help="settings, as in paper-6m:2048,gpt2-small:8192")
    parser.add_argument("--arms", help="as in longshort-ls,cuDNN-plain")
    parser.add_argument("--compile", action="store_true", help="compile the blocks of the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="steps of an arm in a round")
    a = parser.parse_args()
    given = {"--out": a.out, "--only": a.only, "--arms": a.arms, "--rounds": a.rounds, "--steps": a.steps}
    said = "".join(f" {name} {value}" for name, value in given.items() if value is not None)
    try:
        results = run(
            _named(a.only, SETTINGS, "--only"),
            arms=_named(a.arms, ARMS, "--arms"),
            compiled=a.compile,
            rounds=a.rounds,
            steps=a.steps,
            command=f"python -m benchmarks.training{' --compile' if a.compile else ''}{said}",
            progress=partial(print, flush=True),
            keep=lambda results: a.out and save(results, a.out),
        )
    except ValueError as error:
        parser.exit(1, f"error: {error}\n")
    print(table(results))


if __name__ == "__main__":
    main()
