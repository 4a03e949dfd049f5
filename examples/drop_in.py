"""Swap `LSAttention` into models of your own, in three lines each, and measure what changes.

Two small models stand in for yours: a Llama-style one (RMSNorm, rotary positions, SwiGLU, grouped queries) and a
nanoGPT-style one. Each is trained for a few steps with its own attention, with `LSAttention` whose heads all see
everything (the same function), and with a few global heads and the rest local; from equal weights, on equal batches.

    python examples/drop_in.py                 # a laptop's CPU, under a minute
    python examples/drop_in.py --device cuda --width 768 --layers 12 --heads 12 --kv-heads 4 --length 8192
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longshort import HeadPlan, LSAttention, LSCache
from longshort.stability import watch_logits

BYTES = 256
"""The vocabulary: the models read bytes."""


class LlamaAttention(nn.Module):
    """Grouped queries, rotary positions, PyTorch's attention: what gets replaced."""

    def __init__(self, width: int, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        self.head_dim = width // n_heads
        self.wq = nn.Linear(width, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(width, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(width, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for project in (self.wq, self.wk, self.wv)
        )
        out = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        return self.wo(out.transpose(1, 2).flatten(-2))


def rotate(x: Tensor, theta: float = 10000.0) -> Tensor:
    """Rotary positions of (B, H, T, D); feature i is paired with i + D / 2, as in Hugging Face's Llama."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * frequencies
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    def __init__(self, width: int, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.attention: nn.Module = LlamaAttention(width, n_heads, n_kv_heads)
        self.mlp = SwiGLU(width, 8 * width // 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self, *, width: int, n_layers: int, n_heads: int, n_kv_heads: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, width)
        self.layers = nn.ModuleList([LlamaBlock(width, n_heads, n_kv_heads) for _ in range(n_layers)])
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, BYTES, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class CausalSelfAttention(nn.Module):
    """nanoGPT's, with its names."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_head = n_heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(out.transpose(1, 2).flatten(-2))


class GPTBlock(nn.Module):
    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn: nn.Module = CausalSelfAttention(width, n_heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    def __init__(self, *, width: int, n_layers: int, n_heads: int, n_kv_heads: int, length: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(BYTES, width), nn.Embedding(length, width)
        self.h = nn.ModuleList([GPTBlock(width, n_heads) for _ in range(n_layers)])
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, BYTES, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def swap_llama(model: Any, plan: HeadPlan) -> None:
    for layer in model.layers:
        old = layer.attention
        layer.attention = LSAttention.from_projections(
            plan, qkv=(old.wq, old.wk, old.wv), out=old.wo, positions="rotary"
        )


def swap_nanogpt(model: Any, plan: HeadPlan) -> None:
    for block in model.h:
        block.attn = LSAttention.from_projections(plan, qkv=block.attn.c_attn, out=block.attn.c_proj)


MODELS: dict[str, tuple[Callable[..., nn.Module], Callable[[Any, HeadPlan], None]]] = {
    "llama": (Llama, swap_llama),
    "nanogpt": (NanoGPT, swap_nanogpt),
}


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    sizes = {"width": options.width, "n_layers": options.layers, "n_heads": options.heads}
    plans = {
        "own": None,
        "all global": HeadPlan.full(options.heads),
        f"{options.n_global} global, window {options.window}": HeadPlan.long_short(
            n_heads=options.heads, n_global=options.n_global, window=options.window
        ),
    }
    rows: list[dict[str, Any]] = []
    for name in MODELS if options.model == "both" else [options.model]:
        build, swap = MODELS[name]
        torch.manual_seed(options.seed)
        n_kv_heads = options.kv_heads if name == "llama" else options.heads
        original = build(**sizes, n_kv_heads=n_kv_heads, length=options.length).to(options.device)
        for attention, plan in plans.items():
            model = copy.deepcopy(original)
            row: dict[str, Any] = {"model": name, "attention": attention}
            if plan is not None:
                swap(model, plan)
                row["outputs_differ_by"] = largest_difference(original, model, options)
            row |= train(model, options)
            row["cache_bytes"] = cache_bytes(model, n_kv_heads, options)
            rows.append(row)
            print(line(row) if len(rows) > 1 else f"{HEADER}\n{line(row)}", flush=True)
    show_logits(rows)
    if options.out is not None:
        described = {"machine": machine(options.device), "torch": torch.__version__, "settings": settings(options)}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(described | {"rows": rows}, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {options.out}")


def train(model: nn.Module, options: argparse.Namespace) -> dict[str, Any]:
    """A training loop like yours: time and memory per step, the last loss, and at the last step every head's logits."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    swapped = any(isinstance(module, LSAttention) for module in model.modules())
    seconds: list[float] = []
    peaks: list[float] = []
    loss, logits = torch.zeros(()), None
    for step, tokens in enumerate(batches(options), start=1):
        if swapped and step == options.steps:
            with watch_logits(model) as seen:
                loss = training_step(model, optimizer, tokens)
            logits = [found.abs_max.tolist() for found in seen.values()]
            continue
        memory, began = PeakMemory(options.device), now(options.device)
        loss = training_step(model, optimizer, tokens)
        if options.warmup < step < options.steps:
            seconds.append(now(options.device) - began)
            peaks += [] if (peak := memory.mebibytes()) is None else [peak]
    return {
        "step_ms": 1000 * min(seconds),
        "peak_mib": statistics.median(peaks) if peaks else None,
        "loss": loss.item(),
        "largest_logit": logits,
    }


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> Tensor:
    loss = next_token_loss(model, tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
        logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def batches(options: argparse.Namespace) -> list[Tensor]:
    """The same ones for every model: bytes of Python's standard library."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
    drawn = torch.Generator().manual_seed(options.seed)
    starts = torch.randint(len(text) - options.length, (options.steps, options.batch), generator=drawn)
    return [
        torch.stack([text[start : start + options.length + 1] for start in some.tolist()]).long().to(options.device)
        for some in starts
    ]


def largest_difference(original: nn.Module, swapped: nn.Module, options: argparse.Namespace) -> float:
    """Between the outputs of the two, in fp32: rounding where all heads are global."""
    tokens = batches(options)[0][:, :-1]
    with torch.no_grad():
        return (original(tokens) - swapped(tokens)).abs().max().item()


def cache_bytes(model: nn.Module, n_kv_heads: int, options: argparse.Namespace) -> int:
    """What decoding keeps of one sequence of `length` tokens, in fp32: all keys and values, or an `LSCache`."""
    layers = [module for module in model.modules() if isinstance(module, LSAttention)]
    head_dim = options.width // options.heads
    if not layers:
        return 2 * options.layers * n_kv_heads * options.length * head_dim * 4
    plans = [layer.plan for layer in layers]
    sizes = {"head_dim": head_dim, "n_kv_heads": n_kv_heads, "max_length": options.length, "rollback": 0}
    cache = LSCache(plans, device=options.device, **sizes)
    for layer, kept in zip(layers, cache.layers, strict=True):
        layer(torch.randn(1, options.length, options.width, device=options.device), cache=kept)
    return cache.nbytes


class PeakMemory:
    """The largest amount of memory held from now on, above what is held now; on a CPU, of the process, by Linux."""

    def __init__(self, device: str) -> None:
        self.on_gpu = device.startswith("cuda")
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
            self.before: float | None = torch.cuda.memory_allocated()
            return
        try:
            ctypes.CDLL(None).malloc_trim(0)  # what is free goes back, or its use again would not show
            Path("/proc/self/clear_refs").write_text("5")  # starts the peak, VmHWM, anew
            self.before = self._status("VmRSS")
        except (AttributeError, OSError):
            self.before = None

    def mebibytes(self) -> float | None:
        """None where it is not known."""
        if self.before is None:
            return None
        peak = torch.cuda.max_memory_allocated() if self.on_gpu else self._status("VmHWM")
        return (peak - self.before) / 2**20

    @staticmethod
    def _status(name: str) -> int:
        found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return int(found[1]) * 1024 if found else 0


def now(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


COLUMNS = ("model", "attention", "ms per step", "MiB per step", "MiB of cache", "last loss", "outputs differ", "logit")
HEADER = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    peak, differ, logits = row["peak_mib"], row.get("outputs_differ_by"), row["largest_logit"]
    cells = (
        row["model"],
        row["attention"],
        f"{row['step_ms']:,.0f}",
        "not measured" if peak is None else f"{peak:,.0f}",
        f"{row['cache_bytes'] / 2**20:,.2f}",
        f"{row['loss']:.3f}",
        "" if differ is None else f"{differ:.1e}",
        "" if logits is None else f"{max(map(max, logits)):.1f}",
    )
    return f"| {' | '.join(cells)} |"


def show_logits(rows: list[dict[str, Any]]) -> None:
    """Every head's largest |logit| at the last step."""
    for row in rows:
        for layer, heads in enumerate(row["largest_logit"] or ()):
            prefix = f"{row['model']}, {row['attention']}: largest |logit|" if layer == 0 else ""
            print(f"{prefix:60s} layer {layer}  {'  '.join(f'{value:5.1f}' for value in heads)}")


def machine(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads"


def settings(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name != "out"}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS, "both"], default="both")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=9, help="training steps per row of the table")
    parser.add_argument("--warmup", type=int, default=2, help="first steps that are not measured; neither is the last")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=2048, help="bytes per sequence")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=4, help="key/value heads of the Llama-style model")
    parser.add_argument("--n-global", type=int, default=2, help="heads that see everything")
    parser.add_argument("--window", type=int, default=64, help="keys that each other head sees")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    options = parser.parse_args(arguments)
    if options.steps < options.warmup + 2:
        parser.error(f"--steps must be at least --warmup + 2 = {options.warmup + 2}, got {options.steps}")
    return options


if __name__ == "__main__":
    main()
