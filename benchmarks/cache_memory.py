"""What a cache takes: its bytes against those of a full cache, and the largest batch that fits a device."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import torch

from benchmarks.gpu_check import WrongResult
from longshort.heads import HeadPlan
from longshort.model import GPT, GPTConfig
from longshort.nn import LSCache

LENGTHS = (4096, 32768, 131072)
_MARGIN = 1 << 31
"""Bytes of a GPU left free for a step's activations."""
_RETREAT = 0.98
"""The batch is lowered by this where what was computed does not fit after all."""


def formula(plan: HeadPlan, *, length: int, rollback: int, n_layers: int, head_dim: int, itemsize: int) -> int:
    """Bytes of a cache allocated for `length` positions: a key and a value for each row that a head keeps.

    >>> plan = HeadPlan.long_short(n_heads=12, n_global=1, window=128)
    >>> full = formula(HeadPlan.full(12), length=32768, rollback=32, n_layers=12, head_dim=64, itemsize=2)
    >>> round(full / formula(plan, length=32768, rollback=32, n_layers=12, head_dim=64, itemsize=2), 1)
    11.4
    """
    rows = sum(length if window is None else min(length, window + rollback) for window in plan.windows)
    return 2 * n_layers * rows * head_dim * itemsize


def bytes_rows(
    lengths: tuple[int, ...] = LENGTHS, *, window: int = 128, device: str = "cpu", rollback: int = 32
) -> list[dict[str, Any]]:
    """Caches in bf16 with 1 global head of 12, measured, against ones in which every head keeps everything."""
    rows = []
    for length in lengths:
        measured = {}
        for heads, plan in (("ls", HeadPlan.long_short(12, 1, window)), ("plain", HeadPlan.full(12))):
            options: dict[str, Any] = {"head_dim": 64, "max_length": length, "rollback": rollback}
            cache = LSCache([plan] * 12, dtype=torch.bfloat16, device=device, **options)
            measured[heads] = cache.nbytes
            del cache
            wanted = formula(plan, length=length, rollback=rollback, n_layers=12, head_dim=64, itemsize=2)
            if measured[heads] != wanted:
                raise WrongResult(f"a cache of {length} tokens ({heads}) has {measured[heads]} bytes, not {wanted}")
        smaller = measured["plain"] / measured["ls"]
        rows.append({"length": length, "window": window, "rollback": rollback, "bytes": measured, "smaller": smaller})
    return rows


def largest_batches(
    *,
    length: int = 32768,
    window: int = 128,
    device: str = "cuda",
    sizes: dict[str, Any] | None = None,
    memory: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """The largest batch of gpt2-small for LS heads and for plain ones, computed and then allocated and used.

    `memory` are the bytes that the caches may take; what is free on the GPU, less a margin, if None.
    """
    batches: dict[str, Any] = {}
    for heads in ("plain", "ls"):
        changes = {"context": length, "window": window} | (sizes or {})
        config = GPTConfig.preset("gpt2-small", **changes)
        if heads == "plain":
            config = replace(config, n_global=config.n_heads, window=None)
        torch.manual_seed(0)
        model = GPT(config).to(device, dtype).eval()
        a_row = model.new_cache(1, max_length=length, rollback=0).nbytes
        _free(device)
        free = memory if memory is not None else torch.cuda.mem_get_info()[0] - _MARGIN
        computed = free // a_row
        batches[heads] = {"bytes_a_row": a_row, "free": free, "computed": computed}
        batches[heads]["fits"] = _largest_that_fits(model, computed, length, device)
        del model
        _free(device)
    return {"length": length, "window": window, **batches, "ratio": batches["ls"]["fits"] / batches["plain"]["fits"]}


@torch.no_grad()
def _largest_that_fits(model: GPT, batch: int, length: int, device: str) -> int:
    """At most `batch`: the cache is allocated and a token goes through the model."""
    while batch:
        try:
            cache = model.new_cache(batch, max_length=length, rollback=0)
            model(torch.zeros(batch, 1, dtype=torch.long, device=device), cache=cache)
            return batch
        except torch.OutOfMemoryError:
            batch = min(batch - 1, int(_RETREAT * batch))
        finally:
            cache = None  # type: ignore[assignment]
            _free(device)
    raise WrongResult("not even one row fits")


def _free(device: str) -> None:
    if device == "cuda":
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
