"""A decoding step with a static cache, and what becomes of it where no graph can be captured."""

from contextlib import contextmanager

import pytest
import torch

from longshort import GPT, generate
from longshort.generation import decoder
from longshort.generation.graphs import DecodingStep

from ..small import small_config

ROWS = [[5, 6, 7, 8, 9, 10, 11], [3], [200, 100, 50]]


@pytest.fixture
def model():
    return GPT(small_config(init_std=0.2)).eval()


def text(model, prompt, **options):
    options = {"max_new_tokens": 30, "temperature": 0.0} | options
    return torch.stack(list(generate(model, prompt, **options))).T.tolist()


@torch.no_grad()
def test_steps_give_the_logits_of_the_whole_row(model):
    tokens = torch.randint(256, (2, 40))
    cache = model.new_cache(2, max_length=40, static=True)
    model(tokens[:, :20], cache=cache)
    step = DecodingStep(model, cache, graph=False)
    got = torch.stack([step(tokens[:, i : i + 1]) for i in range(20, 40)], dim=1)
    torch.testing.assert_close(got, model(tokens).logits[:, 20:], atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a graph can be captured here")
def test_where_no_graph_can_be_captured_it_says_so_and_goes_on(model):
    tokens = torch.randint(256, (1, 5))
    step = DecodingStep(model, model.new_cache(max_length=9, static=True), graph=True)
    step(tokens[:, :1])
    with pytest.warns(RuntimeWarning, match="continues without a CUDA graph"):
        step(tokens[:, 1:2])
    assert not step.captured
    torch.testing.assert_close(step(tokens[:, 2:3]), model(tokens[:, :3]).logits[:, -1])


def test_a_step_that_fails_while_it_is_captured_has_written_nothing(model, monkeypatch):
    """Stands in for a GPU: under a capture kernels are recorded and do not run."""
    tokens, capturing = torch.randint(256, (1, 5)), []

    @contextmanager
    def capture(graph):
        capturing.append(graph)
        yield
        capturing.clear()

    def fails_in_a_capture(module, inputs):
        if capturing:
            capturing.clear()
            raise RuntimeError("operation not permitted when stream is capturing")

    step = DecodingStep(model, model.new_cache(max_length=9, static=True), graph=True)
    step(tokens[:, :1])
    handle = model.blocks[0].attention.register_forward_pre_hook(fails_in_a_capture)
    with monkeypatch.context() as patch, pytest.warns(RuntimeWarning, match="not permitted when stream is capturing"):
        patch.setattr(torch.cuda, "CUDAGraph", object)
        patch.setattr(torch.cuda, "graph", capture)
        step(tokens[:, 1:2])
    handle.remove()
    torch.testing.assert_close(step(tokens[:, 2:3]), model(tokens[:, :3]).logits[:, -1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a graph can be captured here")
def test_a_graph_that_is_required_raises(model):
    step = DecodingStep(model, model.new_cache(max_length=9, static=True), graph=True, required=True)
    step(torch.zeros(1, 1, dtype=torch.long))
    with pytest.raises(RuntimeError):
        step(torch.zeros(1, 1, dtype=torch.long))


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_k": 20, "seed": 3, "repetition_penalty": 1.3}])
def test_generated_text_is_the_same_by_steps(model, monkeypatch, options):
    expected = text(model, ROWS, **options)
    monkeypatch.setattr(decoder, "decodes_by_steps", lambda device: True)
    assert text(model, ROWS, cuda_graph=False, **options) == expected
    assert text(model, torch.tensor([[7]]), cuda_graph=False) == text(model, torch.tensor([[7]]), use_cache=False)


def test_text_goes_on_past_the_context_by_steps(monkeypatch):
    model = GPT(small_config(init_std=0.2, context=20)).eval()
    expected = text(model, ROWS, use_cache=False)
    monkeypatch.setattr(decoder, "decodes_by_steps", lambda device: True)
    assert text(model, ROWS, cuda_graph=False) == expected


def test_a_graph_is_refused_where_there_can_be_none(model):
    cpu = model.to("cpu")
    with pytest.raises(ValueError, match=r"cuda_graph needs a model on a GPU.*got cpu, use_cache=True and 7 tokens"):
        generate(cpu, ROWS, cuda_graph=True)
