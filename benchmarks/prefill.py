"""Full forward passes of the paper's models at inference, attention computed in several ways."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from benchmarks.gpu_peers import allow_many_graphs, sdpa
from benchmarks.gpu_timing import eager, repeated
from benchmarks.training import attending, standing_in
from longshort.heads import HeadPlan
from longshort.model import GPT, GPTConfig
from longshort.train.precision import autocast

TOKENS = 32768
"""Of one forward pass, so that a row of any length fills the GPU; a batch of one from 32,768 on."""
ARMS = ("ls", "plain", "plain-flash", "plain-cudnn")
LENGTHS = (2048, 4096, 8192, 16384, 32768)


def forward(
    preset: str,
    arm: str,
    length: int,
    rows: int,
    device: str,
    *,
    loss: bool = True,
    compiled: bool = False,
    **changes: Any,
) -> Callable[[], object]:
    """One forward pass of a model as an arm computes attention: to the loss under autocast, as in training and
    evaluation, or to the last hidden state with the weights in bf16, as a served model fills its cache. Its blocks may
    be compiled."""
    on_gpu = device.startswith("cuda")
    config = GPTConfig.preset(preset, context=length, backend="triton" if on_gpu else "auto", **changes)
    if arm != "ls":
        plan = HeadPlan.full(config.n_heads)
        config = GPTConfig.preset(preset, context=length, backend=config.backend, plan=plan, **changes)
    torch.manual_seed(0)
    with torch.device(device):  # a large model takes seconds to draw on the CPU
        model = GPT(config).eval()
    if on_gpu and not loss:
        model.bfloat16()
    if compiled:
        allow_many_graphs()
        for block in model.blocks:
            block.compile(dynamic=False)
    tokens = torch.randint(config.vocab_size, (rows, length), device=device)
    kernels = {"plain-flash": SDPBackend.FLASH_ATTENTION, "plain-cudnn": SDPBackend.CUDNN_ATTENTION}
    attention = standing_in(sdpa(kernels[arm])) if arm in kernels else None
    targets = tokens.clone()  # the loss is chunked: full logits of 32,768 tokens would be timed otherwise

    @torch.inference_mode()
    def call() -> object:
        with attending(attention):
            if not loss:
                return model(tokens, return_logits=False)
            with autocast("auto", tokens.device):
                return model(tokens, targets).loss

    return call


def measure(
    preset: str,
    length: int,
    *,
    device: str,
    arms: Sequence[str] = ARMS,
    rounds: int = 3,
    tokens: int = TOKENS,
    loss: bool = True,
    graph: bool = False,
    compiled: bool = False,
) -> list[dict[str, Any]]:
    """Milliseconds of each arm in each round, at one length, arms in turns; with `graph`, replayed in a CUDA graph."""
    batch = max(1, tokens // length)
    arms = [arm for arm in arms if device != "cpu" or arm != "plain-cudnn"]
    samples = {}
    for arm in arms:
        call = _warm(forward(preset, arm, length, batch, device, loss=loss, compiled=compiled))
        samples[arm] = repeated([call], device)[0] if graph else eager(call, device)
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    for _ in range(rounds):
        for arm, sample in samples.items():
            times[arm].append(sample())
    return [{"model": preset, "n": length, "rows": batch, "arm": a, "milliseconds": t} for a, t in times.items()]


def saved(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The share of each plain arm's time that LS does not take, at one length."""
    times = {row["arm"]: statistics.median(row["milliseconds"]) for row in rows}
    return {arm: 1 - times["ls"] / ms for arm, ms in times.items() if arm != "ls"}


def _warm(call: Callable[[], object]) -> Callable[[], object]:
    for _ in range(2):
        call()
    return call
