"""Streaming heads: the first keys of a document besides a window, in every backend."""

from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longshort import HeadPlan, attention
from longshort.ops.documents import documents

PLAN = HeadPlan(windows=(None, 7, 3, 1), firsts=(0, 4, 0, 9))
DECAYS, SLOPES = (0.0, 0.1, 0.02, 0.01), (0.1, 0.0, 0.2, 0.05)
CASES = {
    "plain": {},
    "grouped": {"kv_heads": 2},
    "more keys": {"n_keys": 60},
    "no more keys": {"n_keys": 41},
    "more first keys than there are": {"plan": HeadPlan(windows=(3, 7, 3, 60), firsts=(100, 41, 45, 2))},
    "two-sided": {"causal": False},
    "documents": {"segments": "documents"},
    "documents in any order": {"segments": "shuffled", "kv_heads": 2},
    "padding": {"segments": "padding", "n_keys": 60},
    "documents, two-sided": {"segments": "documents", "causal": False},
    "softcap": {"softcap": 2.0, "segments": "documents"},
    "decays": {"plan": HeadPlan(windows=PLAN.windows, firsts=PLAN.firsts, decays=DECAYS)},
    "decays, two-sided": {"plan": HeadPlan(windows=PLAN.windows, firsts=PLAN.firsts, decays=DECAYS), "causal": False},
    "slopes": {"plan": HeadPlan(windows=PLAN.windows, firsts=PLAN.firsts, slopes=SLOPES), "segments": "padding"},
    "sinks": {"sinks": True},
    "negative scale": {"scale": -0.3},
}
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="the package triton is not installed")
TRITON = pytest.param("triton", marks=needs_triton)


def segments_of(kind, n_keys):
    match kind:
        case "documents":
            return (torch.arange(n_keys) // torch.tensor([[n_keys // 4], [n_keys // 3 + 2]])).clone()
        case "shuffled":
            return torch.randint(-1, 3, (2, n_keys), generator=torch.Generator().manual_seed(1))
        case "padding":
            return torch.where(torch.arange(n_keys) < torch.tensor([[0], [13]]), -1, 0)
    return None


def results(
    backend,
    dtype=torch.float32,
    *,
    plan=PLAN,
    kv_heads=4,
    n_queries=41,
    n_keys=45,
    segments=None,
    sinks=False,
    **options,
):
    generator = torch.Generator().manual_seed(0)
    shapes = (4, n_queries), (kv_heads, n_keys), (kv_heads, n_keys)
    q, k, v = (torch.randn(2, *shape, 16, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    if sinks:
        options["sinks"] = torch.linspace(-1, 1, 4, dtype=torch.promote_types(dtype, torch.float32)).requires_grad_()
        leaves.append(options["sinks"])
    segments = segments_of(segments, n_keys)
    result = attention(q, k, v, plan, segments=segments, stats=True, backend=backend, **options)
    weight = torch.linspace(-1, 1, result.out.numel(), dtype=result.out.dtype).view_as(result.out)
    return [result.out, result.lse, *torch.autograd.grad((result.out * weight).sum(), leaves), *result.stats]


@pytest.mark.every(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ["blocked", TRITON])
def test_every_backend_computes_what_the_reference_defines(backend, name):
    exact = results("reference", torch.float64, **CASES[name])
    for ours, theirs in zip(results(backend, **CASES[name]), exact, strict=True):
        torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=2e-4, atol=2e-5)


LONG_CASES = {
    "plain": {},
    "two-sided": {"causal": False},
    "documents": {"segments": "documents", "kv_heads": 2},
    "documents in any order": {"segments": "shuffled"},
    "documents, two-sided": {"segments": "documents", "causal": False},
    "decays": {"plan": HeadPlan(windows=PLAN.windows, firsts=PLAN.firsts, decays=DECAYS)},
}


@needs_triton
@pytest.mark.every(3)
@pytest.mark.parametrize("parts", [0, 2])
@pytest.mark.parametrize("name", LONG_CASES)
def test_first_tiles_far_before_the_window_are_walked(name, parts):
    from longshort.ops.triton.tiles import KERNELS, TileShape, use

    case = {"n_queries": 150, "n_keys": 160} | LONG_CASES[name]
    if parts:  # all heads are long ones, whose walks are cut
        case |= {"n_queries": 90, "n_keys": 100}
        case["plan"] = HeadPlan(windows=(2000, 1100, 1024, None), firsts=(3, 20, 0, 0))
    with use({kernel: TileShape(32, 32, 1, 4, parts=parts) for kernel in KERNELS}):
        ours = results("triton", **case)
    exact = results("reference", torch.float64, **case)
    for found, wanted in zip(ours, exact, strict=True):
        torch.testing.assert_close(found, wanted.to(found.dtype), rtol=2e-4, atol=2e-5)


@needs_triton
@pytest.mark.parametrize("segments", [None, "shuffled"])
def test_first_tiles_behind_the_window_are_walked(segments):
    from longshort.ops.triton.tiles import KERNELS, TileShape, use

    plan = HeadPlan(windows=(3, 3, 1, None), firsts=(70, 0, 45, 0))
    case = {"plan": plan, "n_queries": 90, "n_keys": 100, "segments": segments, "causal": False}
    with use({kernel: TileShape(32, 32, 1, 4) for kernel in KERNELS}):
        ours = results("triton", **case)
    for found, wanted in zip(ours, results("reference", torch.float64, **case), strict=True):
        torch.testing.assert_close(found, wanted.to(found.dtype), rtol=2e-4, atol=2e-5)


def test_a_head_sees_its_window_and_the_first_keys_of_its_document_and_nothing_else():
    values = torch.eye(10)[None, None]
    q = k = torch.zeros(1, 1, 10, 10)
    plan = HeadPlan(windows=(2,), firsts=(3,))
    alone = attention(q, k, values, plan, backend="reference").out[0, 0] > 0
    assert [row.nonzero().flatten().tolist() for row in alone[[1, 5, 9]]] == [[0, 1], [0, 1, 2, 4, 5], [0, 1, 2, 8, 9]]
    segments = torch.tensor([[-1, 0, 0, 0, 0, 0, 1, 1, 1, 0]])
    packed = attention(q, k, values, plan, segments=segments, backend="reference").out[0, 0] > 0
    assert [row.nonzero().flatten().tolist() for row in packed[[0, 5, 8, 9]]] == [
        [],
        [1, 2, 3, 4, 5],
        [6, 7, 8],
        [1, 2, 3, 9],
    ]


def test_first_keys_up_to_the_length_make_a_head_global():
    q, k, v = torch.randn(3, 1, 2, 30, 8).unbind()
    streaming = attention(q, k, v, HeadPlan(windows=(4, 4), firsts=(30, 30)), backend="blocked")
    full = attention(q, k, v, HeadPlan.full(2), backend="blocked")
    torch.testing.assert_close(streaming.out, full.out)
    torch.testing.assert_close(streaming.lse, full.lse)


def test_gradients_of_the_reference_pass_gradcheck():
    q, k, v = (torch.randn(1, 2, 9, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    plan = HeadPlan(windows=(2, 1), firsts=(2, 3))
    assert torch.autograd.gradcheck(lambda *x: attention(*x, plan, backend="reference").out, (q, k, v))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(-2, 3), min_size=12, max_size=12), min_size=1, max_size=3), st.integers(1, 5))
def test_documents_are_where_a_search_finds_them(rows, first):
    found = documents(torch.tensor(rows), first)
    for b, row in enumerate(rows):
        for position, own in enumerate(row):
            places = [i for i, other in enumerate(row) if other == own]
            wanted = [places.index(position), places[0], places[min(first, len(places)) - 1] + 1, places[-1] + 1]
            assert [int(table[b, position]) for table in found] == wanted


def test_compiled_calls_agree_with_eager_ones():
    q, k, v = torch.randn(3, 1, 4, 33, 8).unbind()

    def attend(q, k, v):
        return attention(q, k, v, PLAN, backend="blocked").out

    torch.testing.assert_close(torch.compile(attend, fullgraph=True, backend="aot_eager")(q, k, v), attend(q, k, v))


def test_a_peer_serves_streaming_heads_or_says_why_not():
    q, k, v = torch.randn(3, 1, 4, 33, 8).unbind()
    torch.testing.assert_close(
        attention(q, k, v, PLAN, backend="sdpa").out, attention(q, k, v, PLAN, backend="reference").out
    )
