"""The Triton kernels inside what calls them: auto, autocast and the modules, torch.compile, opcheck and CUDA graphs."""

import threading
from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from longshort import GPT, GPTConfig, HeadPlan, LSAttention, attention
from longshort.ops.options import GLOBAL

from ..ops.cases import Case, assert_close, run

PLAN = HeadPlan.long_short(n_heads=4, n_global=1, window=50)
CASE = Case(n_queries=301, n_keys=301, kv_heads=4, dim=64, plan=PLAN, device="cuda")


@pytest.fixture
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def parts_that_differ(a, b):
    return [name for (name, x), (_, y) in zip(a.named(), b.named(), strict=True) if not torch.equal(x, y)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_auto_is_the_kernels_bit_for_bit(dtype):
    case = replace(CASE, dtype=dtype)
    assert parts_that_differ(run(case, "auto"), run(case, "triton")) == []
    assert parts_that_differ(run(case, "blocked"), run(case, "triton")) != []  # or equal bits would say nothing


@pytest.mark.parametrize("fields", [{"dtype": torch.float64}, {"dim": 264}], ids=["float64", "head dim over 256"])
def test_auto_serves_what_the_kernels_cannot(fields):
    case = replace(CASE, **fields)
    with pytest.raises(ValueError, match='backend="triton" cannot serve this call'):
        run(case, "triton")
    assert_close(run(case, "auto"), run(case, "reference", torch.float64), 5e-5 if "dim" in fields else 1e-10)


def with_backend(module, backend):
    for part in module.modules():
        if isinstance(part, LSAttention):
            part.backend = backend
    return module


def assert_autocast_errs_no_more_with_the_kernels_than_with_the_reference(module, step, dtype):
    """`step` gives named tensors and an objective; fp32, and autocast with the reference, show what the dtype costs."""

    def values(backend, autocast):
        with torch.autocast("cuda", dtype=dtype, enabled=autocast):
            result = step(with_backend(module, backend))
        names, parameters = zip(*module.named_parameters(), strict=True)
        grads = torch.autograd.grad(result.pop("objective"), parameters)  # itself a number, right by chance
        return result | dict(zip(names, grads, strict=True))

    exact, usual, got = values("reference", False), values("reference", True), values("triton", True)
    for name, want in exact.items():
        error, due = ((x[name].float() - want).norm().item() for x in (got, usual))
        free = torch.finfo(dtype).eps * want.norm().item()
        assert error <= 2 * due + free, f"{name}: error {error:.2e}, with the reference {due:.2e} + {free:.2e}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("qk_norm", ["head", "width"])
def test_layer_with_norm_and_rotary_positions_agrees_with_the_reference_under_autocast(qk_norm, dtype):
    layer = LSAttention(256, PLAN, n_kv_heads=2, positions="rotary", qk_norm=qk_norm).cuda()
    x, grad = torch.randn(2, 2, 301, 256, device="cuda").unbind()

    def step(layer):
        out, logits = layer(x, stats=True)
        assert out.dtype == (dtype if torch.is_autocast_enabled("cuda") else torch.float32)
        return {"out": out, "largest": logits.max, "smallest": logits.min, "objective": (out.float() * grad).sum()}

    assert_autocast_errs_no_more_with_the_kernels_than_with_the_reference(layer, step, dtype)


def test_model_agrees_with_the_reference_under_autocast():
    shape = {"vocab_size": 97, "context": 301, "n_layers": 2, "width": 256, "n_heads": 4, "n_kv_heads": 2}
    model = GPT(GPTConfig(**shape, n_global=2, window=50, positions="rotary", qk_norm="head")).cuda()
    tokens = torch.randint(97, (2, 302), device="cuda")
    segments = torch.arange(301, device="cuda").expand(2, -1) // 120

    def step(model):
        output = model(tokens[:, :-1], tokens[:, 1:], segments=segments, stats=True, return_logits=True)
        return {"logits": output.logits, "statistics": output.stats, "objective": output.loss}

    assert_autocast_errs_no_more_with_the_kernels_than_with_the_reference(model, step, torch.bfloat16)


def leaves(length, dtype=torch.float32, kv_heads=4):
    shapes = [(2, heads, length, 64) for heads in (4, kv_heads, kv_heads)]
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in shapes]


def forward(q, k, v):
    result = attention(q, k, v, PLAN, stats=True, backend="triton")
    return result.out * 2, result.lse, result.stats.abs_max


def with_gradients(forward, q, k, v):
    results = forward(q, k, v)
    return *results, *torch.autograd.grad(results[0].square().sum(), (q, k, v))


def assert_compiled_equals_eager(compiled, q, k, v):
    for a, b in zip(with_gradients(compiled, q, k, v), with_gradients(forward, q, k, v), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-5)


@pytest.mark.usefixtures("_fresh_dynamo")
def test_one_graph_without_breaks_serves_lengths_on_both_sides_of_the_window():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(forward, backend=counter, fullgraph=True, dynamic=True)
    for length in (301, 49, 50, 51, 3, 513):
        assert_compiled_equals_eager(compiled, *leaves(length))
    assert counter.frame_count == 1


@pytest.mark.usefixtures("_fresh_dynamo")
def test_static_compilation_turns_to_dynamic_lengths_after_the_second():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(forward, backend=counter, fullgraph=True)
    for length in (301, 51, 49, 513):
        assert_compiled_equals_eager(compiled, *leaves(length))
    assert counter.frame_count == 2


@pytest.mark.usefixtures("_fresh_dynamo")
def test_inductor_compiles_the_call_without_breaks():
    compiled = torch.compile(forward, fullgraph=True, dynamic=True)
    for length in (301, 51):
        assert_compiled_equals_eager(compiled, *leaves(length))


def operator_arguments(name):
    q, k, v = leaves(301, kv_heads=2 if name == "everything" else 4)
    segments = torch.randint(-1, 3, (2, 301), device="cuda")
    windows, decays = [GLOBAL, 50, 50, 50], [0.001, 0.0, 0.1, 0.5]
    return (q, k, v), {
        "plain": (windows, None, None, None, True, None, None, None, 2),
        "maxima": (windows, None, None, None, True, None, None, None, 1),
        "no statistics": (windows, None, None, None, True, None, None, None, 0),
        "everything": (windows, decays, [0.01, 0.3, 0.0, 2.0], 0.3, True, 5.0, [0, 3, 0, 2], segments, 2),
    }[name]


@pytest.mark.parametrize("name", ["plain", "maxima", "no statistics", "everything"])
def test_forward_operator_passes_torchs_own_checks(name):
    tensors, options = operator_arguments(name)
    torch.library.opcheck(torch.ops.longshort.triton_forward.default, (*tensors, *options))


@pytest.mark.parametrize("name", ["plain", "everything"])
def test_backward_operator_passes_torchs_own_checks(name):
    tensors, options = operator_arguments(name)
    q, k, v = (x.detach() for x in tensors)
    out, lse, _, _ = torch.ops.longshort.triton_forward(q, k, v, *options)
    torch.library.opcheck(
        torch.ops.longshort.triton_backward.default, (torch.randn_like(out), q, k, v, out, lse, *options[:-1])
    )


def captured(step):
    """A CUDA graph of the step, after three runs on a side stream as torch asks, and what it writes to."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph, results


def overwrite_with_new_numbers(tensors):
    with torch.no_grad():
        for x in tensors:
            x.normal_()


@pytest.mark.parametrize("kv_heads", [4, 2], ids=["own keys", "grouped queries"])
def test_cuda_graph_of_the_forward_pass_gives_what_eager_gives(kv_heads):
    q, k, v = (x.detach() for x in leaves(301, torch.bfloat16, kv_heads))
    graph, results = captured(lambda: forward(q, k, v))
    for _ in range(3):
        overwrite_with_new_numbers((q, k, v))
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(results, forward(q, k, v), strict=True))


@pytest.mark.parametrize("kv_heads", [4, 2], ids=["own keys", "grouped queries"])
def test_cuda_graph_of_a_training_step_gives_what_eager_gives(kv_heads):
    q, k, v = leaves(301, torch.bfloat16, kv_heads)
    graph, results = captured(lambda: with_gradients(forward, q, k, v))
    for _ in range(3):
        overwrite_with_new_numbers((q, k, v))
        graph.replay()
        fresh = [x.detach().clone().requires_grad_() for x in (q, k, v)]  # the graph's leaves belong to its stream
        assert all(torch.equal(a, b) for a, b in zip(results, with_gradients(forward, *fresh), strict=True))


def test_cuda_graph_with_segments_follows_the_new_ones():
    q, k, v = (x.detach() for x in leaves(301, torch.bfloat16))
    segments = torch.zeros(2, 301, dtype=torch.int64, device="cuda")

    def attend():
        return attention(q, k, v, PLAN, segments=segments, backend="triton").out

    graph, out = captured(attend)
    segments.copy_(torch.randint(-1, 3, (2, 301)))
    graph.replay()
    assert torch.equal(out, attend())


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")  # of torch's own making here
def test_torchs_graphed_callable_trains_as_eager_does():
    def attend(q, k, v):
        return attention(q, k, v, PLAN, backend="triton").out

    graphed = torch.cuda.make_graphed_callables(attend, tuple(leaves(301, torch.bfloat16)))
    for _ in range(2):
        q, k, v = leaves(301, torch.bfloat16)
        grad = torch.randn_like(q)
        fresh = [x.detach().clone().requires_grad_() for x in (q, k, v)]  # a leaf belongs to one stream
        outs = graphed(q, k, v), attend(*fresh)
        grads = (torch.autograd.grad(out, x, grad) for out, x in zip(outs, ((q, k, v), fresh), strict=True))
        assert torch.equal(*outs)
        assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_a_prepared_launch_runs_in_a_thread_that_has_not_used_cuda():
    q, k, v = (torch.randn(1, 4, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    expected, found = attention(q, k, v, PLAN).out, []
    thread = threading.Thread(target=lambda: found.append(attention(q, k, v, PLAN).out))
    thread.start()
    thread.join()
    assert len(found) == 1 and torch.equal(found[0], expected)


@pytest.mark.parametrize("offset", [1, 8])
def test_launches_of_one_layout_serve_other_addresses(offset):
    """Addresses that are not multiples of 16 bytes must not reach a kernel that was compiled for those that are."""
    aligned = torch.randn(3, 1, 4, 128, 64, device="cuda", dtype=torch.bfloat16)
    room = torch.empty(aligned.numel() + offset, device="cuda", dtype=torch.bfloat16)
    shifted = room[offset:].view_as(aligned).copy_(aligned)
    results = []
    for tensors in (aligned, shifted, aligned.clone(), shifted):
        q, k, v = (x.detach().requires_grad_() for x in tensors)
        out = attention(q, k, v, PLAN).out
        results.append([out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))])
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)
    assert all(torch.equal(x, y) for x, y in zip(results[0], results[2], strict=True))
