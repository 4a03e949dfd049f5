"""Pooling before the softmax as attention over smoothed keys: every backend gives what the reference defines."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longshort import HeadPlan, attention
from longshort.ops import Smoothing
from longshort.ops.smoothing import SIDES, key_decays, smooth_keys

from .cases import Case, assert_close, cases, made_affordable, run

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="the package triton is not installed")
BACKENDS = ["blocked", pytest.param("triton", marks=needs_triton)]
SMOOTHINGS = {
    True: [Smoothing(width=width, stage="before") for width in (2, 3, 5, 9)],
    False: [Smoothing(width=3, side=side, stage="before") for side in SIDES],
}
"""Those that smoothed keys give, in causal and in two-sided attention."""
DECAYS = {
    "none": None,
    "one per group": (0.1, 0.1, 0.02, 0.02),
    "one per head": (0.0, 0.3, 0.05, 1.0),
    "steeper than any row": (1e30, 0.0, 200.0, 3.0),
}


@st.composite
def drawn(draw, causal):
    """Of the causal ones, most decay."""
    case, smoothing = draw(cases(dtypes=(torch.float32,), causal=causal)), draw(st.sampled_from(SMOOTHINGS[causal]))
    rates = draw(st.lists(st.sampled_from([0.1, 0.001, 1.0, 0.0, 30.0]), min_size=9, max_size=9))
    decays = tuple(rates[: case.plan.n_heads]) if causal and draw(st.integers(0, 3)) else None
    return replace(case, plan=replace(case.plan, decays=decays), smoothing=smoothing)


def check(case, backend):
    assert_close(run(case, backend), run(case, "reference", torch.float64), 2e-4)


@given(drawn(True))
def test_causal_calls_agree_with_the_reference(case):
    check(case, "blocked")


@given(drawn(False))
def test_two_sided_calls_without_decay_agree_with_the_reference(case):
    check(case, "blocked")


@needs_triton
@settings(max_examples=10)
@given(st.booleans().flatmap(drawn).map(made_affordable))
@pytest.mark.slow
def test_drawn_calls_of_the_kernels_agree_with_the_reference(case):
    check(case, "triton")


@needs_triton
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_calls_of_the_kernels_agree_with_the_reference(kv_heads, causal):
    plan = HeadPlan(windows=(None, 9), decays=(0.02, 0.3) if causal else None)
    sizes = {"plan": plan, "kv_heads": kv_heads, "n_queries": 40, "n_keys": 65, "dim": 16, "causal": causal}
    check(Case(**sizes, segments="shuffled", smoothing=SMOOTHINGS[causal][1]), "triton")


@pytest.mark.every(2)
@pytest.mark.parametrize("segments", [None, "shuffled", "left padding"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("decays", DECAYS)
def test_any_decays_and_any_groups_are_exact_in_float64(decays, kv_heads, segments):
    plan = HeadPlan(windows=(None, 3, 9, None), decays=DECAYS[decays], slopes=(0.0, 0.1, 0.0, 0.3))
    sizes = {"plan": plan, "kv_heads": kv_heads, "n_queries": 17, "n_keys": 29, "dtype": torch.float64, "softcap": 3.0}
    case = Case(**sizes, segments=segments, smoothing=Smoothing(width=4, stage="before"))
    assert_close(run(case, "blocked"), run(case, "reference"), 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_local_head_pools_logits_of_keys_before_its_window(backend):
    q, k, v = torch.randn(3, 1, 1, 12, 4).unbind()
    k.requires_grad_()
    smoothing = Smoothing(width=3, stage="before")
    out = attention(q, k, v, HeadPlan(windows=(4,)), smoothing=smoothing, backend=backend).out
    (grad,) = torch.autograd.grad(out[:, :, 9].square().sum(), k)
    assert [j for j, norm in enumerate(grad.abs().amax((0, 1, 3))) if norm > 0] == list(range(9 - (4 + 3 - 1) + 1, 10))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_other_segments_and_padding_hold_reaches_nothing(backend):
    q, k, v = torch.randn(3, 2, 2, 11, 4).unbind()
    plan = HeadPlan(windows=(None, 3), decays=(0.1, 0.0))
    segments = torch.tensor([[-1] * 3 + [0] * 8, [0] * 4 + [1] * 7])
    options = {"smoothing": Smoothing(width=4, stage="before"), "segments": segments, "backend": backend}
    clean = attention(q, k, v, plan, **options).out
    k[0, :, :3] = torch.nan
    k[1, :, :4] = 1e30
    dirty = attention(q, k, v, plan, **options).out
    assert torch.equal(clean[0], dirty[0]) and torch.equal(clean[1, :, 4:], dirty[1, :, 4:])


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_statistics_are_those_of_the_smoothed_keys(backend):
    q, k, v = torch.randn(3, 1, 2, 20, 4).unbind()
    plan, smoothing = HeadPlan(windows=(None, 6), decays=(0.2, 1.0)), Smoothing(width=3, stage="before")
    found = attention(q, k, v, plan, smoothing=smoothing, stats=True, backend=backend).stats
    logits = q @ smooth_keys(k, smoothing, plan.decays).mT / 2
    distance = torch.arange(20)[:, None] - torch.arange(20)
    visible = (distance >= 0) & (distance < torch.tensor([20, 6])[:, None, None])
    torch.testing.assert_close(found.max, logits.masked_fill(~visible, -torch.inf).amax((0, 2, 3)))
    torch.testing.assert_close(found.min, logits.masked_fill(~visible, torch.inf).amin((0, 2, 3)))


def test_a_width_of_one_pools_nothing():
    q, k, v = torch.randn(3, 1, 2, 20, 4).unbind()
    plan = HeadPlan.las(n_heads=2, max_decay=0.1)
    pooled, plain = (attention(q, k, v, plan, smoothing=s).out for s in (Smoothing(width=1, stage="before"), None))
    torch.testing.assert_close(pooled, plain)


def test_heads_of_a_group_share_smoothed_keys_only_if_they_decay_alike():
    assert key_decays(None, 2) is None
    assert key_decays((0.1, 0.1, 0.2, 0.2), 2) == (0.1, 0.2)
    assert key_decays((0.1, 0.2, 0.2, 0.2), 2) == (0.1, 0.2, 0.2, 0.2)


def test_numbers_first_used_for_inference_serve_training():
    q, k, v = torch.randn(3, 1, 2, 20, 4).unbind()
    plan, smoothing = HeadPlan(windows=(None, 6), decays=(0.123, 0.987)), Smoothing(width=3, stage="before")
    with torch.inference_mode():
        attention(q, k, v, plan, smoothing=smoothing)
    k.requires_grad_()
    attention(q, k, v, plan, smoothing=smoothing).out.sum().backward()
    assert k.grad.isfinite().all()


def test_a_compiled_call_has_no_graph_break_and_equals_the_eager_one():
    plan, smoothing = HeadPlan(windows=(None, 5), decays=(0.1, 0.3)), Smoothing(width=3, stage="before")

    def call(q, k, v, segments):
        return attention(q, k, v, plan, smoothing=smoothing, segments=segments).out

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    q, k, v = torch.randn(3, 2, 2, 13, 4).unbind()
    segments = torch.arange(13).expand(2, -1) // 5
    torch.testing.assert_close(compiled(q, k, v, segments), call(q, k, v, segments))


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
@pytest.mark.parametrize(
    ("options", "decays", "causal", "why"),
    [
        ({"side": "leading"}, None, True, "'leading' the logits of keys after the query count as zeros"),
        ({"side": "centred", "lookahead": True}, None, True, "'centred' the logits of keys after the query count"),
        ({"side": "centred"}, (0.0, 0.1), False, "the pooled keys of one query lie on both sides of it"),
        ({}, (0.0, 0.1), False, "the pooled keys of one query lie on both sides of it"),
    ],
)
def test_pooled_logits_that_no_keys_give_are_left_to_the_reference(backend, options, decays, causal, why):
    q, k, v = torch.randn(3, 1, 2, 9, 4).unbind()
    plan, smoothing = HeadPlan(windows=(None, 5), decays=decays), Smoothing(width=3, stage="before", **options)
    assert attention(q, k, v, plan, smoothing=smoothing, causal=causal, backend="reference").out.isfinite().all()
    with pytest.raises(ValueError, match=rf'must be "after" with the \w+ backend, got "before".*{why}.*"reference"'):
        attention(q, k, v, plan, smoothing=smoothing, causal=causal, backend=backend)
