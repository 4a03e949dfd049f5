"""Whether ranks that share a sequence have equally much to compute: the work of each, one after another on one device.

What a rank would receive is cut out of the whole sequence, so that nothing is sent; `ops.sharded.rank_work` is what
runs between receiving and sending. Beside it, what the ranks would take if each computed its own global queries.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import timing
from benchmarks.harness import DTYPES, Recorder, WrongResult
from benchmarks.pages import Page, Results, goal, goals_table, markdown
from longshort.heads import HeadPlan
from longshort.ops import attention
from longshort.ops.heads import of_heads
from longshort.ops.sharded import Arrived, rank_work
from longshort.ops.shares import Roles, Shard, bytes_sent

LENGTH, SIZE, HEADS, HEAD_DIM, WINDOW = 131072, 8, 32, 128, 128
GLOBALS = (1, 4)
_GOAL, _ERROR = 1.10, 2e-2
_WAYS = ("shared out", "own queries")


def run(
    record: Recorder,
    *,
    device: str = "cuda",
    length: int = LENGTH,
    size: int = SIZE,
    heads: int = HEADS,
    head_dim: int = HEAD_DIM,
    window: int = WINDOW,
    rounds: int = 3,
    backend: str = "auto",
) -> Results:
    """The ranks' times with one and with four global heads."""
    sizes: dict[str, Any] = {"length": length, "size": size, "heads": heads, "head_dim": head_dim, "window": window}
    record.begin(PAGE, device, conclude=lambda results: {"goals": goals(results)}, rounds=rounds, **sizes)
    for n_global in GLOBALS:
        plan = HeadPlan.long_short(heads, n_global, window)
        measure = partial(measured, plan, length, size, head_dim, device=device, rounds=rounds, backend=backend)
        record.piece("rows", f"{n_global} global", measure)
    return record.end()


def measured(
    plan: HeadPlan, length: int, size: int, head_dim: int, *, device: str, rounds: int, backend: str
) -> list[dict[str, Any]]:
    """A row for each way and direction: milliseconds of each rank, medians over rounds in which they take turns."""
    torch.manual_seed(0)
    whole = [torch.randn(1, plan.n_heads, length, head_dim, device=device, dtype=DTYPES[device]) for _ in range(3)]
    shards = [Shard(rank, size, length // size) for rank in range(size)]
    sent = bytes_sent(plan, plan.n_heads, length=length, size=size, head_dim=head_dim, itemsize=whole[0].element_size())
    rows = []
    for way in _WAYS:
        for direction in ("forward", "forward+backward"):
            times: list[list[float]] = [[] for _ in shards]
            for _ in range(rounds):
                for shard, mine in zip(shards, times, strict=True):
                    call = _call(plan, shard, whole, own=way == "own queries", backend=backend)
                    if way == "shared out" and not mine:
                        _check(plan, shard, whole, backend)
                    mine.append(timing.eager(partial(call, direction != "forward"), device)())
                    timing.free(device)
            medians = [statistics.median(mine) for mine in times]
            row: dict[str, Any] = {"n_global": plan.n_global, "way": way, "direction": direction, "bytes_sent": sent}
            rows.append(row | {"milliseconds": times, "balance": max(medians) / min(medians)})
    return rows


def arrived(whole: list[Tensor], roles: Roles, shard: Shard) -> Arrived:
    """What a rank would receive, cut out of whole q, k and v; plans without first keys, ungrouped heads."""
    q, k, v = whole
    half, (_, second) = shard.halves[0], shard.ends
    far_q = of_heads(q, roles.far)
    start = max(0, shard.start - roles.back)
    near = [of_heads(x, roles.near_kv)[:, :, start : shard.start + shard.length] for x in (k, v)]
    queries = far_q[:, :, shard.start : shard.start + half], far_q[:, :, second - shard.halves[1] : second]
    return Arrived((of_heads(k, roles.far_kv), of_heads(v, roles.far_kv)), queries, (near[0], near[1]))


def _call(plan: HeadPlan, shard: Shard, whole: list[Tensor], *, own: bool, backend: str) -> Callable[[bool], None]:
    """The work of a rank, and its backward pass if asked, on tensors of its own, as it would receive them."""
    roles, end = Roles.of(plan, plan.n_heads, shard.total), shard.start + shard.length
    q = whole[0][:, :, shard.start : end].contiguous()
    parts = [x.contiguous() for pair in arrived(whole, roles, shard) if pair is not None for x in pair]
    far_q = of_heads(q, roles.far).contiguous()

    def work(gradients: bool) -> None:
        leaves = [x.detach().requires_grad_(gradients) for x in (q, *parts, far_q)]
        mine, far_k, far_v, first, second, near_k, near_v, ours = leaves
        given = Arrived((far_k, far_v), (first, second), (near_k, near_v))
        if own:
            given = given._replace(queries=None)
        results = [result.out for _, result in rank_work(mine, given, plan, roles, shard, backend=backend)]
        if own:
            k, v = (x[:, :, :end] for x in (far_k, far_v))
            results.append(attention(ours, k, v, plan.of_heads(roles.far), backend=backend).out)
        if gradients:
            torch.autograd.backward(results, results)

    return work


def _check(plan: HeadPlan, shard: Shard, whole: list[Tensor], backend: str) -> None:
    """The last rows of each result against the reference."""
    roles = Roles.of(plan, plan.n_heads, shard.total)
    end, few = shard.start + shard.length, min(8, shard.halves[1])
    mine = whole[0][:, :, shard.start : end]
    results = rank_work(mine, arrived(whole, roles, shard), plan, roles, shard, backend=backend)
    for (heads, result), last in zip(results, (end, *shard.ends), strict=True):
        q, k, v = (of_heads(x, heads)[:, :, :last].float() for x in whole)
        wanted = attention(q[:, :, -few:], k, v, plan.of_heads(heads), backend="reference").out
        error = (result.out[:, :, -few:].float() - wanted).abs().max().item()
        if not error <= _ERROR:
            raise WrongResult(f"rank {shard.rank} of {shard.size} is wrong: error {error:.1e} > {_ERROR:.0e}")


def goals(results: Results) -> list[dict[str, Any]]:
    """The longest over the shortest time of a rank, queries shared out."""
    worst = max(row["balance"] for row in results["rows"] if row["way"] == "shared out")
    found = goal("balance of the ranks' kernel time, max / min", worst, "<=", _GOAL)
    return [found | {"target": f"<= {_GOAL:.2f}"}]


def tables(results: Results) -> str:
    """The goal, then one line per number of global heads, way and direction."""
    lines = []
    for row in results["rows"]:
        medians = [statistics.median(mine) for mine in row["milliseconds"]]
        numbers = [f"{x:.2f}" for x in (min(medians), max(medians), row["balance"])]
        sent = sum(row["bytes_sent"].values()) / 1e6
        lines.append((str(row["n_global"]), row["way"], row["direction"], *numbers, f"{sent:.1f}"))
    header = ("global heads", "global queries", "direction", "ms, fastest rank", "slowest", "ratio")
    return f"{goals_table(results['goals'])}\n\n{markdown((*header, 'MB sent, forward (computed)'), lines)}"


PAGE = Page(
    name="sharded",
    title="Ranks that share a sequence",
    command="python -m benchmarks attention --device cuda --sharded --out benchmarks/results/sharded.json",
    about=lambda results: (
        f"{results['heads']} heads of {results['head_dim']}, window {results['window']}, {results['length']:,} "
        f"positions over {results['size']} ranks, whose work ran one after another on one device: nothing was sent."
    ),
    tables=tables,
)
