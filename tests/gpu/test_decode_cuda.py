"""Decoding on a GPU: the kernel against the reference, replayed graphs against the uncached model, compiled steps."""

from dataclasses import replace

import pytest
import torch

from longshort import GPT, GPTConfig, HeadPlan, generate
from longshort.generation.graphs import DecodingStep
from longshort.ops.decode.launch import DecodeShape

from ..ops.decode.cases import Step, check, check_statistics_change_no_bit, run

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
PLANS = {
    "long-short": {"windows": (None, *(128,) * 11), "dim": 64},
    "narrow": {"windows": (None, *(50,) * 5), "dim": 32},
    "wide": {"windows": (None, *(128,) * 7), "dim": 128},
    "grouped": {"windows": (None, None, None, None, 100, 7, 65, 1), "dim": 64, "kv_heads": 2},
    "all global": {"windows": (None,) * 4, "dim": 64},
    "all local": {"windows": (1, 2, 63, 64, 65), "dim": 64},
    "long windows": {"windows": (None, 900, 700, 20), "dim": 96},
    "rates": {"windows": (None, 33, 9), "dim": 64, "softcap": 5.0, "slopes": (0.01, 0.1, 0), "decays": (0.001, 0, 0.2)},
}


def on_gpu(dtype=torch.bfloat16, **fields):
    return Step(**{"capacity": 1500, "shape": None, "device": "cuda", "dtype": dtype} | fields)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", PLANS)
def test_a_step_agrees_with_the_reference(name, dtype):
    for held in (0, 1, 127, 128, 129, 1499):
        check(on_gpu(dtype, held=held, batch=2, **PLANS[name]), "triton", TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("new", [2, 5, 8])
def test_several_tokens_agree_with_the_reference(new, dtype):
    for name in ("long-short", "grouped", "rates"):
        check(on_gpu(dtype, held=1000, new=new, rollback=7, **PLANS[name]), "triton", TOLERANCES[dtype])


@pytest.mark.parametrize("new", [1, 3])
def test_padded_rows_agree_with_the_reference(new):
    step = on_gpu(torch.float32, windows=(None, 128, 7), dim=64, held=700, new=new, rollback=4, batch=4)
    check(replace(step, padding=(0, 100, 690, 699)), "triton", TOLERANCES[torch.float32])


@pytest.mark.parametrize(
    "shape",
    [
        *((16, 2, 1, 0.5), (32, 4, 2, 4.0), (64, 4, 3, 1.0), (64, 8, 4, 2.0), (128, 8, 1, 8.0)),
        *((16, 2, 1, 0.5, True), (64, 4, 3, 1.0, True), (128, 8, 1, 8.0, True)),
        *((16, 2, 1, 0.5, False, 1), (64, 4, 3, 1.0, False, 2), (128, 8, 1, 8.0, False, 1), (16, 4, 6, 1.0, False, 2)),
        *((16, 2, 1, 0.5, True, 2), (64, 4, 3, 1.0, True, 1), (128, 8, 1, 8.0, True, 2)),
        *((32, 4, 3, 1.0, False, 1, True), (128, 4, 3, 2.0, True, 0, True)),
    ],
)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_every_shape_of_tile_and_number_of_parts_agrees(shape, kv_heads):
    step = on_gpu(windows=(None, None, 100, 65), dim=64, kv_heads=kv_heads, held=1400, shape=DecodeShape(*shape))
    check(step, "triton", TOLERANCES[torch.bfloat16])


@pytest.mark.parametrize("dim", [64, 128])
def test_many_parts_are_joined(dim):
    step = on_gpu(windows=(None, 100), dim=dim, held=9000, capacity=9100, shape=DecodeShape(16, 4, 2, 2.0))
    check(step, "triton", TOLERANCES[torch.bfloat16])


@pytest.mark.parametrize("new", [1, 2])
@pytest.mark.parametrize("early", [0, 1, 3])
@pytest.mark.parametrize("dim", [32, 40, 96, 128, 256])
def test_tiles_asked_for_in_advance_change_no_bit(dim, early, new):
    for windows in ((None, 100, 100), (None, 100, 65)):
        step = on_gpu(windows=windows, dim=dim, held=1400, new=new, rollback=new, batch=2)
        outs = [run(replace(step, shape=DecodeShape(16, 4, 3, 2.0, early, fetch)), "triton")[0] for fetch in (0, 1, 2)]
        assert all(torch.equal(out, outs[0]) for out in outs)


@pytest.mark.parametrize(("early", "fetch"), [(0, 0), (1, 0), (0, 2), (1, 2), (2, 1), (3, 1)])
def test_a_thousand_runs_give_equal_bits(early, fetch):
    """Parts end in any order, and early launches overlap: a race in the join would show as a moving result."""
    step = on_gpu(windows=(None, None, 100), dim=64, held=1400, batch=3, shape=DecodeShape(16, 4, 3, 4.0, early, fetch))
    q, k, v, _ = step.draw()
    layout, _ = step.layout()
    keys, values = (step.filled(x[:, :, : step.held]) for x in (k, v))
    tickets, length = torch.zeros(9, dtype=torch.int32, device="cuda"), torch.tensor([step.held], device="cuda")
    from longshort.ops.decode import decode
    from longshort.ops.decode.launch import use

    with use(step.shape):
        new = (k[:, :, step.held :], v[:, :, step.held :])
        outs = [decode(q, *new, keys, values, length, None, tickets, layout, step.plan)[0] for _ in range(1000)]
    assert all(torch.equal(out, outs[0]) for out in outs) and not tickets.any()


@pytest.mark.parametrize("new", [1, 4])
@pytest.mark.parametrize("name", ["long-short", "rates"])
def test_statistics_of_either_kind_change_no_bit(name, new):
    check_statistics_change_no_bit(on_gpu(held=1000, new=new, rollback=7, batch=2, **PLANS[name]), "triton")


def test_statistics_show_a_nan():
    step = on_gpu(windows=(None, 50), dim=64, held=900)
    q, k, v, ids = step.draw()
    k[0, 0, 500] = torch.nan
    poisoned = replace(step)
    poisoned.draw = lambda: (q, k, v, ids)
    out, logits, *_ = run(poisoned, "triton")
    assert out[0, 0].isnan().all() and logits.max[0].isnan() and not logits.max[1].isnan()
    _, logits, *_ = run(poisoned, "triton", stats="max")
    assert logits.max.isnan().tolist() == [True, False]


def build(**options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 101, "context": 700, "n_layers": 2, "width": 128, "n_heads": 4, "init_std": 0.1}
    return GPT(GPTConfig(**sizes | {"n_global": 1, "window": 8} | options)).cuda().eval()


def draw(batch, length):
    return torch.randint(101, (batch, length), generator=torch.Generator().manual_seed(1)).cuda()


@torch.no_grad()
@pytest.mark.parametrize("window", [1, 2, 63, 64, 65])
@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
def test_a_replayed_graph_equals_the_uncached_model_across_many_wraps(window, positions):
    model, tokens = build(window=window, positions=positions), draw(2, 400)
    cache = model.new_cache(2, max_length=400, rollback=0, static=True)
    model(tokens[:, :37], cache=cache)
    step = DecodingStep(model, cache, graph=True, required=True)
    got = torch.stack([step(tokens[:, i : i + 1]).clone() for i in range(37, 400)], dim=1)
    assert step.captured and cache.length == 400
    torch.testing.assert_close(got, model(tokens).logits[:, 37:], atol=2e-4, rtol=2e-4)


@torch.no_grad()
def test_a_graph_goes_on_after_crop_and_reset():
    model, tokens = build(positions="rotary"), draw(1, 200)
    cache = model.new_cache(max_length=200, rollback=16, static=True)
    step, expected = DecodingStep(model, cache, graph=True, required=True), model(tokens).logits
    for _ in range(2):
        cache.reset()
        model(tokens[:, :50], cache=cache)
        for i in range(50, 80):
            step(tokens[:, i : i + 1])
        cache.crop(16)
        got = torch.stack([step(tokens[:, i : i + 1]).clone() for i in range(64, 120)], dim=1)
        torch.testing.assert_close(got, expected[:, 64:120], atol=2e-4, rtol=2e-4)


@torch.no_grad()
def test_a_graph_outlives_an_earlier_one_and_cleared_workspaces():
    model, tokens = build(width=768, n_heads=12, positions="rotary").bfloat16(), draw(2, 60)
    for _ in range(2):  # the second graph is kept, the first one goes
        cache = model.new_cache(2, max_length=60, static=True)
        model(tokens[:, :20], cache=cache)
        step = DecodingStep(model, cache, graph=True, required=True)
        begun = [step(tokens[:, i : i + 1]).clone() for i in range(20, 40)]
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    other = [torch.full((1 << 22,), torch.nan, device="cuda") for _ in range(16)]  # where the workspace may have been
    got = torch.stack(begun + [step(tokens[:, i : i + 1]).clone() for i in range(40, 60)], dim=1)
    assert step.captured and all(block.isnan().all() for block in other)
    torch.testing.assert_close(got, model(tokens).logits[:, 20:].float(), atol=0.3, rtol=0.1)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::UserWarning")  # inductor has much to say about fp32
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_step_compiles_as_one_graph_for_every_length(positions):
    model, tokens = build(positions=positions), draw(2, 120)
    cache = model.new_cache(2, max_length=120, static=True)
    model(tokens[:, :40], cache=cache)
    torch._dynamo.reset()
    step = torch.compile(lambda token: model(token, cache=cache).logits, fullgraph=True, dynamic=False)
    with torch._dynamo.config.patch(error_on_recompile=True):
        got = torch.cat([step(token).clone() for token in tokens[:, 40:].split(1, dim=1)], dim=1)
    torch.testing.assert_close(got, model(tokens).logits[:, 40:], atol=2e-4, rtol=2e-4)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_a_step_does_not_wait_for_the_device():
    model, tokens = build(), draw(1, 60)
    cache = model.new_cache(max_length=60, static=True)
    model(tokens[:, :40], cache=cache)
    model(tokens[:, 40:41], cache=cache)  # tables are copied to the device once
    try:
        torch.cuda.set_sync_debug_mode("error")
        for i in range(41, 60):
            model(tokens[:, i : i + 1], cache=cache)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert cache.length == 60


def test_an_overrun_is_noticed_when_the_length_is_read():
    cache = build(positions="rotary").new_cache(max_length=10, static=True)
    cache.advance(11)
    with pytest.raises(ValueError, match="max_length 10 and was given 11 tokens"):
        print(cache.length)


@pytest.mark.parametrize("graph", [True, False, None])
def test_generated_text_is_that_of_the_uncached_model(graph):
    model, rows = build(), [[5, 6, 7, 8, 9, 10, 11], [3], [100, 99, 50]]
    options = {"max_new_tokens": 60, "temperature": 0.0}
    expected = torch.stack(list(generate(model, rows, use_cache=False, **options)))
    assert torch.equal(torch.stack(list(generate(model, rows, cuda_graph=graph, **options))), expected)


def test_sampled_text_is_the_same_with_and_without_a_graph():
    model, options = build(), {"max_new_tokens": 40, "temperature": 1.0, "top_p": 0.9, "seed": 5}
    with_graph, without = (
        torch.stack(list(generate(model, [[1, 2, 3]], cuda_graph=graph, **options))) for graph in (True, False)
    )
    assert torch.equal(with_graph, without)


def test_a_plan_of_plain_heads_decodes_too():
    model = build(plan=HeadPlan.full(4), n_global=None, window=None, n_kv_heads=2)
    options = {"max_new_tokens": 30, "temperature": 0.0}
    expected = torch.stack(list(generate(model, [[1, 2, 3]], use_cache=False, **options)))
    assert torch.equal(torch.stack(list(generate(model, [[1, 2, 3]], cuda_graph=True, **options))), expected)
