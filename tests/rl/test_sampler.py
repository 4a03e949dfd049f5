"""Rollouts drawn again and again by one sampler."""

import pytest
import torch

from longshort import generate
from longshort.generation import SoftThinking, ThinkingRecord
from longshort.rl import Sampler, rollout

from ..generation.drawn import build

PROMPTS = [[5, 6, 7, 8], [3], [20, 10]]


@pytest.fixture
def model():
    return build(vocab_size=40)


def sampler(model, thinking=None, **options):
    return Sampler(model, thinking, **{"batch_size": 3, "max_prompt": 5, "max_new_tokens": 12} | options)


@pytest.mark.parametrize(
    "thinking", [None, SoftThinking(end=7, tau=0.5), SoftThinking(end=7, noise="gaussian", sigma=0.3)]
)
@pytest.mark.parametrize("once", [True, False])
def test_it_draws_what_is_generated(model, thinking, once):
    record = None if thinking is None else ThinkingRecord()
    options = {"max_new_tokens": 12, "thinking": thinking, "record": record, "seed": 3}
    expected = torch.stack(list(generate(model, PROMPTS, **options)), dim=1)
    if once:
        got = rollout(model, PROMPTS, thinking, max_new_tokens=12, seed=3)
    else:
        got = sampler(model, thinking).draw(PROMPTS, seed=3)
    assert torch.equal(got.tokens, expected)
    assert got.prompts.tolist() == [[5, 6, 7, 8], [0, 0, 0, 3], [0, 0, 20, 10]] and got.padding.tolist() == [0, 3, 2]
    if record is not None:
        for name in ("soft", "ids", "values"):
            assert torch.equal(getattr(got, name), getattr(record, name)), name
        inputs = thinking.inputs(model.embedding.weight.detach(), record.ids, record.values, record.noise)
        assert got.noisy is None if record.noise is None else torch.equal(got.noisy, inputs)


def test_a_copy_in_another_dtype_draws_gaussian_noise_for_the_model(model):
    thinking = SoftThinking(end=7, noise="gaussian", sigma=0.3)
    drawn = sampler(model, thinking, dtype=torch.bfloat16, log_probs=True).draw(PROMPTS, seed=3)
    assert drawn.noisy.dtype == torch.float32 and 0 <= drawn.gap(model) < 0.5


@pytest.mark.parametrize(
    "fields",
    [None, {"tau": 0.5, "temperature": 1.2}, {"noise": "gaussian", "sigma": 0.3}],
    ids=["hard", "soft", "noisy"],
)
def test_it_keeps_the_log_probabilities_that_it_drew_with(model, fields):
    def draw(end, stop=None):
        thinking = None if fields is None else SoftThinking(end=end, **fields)
        return sampler(model, thinking, stop=stop, temperature=0.8, log_probs=True).draw(PROMPTS, seed=3)

    end = draw(0).tokens[0, 4].item()
    drawn = draw(end, stop=draw(end).tokens[0, 8].item())
    assert not drawn.mask.all() and (~drawn.soft & drawn.mask).any() and drawn.soft.any() == (fields is not None)
    torch.testing.assert_close(drawn.drawn_log_probs, drawn.log_probs(model), atol=1e-4, rtol=1e-4)
    assert 0 <= drawn.gap(model) < 1e-6


def test_without_being_asked_it_keeps_no_log_probabilities(model):
    assert sampler(model).draw(PROMPTS, seed=3).drawn_log_probs is None


def test_a_later_rollout_owes_nothing_to_an_earlier_one_and_sees_changed_weights(model):
    drawing = sampler(model, SoftThinking(end=7, tau=0.5), stop=9)
    first = drawing.draw([[1, 2, 3, 4, 5], [6, 7], [8]], seed=1)
    kept = first.tokens.clone()
    with torch.no_grad():
        model.embedding.weight.add_(0.1 * torch.randn_like(model.embedding.weight))
    again = drawing.draw(PROMPTS, seed=2)
    assert torch.equal(again.tokens, sampler(model, SoftThinking(end=7, tau=0.5), stop=9).draw(PROMPTS, seed=2).tokens)
    assert torch.equal(first.tokens, kept)


def test_a_rollout_is_as_long_as_its_longest_sequence(model):
    free = sampler(model).draw(PROMPTS, seed=0).tokens
    stops = [free[i, 3 + i].item() for i in range(3)]
    drawn = sampler(model, stop=stops).draw(PROMPTS, seed=0)
    assert drawn.tokens.shape[1] == drawn.ids.shape[1] == drawn.mask.sum(1).max() < 12


def test_a_copy_in_another_dtype_draws_with_the_weights_of_the_moment(model):
    drawing = sampler(model, dtype=torch.float64)
    with torch.no_grad():
        model.embedding.weight.mul_(1.5)
    got = drawing.draw(PROMPTS, seed=2)
    assert torch.equal(got.tokens, sampler(model.double()).draw(PROMPTS, seed=2).tokens)
    assert got.log_probs(model).dtype == torch.float64


def test_a_copy_draws_for_a_model_that_has_a_part_besides(model):
    expected = sampler(model, dtype=torch.float64).draw(PROMPTS, seed=0).tokens
    model.value_head = torch.nn.Linear(model.config.width, 1)
    model.register_buffer("steps_seen", torch.zeros(1))
    assert torch.equal(sampler(model, dtype=torch.float64).draw(PROMPTS, seed=0).tokens, expected)


def test_a_copy_is_not_drawn_from_where_it_would_lack_an_adapter(model):
    layer = model.blocks[0].attention.out
    model.blocks[0].attention.out = torch.nn.Sequential(layer)
    assert sampler(model).draw(PROMPTS, seed=0).tokens.shape == (3, 12)
    with pytest.raises(ValueError, match="dtype must be None or the model's for a model that has more than"):
        sampler(model, dtype=torch.float64)
    layer.added = torch.nn.Parameter(torch.zeros(1))  # the weights of the copy are there too
    model.blocks[0].attention.out = layer
    with pytest.raises(ValueError, match=r"such as an adapter, or is compiled, got torch\.float64"):
        sampler(model, dtype=torch.float64)


def test_no_seed_draws_from_the_global_one(model):
    drawing = sampler(model)
    torch.manual_seed(5)
    one, other = drawing.draw(PROMPTS).tokens, drawing.draw(PROMPTS).tokens
    torch.manual_seed(5)
    assert torch.equal(drawing.draw(PROMPTS).tokens, one) and not torch.equal(one, other)


def test_the_model_is_in_the_mode_it_was_in(model):
    model.train()
    sampler(model).draw(PROMPTS, seed=0)
    assert model.training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0 in rollouts, got 0.0"),
        ({"max_prompt": 128}, "must fit in the context of 128, got 128 and 12"),
        ({"thinking": SoftThinking(end=40)}, "end must be a token from 0 to 39, got 40"),
        ({"cuda_graph": True}, "cuda_graph needs a model on a GPU"),
    ],
)
def test_what_cannot_be_drawn_is_one_clear_error(model, options, message):
    with pytest.raises(ValueError, match=message):
        sampler(model.cpu(), **options)


@pytest.mark.parametrize("prompts", [[[1]], [[1] * 6, [2], [3]]])
def test_prompts_of_another_size_are_refused(model, prompts):
    with pytest.raises(ValueError, match="prompts must be 3 of at most 5 tokens, got"):
        sampler(model).draw(prompts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": -1}, "batch_size must be an integer from 1 to 2.31 - 1, got -1"),
        ({"batch_size": True}, "batch_size must be an integer from 1 to 2.31 - 1, got True"),
        ({"max_prompt": None}, "max_prompt must be an integer from 1 to 2.31 - 1, got None"),
        ({"max_new_tokens": 0}, "max_new_tokens must be an integer from 1 to 2.31 - 1, got 0"),
        ({"max_new_tokens": "3"}, "max_new_tokens must be an integer from 1 to 2.31 - 1, got '3'"),
        ({"temperature": "1"}, "temperature must be a number >= 0, got '1'"),
        ({"temperature": 0}, "temperature must be above 0 in rollouts, got 0"),
        ({"dtype": "bf16"}, "dtype must be None or a floating-point dtype of torch, got 'bf16'"),
        ({"dtype": torch.int32}, "dtype must be None or a floating-point dtype of torch, got torch.int32"),
        ({"stop": 40}, "stop must be tokens from 0 to 39, which can be drawn, got 40"),
        ({"stop": -1}, "stop must be tokens from 0 to 39, which can be drawn, got -1"),
    ],
)
def test_what_a_sampler_cannot_be_made_of_is_named(model, options, message):
    with pytest.raises(ValueError, match=message):
        sampler(model, **options)


def test_a_sampler_names_a_wrong_model_and_a_wrong_seed(model):
    with pytest.raises(ValueError, match="model must be a GPT, got Linear"):
        sampler(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="model must be a GPT, got NoneType"):
        rollout(None, PROMPTS)
    with pytest.raises(ValueError, match=r"seed must be None or an integer of 64 bits, .* got 1.5"):
        sampler(model).draw(PROMPTS, seed=1.5)
