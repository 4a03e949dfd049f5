"""Peers are called for the work that they are measured at, and only that."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import create_block_mask

from benchmarks import attention as benchmark
from benchmarks import peers
from benchmarks.peers import FA2, TWO_CALLS
from benchmarks.shapes import Shape
from longshort import GPT, GPTConfig, HeadPlan, attention

TINY = Shape(batch=1, heads=2, length=48, head_dim=8, window=8)


@pytest.mark.parametrize(("n_global", "length"), [(1, 256), (2, 300)])
def test_the_repeated_block_mask_is_the_one_made_for_all_heads(n_global, length):
    plan = HeadPlan.long_short(n_heads=4, n_global=n_global, window=50)
    reach = torch.tensor([length if w is None else w for w in plan.windows])
    whole = create_block_mask(
        lambda b, h, q, k: (q >= k) & (q - k < reach[h]), None, plan.n_heads, length, length, device="cpu"
    )
    ours = peers.block_mask(plan, length, "cpu")
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(ours, name), getattr(whole, name)), name
    assert torch.equal(ours.to_dense(), whole.to_dense())
    index = torch.arange(length)
    heads = torch.arange(plan.n_heads)[:, None, None]
    seen = ours.mask_mod(torch.tensor(0), heads, index[:, None], index)
    assert torch.equal(seen, whole.mask_mod(torch.tensor(0), heads, index[:, None], index))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_sees_what_the_plan_lets_it_see():
    shape = replace(TINY, length=200, heads=3, window=20)
    q, k, v, _ = (x.detach() for x in benchmark.draw(shape, "ls", "cpu"))
    plan = shape.plan("ls")
    out = peers.flex(plan, shape.length, "cpu")(q, k, v)
    torch.testing.assert_close(out, attention(q, k, v, plan, backend="reference").out, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "work"), [(TWO_CALLS, "ls"), (FA2, "local")])
def test_flash_attention_is_called_for_the_same_work_and_without_a_copy(name, work, monkeypatch):
    """FlashAttention has no CPU kernel: a stand-in with its signature shows what it is handed."""
    results = []

    def varlen(q, k, v, starts, ends, longest_q, longest_k, *, window_size):
        assert starts.tolist() == ends.tolist() == [0, 48, 96] and (longest_q, longest_k) == (48, 48)
        assert window_size[1] == 0
        assert all(x._is_view() and x.stride(0) == heads * x.shape[2] for x in (q, k, v))
        rows = [x.unflatten(0, (2, 48)).transpose(1, 2) for x in (q, k, v)]
        plan = HeadPlan(windows=(window_size[0] + 1,) * q.shape[1])  # it counts the keys before the current one
        return attention(*rows, plan, backend="reference").out.transpose(1, 2).flatten(0, 1)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
    shape = replace(TINY, batch=2, heads=4)
    heads = shape.plan(work).n_heads
    theirs = next(i for i in peers.on_gpu("cpu") if (i.name, i.work) == (name, work))
    drawn = (x.detach().transpose(1, 2).contiguous() for x in benchmark.draw(shape, work, "cpu"))
    q, k, v, upstream = (x.requires_grad_().transpose(1, 2) for x in drawn)  # as a projection leaves them in memory
    for out in (theirs.build(shape)(q, k, v), attention(q, k, v, shape.plan(work), backend="reference").out):
        results.append((out, *torch.autograd.grad(out, (q, k, v), upstream)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_plan_that_flex_would_get_wrong_is_refused():
    with pytest.raises(ValueError, match="global heads first"):
        peers.block_mask(HeadPlan(windows=(8, None, 8)), 128, "cpu")


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::UserWarning")  # the compiler's
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_blocks_call_the_kernel_that_was_asked_for(compiled):
    config = GPTConfig.preset("tiny", n_layers=1, backend="sdpa", n_global=4, window=None)
    models = {}
    for kernel in (None, SDPBackend.MATH, SDPBackend.CUDNN_ATTENTION):
        torch.manual_seed(0)
        models[kernel] = GPT(config).eval()
        peers.set_up_blocks(models[kernel], kernel, compiled=compiled)
    tokens = torch.arange(8)[None]
    torch.testing.assert_close(models[None](tokens).logits, models[SDPBackend.MATH](tokens).logits)
    with pytest.raises(RuntimeError), warnings.catch_warnings(action="ignore"):  # a CPU has no cuDNN
        models[SDPBackend.CUDNN_ATTENTION](tokens)
