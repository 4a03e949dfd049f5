"""Sinks on a GPU: kernels and decoding steps against the float64 reference, and models with learned sinks."""

from dataclasses import replace

import pytest
import torch

from longshort import GPT, GPTConfig, HeadPlan, attention, generate
from longshort.generation.graphs import DecodingStep

from ..ops.cases import Case, run
from ..ops.decode.cases import Step
from ..ops.decode.cases import check as check_step
from ..ops.decode.cases import run as run_step
from .test_decode_cuda import PLANS as STEPS
from .test_decode_cuda import TOLERANCES, on_gpu
from .test_triton_cuda import DTYPES, LONG_SHORT, OPTIONS, case_on_gpu, check

OPTIONS_BY_DTYPE = [(name, torch.bfloat16) for name in OPTIONS] + [
    (name, dtype)
    for name in ("plain", "grouped queries", "more keys than queries", "padding", "decays", "everything")
    for dtype in (torch.float16, torch.float32)
]
MIX = HeadPlan(windows=(1, 5, 64, 100, 129, 300, 1000, None))


@pytest.fixture
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def sunk(**fields) -> Case:
    return case_on_gpu(sinks=True, **fields)


@pytest.mark.parametrize(("name", "dtype"), OPTIONS_BY_DTYPE, ids=str)
def test_each_option_agrees_with_the_reference(name, dtype):
    check(sunk(dtype=dtype, **OPTIONS[name]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dim", [32, 40, 128])
def test_each_head_dim_agrees_with_the_reference(dim, dtype):
    check(sunk(dim=dim, dtype=dtype))


@pytest.mark.parametrize("kv_heads", [8, 2, 1])
def test_a_window_for_each_head_agrees_with_the_reference(kv_heads):
    shape = {"n_queries": 1101, "n_keys": 1101, "kv_heads": kv_heads}
    check(sunk(plan=MIX, dtype=torch.bfloat16, **shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("segments", [None, "sorted", "left padding"])
def test_a_long_head_in_parts_takes_its_sink_once(segments, dtype):
    check(sunk(n_queries=8191, n_keys=8191, batch=1, segments=segments, dtype=dtype))


@pytest.mark.parametrize("name", ["plain", "one query", "padding", "everything"])
def test_memory_that_was_allocated_and_not_written_reaches_no_result(name):
    check(sunk(dtype=torch.bfloat16, poison=True, **OPTIONS[name]))


@pytest.mark.parametrize("stats", [True, "max"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "fields", [*(OPTIONS[name] for name in ("plain", "padding", "everything")), {"n_queries": 8191, "n_keys": 8191}]
)
def test_statistics_are_unchanged_by_sinks(fields, dtype, stats):
    case = sunk(dtype=dtype, **fields)
    found, without = (run(c, "triton", stats=stats).result.stats for c in (case, replace(case, sinks=False)))
    assert torch.equal(found.max, without.max)
    assert found.min is without.min is None if stats == "max" else torch.equal(found.min, without.min)


@pytest.mark.parametrize("n_queries", [301, 8191])
def test_runs_give_equal_bits(n_queries):
    case = sunk(n_queries=n_queries, n_keys=n_queries, dtype=torch.bfloat16)
    first = dict(run(case, "triton").named())
    for _ in range(4):
        assert [part for part, value in run(case, "triton").named() if not torch.equal(value, first[part])] == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("value", "share"), [(-1e4, 1.0), (1e4, 0.0)])
def test_a_sink_far_below_changes_nothing_and_one_far_above_takes_everything(value, share, dtype):
    q, k, v = (torch.randn(2, 4, 301, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    sinks = torch.full((4,), value, device="cuda", requires_grad=True)
    found = attention(q, k, v, LONG_SHORT, sinks=sinks, backend="triton").out
    torch.testing.assert_close(found, share * attention(q, k, v, LONG_SHORT, backend="triton").out)
    grads = torch.autograd.grad(found.float().square().sum(), (q, k, v, sinks))
    assert all(grad.isfinite().all() for grad in grads) and (grads[3] == 0).all()


def test_sinks_may_be_a_view_of_any_address_and_learn_alone():
    q, k, v = torch.randn(3, 2, 4, 301, 64, device="cuda").unbind()
    table = torch.randn(3, 7, device="cuda")
    grads = []
    for sinks in (table[1, 2:6], table[1, 2:6].clone(), table[:, 1:].T.contiguous().T[1, 1:5]):
        leaf = sinks.detach().requires_grad_()
        out = attention(q, k, v, LONG_SHORT, sinks=leaf, backend="triton").out
        grads.append(torch.autograd.grad(out.square().sum(), leaf)[0])
    assert grads[0].all() and torch.equal(grads[0], grads[1]) and torch.equal(grads[0], grads[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_under_autocast_sinks_stay_fp32(dtype):
    case = sunk(dtype=torch.float32)
    *inputs, grad = case.tensors()
    found = []
    for autocast in (True, False):
        leaves = [x.detach().to(torch.float32 if autocast else dtype).requires_grad_() for x in inputs]
        sinks = case.make_sinks(torch.float32)
        with torch.autocast("cuda", dtype, enabled=autocast):
            out = attention(*leaves, case.plan, sinks=sinks).out
        found.append((out, *torch.autograd.grad(out, (*leaves, sinks), grad.to(dtype))))
    assert found[0][0].dtype == dtype and found[0][4].dtype == torch.float32
    assert all(torch.equal(ours.float(), theirs.float()) for ours, theirs in zip(*found, strict=True))


@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.filterwarnings("ignore::UserWarning")  # inductor has much to say about fp32
@pytest.mark.parametrize("segments", [None, "sorted"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_compiled_call_equals_the_eager_one(dtype, segments):
    case = sunk(plan=LONG_SHORT, kv_heads=2, dtype=dtype, segments=segments)
    q, k, v, grad = case.tensors()
    sinks, options = case.make_sinks(dtype), case.options

    def call(q, k, v, sinks):
        result = attention(q, k, v, case.plan, **options, sinks=sinks, stats=True)
        return result.out, result.lse, *result.stats

    compiled = torch.compile(call, fullgraph=True)
    found = []
    for function in (compiled, call):
        out, *others = function(q, k, v, sinks)
        found.append((out, *others, *torch.autograd.grad(out, (q, k, v, sinks), grad)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("name", "new"), [("long-short", 1), ("grouped", 1), ("grouped", 5), ("rates", 1)])
def test_a_decoding_step_agrees_with_the_reference(name, new, dtype):
    for held in (0, 1, 127, 128, 1400):
        step = on_gpu(dtype, held=held, new=new, rollback=new - 1, batch=2, sinks=True, **STEPS[name])
        check_step(step, "triton", TOLERANCES[dtype])


def long_step(**fields) -> Step:
    return on_gpu(windows=(None, None, 100, 65), dim=64, kv_heads=2, held=9000, capacity=9100, sinks=True, **fields)


def test_the_parts_of_a_decoding_step_take_the_sink_once():
    check_step(long_step(), "triton", TOLERANCES[torch.bfloat16])


@pytest.mark.parametrize("new", [1, 3])
def test_padded_rows_of_a_decoding_step_agree_with_the_reference(new):
    step = on_gpu(torch.float32, windows=(None, 128, 7), dim=64, held=700, new=new, rollback=4, batch=4, sinks=True)
    check_step(replace(step, padding=(0, 100, 690, 699)), "triton", TOLERANCES[torch.float32])


@pytest.mark.parametrize("stats", [True, "max"])
def test_statistics_of_a_decoding_step_are_unchanged_by_sinks(stats):
    found, without = (run_step(s, "triton", stats)[1] for s in (long_step(), replace(long_step(), sinks=False)))
    assert torch.equal(found.max, without.max)
    assert found.min is without.min is None if stats == "max" else torch.equal(found.min, without.min)


def model(**options):
    """Like gpt-oss, with sinks that differ."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 101, "context": 400, "n_layers": 2, "width": 128, "n_heads": 4, "n_kv_heads": 2}
    reach = {"like": "gpt-oss", "window": 8}
    made = GPT(GPTConfig(**sizes | {"positions": "rotary", "init_std": 0.1, "reach": reach} | options)).cuda().eval()
    for block in made.blocks:
        torch.nn.init.normal_(block.attention.sinks, std=2.0)
    return made


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_replayed_steps_equal_the_uncached_model(dtype):
    own = model().to(dtype)
    tokens = torch.randint(101, (2, 200), device="cuda")
    cache = own.new_cache(2, max_length=200, static=True)
    own(tokens[:, :37], cache=cache)
    step = DecodingStep(own, cache, graph=True, required=True)
    got = torch.stack([step(tokens[:, i : i + 1]).clone() for i in range(37, 200)], dim=1)
    tolerance = 2e-4 if dtype == torch.float32 else 0.1
    assert step.captured
    torch.testing.assert_close(got, own(tokens).logits[:, 37:].float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("graph", [True, False])
def test_generated_text_of_padded_rows_is_that_of_the_uncached_model(graph):
    own, rows = model(), [[5, 6, 7, 8, 9, 10, 11], [3], [100, 99, 50]]
    options = {"max_new_tokens": 60, "temperature": 0.0}
    expected = torch.stack(list(generate(own, rows, use_cache=False, **options)))
    assert torch.equal(torch.stack(list(generate(own, rows, cuda_graph=graph, **options))), expected)


@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.filterwarnings("ignore::UserWarning")  # inductor has much to say about fp32
@pytest.mark.parametrize("positions", ["rotary", "none"])
def test_a_compiled_model_learns_sinks_as_the_eager_one(positions):
    reach = {"pattern": "long_short", "n_global": 2, "window": 8, "sinks": True}
    own, tokens = model(positions=positions, reach=reach).train(), torch.randint(101, (2, 130), device="cuda")
    found = []
    for form in (torch.compile(own), own):
        own.zero_grad()
        form(tokens[:, :-1], tokens[:, 1:], stats=True).loss.backward()
        found.append([block.attention.sinks.grad for block in own.blocks])
    for ours, theirs in zip(*found, strict=True):
        assert theirs.all()
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
