"""Queries, keys and values in one tensor give what they give apart."""

import pytest
import torch

from longshort import HeadPlan, LSAttention, attention
from longshort.ops import packed_attention, schema

PLAN = HeadPlan.long_short(n_heads=4, n_global=2, window=8)


def inputs(n_kv_heads=2):
    torch.manual_seed(0)
    qkv = torch.randn(2, 37, (4 + 2 * n_kv_heads) * 16, requires_grad=True)
    segments = (torch.arange(37) // 17).expand(2, -1) - (torch.arange(2) == 1)[:, None].long()
    return qkv, segments, torch.randn(4, requires_grad=True)


def apart(qkv, plan, *, n_kv_heads, **options):
    heads = qkv.unflatten(-1, (4 + 2 * n_kv_heads, 16)).transpose(1, 2)
    return attention(*heads.split((4, n_kv_heads, n_kv_heads), dim=1), plan, **options)


def everything(run, n_kv_heads=2, **options):
    qkv, segments, sinks = inputs(n_kv_heads)
    result = run(qkv, PLAN, n_kv_heads=n_kv_heads, segments=segments, sinks=sinks, stats=True, **options)
    grads = torch.autograd.grad(result.out.square().sum(), (qkv, sinks))
    return [result.out, result.lse, *result.stats, *grads]


@pytest.mark.parametrize("backend", ["triton", "blocked", "reference"])
@pytest.mark.parametrize("n_kv_heads", [4, 2])
def test_results_and_gradients_are_those_of_the_parts_to_the_bit(backend, n_kv_heads):
    packed = everything(packed_attention, n_kv_heads, backend=backend)
    parts = everything(apart, n_kv_heads, backend=backend)
    assert all(torch.equal(x, y) for x, y in zip(packed, parts, strict=True))


def test_the_library_gives_the_same(monkeypatch):
    direct = everything(packed_attention, backend="triton")
    monkeypatch.setattr(schema, "_is_plain", lambda *tensors: False)
    assert all(torch.equal(x, y) for x, y in zip(direct, everything(packed_attention, backend="triton"), strict=True))


def test_the_gradient_comes_in_one_piece():
    qkv, segments, _ = inputs()
    out = packed_attention(qkv, PLAN, n_kv_heads=2, segments=segments, backend="triton").out
    names = [out.grad_fn.name()] + [node.name() for node, _ in out.grad_fn.next_functions if node is not None]
    assert names == ["PackedBackward", "torch::autograd::AccumulateGrad"]


def test_a_second_derivative_is_refused():
    qkv, _, _ = inputs()
    out = packed_attention(qkv, PLAN, n_kv_heads=2, backend="triton").out
    with pytest.raises(RuntimeError, match="no double backward"):
        torch.autograd.grad(out.square().sum(), qkv, create_graph=True)


def test_ops_are_well_formed():
    qkv, segments, sinks = inputs()
    options = ([1 << 30, 1 << 30, 8, 8], None, None, None, True, None, None, segments, 2, sinks)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.longshort.packed_forward.default, (qkv, 2, *options), test_utils=checks)


@pytest.mark.parametrize("shape", [(2, 37), (2, 37, 100), (2, 4, 37, 16)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="qkv must have 3 dimensions"):
        packed_attention(torch.randn(shape), PLAN)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv": [1.0]}, "qkv must have 3 dimensions .* got list"),
        ({"plan": None}, "plan must be a HeadPlan, got NoneType"),
        ({"n_kv_heads": 0}, "n_kv_heads must be None or a divisor of the plan's 4 heads, got 0"),
        ({"n_kv_heads": -2}, "n_kv_heads must be None or a divisor of the plan's 4 heads, got -2"),
        ({"n_kv_heads": True}, "n_kv_heads must be None or a divisor of the plan's 4 heads, got True"),
        ({"n_kv_heads": 2.0}, "n_kv_heads must be None or a divisor of the plan's 4 heads, got 2.0"),
        ({"causal": None}, "causal must be True or False, got None"),
    ],
)
def test_wrong_arguments_are_a_clear_error(change, message):
    with pytest.raises(ValueError, match=message):
        packed_attention(**({"qkv": torch.randn(2, 7, 96), "plan": PLAN} | change))


def test_the_layer_packs_what_it_does_not_touch(monkeypatch):
    from longshort.nn import attention as layers

    calls = []
    original = layers.packed_attention
    monkeypatch.setattr(layers, "packed_attention", lambda *a, **k: calls.append(1) or original(*a, **k))
    x = torch.randn(2, 20, 64)
    for options in ({}, {"positions": "alibi"}, {"positions": "rotary"}, {"qk_norm": "head"}, {"scale": 0.1}):
        layer = LSAttention(64, PLAN, **options)
        q, k, v = layer.heads(x)
        expected = layer.out(attention(q, k, v, layer.plan).out.transpose(1, 2).flatten(-2))
        torch.testing.assert_close(layer(x), expected)
    assert len(calls) == 2
