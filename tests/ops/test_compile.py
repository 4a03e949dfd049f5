"""torch.compile, opcheck, fakes, autocast, and what autograd refuses."""

import itertools

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode

from longshort import HeadPlan, attention
from longshort.ops.options import GLOBAL

PLAN = HeadPlan(windows=(None, 1, 30, 64))
BIASED = HeadPlan(windows=(None, 1, 30, 64), slopes=(0.1, 0.2, 0, 0.01), decays=(0, 0.1, 0, 0.01))


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs(length, batch=2, kv_heads=2, dim=8, keys=None):
    q = torch.randn(batch, 4, length, dim, requires_grad=True)
    k, v = (torch.randn(batch, kv_heads, keys or length, dim, requires_grad=True) for _ in range(2))
    return q, k, v


def train_step(q, k, v, segments=None, plan=PLAN, **options):
    result = attention(q, k, v, plan, segments=segments, stats=True, **options)
    return result.out * 2, result.lse, result.stats.abs_max


def outcome(step, q, k, v, *args):
    results = step(q, k, v, *args)
    return *results, *torch.autograd.grad(results[0].square().sum(), (q, k, v))


def check_compiled(compiled, eager, *args, tolerance=1e-6):
    for a, b in zip(outcome(compiled, *args), outcome(eager, *args), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("backend", [pytest.param("reference", marks=pytest.mark.slow), "blocked"])
@pytest.mark.parametrize("plan", [PLAN, BIASED], ids=["windows", "slopes and decays"])
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0, "causal": False, "scale": 0.2}], ids=["plain", "options"])
@pytest.mark.every(2)
def test_compiled_call_without_graph_breaks_equals_eager(backend, plan, options):
    def step(q, k, v, segments):
        return train_step(q, k, v, segments, plan, backend=backend, **options)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    segments = torch.randint(-1, 3, (2, 90))
    check_compiled(compiled, step, *inputs(70, keys=90), segments, tolerance=1e-5)
    check_compiled(compiled, step, *inputs(90), None, tolerance=1e-5)


def test_compiled_call_for_the_maxima_alone_has_no_breaks():
    def step(q, k, v):
        result = attention(q, k, v, PLAN, stats="max", backend="blocked")
        assert result.stats.min is None
        return result.out * 2, result.lse, result.stats.max

    check_compiled(torch.compile(step, backend="aot_eager", fullgraph=True), step, *inputs(70))


def test_one_graph_serves_lengths_on_both_sides_of_every_window():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(train_step, backend=counter, fullgraph=True, dynamic=True)
    for length in (100, 29, 30, 31, 63, 64, 65, 2, 257):
        check_compiled(compiled, train_step, *inputs(length))
    assert counter.frame_count == 1


@pytest.mark.slow
def test_one_graph_serves_any_number_of_keys_and_rows():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(train_step, backend=counter, fullgraph=True, dynamic=True)
    for batch, length, keys in ((3, 20, 50), (5, 40, 41), (6, 31, 300)):  # equal sizes at first would be one symbol
        segments = torch.randint(-1, 3, (batch, keys))
        check_compiled(compiled, train_step, *inputs(length, batch=batch, keys=keys), segments)
    assert counter.frame_count == 1


def test_static_compilation_turns_to_dynamic_lengths_after_the_second():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(train_step, backend=counter, fullgraph=True)
    for length in (40, 50, 60, 70, 20):
        check_compiled(compiled, train_step, *inputs(length))
    assert counter.frame_count == 2


@pytest.mark.slow
def test_inductor_compiles_the_call_without_graph_breaks():
    compiled = torch.compile(train_step, fullgraph=True, dynamic=True)
    for length in (50, 70):
        check_compiled(compiled, train_step, *inputs(length), tolerance=1e-5)


def test_lse_and_statistics_are_not_tracked_by_autograd_when_compiled():
    compiled = torch.compile(train_step, backend="aot_eager", fullgraph=True)
    out, lse, largest = compiled(*inputs(20))
    assert out.requires_grad and not lse.requires_grad and not largest.requires_grad


def schema_arguments(name, length=37, keys=45):
    """(q, k, v), then the arguments of the schema after them."""
    q, k, v = inputs(length, keys=keys)
    windows, segments = [GLOBAL, 1, 30, 64], torch.randint(-1, 3, (2, keys))
    slopes, decays = [0.1, 0.2, 0.0, 0.01], [0.0, 0.1, 0.0, 0.01]
    return (q, k, v), {
        "plain": (windows, None, None, None, True, None, None, None, 0),
        "statistics": (windows, None, None, None, True, None, None, None, 2),
        "maxima": (windows, None, None, None, True, None, None, None, 1),
        "two-sided": (windows, None, None, 0.3, False, None, None, None, 2),
        "segments": (windows, None, None, None, True, None, None, segments, 2),
        "first keys": (windows, None, None, None, True, None, [0, 5, 4, 0], None, 2),
        "everything": (windows, decays, slopes, 0.3, True, 5.0, [0, 3, 0, 2], segments, 2),
    }[name]


OPTIONS = ("plain", "statistics", "maxima", "two-sided", "segments", "first keys", "everything")


@pytest.mark.parametrize("name", OPTIONS)
def test_forward_op_passes_opcheck(name):
    qkv, options = schema_arguments(name)
    torch.library.opcheck(torch.ops.longshort.blocked_forward.default, (*qkv, *options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_forward_op_passes_opcheck_in_other_dtypes_and_strides(dtype):
    _, options = schema_arguments("plain")
    q, k, v = torch.randn(2, 37, 12, 8).to(dtype).transpose(1, 2).split(4, dim=1)
    qkv = [x.detach().requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(torch.ops.longshort.blocked_forward.default, (*qkv, *options))


@pytest.mark.parametrize("name", OPTIONS)
def test_backward_op_passes_opcheck(name):
    qkv, options = schema_arguments(name)
    q, k, v = (x.detach() for x in qkv)
    out, lse, _, _ = torch.ops.longshort.blocked_forward(q, k, v, *options)
    torch.library.opcheck(
        torch.ops.longshort.blocked_backward.default, (torch.randn_like(out), q, k, v, out, lse, *options[:-1])
    )


def test_double_backward_is_refused_with_a_reason():
    q, k, v = inputs(9)
    out = attention(q, k, v, PLAN, backend="blocked").out
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match=r'no double backward .* backend="reference" has one'):
        grad.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_meta_tensors_give_the_shapes_and_dtypes_of_real_ones(dtype):
    real = [x.detach().to(dtype).requires_grad_() for x in inputs(9, keys=12)]
    meta = [x.detach().to("meta").requires_grad_() for x in real]
    for segmented, stats in itertools.product((False, True), (True, "max")):
        results = []
        for q, k, v in (real, meta):
            segments = torch.zeros(2, 12, dtype=torch.int64, device=q.device) if segmented else None
            result = attention(q, k, v, PLAN, segments=segments, stats=stats)
            grads = torch.autograd.grad(result.out.sum(), (q, k, v))
            found = [x for x in (result.out, result.lse, *result.stats, *grads) if x is not None]
            results.append([(x.shape, x.dtype, x.stride()) for x in found])
        assert results[0] == results[1]


def test_fake_tensors_give_the_strides_of_real_ones():
    with FakeTensorMode():
        q, k, v = torch.randn(2, 37, 12, 8).transpose(1, 2).split(4, dim=1)
        out = attention(q, k, v, PLAN).out
    q, k, v = torch.randn(2, 37, 12, 8).transpose(1, 2).split(4, dim=1)
    assert out.stride() == attention(q, k, v, PLAN).out.stride()


@pytest.mark.parametrize("backend", ["reference", "blocked"])
@pytest.mark.parametrize("dtypes", ["fff", "ffb", "bbb", "fbf"])
def test_autocast_takes_fp32_and_bf16_together_and_gives_bf16(dtypes, backend):
    kinds = {"f": torch.float32, "b": torch.bfloat16}
    leaves = [x.detach().to(kinds[d]).requires_grad_() for x, d in zip(inputs(50), dtypes, strict=True)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = attention(*leaves, PLAN, stats=True, backend=backend)
    cast = [x.detach().bfloat16() for x in leaves]
    assert result.out.dtype == torch.bfloat16 and result.lse.dtype == torch.float32
    assert torch.equal(result.out, attention(*cast, PLAN, backend=backend).out)
    result.out.float().sum().backward()
    assert [x.grad.dtype for x in leaves] == [x.dtype for x in leaves]


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_autocast_leaves_float64_alone(backend):
    q, k, v = (x.detach().double() for x in inputs(50))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = attention(q, k, v, BIASED, softcap=3.0, backend=backend)
    assert result.out.dtype == result.lse.dtype == torch.float64
    assert torch.equal(result.out, attention(q, k, v, BIASED, softcap=3.0, backend=backend).out)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_backward_inside_autocast_equals_backward_outside(softcap):
    q, k, v = (x.detach().bfloat16().requires_grad_() for x in inputs(50))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(attention(q, k, v, PLAN, softcap=softcap, backend="blocked").out.sum(), (q, k, v))
    outside = torch.autograd.grad(attention(q, k, v, PLAN, softcap=softcap, backend="blocked").out.sum(), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(inside, outside, strict=True))


def test_autocast_and_compile_work_together():
    def step(q, k, v):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return train_step(q, k, v.bfloat16())

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    q, k, v = inputs(50)
    assert compiled(q, k, v)[0].dtype == torch.bfloat16
    assert all(torch.equal(a, b) for a, b in zip(compiled(q, k, v), step(q, k, v), strict=True))


def test_checkpointing_recomputes_the_same_gradients():
    q, k, v = inputs(50)

    def attend(q, k, v):
        return attention(q, k, v, PLAN).out

    plain = torch.autograd.grad(attend(q, k, v).square().sum(), (q, k, v))
    kept = torch.utils.checkpoint.checkpoint(attend, q, k, v, use_reentrant=False)
    assert all(
        torch.equal(a, b) for a, b in zip(plain, torch.autograd.grad(kept.square().sum(), (q, k, v)), strict=True)
    )
