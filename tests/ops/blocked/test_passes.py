"""The blocked backend against the reference: numbers, memory, and what NaN and padding do."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from longshort import HeadPlan, attention
from longshort.ops import blocked
from longshort.ops.options import Options

from ..cases import (
    HALF,
    LAYOUTS,
    Case,
    assert_close,
    assert_no_worse_than_rounding,
    assert_statistics_change_no_bit,
    cases,
    run,
    run_in_rounding,
)

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}
NAN = float("nan")


def check_against_reference(case):
    """Outputs, gradients, lse and statistics, against the reference in float64."""
    assert_close(run(case, "blocked"), run(case, "reference", torch.float64), TOLERANCE[case.dtype])


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=50)
@given(cases(dtypes=(torch.float32,), causal=True))
@pytest.mark.every(2)
def test_causal_call_agrees_with_the_reference_in_fp32(layout, case):
    check_against_reference(replace(case, layout=layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=40)
@given(cases(dtypes=(torch.float32,), causal=False))
@pytest.mark.every(2)
def test_two_sided_call_agrees_with_the_reference_in_fp32(layout, case):
    check_against_reference(replace(case, layout=layout))


@settings(max_examples=100)
@given(cases(dtypes=(torch.float64,)))
def test_float64_call_agrees_with_the_reference(case):
    check_against_reference(case)


@settings(max_examples=60)
@given(cases(dtypes=(torch.float32, torch.float64, *HALF)))
def test_statistics_of_either_kind_change_no_bit(case):
    assert_statistics_change_no_bit(case, "blocked")


def test_the_largest_logits_alone_take_no_pass_for_the_smallest(monkeypatch):
    for name in ("amin", "aminmax"):
        monkeypatch.setattr(torch.Tensor, name, None)
    run(replace(MIXED, segments="negatives"), "blocked", stats="max")
    with pytest.raises(TypeError):
        run(MIXED, "blocked", stats=True)


@pytest.mark.parametrize("segments", [None, "negatives"])
@settings(max_examples=60)
@given(cases(dtypes=(torch.float32,), softcap=None, layout="contiguous"))
@pytest.mark.every(2)
def test_call_that_fused_kernels_may_serve_agrees_with_the_reference(segments, case):
    check_against_reference(replace(case, segments=segments, plan=replace(case.plan, decays=None)))


@pytest.mark.parametrize("dtype", HALF)
@settings(max_examples=70)
@given(cases(dtypes=HALF))
@pytest.mark.every(2)
def test_half_precision_call_errs_at_most_twice_as_much_as_its_rounding(dtype, case):
    case = replace(case, dtype=dtype)
    exact, got = run(case, "reference", torch.float64), run(case, "blocked")
    assert_no_worse_than_rounding(got, exact, run_in_rounding(case))
    for a, b in zip((got.result.lse, *got.result.stats), (exact.result.lse, *exact.result.stats), strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-3, atol=1e-3)  # kernels have a fast exp for half


MIXED = Case(batch=2, kv_heads=2, n_queries=65, n_keys=77, dim=8, plan=HeadPlan(windows=(None, None, 5, 40)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_and_gradients_may_have_any_strides(layout, dtype):
    for kv_heads in (4, 2):
        check_against_reference(replace(MIXED, layout=layout, dtype=dtype, kv_heads=kv_heads))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [0.0, -0.3, 1e-20, 2])
def test_scale_may_have_any_sign_and_size(scale, causal):
    check_against_reference(replace(MIXED, scale=scale, causal=causal))


LONG = {
    "a lone global head": Case(batch=1, n_queries=1103, n_keys=1103, plan=HeadPlan.full(1)),
    "a lone global head in a batch": Case(
        batch=3, kv_heads=2, n_queries=1291, n_keys=1291, plan=HeadPlan(windows=(None, 40))
    ),
    "one global head among three": Case(
        batch=2, kv_heads=3, n_queries=2203, n_keys=2203, plan=HeadPlan.long_short(n_heads=3, n_global=1, window=100)
    ),
    "three global heads, keys before the queries": Case(
        batch=1, kv_heads=3, n_queries=1337, n_keys=1738, plan=HeadPlan.full(3), layout="fused qkv"
    ),
    "grouped queries and three kinds of window": Case(
        batch=2, kv_heads=1, n_queries=1501, n_keys=1501, plan=HeadPlan(windows=(None, 300, 33)), layout="fused qkv"
    ),
    "segments": Case(
        batch=2, kv_heads=3, n_queries=1703, n_keys=1711, plan=HeadPlan(windows=(None, 129, 17)), segments="negatives"
    ),
    "softcap, slopes and decays": Case(
        batch=2,
        kv_heads=3,
        n_queries=1607,
        n_keys=1607,
        softcap=5.0,
        plan=HeadPlan(windows=(None, None, 300), slopes=(0.01, 0, 0.1), decays=(0, 0.001, 0.01)),
    ),
    "slopes": Case(
        batch=2, kv_heads=3, n_queries=1337, n_keys=1738, plan=HeadPlan(windows=(None, 300, 33)).with_alibi()
    ),
    "two-sided slopes": Case(
        batch=1, kv_heads=1, n_queries=1201, n_keys=1304, causal=False, plan=HeadPlan(windows=(None,)).with_alibi()
    ),
    "two-sided": Case(
        batch=1, kv_heads=3, n_queries=1201, n_keys=1304, causal=False, plan=HeadPlan(windows=(None, 129, 400))
    ),
}


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", LONG)
@pytest.mark.every(4)
def test_long_call_on_two_threads_agrees_with_the_reference(name, two_threads):
    check_against_reference(LONG[name])


@pytest.mark.parametrize("name", ["one global head among three", "softcap, slopes and decays", "segments"])
@pytest.mark.every(3)
def test_long_bf16_call_errs_at_most_twice_as_much_as_its_rounding(name, two_threads):
    case = replace(LONG[name], dtype=torch.bfloat16, batch=1, n_queries=1103, n_keys=1111)
    assert_no_worse_than_rounding(run(case, "blocked"), run(case, "reference", torch.float64), run_in_rounding(case))


class _Memory(TorchDispatchMode):
    """Follows the storages that ops allocate: the largest, and the most that were alive at once, in bytes."""

    def __init__(self):
        super().__init__()
        self.largest, self.peak, self._alive = 0, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
                self.largest = max(self.largest, storage.nbytes())
        self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return result


def memory_of(n, windows, *, slopes=None, softcap=None, segments=None, causal=True, extremes=2, dim=16):
    """Of forward and backward, called beneath the opaque op, whose inside a dispatch mode does not see."""
    q, k, v, grad = torch.randn(4, 1, len(windows), n, dim).unbind()
    options = Options.of(HeadPlan(windows=windows, slopes=slopes), causal=causal, softcap=softcap)
    with _Memory() as memory:
        out, lse, _, _ = blocked.forward(q, k, v, options, segments, extremes)
        blocked.backward(grad, q, k, v, out, lse, options, segments)
    return memory


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"softcap": 20.0},
        {"slopes": [0.01, 0.1, 0.2]},
        {"slopes": [0.01, 0.1, 0.2], "causal": False},
        {"segments": (torch.arange(4096) // 1000)[None]},
        {"segments": (torch.arange(4096) // 1000)[None], "softcap": 20.0, "slopes": [0.01, 0.1, 0.2]},
    ],
    ids=["plain", "softcap", "slopes", "slopes to both sides", "segments", "all"],
)
@pytest.mark.every(3)
def test_no_tensor_of_queries_times_keys_is_made(options):
    n = 4096
    assert memory_of(n, (None, 100, 1000), **options).largest < 4 * n * n / 3


@pytest.mark.parametrize(
    "options", [{}, {"softcap": 20.0}, {"slopes": [0.01, 0.1]}], ids=["plain", "softcap", "slopes"]
)
def test_memory_of_local_heads_grows_linearly_with_the_length(options):
    short, long = (memory_of(n, (50, 128), **options).peak for n in (8192, 32768))
    assert long < 4.2 * short
    assert long < 4 * 32768 * 2 * 16 * 16, "a few times what q, k, v and their gradients take"


def test_memory_of_local_heads_grows_linearly_with_the_length_under_segments():
    short, long = (memory_of(n, (50, 128), segments=torch.zeros(1, n, dtype=torch.int64)).peak for n in (8192, 32768))
    assert long < 4.2 * short


def nan_case(windows, **options):
    case = Case(batch=2, kv_heads=len(windows), n_queries=90, n_keys=90, plan=HeadPlan(windows=windows), **options)
    q, k, v, _ = (x.detach() for x in case.tensors())
    return case, q, k, v


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("segments", [None, "sorted"])
@pytest.mark.parametrize("windows", [(None, None, None), (4, 4, 4), (None, 7, None), (60, None, 60)])
def test_nan_in_a_query_shows_in_its_row_and_head_alone(windows, segments, softcap):
    case, q, k, v = nan_case(windows, segments=segments, softcap=softcap)
    q[1, 1, 40, 0] = NAN
    result = attention(q, k, v, case.plan, **case.options, stats=True, backend="blocked")
    expected = torch.zeros(2, 3, 90, dtype=torch.bool)
    expected[1, 1, 40] = True
    assert torch.equal(result.out.isnan().any(-1), expected)
    assert torch.equal(result.lse.isnan(), expected)
    assert result.stats.max.isnan().tolist() == result.stats.min.isnan().tolist() == [False, True, False]
    alone = attention(q, k, v, case.plan, **case.options, stats="max", backend="blocked").stats
    assert alone.min is None and alone.max.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("length", [1, 2, 7, 9])
@pytest.mark.parametrize("windows", [(None, None), (3, None), (1, 20)])
def test_a_query_that_is_not_finite_shows_in_short_rows_too(windows, length, dtype):
    q, k, v = torch.randn(3, 1, 2, length, 4, dtype=dtype).unbind()
    q[0, 0, -1], q[0, 1, 0] = NAN, float("inf")
    found, expected = (attention(q, k, v, HeadPlan(windows=windows), backend=b) for b in ("blocked", "reference"))
    assert torch.equal(found.out.isnan(), expected.out.isnan())
    assert expected.out.isnan().any(-1).sum() == 2


def test_a_row_of_zeros_is_not_taken_for_a_broken_one():
    q, k, v = torch.zeros(3, 1, 1, 1, 4).unbind()
    result = attention(q, k, v, HeadPlan.full(1), backend="blocked")
    assert result.out.eq(0).all() and result.lse.eq(0).all()


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("segments", [None, "sorted"])
@pytest.mark.parametrize("windows", [(None, None, None), (4, 4, 4), (None, 7, None), (60, None, 60)])
def test_nan_in_a_key_shows_in_every_row_that_sees_it_and_in_its_head_alone(windows, segments, softcap):
    case, q, k, v = nan_case(windows, segments=segments, softcap=softcap)
    k[1, 1, 40, 0] = NAN
    result = attention(q, k, v, case.plan, **case.options, stats=True, backend="blocked")
    reference = attention(q, k, v, case.plan, **case.options, stats=True, backend="reference")
    sees_it = reference.lse.isnan()
    assert sees_it.any()
    for nan in (result.out.isnan().any(-1), result.lse.isnan()):
        assert nan[sees_it].all()
        nan[1, 1] = False
        assert not nan.any()
    assert result.stats.max.isnan().tolist() == result.stats.min.isnan().tolist() == [False, True, False]
    alone = attention(q, k, v, case.plan, **case.options, stats="max", backend="blocked").stats
    assert alone.min is None and alone.max.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("backend", ["reference", "blocked"])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("windows", [(None, None, None), (4, 60, None)])
def test_nan_in_padding_changes_nothing(windows, softcap, backend):
    case = Case(
        n_queries=70,
        n_keys=90,
        kv_heads=3,
        plan=HeadPlan(windows=windows, slopes=(0.1, 0.2, 0)),
        segments="negatives",
        softcap=softcap,
    )
    q, k, v, grad = case.tensors()
    padded = case.make_segments()[:, None, :, None] < 0

    def outcome(filler):
        inputs = [x.detach().masked_fill(padded[:, :, -x.shape[2] :], filler).requires_grad_() for x in (q, k, v)]
        result = attention(*inputs, case.plan, **case.options, stats=True, backend=backend)
        return result.out, result.lse, *result.stats, *torch.autograd.grad(result.out, inputs, grad)

    for poisoned, clean in zip(outcome(NAN), outcome(0.0), strict=True):
        assert not poisoned.isnan().any()
        assert torch.equal(poisoned, clean)


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_padding_gives_zeros_and_minus_infinity_and_takes_no_gradient(backend):
    case = Case(n_queries=40, n_keys=50, plan=HeadPlan(windows=(None, 5)), segments="negatives")
    q, k, v, grad = case.tensors()
    result = attention(q, k, v, case.plan, **case.options, backend=backend)
    grads = torch.autograd.grad(result.out, (q, k, v), grad)
    padded = case.make_segments() < 0
    assert (result.out.mT.masked_select(padded[:, None, None, 10:]) == 0).all()
    assert (result.lse.masked_select(padded[:, None, 10:]) == -torch.inf).all()
    for x in grads:
        assert (x.mT.masked_select(padded[:, None, None, -x.shape[2] :]) == 0).all()


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_lse_and_statistics_are_not_tracked_by_autograd(backend):
    q, k, v = (torch.randn(1, 2, 9, 4, requires_grad=True) for _ in range(3))
    result = attention(q, k, v, HeadPlan(windows=(None, 3)), stats=True, backend=backend)
    assert result.out.requires_grad
    assert not any(x.requires_grad for x in (result.lse, *result.stats))


def test_only_inputs_that_ask_for_it_get_a_gradient():
    q, k, v = torch.randn(3, 1, 2, 9, 4).unbind()
    v.requires_grad_()
    attention(q, k, v, HeadPlan(windows=(None, 3)), backend="blocked").out.sum().backward()
    assert v.grad is not None and q.grad is None and k.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"causal": False}], ids=str)
@pytest.mark.parametrize(
    "plan",
    [
        HeadPlan(windows=(None, 4)),
        HeadPlan(windows=(None, 4), slopes=(0.1, 0.2)),
        HeadPlan(windows=(4, 4), firsts=(1, 2)),
    ],
    ids=["windows", "slopes", "firsts"],
)
def test_devices_without_kernels_of_their_own_are_served(plan, options, dtype):
    """The meta device stands for them: it has neither autocast nor flash attention."""
    q, k, v = torch.empty(3, 2, 2, 30, 8, dtype=dtype, device="meta").unbind()
    call = Options.of(plan, **options)
    out, lse, *extremes = blocked.forward(q, k, v, call, None, 2, None)
    assert out.shape == q.shape and lse.shape == q.shape[:3] and all(x.shape == (2,) for x in extremes)
    grads = blocked.backward(out, q, k, v, out, lse, call, None, None)
    assert all(grad.shape == q.shape for grad in grads[:3])
