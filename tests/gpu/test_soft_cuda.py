"""Soft thinking on a GPU: drawn by a captured step as without one, step reused, and scored as on the CPU."""

import pytest
import torch

from longshort import GPT, generate
from longshort.generation import Sampling, SoftThinking, ThinkingRecord
from longshort.generation.decoder import Decoder
from longshort.generation.draws import Draws
from longshort.rl import FORMS, rollout

from ..small import small_config

ROWS = [[5, 6, 7, 8], [3], [20, 10]]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT(small_config(vocab_size=40, init_std=0.2)).eval().cuda()


def written(model, prompts=ROWS, **options):
    options = {"max_new_tokens": 30, "temperature": 0.0} | options
    return torch.stack(list(generate(model, prompts, **options)))


def test_thinking_is_the_same_with_a_captured_step_without_one_and_without_a_cache(model):
    def drawn(end, **options):
        return written(model, thinking=SoftThinking(end=end, noise="none", tau=1.0), **options)

    end, record = drawn(39)[3, 0].item(), ThinkingRecord()
    captured = drawn(end, record=record, cuda_graph=True)
    assert torch.equal(captured, drawn(end, cuda_graph=False))
    assert torch.equal(captured, drawn(end, use_cache=False))
    assert record.soft.is_cuda and not record.soft.all()


@pytest.mark.parametrize("thinking", [None, SoftThinking(end=7, tau=0.5, top_k=8)])
def test_a_captured_step_draws_anew_and_by_its_seed(model, thinking):
    options = {"temperature": 1.0, "top_k": 30, "thinking": thinking, "cuda_graph": True}
    one, same, other = (written(model, seed=seed, **options) for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert len({tuple(row) for row in one.tolist()}) > 20
    assert torch.equal(one, written(model, seed=1, **options | {"cuda_graph": False}))


def test_draws_of_a_captured_step_have_the_frequencies_of_the_model():
    model = GPT(small_config(vocab_size=8, init_std=1e-30)).eval().cuda()  # all tokens alike
    drawn = written(model, [[1]] * 512, max_new_tokens=64, temperature=1.0, seed=3, cuda_graph=True)
    share = drawn.flatten().bincount(minlength=8) / drawn.numel()
    assert (share - 1 / 8).abs().max() < 5 * (1 / 8 / drawn.numel()) ** 0.5


def test_one_captured_step_serves_other_prompts_and_changed_weights(model):
    draws = Draws(
        3,
        20,
        sampling=Sampling(temperature=0.0),
        thinking=SoftThinking(end=39, noise="none", tau=1.0),
        stops=(),
        vocabulary=40,
        device=torch.device("cuda"),
        table=model.embedding.weight.detach(),
    )
    decoder = Decoder(model, draws, max_prompt=4, graph=True)
    for prompts in (ROWS, [[1, 2], [30, 31, 32], [4]]):
        draws.reset()
        decoder.start([torch.tensor(prompt) for prompt in prompts])
        got = torch.stack([decoder.step().clone() for _ in range(20)])
        expected = written(model, prompts, max_new_tokens=20, thinking=SoftThinking(end=39, noise="none", tau=1.0))
        assert torch.equal(got, expected)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9).add_(torch.randn_like(parameter), alpha=0.05)


def test_a_stop_ends_a_sequence_within_a_captured_step(model):
    free = written(model, cuda_graph=True)
    stop = free[12, 0].item()
    first = (free[:, 0] == stop).nonzero()[0, 0]
    stopped = written(model, cuda_graph=True, stop=stop)
    assert torch.equal(stopped[: first + 1, 0], free[: first + 1, 0]) and (stopped[first + 1 :, 0] == -1).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_rollout_is_scored_as_on_the_cpu_and_twice_alike(model, form):
    drawn = rollout(model, ROWS, SoftThinking(end=7, tau=0.5, top_k=8), max_new_tokens=30, seed=0)
    scores = drawn.log_probs(model, form=form)
    assert torch.equal(scores, drawn.log_probs(model, form=form))
    scores.sum().backward()
    moved = {name: x.cpu() for name, x in vars(drawn).items() if isinstance(x, torch.Tensor)}
    on_cpu = type(drawn)(**vars(drawn) | moved)
    there = GPT(model.config).eval()
    there.load_state_dict(model.state_dict())
    torch.testing.assert_close(scores.detach().cpu(), on_cpu.log_probs(there, form=form).detach(), atol=1e-3, rtol=1e-3)


def test_gaussian_noise_is_drawn_in_the_captured_step_and_replayed(model):
    thinking = SoftThinking(end=7, noise="gaussian", sigma=0.3)
    options = {"max_new_tokens": 30, "seed": 0, "log_probs": True}
    drawn, plain = (rollout(model, ROWS, thinking, cuda_graph=graph, **options) for graph in (True, False))
    assert torch.equal(drawn.tokens, plain.tokens)
    torch.testing.assert_close(drawn.noisy, plain.noisy)
    assert (drawn.noisy[0].diff(dim=0).abs().amax(-1) > 0.05).all()  # new noise in every step
    assert 0 <= drawn.gap(model) < 1e-3
