"""Full forward passes of the paper's models at inference, with attention computed in several ways."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from benchmarks.harness import Entrant, take_turns
from benchmarks.peers import set_up_blocks
from benchmarks.timing import eager, repeated, warmed
from longshort.heads import HeadPlan
from longshort.model import GPT, GPTConfig
from longshort.train.machine.precision import autocast

TOKENS = 32768
"""Tokens of one forward pass, so that sequences of any length fill the GPU; a batch of one from 32,768 on."""
VARIANTS = ("ls", "plain", "plain-flash", "plain-cudnn")
LENGTHS = (2048, 4096, 8192, 16384, 32768)
_KERNELS = {"plain-flash": SDPBackend.FLASH_ATTENTION, "plain-cudnn": SDPBackend.CUDNN_ATTENTION}


def forward(
    preset: str,
    variant: str,
    length: int,
    batch: int,
    device: str,
    *,
    loss: bool = True,
    compiled: bool = False,
) -> Callable[[], object]:
    """One forward pass of a model with a variant's attention: to the loss under autocast, as in training and
    evaluation, or to the last hidden state with bf16 weights, as a served model fills its cache. Its blocks may be
    compiled."""
    on_gpu = device.startswith("cuda")
    kernel = _KERNELS.get(variant)
    backend = "sdpa" if kernel is not None else "triton" if on_gpu else "auto"
    config = GPTConfig.preset(preset, context=length, backend=backend)
    if variant != "ls":
        plan = HeadPlan.full(config.n_heads)
        config = GPTConfig.preset(preset, context=length, backend=backend, plan=plan)
    torch.manual_seed(0)
    with torch.device(device):  # drawing a large model on the CPU takes seconds
        model = GPT(config).eval()
    if on_gpu and not loss:
        model.bfloat16()
    set_up_blocks(model, kernel, compiled=compiled)
    tokens = torch.randint(config.vocab_size, (batch, length), device=device)
    targets = tokens.clone()  # with targets the loss is chunked; otherwise full logits of 32,768 tokens would be timed

    @torch.inference_mode()
    def call() -> object:
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
    variants: Sequence[str] = VARIANTS,
    rounds: int = 3,
    tokens: int = TOKENS,
    loss: bool = True,
    graph: bool = False,
    compiled: bool = False,
) -> list[dict[str, Any]]:
    """Milliseconds of each variant in each round, at one length, in turns; with `graph`, replayed in a CUDA graph."""
    batch = max(1, tokens // length)
    entrants = []
    for variant in variants:
        if (device, variant) != ("cpu", "plain-cudnn"):
            call = warmed(forward(preset, variant, length, batch, device, loss=loss, compiled=compiled), 2)
            sample = repeated([call], device)[0] if graph else eager(call, device)
            entrants.append(Entrant(variant, required=True, sample=sample))
    take_turns(entrants, rounds)
    return [
        {"model": preset, "n": length, "rows": batch, "variant": e.name, "milliseconds": e.milliseconds}
        for e in entrants
    ]


def saved(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The share of each plain variant's time that LS saves, at one length."""
    times = {row["variant"]: statistics.median(row["milliseconds"]) for row in rows}
    return {variant: 1 - times["ls"] / ms for variant, ms in times.items() if variant != "ls"}
