"""Smoothing of the attention rows: equal to the direct formula, within segments, and blind to the future."""

import math
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from longshort import HeadPlan, attention
from longshort.ops import Smoothing
from longshort.ops.smoothing import smooth_values

PLAN = HeadPlan(windows=(None, 3, 5, None), decays=(0.0, 0.1, 0.3, 0.02), slopes=(0.1, 0.0, 0.0, 0.2))
TWO_SIDED = {"causal": False}
CASES = {
    "one-sided": (Smoothing(width=3), {}),
    "one-sided, even": (Smoothing(width=4), {}),
    "wider than the row": (Smoothing(width=30), {}),
    "centred": (Smoothing(width=5, side="centred"), TWO_SIDED),
    "centred, wider than the row": (Smoothing(width=31, side="centred"), TWO_SIDED),
    "one-sided of two-sided attention": (Smoothing(width=3), TWO_SIDED),
    "leading of two-sided attention": (Smoothing(width=3, side="leading"), TWO_SIDED),
    "centred of causal attention": (Smoothing(width=3, side="centred", lookahead=True), {}),
}
INTERLEAVED = torch.tensor([[0, 0, 1, 0, 1, 1, 2, 2, 2, 2, 0], [-1, -1, 3, 3, 3, 3, 3, -1, 3, 3, 3]])
BACKENDS = ["reference", "blocked", *(["triton"] if find_spec("triton") else [])]


def inputs(batch=2, heads=4, kv_heads=2, queries=11, keys=11, dim=4, dtype=torch.float64):
    torch.manual_seed(0)
    q = torch.randn(batch, heads, queries, dim, dtype=dtype)
    k, v = torch.randn(2, batch, kv_heads, keys, dim, dtype=dtype).unbind()
    return q, k, v


def logit_rows(q, k, plan, causal, segments, pooling=None):
    """x of the definition as nested lists [b][h][t][j], None where unseen; written out number by number."""
    batch, heads, queries, dim = q.shape
    group, keys = heads // k.shape[1], k.shape[2]

    def decayed(b, h, t, j):
        """0 for a key that is none, or that the query must not know of."""
        if not 0 <= j < keys or (causal and j > t):
            return 0.0
        if segments is not None and (segments[b, t] != segments[b, j] or segments[b, t] < 0):
            return 0.0
        x = float(q[b, h, t - keys + queries] @ k[b, h // group, j]) / dim**0.5
        return x * math.exp(-plan.decays[h] * abs(t - j))

    def entry(b, h, t, j):
        distance, window = abs(t - j), plan.windows[h] or math.inf
        unseen = (causal and j > t) or distance >= window
        if segments is not None:
            unseen = unseen or segments[b, t] != segments[b, j] or segments[b, t] < 0
        if unseen:
            return None
        taken = [0] if pooling is None else pooling.offsets
        return sum(decayed(b, h, t, j + i) for i in taken) / len(taken) - plan.slopes[h] * distance

    times = range(keys - queries, keys)
    return [
        [[[entry(b, h, t, j) for j in range(keys)] for t in times] for h in range(heads)] for b in range(batch)
    ]  # fmt: skip


def softmax(row):
    total = sum(math.exp(x) for x in row if x is not None)
    return [0.0 if x is None else math.exp(x) / total for x in row]


def pooled(row, smoothing, joined):
    """Each entry of a row averaged with those of the keys whose values take it in; `joined(j, i)`: may they mix?"""
    keys = range(len(row))
    return [sum(row[i] for i in keys if j - i in smoothing.offsets and joined(j, i)) / smoothing.width for j in keys]


def direct(q, k, v, plan, smoothing, causal=True, segments=None):
    """AP(softmax(x)) V, or softmax(AP(x)) V where the pooling comes before: out (B, H, T, D)."""
    group = q.shape[1] // k.shape[1]
    out = torch.zeros_like(q)
    pooling = smoothing if smoothing.stage == "before" else None
    for b, of_row in enumerate(logit_rows(q, k, plan, causal, segments, pooling)):

        def joined(j, i, b=b):
            return segments is None or bool(segments[b, i] == segments[b, j])

        for h, of_head in enumerate(of_row):
            for t, row in enumerate(of_head):
                if all(x is None for x in row):
                    continue
                weights = softmax(row) if pooling else pooled(softmax(row), smoothing, joined)
                for j, weight in enumerate(weights):
                    if weight:
                        out[b, h, t] += weight * v[b, h // group, j]
    return out


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("segments", [None, INTERLEAVED], ids=["one text", "segments and padding"])
def test_smoothed_values_give_the_pooled_rows_of_the_softmax(name, segments):
    smoothing, options = CASES[name]
    q, k, v = inputs()
    got = attention(q, k, v, PLAN, smoothing=smoothing, segments=segments, backend="reference", **options).out
    torch.testing.assert_close(got, direct(q, k, v, PLAN, smoothing, segments=segments, **options))


@pytest.mark.parametrize("name", CASES)
def test_queries_that_are_the_last_positions_see_the_smoothed_values_of_all(name):
    smoothing, options = CASES[name]
    q, k, v = inputs(queries=3)
    got = attention(q, k, v, PLAN, smoothing=smoothing, backend="reference", **options).out
    torch.testing.assert_close(got, direct(q, k, v, PLAN, smoothing, **options))


@pytest.mark.parametrize("name", [*CASES, "leading of causal attention"])
@pytest.mark.parametrize("segments", [None, INTERLEAVED], ids=["one text", "segments and padding"])
def test_pooling_before_the_softmax_averages_the_decayed_logits(name, segments):
    after, options = CASES.get(name, (Smoothing(width=3, side="leading"), {}))
    smoothing = replace(after, stage="before")
    q, k, v = inputs()
    got = attention(q, k, v, PLAN, smoothing=smoothing, segments=segments, backend="reference", **options).out
    torch.testing.assert_close(got, direct(q, k, v, PLAN, smoothing, segments=segments, **options))


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("name", ["one-sided", "centred"])
def test_every_backend_smooths_forward_and_backward_as_the_reference(backend, name):
    smoothing, options = CASES[name]
    leaves = [x.requires_grad_() for x in inputs(dtype=torch.float32)]
    found = []
    for chosen in (backend, "reference"):
        out = attention(*leaves, PLAN, smoothing=smoothing, segments=INTERLEAVED, backend=chosen, **options).out
        found.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("stage", ["after", "before"])
@pytest.mark.parametrize("side", ["causal", "centred"])
def test_gradients_are_those_of_the_function(side, stage):
    smoothing = Smoothing(width=3, side=side, stage=stage)
    plan, segments = HeadPlan(windows=(None, 2), decays=(0.1, 0.2)), torch.tensor([[0, 0, 0, 1, 1, -1]])
    leaves = [x.requires_grad_() for x in inputs(batch=1, heads=2, kv_heads=1, queries=6, keys=6, dim=2)]

    def call(q, k, v):
        options = {"causal": side == "causal", "segments": segments, "backend": "reference"}
        return attention(q, k, v, plan, smoothing=smoothing, **options).out

    assert torch.autograd.gradcheck(call, leaves)


@pytest.mark.parametrize(("stage", "side"), [("after", "causal"), ("before", "causal"), ("before", "leading")])
def test_one_sided_forms_see_nothing_of_the_future(stage, side):
    q, k, v = inputs()
    smoothing = Smoothing(width=4, stage=stage, side=side)
    before = attention(q, k, v, PLAN, smoothing=smoothing, backend="reference").out
    for x in (q, k, v):
        x[:, :, 6:] = 100 * torch.randn_like(x[:, :, 6:])
    after = attention(q, k, v, PLAN, smoothing=smoothing, backend="reference").out
    assert torch.equal(before[:, :, :6], after[:, :, :6])
    assert not torch.allclose(before[:, :, 6:], after[:, :, 6:])


def test_the_centred_form_sees_half_a_width_ahead_and_no_further():
    q, k, v = inputs()
    v.requires_grad_()
    smoothing = Smoothing(width=5, side="centred", lookahead=True)
    out = attention(q, k, v, HeadPlan.full(4), smoothing=smoothing, backend="reference").out
    (grad,) = torch.autograd.grad(out[:, :, 4].sum(), v)
    assert (grad.abs().amax((0, 1, 3)) > 0).tolist() == [True] * 7 + [False] * 4


@pytest.mark.parametrize(("window", "width"), [(1, 3), (3, 4), (2, 1)])
def test_a_smoothed_local_head_reaches_window_and_width_less_one_keys(window, width):
    q, k, v = inputs(heads=1, kv_heads=1)
    v.requires_grad_()
    out = attention(q, k, v, HeadPlan(windows=(window,)), smoothing=Smoothing(width=width), backend="reference").out
    (grad,) = torch.autograd.grad(out[:, :, 9].sum(), v)
    reached = [j for j, seen in enumerate(grad.abs().amax((0, 1, 3)) > 0) if seen]
    assert reached == list(range(9 - (window + width - 1) + 1, 10))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_other_segments_and_padding_hold_reaches_nothing(backend):
    q, k, v = inputs(dtype=torch.float32)
    segments = torch.tensor([[-1] * 3 + [0] * 8, [0] * 4 + [1] * 7])
    smoothing = Smoothing(width=4)
    clean = attention(q, k, v, PLAN, smoothing=smoothing, segments=segments, backend=backend).out
    v[0, :, :3] = torch.nan
    v[1, :, :4] = 1e30
    dirty = attention(q, k, v, PLAN, smoothing=smoothing, segments=segments, backend=backend).out
    assert torch.equal(clean[0], dirty[0]) and torch.equal(clean[1, :, 4:], dirty[1, :, 4:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_log_sum_exp_and_statistics_stay_those_of_the_unpooled_rows(backend):
    q, k, v = inputs(dtype=torch.float32)
    plain, smoothed = (
        attention(q, k, v, PLAN, smoothing=smoothing, stats=True, backend=backend)
        for smoothing in (None, Smoothing(width=3))
    )
    assert torch.equal(plain.lse, smoothed.lse)
    assert torch.equal(plain.stats.max, smoothed.stats.max) and torch.equal(plain.stats.min, smoothed.stats.min)


def test_smoothed_padding_is_zero():
    _, _, v = inputs()
    v[1, :, :2] = torch.nan
    smooth = smooth_values(v, Smoothing(width=2), INTERLEAVED)
    assert not smooth[1, :, [0, 1, 7]].any()
    torch.testing.assert_close(smooth[1, :, 8], v[1, :, 8] / 2)


def test_border_rows_sum_to_less_than_one():
    q, k, _ = inputs()
    ones = torch.ones_like(k)
    out = attention(q, k, ones, HeadPlan(windows=(1,) * 4), smoothing=Smoothing(width=4), backend="reference").out
    torch.testing.assert_close(out[0, 0, :, 0], torch.tensor([0.25, 0.5, 0.75] + [1.0] * 8, dtype=torch.float64))


def test_half_precision_values_are_averaged_in_fp32():
    q, k, _ = (x.bfloat16() for x in inputs(heads=1, kv_heads=1))
    v = torch.ones_like(k) + torch.arange(11)[:, None].bfloat16() / 64
    out = attention(q, k, v, HeadPlan(windows=(1,)), smoothing=Smoothing(width=3), backend="reference").out
    exact = v.double().unfold(2, 3, 1).mean(-1).bfloat16()
    assert out.dtype == torch.bfloat16 and torch.equal(out[:, :, 2:], exact)


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"queries": 0, "keys": 0}, {"queries": 0}])
def test_empty_calls_give_empty_results(sizes):
    q, k, v = inputs(**sizes)
    for stage, backend in (("after", "auto"), ("before", "reference")):
        smoothing = Smoothing(width=3, stage=stage)
        assert attention(q, k, v, PLAN, smoothing=smoothing, backend=backend).out.shape == q.shape


def test_a_compiled_smoothed_call_has_no_graph_break_and_equals_the_eager_one():
    def call(q, k, v, segments):
        return attention(q, k, v, PLAN, smoothing=Smoothing(width=3), segments=segments).out

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    q, k, v = inputs(dtype=torch.float32)
    torch.testing.assert_close(compiled(q, k, v, INTERLEAVED), call(q, k, v, INTERLEAVED))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "smoothing must be an integer >= 1, got 0"),
        ({"width": True}, "smoothing must be an integer >= 1, got True"),
        ({"width": 2.0}, "smoothing must be an integer >= 1, got 2.0"),
        ({"width": 3, "side": "left"}, "smoothing_side must be one of causal, centred, leading, got 'left'"),
        ({"width": 3, "stage": "during"}, "smoothing_stage must be one of after, before, got 'during'"),
        ({"width": 4, "side": "centred"}, "smoothing must be odd where smoothing_side is centred, got 4"),
    ],
)
def test_wrong_smoothing_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        Smoothing(**options)


@pytest.mark.parametrize(("side", "ahead"), [("centred", 1), ("leading", 2)])
def test_smoothing_of_later_values_in_causal_attention_is_refused_unless_allowed(side, ahead):
    q, k, v = inputs()
    message = (
        rf"smoothing_side must be 'causal' in causal attention, got '{side}', which averages {ahead} later.* leaks"
    )
    with pytest.raises(ValueError, match=message):
        attention(q, k, v, PLAN, smoothing=Smoothing(width=3, side=side))


def test_smoothing_that_is_no_smoothing_is_refused():
    with pytest.raises(ValueError, match="smoothing must be None or a Smoothing, got int"):
        attention(*inputs(), PLAN, smoothing=3)
