"""The public function: what it refuses, what it returns, and the empty calls."""

import re

import pytest
import torch

import longshort
from longshort import HeadPlan, Smoothing, attention
from longshort.ops import AttentionResult, LogitStats

PLAN = HeadPlan(windows=(None, 3))
BACKENDS = ("reference", "blocked")


def tensors(q=(2, 2, 5, 4), k=(2, 2, 5, 4), v=None, dtype=torch.float32):
    return {"q": torch.zeros(q, dtype=dtype), "k": torch.zeros(k, dtype=dtype), "v": torch.zeros(v or k, dtype=dtype)}


REFUSED_TENSORS = {
    "q must be a tensor, got list": tensors() | {"q": [[1.0]]},
    "k must be a tensor, got NoneType": tensors() | {"k": None},
    "v must be a tensor, got float": tensors() | {"v": 0.0},
    "q must have 4 dimensions .* got (2, 5, 4)": tensors() | {"q": torch.zeros(2, 5, 4)},
    "k must have 4 dimensions .* got (2, 5)": tensors() | {"k": torch.zeros(2, 5)},
    "v must have 4 dimensions .* got (1, 2, 2, 5, 4)": tensors() | {"v": torch.zeros(1, 2, 2, 5, 4)},
    "q must be float32, bfloat16, float16 or float64, got torch.int64": tensors(dtype=torch.int64),
    "q must be float32, bfloat16, float16 or float64, got torch.complex64": tensors(dtype=torch.complex64),
    "k must have the dtype of q, torch.float32, got torch.float64": tensors() | {"k": torch.zeros(2, 2, 5, 4).double()},
    "v must have the dtype of q, torch.float32, got torch.bfloat16": tensors()
    | {"v": torch.zeros(2, 2, 5, 4).bfloat16()},
    "k must be on the device of q, cpu, got meta": tensors() | {"k": torch.zeros(2, 2, 5, 4, device="meta")},
    "v must be on the device of q, cpu, got meta": tensors() | {"v": torch.zeros(2, 2, 5, 4, device="meta")},
    "v must have the head dim of q, 4, got 3": tensors(v=(2, 2, 5, 3)),
    "v must have the head dim of q, 4, got 8": tensors(k=(2, 2, 5, 8)),
    "k .* got .*(2, 2, 5, 8)": tensors(k=(2, 2, 5, 8), v=(2, 2, 5, 4)),
    "k and v must have the same shape, got (2, 2, 5, 4) and (2, 1, 5, 4)": tensors(v=(2, 1, 5, 4)),
    "k and v must have the same shape, got (2, 2, 5, 4) and (2, 2, 6, 4)": tensors(v=(2, 2, 6, 4)),
    "k must have the batch size of q, 2, got 3": tensors(k=(3, 2, 5, 4)),
    "q must have a head dim of at least 1, got 0": tensors(q=(2, 2, 5, 0), k=(2, 2, 5, 0)),
    "k must have a number of heads that divides q's 2, got 0": tensors(k=(2, 0, 5, 4)),
    "k must have a number of heads that divides q's 2, got 3": tensors(k=(2, 3, 5, 4)),
    "k must have a number of heads that divides q's 2, got 4": tensors(k=(2, 4, 5, 4)),
    "q must have no more positions than k .* got T=6 and S=5": tensors(q=(2, 2, 6, 4)),
}


def as_pattern(message):
    """Everything literal but ' .* '."""
    return ".*".join(re.escape(part) for part in message.split(".*"))


@pytest.mark.parametrize("message", REFUSED_TENSORS)
@pytest.mark.parametrize("backend", ["auto", "reference", "blocked"])
def test_wrong_tensors_raise_a_value_error_that_names_them(message, backend):
    with pytest.raises(ValueError, match="^" + as_pattern(message)):
        attention(**REFUSED_TENSORS[message], plan=PLAN, backend=backend)


REFUSED_OPTIONS = {
    "plan must be a HeadPlan, got tuple": {"plan": (None, 3)},
    "plan must be a HeadPlan, got NoneType": {"plan": None},
    "plan must have one entry for each of the 2 heads of q, got 3": {"plan": HeadPlan.full(3)},
    "scale must be None or a finite number, got inf": {"scale": float("inf")},
    "scale must be None or a finite number, got nan": {"scale": float("nan")},
    "scale must be None or a finite number, got 'auto'": {"scale": "auto"},
    "softcap must be None or a finite number > 0, got 0": {"softcap": 0},
    "softcap must be None or a finite number > 0, got -1.0": {"softcap": -1.0},
    "softcap must be None or a finite number > 0, got inf": {"softcap": float("inf")},
    "softcap must be None or a finite number > 0, got nan": {"softcap": float("nan")},
    "softcap must be None or a finite number > 0, got '30'": {"softcap": "30"},
    "segments must be None or a tensor, got list": {"segments": [[0] * 5] * 2},
    "segments must hold signed integers (a negative id is padding), got torch.float32": {"segments": torch.zeros(2, 5)},
    "segments must hold signed integers (a negative id is padding), got torch.bool": {
        "segments": torch.zeros(2, 5, dtype=torch.bool)
    },
    "segments must hold signed integers (a negative id is padding), got torch.complex64": {
        "segments": torch.zeros(2, 5, dtype=torch.complex64)
    },
    "segments must hold signed integers (a negative id is padding), got torch.uint8": {
        "segments": torch.zeros(2, 5, dtype=torch.uint8),
        "smoothing": Smoothing(width=3),
    },
    "segments must hold signed integers (a negative id is padding), got torch.uint32": {
        "segments": torch.zeros(2, 5, dtype=torch.uint32)
    },
    "causal must be True or False, got 'no'": {"causal": "no"},
    "segments must have shape (batch, keys) = (2, 5), got (5,)": {"segments": torch.zeros(5, dtype=torch.int64)},
    "segments must have shape (batch, keys) = (2, 5), got (1, 5)": {"segments": torch.zeros(1, 5, dtype=torch.int64)},
    "segments must have shape (batch, keys) = (2, 5), got (2, 4)": {"segments": torch.zeros(2, 4, dtype=torch.int64)},
    "segments must be on the device of q, cpu, got meta": {
        "segments": torch.zeros(2, 5, dtype=torch.int64, device="meta")
    },
    "stats must be False, True or \"max\", got 'min'": {"stats": "min"},
    'stats must be False, True or "max", got 1': {"stats": 1},
    'stats must be False, True or "max", got None': {"stats": None},
    "backend must be one of auto, reference, blocked, triton, sdpa, flex, got 'flash'": {"backend": "flash"},
    "backend must be one of auto, reference, blocked, triton, sdpa, flex, got None": {"backend": None},
}


@pytest.mark.parametrize("message", REFUSED_OPTIONS)
def test_wrong_option_raises_a_value_error_that_names_it(message):
    with pytest.raises(ValueError, match="^" + as_pattern(message)):
        attention(**tensors(), **({"plan": PLAN} | REFUSED_OPTIONS[message]))


def test_named_backend_that_cannot_serve_raises_and_says_why(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match='backend="triton" cannot serve this call: '):
        attention(**tensors(), plan=PLAN, backend="triton")


def test_named_backend_is_the_one_that_runs(monkeypatch):
    def unavailable(*args, **kwargs):
        raise NotImplementedError

    q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    monkeypatch.setattr("longshort.ops.api.reference", unavailable)
    attention(q, k, v, PLAN, backend="blocked")
    with pytest.raises(NotImplementedError):
        attention(q, k, v, PLAN, backend="reference")
    monkeypatch.undo()
    monkeypatch.setattr("longshort.ops.blocked.forward", unavailable)
    attention(q, k, v, PLAN, backend="reference")
    for backend in ("blocked", "auto"):
        with pytest.raises(NotImplementedError):
            attention(q, k, v, PLAN, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize(("batch", "n_queries", "n_keys"), [(0, 5, 5), (0, 3, 5), (2, 0, 0), (2, 0, 5), (0, 0, 0)])
def test_empty_batch_or_no_queries_gives_empty_results(batch, n_queries, n_keys, segmented, backend):
    q = torch.randn(batch, 2, n_queries, 4, requires_grad=True)
    k, v = (torch.randn(batch, 1, n_keys, 4, requires_grad=True) for _ in range(2))
    segments = torch.zeros(batch, n_keys, dtype=torch.int64) if segmented else None
    result = attention(q, k, v, PLAN, segments=segments, stats=True, softcap=2.0, backend=backend)
    assert result.out.shape == q.shape
    assert result.lse.shape == q.shape[:3]
    assert result.stats.max.tolist() == [-torch.inf] * 2
    assert result.stats.min.tolist() == [torch.inf] * 2
    for x, grad in zip((q, k, v), torch.autograd.grad(result.out.sum(), (q, k, v)), strict=True):
        assert grad.shape == x.shape and not grad.any()

    largest = attention(q, k, v, PLAN, segments=segments, stats="max", backend=backend).stats
    assert largest.max.tolist() == [-torch.inf] * 2 and largest.min is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_head_with_no_visible_pair_has_infinite_statistics(backend):
    q, k, v = torch.randn(3, 2, 2, 5, 4).unbind()
    logits = attention(q, k, v, PLAN, segments=torch.full((2, 5), -1), stats=True, backend=backend).stats
    assert logits.max.tolist() == [-torch.inf] * 2
    assert logits.min.tolist() == [torch.inf] * 2
    assert logits.abs_max.tolist() == [-torch.inf] * 2
    largest = attention(q, k, v, PLAN, segments=torch.full((2, 5), -1), stats="max", backend=backend).stats
    assert largest.max.tolist() == [-torch.inf] * 2


def test_abs_max_is_the_larger_of_both_extremes_and_keeps_nan():
    stats = LogitStats(torch.tensor([3.0, 1.0, -2.0, torch.nan]), torch.tensor([-1.0, -4.0, -5.0, torch.nan]))
    torch.testing.assert_close(stats.abs_max, torch.tensor([3.0, 4.0, 5.0, torch.nan]), equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_abs_max_without_the_smallest_logits_is_refused_with_the_remedy(backend):
    stats = attention(*torch.randn(3, 1, 2, 5, 4).unbind(), PLAN, stats="max", backend=backend).stats
    with pytest.raises(ValueError, match=r'abs_max needs the smallest logits, which stats="max" .* use stats=True'):
        _ = stats.abs_max


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stats", [True, False])
def test_result_is_a_named_tuple_of_three_whatever_is_asked(backend, stats):
    result = attention(*torch.randn(3, 1, 2, 5, 4).unbind(), PLAN, stats=stats, backend=backend)
    assert isinstance(result, AttentionResult) and result._fields == ("out", "lse", "stats")
    assert result.logits is result.stats  # the older name
    out, lse, logits = result
    assert (out.shape, lse.shape) == ((1, 2, 5, 4), (1, 2, 5))
    assert (logits is None) if not stats else (isinstance(logits, LogitStats) and logits._fields == ("max", "min"))
    if stats:
        assert logits.max.shape == logits.min.shape == logits.abs_max.shape == (2,)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_given_as_int_are_taken_as_float(backend):
    q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    a = attention(q, k, v, PLAN, scale=1, softcap=2, backend=backend)
    b = attention(q, k, v, PLAN, scale=1.0, softcap=2.0, backend=backend)
    assert torch.equal(a.out, b.out)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scale_defaults_to_one_over_the_root_of_the_head_dim(backend):
    q, k, v = torch.randn(3, 1, 2, 5, 7).unbind()
    default, given = (attention(q, k, v, PLAN, scale=scale, backend=backend).out for scale in (None, 7**-0.5))
    torch.testing.assert_close(default, given)


def test_op_is_one_of_the_names_a_user_imports():
    assert longshort.attention is attention
