"""Attention over a sequence that several processes hold is the attention of one process that holds it whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from longshort import HeadPlan, Smoothing, attention
from longshort.ops.sharded import sharded_attention
from longshort.ops.shares import Roles, Shard, bytes_sent, check_firsts, check_shard, largest_group


@dataclass(frozen=True, kw_only=True)
class Call:
    plan: HeadPlan
    n_kv_heads: int | None = None
    length: int = 8
    """Positions per rank."""
    dim: int = 6
    segments: bool = False
    sinks: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    def tensors(self, size: int, dtype: torch.dtype) -> tuple[list[torch.Tensor], torch.Tensor | None]:
        """q, k, v, the gradient of the output and the sinks of whole sequences; segments."""
        torch.manual_seed(size)
        heads, total = self.plan.n_heads, size * self.length
        shapes = [(2, n, total, self.dim) for n in (heads, *[self.n_kv_heads or heads] * 2, heads)]
        tensors = [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in (*shapes, (heads,))]
        if not self.segments:
            return tensors, None
        segments = torch.randint(0, 2, (2, total)).cumsum(1) // 3  # documents of about six positions
        segments[1, : total // 4] = -1
        return tensors, segments


def long_short(**changes):
    return Call(plan=HeadPlan.long_short(n_heads=4, n_global=1, window=5), **changes)


MIXED = HeadPlan(windows=(3, None, 7, 1, None, 3))
CALLS = {
    "long and short": long_short(),
    "odd shards": long_short(length=7),
    "shards of one position": Call(plan=HeadPlan(windows=(None, 2, 1)), length=1),
    "all global": Call(plan=HeadPlan.full(2)),
    "all local": Call(plan=HeadPlan(windows=(4, 4))),
    "windows of one": Call(plan=HeadPlan(windows=(1, None, 1))),
    "the largest window": Call(plan=HeadPlan(windows=(9, None))),
    "windows and order mixed": Call(plan=MIXED),
    "a window as long as the sequence": Call(plan=HeadPlan(windows=(100, 3))),
    "grouped": Call(plan=HeadPlan(windows=(None, None, 4, 4, 6, 2)), n_kv_heads=3),
    "groups of mixed reach": Call(plan=HeadPlan(windows=(5, None, 3, 20, 6, None, 4, 2)), n_kv_heads=2),
    "one KV head": Call(plan=MIXED, n_kv_heads=1, segments=True),
    "segments": long_short(segments=True),
    "segments in odd shards, windows mixed": Call(plan=MIXED, length=7, segments=True),
    "softcap and scale": long_short(options=(("softcap", 1.5), ("scale", 0.7))),
    "slopes": Call(plan=MIXED.with_alibi(), segments=True),
    "decays": Call(plan=HeadPlan(windows=(None, 4, None, 6), decays=(0.3, 0.1, 0.0, 0.2))),
    "sinks": Call(plan=MIXED, sinks=True, segments=True),
    "smoothed values": long_short(options=(("smoothing", Smoothing(width=3)),), segments=True),
    "values smoothed ahead": long_short(options=(("smoothing", Smoothing(width=3, side="centred", lookahead=True)),)),
    "smoothed keys": Call(
        plan=HeadPlan(windows=(None, 4, None, 6), decays=(0.3, 0.1, 0.0, 0.2)),
        n_kv_heads=2,
        options=(("smoothing", Smoothing(width=4, stage="before")),),
    ),
    "streaming": Call(plan=HeadPlan.streaming(n_heads=4, first=2, recent=4, n_global=1)),
    "streaming, all different": Call(plan=HeadPlan(windows=(6, None, 3, 1, 4), firsts=(3, 0, 1, 2, 0)), sinks=True),
    "streaming beside a global head": Call(
        plan=HeadPlan(windows=(None, 6, 3, 3), firsts=(0, 20, 2, 2)), n_kv_heads=2, sinks=True
    ),
    "the definition": Call(plan=MIXED, segments=True, options=(("backend", "reference"),)),
}


def against_one_process(group, call, dtype, transform=None):
    """Largest differences, relative to the largest number, from one process; whether the statistics are equal."""
    rank, size = group.rank(), group.size()
    (*whole, grad, sinks), segments = call.tensors(size, dtype)
    own = slice(rank * call.length, (rank + 1) * call.length)
    parts = [x[:, :, own].clone().requires_grad_() for x in whole]
    whole = [x.requires_grad_() for x in whole]
    options = dict(call.options) | {"segments": segments, "stats": True}
    both = [sinks.clone().requires_grad_(call.sinks) for _ in range(2)]
    first, second = (({"sinks": x} if call.sinks else {}) for x in both)
    expected = attention(*whole, call.plan, **options, **first)
    expected.out.backward(grad)
    found = (transform or (lambda f: f))(sharded_attention)(*parts, call.plan, group=group, **options, **second)
    found.out.backward(grad[:, :, own])
    pairs = {"out": (found.out, expected.out)}
    pairs |= {name: (x.grad, y.grad) for name, x, y in zip("qkv", parts, whole, strict=True)}
    errors = {name: float((x - y[:, :, own]).abs().max() / y.abs().max()) for name, (x, y) in pairs.items()}
    if call.sinks:
        dist.all_reduce(both[1].grad, group=group)
        errors["sinks"] = float((both[1].grad - both[0].grad).abs().max() / both[0].grad.abs().max())
    return errors, all(torch.equal(x, y) for x, y in zip(found.stats, expected.stats, strict=True))


@pytest.mark.every(3)
@pytest.mark.parametrize("size", [3, 4, 2])
@pytest.mark.parametrize("name", CALLS)
def test_rows_gradients_and_statistics_are_those_of_one_process(ranks, name, size):
    for errors, same_statistics in ranks.run(against_one_process, CALLS[name], torch.float64, size=size):
        assert max(errors.values()) <= 1e-12, errors
        assert same_statistics


@pytest.mark.every(4)
@pytest.mark.parametrize("name", ["segments in odd shards, windows mixed", "sinks", "smoothed values", "decays"])
def test_fp32_is_as_close(ranks, name):
    call = replace(CALLS[name], length=64, dim=16)  # smaller products round differently, depending on their shape
    for errors, same_statistics in ranks.run(against_one_process, call, torch.float32, size=4):
        assert max(errors.values()) <= 1e-6, errors
        assert same_statistics


def compiled(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def compiled_against_one_process(group, call):
    return against_one_process(group, call, torch.float64, compiled)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sinks", "streaming, all different", "smoothed keys"])
def test_it_compiles_to_one_graph(ranks, name):
    for errors, same_statistics in ranks.run(compiled_against_one_process, CALLS[name], size=2):
        assert max(errors.values()) <= 1e-12, errors
        assert same_statistics


class Sent(TorchDispatchMode):
    """Bytes that this rank sends to others, by collective."""

    def __init__(self, group):
        super().__init__()
        self.rank, self.size, self.bytes = group.rank(), group.size(), {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name
        if name.startswith("_c10d_functional") and not name.endswith(("wait_tensor", "_wrap_tensor_autograd")):
            kind, x = name.partition("::")[2], args[0]
            if kind == "all_to_all_single":
                sent = sum(count for rank, count in enumerate(args[2]) if rank != self.rank)
            else:
                assert kind in ("all_gather_into_tensor", "reduce_scatter_tensor"), kind
                sent = x.numel() * (self.size - 1) // (self.size if kind == "reduce_scatter_tensor" else 1)
            self.bytes[kind] = self.bytes.get(kind, 0) + sent * x.element_size()
        return function(*args, **(kwargs or {}))


def sent_bytes(group, call):
    """Forward, then backward."""
    (*whole, grad, _), _ = call.tensors(group.size(), torch.float32)
    own = slice(group.rank() * call.length, (group.rank() + 1) * call.length)
    parts = [x[:1, :, own].clone().requires_grad_() for x in whole]
    with Sent(group) as forward:
        out = sharded_attention(*parts, call.plan, group=group, **dict(call.options)).out
    with Sent(group) as backward:
        out.backward(grad[:1, :, own])
    return sum(forward.bytes.values()), sum(backward.bytes.values())


@pytest.mark.every(3)
@pytest.mark.parametrize("size", [4, 3, 2])
@pytest.mark.parametrize(
    "name", ["long and short", "windows and order mixed", "grouped", "smoothed values", "smoothed keys"]
)
def test_it_sends_what_the_formula_says_and_no_more(ranks, name, size):
    call = CALLS[name]
    n_kv_heads, smoothing = call.n_kv_heads or call.plan.n_heads, dict(call.options).get("smoothing")
    sizes = {"length": size * call.length, "size": size, "head_dim": 6, "itemsize": 4, "smoothing": smoothing}
    formula = sum(bytes_sent(call.plan, n_kv_heads, **sizes).values())
    counted = ranks.run(sent_bytes, call, size=size)
    assert max(forward for forward, _ in counted) == formula
    assert max(backward for _, backward in counted) == formula


@pytest.mark.parametrize(
    ("n_global", "n_kv_heads", "megabytes"), [(1, 32, 130), (2, 32, 256), (4, 32, 507), (4, 8, 152)]
)
def test_the_formula_gives_the_table_of_the_docs(n_global, n_kv_heads, megabytes):
    plan = HeadPlan.long_short(n_heads=32, n_global=n_global, window=128)
    sent = bytes_sent(plan, n_kv_heads, length=131072, size=8, head_dim=128, itemsize=2)
    assert sent["halo"] == 2 * 2 * 127 * 128 * (n_kv_heads - n_global * n_kv_heads // 32)
    assert sent["gather"] == 2 * 2 * 131072 * 7 / 8 * 128 * (n_global * n_kv_heads // 32)
    assert sent["queries"] == 2 * 2 * 131072 / 8 * 128 * n_global / 2
    assert round(2 * sum(sent.values()) / 1e6) == megabytes


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_ranks_have_equally_many_pairs_of_global_heads(size):
    pairs = []
    for rank in range(size):
        shard = Shard(rank, size, 64)
        pairs.append(
            sum(end * half - half * (half - 1) // 2 for half, end in zip(shard.halves, shard.ends, strict=True))
        )
    assert len(set(pairs)) == 1 and sum(pairs) == (64 * size) * (64 * size + 1) // 2


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_query_is_computed_once(size):
    ends = sorted(end for rank in range(size) for end in Shard(rank, size, 7).ends)
    assert ends == sorted(7 * rank + half for rank in range(size) for half in (4, 7))


def call_with(group, plan, length, segments, options):
    q = torch.randn(1, plan.n_heads, length, 4)
    ids = torch.zeros(1, segments, dtype=torch.long) if segments else None
    sharded_attention(q, q, q, plan, group=group, segments=ids, **options)


def test_a_window_past_the_neighbour_is_refused_with_the_largest_group_that_fits(ranks):
    with pytest.raises(ValueError, match=r"at most 2 ranks for 32 positions, got 4.* need 9 keys"):
        ranks.run(call_with, HeadPlan(windows=(None, 10)), 8, 0, {}, size=4)
    ranks.run(call_with, HeadPlan(windows=(None, 9)), 8, 0, {}, size=4)


def test_first_keys_and_smoothing_count_towards_what_a_shard_must_hold():
    streaming = HeadPlan(windows=(4, None), firsts=(6, 0))
    with pytest.raises(ValueError, match="at most 2 ranks for 24 positions, got 3"):
        check_shard(streaming, 2, Shard(0, 3, 8))
    assert largest_group(HeadPlan.full(2), 2, 24, Smoothing(width=6)) == 4
    assert largest_group(HeadPlan.full(2), 2, 24) == 24


def test_a_local_head_whose_smoothed_keys_are_its_own_reaches_no_further_than_the_rank_before():
    plan, smoothing = HeadPlan(windows=(None, 10), decays=(0.3, 0.1)), Smoothing(width=2, stage="before")
    assert largest_group(plan, 1, 32) == 32  # the global head's keys serve both
    assert largest_group(plan, 1, 32, smoothing) == 2
    with pytest.raises(ValueError, match=r"at most 2 ranks for 32 positions, got 4.* need 9 keys"):
        check_shard(plan, 1, Shard(0, 4, 8), smoothing)
    streaming = replace(plan, firsts=(0, 2), windows=(None, 4), decays=(0.3, 0.0))
    with pytest.raises(ValueError, match="segments must be None for streaming heads"):
        check_firsts(streaming, 1, 32, smoothing, segments=True)


@pytest.mark.parametrize(
    ("plan", "segments", "message"),
    [
        (HeadPlan.streaming(n_heads=2, first=2, recent=3), 16, "segments must be None for streaming heads"),
        (HeadPlan(windows=(3, 3), firsts=(1, 0), slopes=(0.5, 0.5)), 0, "slopes must be 0 for streaming heads"),
        (HeadPlan(windows=(3, 3), firsts=(1, 0), decays=(0.5, 0.5)), 0, "decays must be 0 for streaming heads"),
        (HeadPlan.full(2), 8, r"those of the whole sequence, .* = \(1, 16\), got \(1, 8\)"),
    ],
)
def test_what_cannot_be_shared_is_refused_by_name(ranks, plan, segments, message):
    with pytest.raises(ValueError, match=message):
        ranks.run(call_with, plan, 8, segments, {}, size=2)


def test_pooled_logits_without_smoothed_keys_are_refused(ranks):
    smoothing = Smoothing(width=3, side="leading", stage="before")
    with pytest.raises(ValueError, match='smoothing_stage must be "after" in a group'):
        ranks.run(call_with, HeadPlan.full(2), 8, 0, {"smoothing": smoothing}, size=2)


def extremes_with_nan(group):
    q = torch.ones(1, 2, 4, 4)
    q[0, 1, 3, 0] = torch.nan if group.rank() == 0 else 1
    found = sharded_attention(q, torch.ones_like(q), q, HeadPlan(windows=(None, 3)), group=group, stats="max")
    return found.stats.max.isnan().tolist(), found.stats.min


def test_a_nan_on_one_rank_is_in_the_statistics_of_all(ranks):
    assert ranks.run(extremes_with_nan, size=2) == [([False, True], None)] * 2


def test_a_head_has_one_role():
    roles = Roles.of(HeadPlan(windows=(5, None, 3, 20, 6, None, 4, 2)), 4, 100)
    assert sorted(roles.far + roles.inner + roles.near) == list(range(8))
    assert (roles.far_kv, roles.near_kv) == ([0, 2], [1, 3])
