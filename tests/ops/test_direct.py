"""Eager calls go past torch.library, and come to the same."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longshort import HeadPlan, attention
from longshort.ops import schema

PLAN = HeadPlan.long_short(n_heads=4, n_global=1, window=8)


def inputs(n_keys=40):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, length, 16, requires_grad=True) for length in (37, n_keys, n_keys))
    segments = (torch.arange(n_keys) // 17).expand(2, -1) - (torch.arange(2) == 1)[:, None].long()
    return q, k, v, segments


def everything(stats):
    q, k, v, segments = inputs()
    result = attention(q, k, v, PLAN, segments=segments, stats=stats, backend="blocked")
    grads = torch.autograd.grad(result.out.square().sum(), (q, k, v))
    return [result.out, result.lse, *(x for x in result.stats or () if x is not None), *grads]


class Names(TorchDispatchMode):
    """Notes the ops of the library that it sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func)) if "longshort" in str(func) else None
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("stats", [False, "max", True])
def test_eager_results_are_those_of_the_library_to_the_bit(stats, monkeypatch):
    direct = everything(stats)
    monkeypatch.setattr(schema, "_is_plain", lambda *tensors: False)
    assert all(torch.equal(x, y) for x, y in zip(direct, everything(stats), strict=True))


def test_a_mode_sees_the_op_and_its_backward():
    with Names() as names:
        everything(stats=False)
    assert names.seen == ["longshort.blocked_forward.default", "longshort.blocked_backward.default"]


def test_without_a_mode_neither_is_called(monkeypatch):
    ops = torch.ops.longshort
    before = ops.blocked_forward
    calls = []
    monkeypatch.setattr(ops, "blocked_forward", lambda *args: calls.append(1) or before(*args))
    everything(stats=False)
    assert calls == []


def test_changed_inputs_are_noticed():
    q, k, v, _ = inputs()
    out = attention(q * 1, k, v, PLAN, backend="blocked").out
    leaf = k.detach()
    with torch.no_grad():
        leaf.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
