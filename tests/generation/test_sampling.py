"""Sampling: what may be drawn, what is drawn again, where it ends."""

import numpy as np
import pytest
import torch

from longshort import GPT
from longshort.generation import Sampling, generate, next_token

from ..small import small_config

LOGITS = torch.tensor([[0.0, 3.0, 1.0, 2.0, -1.0], [5.0, 0.0, 4.0, 4.5, 1.0]])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return GPT(small_config(context=16, init_std=0.2)).eval()


def drawn(draws=300, **options):
    """Which tokens come up in each row of LOGITS."""
    generator = torch.Generator().manual_seed(0)
    many = torch.stack([next_token(LOGITS, generator=generator, **options) for _ in range(draws)])
    return [set(column.tolist()) for column in many.T]


def text(model, prompt=None, **options):
    prompt = torch.tensor([[1, 2, 3]]) if prompt is None else prompt
    return torch.stack(list(generate(model, prompt, **options))).T


def test_temperature_zero_takes_the_most_probable_token():
    assert next_token(LOGITS, temperature=0.0).tolist() == [1, 0]


def test_greedy_text_is_the_argmax_at_every_step(model):
    tokens = torch.tensor([[1, 2, 3], [7, 7, 7]])
    found = text(model, tokens, max_new_tokens=5, temperature=0.0)
    for step in range(5):
        with torch.no_grad():
            best = model(tokens).logits[:, -1].argmax(-1)
        assert torch.equal(found[:, step], best)
        tokens = torch.cat((tokens, best[:, None]), dim=1)


def test_a_temperature_next_to_nothing_is_nearly_greedy():
    assert next_token(torch.tensor([[1.0, 30.0, -3.0]]), temperature=1e-42).tolist() == [1]


def test_a_temperature_that_fp32_rounds_to_zero_is_greedy():
    assert next_token(torch.tensor([[0.0, 5.0, 1.0]]), temperature=1e-60).tolist() == [1]


def test_without_a_mask_every_token_may_come():
    assert drawn(3000, temperature=3.0) == [{0, 1, 2, 3, 4}] * 2


def test_frequencies_follow_the_softmax_at_the_temperature():
    generator = torch.Generator().manual_seed(0)
    rows = LOGITS[:1].expand(20_000, -1)
    counts = next_token(rows, temperature=2.0, generator=generator).bincount(minlength=5) / 20_000
    torch.testing.assert_close(counts, (LOGITS[0] / 2).softmax(-1), atol=0.015, rtol=0)


def test_top_k_leaves_the_k_most_probable_of_each_row():
    assert drawn(top_k=2, temperature=5.0) == [{1, 3}, {0, 3}]


def test_top_k_beyond_the_vocabulary_leaves_all():
    assert drawn(2000, top_k=50, temperature=5.0) == [{0, 1, 2, 3, 4}] * 2


def test_top_p_leaves_the_fewest_tokens_that_reach_it():
    # Probabilities of row 0, sorted: 1: 0.64, 3: 0.24, 2: 0.09, 0: 0.03, 4: 0.01; of row 1: 0: 0.50, 3: 0.30, 2: 0.18.
    assert drawn(top_p=0.6) == [{1}, {0, 3}]
    assert drawn(top_p=0.7) == [{1, 3}, {0, 3}]
    assert drawn(1000, top_p=0.9) == [{1, 2, 3}, {0, 2, 3}]


@pytest.mark.parametrize("option", [{"temperature": 0.3}, {"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.5}], ids=str)
def test_each_setting_of_sampling_reaches_the_draw(option):
    generators = [torch.Generator().manual_seed(0) for _ in range(3)]
    rows = LOGITS.repeat(100, 1)
    found = Sampling(**option).draw(rows, generator=generators[0])
    assert torch.equal(found, next_token(rows, generator=generators[1], **option))
    assert not torch.equal(found, next_token(rows, generator=generators[2]))


def test_top_p_that_is_reached_exactly_is_enough():
    tokens = next_token(torch.zeros(200, 4), top_p=0.5, generator=torch.Generator().manual_seed(0))
    assert len(tokens.unique()) == 2


def test_top_p_always_leaves_one():
    assert drawn(50, top_p=1e-9) == [{1}, {0}]


def test_top_p_that_fp32_rounds_to_zero_leaves_one():
    assert drawn(50, top_p=1e-60) == [{1}, {0}]


def test_logits_in_half_precision_give_no_token_that_is_ruled_out():
    logits = torch.linspace(4, 0, 50_000).half().expand(4, -1)
    generator = torch.Generator().manual_seed(1)
    assert max(int(next_token(logits, top_k=20, generator=generator).max()) for _ in range(100)) < 40


@pytest.mark.parametrize(
    ("options", "message"),
    [({"top_p": 0.0}, "top_p must be"), ({"top_k": 0}, "top_k must be"), ({"temperature": -1.0}, "temperature must")],
)
def test_next_token_names_a_wrong_setting(options, message):
    with pytest.raises(ValueError, match=message):
        next_token(LOGITS, **options)


def test_top_p_acts_after_the_temperature():
    assert drawn(top_p=0.6, temperature=0.1) == [{1}, {0}]


def test_min_p_leaves_what_is_at_least_so_many_times_as_probable_as_the_best():
    # Of row 0, relative to the best: 3: 0.37, 2: 0.14; of row 1: 3: 0.61, 2: 0.37.
    assert drawn(min_p=0.5) == [{1}, {0, 3}]
    assert drawn(min_p=0.2) == [{1, 3}, {0, 2, 3}]
    assert drawn(50, min_p=1.0) == [{1}, {0}]


def test_min_p_acts_after_the_temperature():
    assert drawn(min_p=0.5, temperature=2.0) == [{1, 3}, {0, 2, 3}]


def test_the_penalty_divides_positive_logits_of_seen_tokens_and_multiplies_negative_ones():
    logits = torch.tensor([[2.0, 3.0, -1.0, -1.5]])
    greedy = Sampling(temperature=0.0, repetition_penalty=2.0)
    assert greedy.draw(logits, seen=torch.tensor([[False, True, False, False]])).tolist() == [0]
    assert greedy.draw(logits, seen=torch.tensor([[True, False, False, False]])).tolist() == [1]
    below = Sampling(temperature=0.0, repetition_penalty=2.0).draw(logits[:, 2:], seen=torch.tensor([[True, False]]))
    assert below.tolist() == [1]


def test_a_seed_makes_the_text_repeatable_whatever_else_is_drawn(model):
    first = text(model, max_new_tokens=12, seed=4)
    torch.rand(7)
    assert torch.equal(text(model, max_new_tokens=12, seed=4), first)
    assert not torch.equal(text(model, max_new_tokens=12, seed=5), first)


def test_a_seed_leaves_the_global_generator_alone(model):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    text(model, max_new_tokens=3, seed=4)
    assert torch.equal(torch.rand(1), expected)


def test_text_may_grow_past_the_context(model):
    assert text(model, max_new_tokens=40, seed=0).shape == (1, 40)


def test_it_ends_with_the_stop_token_once_every_row_has_drawn_it(model):
    free = text(model, max_new_tokens=12, seed=4)
    stop = int(free[0, 5])
    first = free[0].tolist().index(stop)
    assert text(model, max_new_tokens=12, seed=4, stop=stop).tolist() == [free[0, : first + 1].tolist()]


def test_a_row_that_has_stopped_waits_for_the_others(model):
    prompt = torch.tensor([[1, 2, 3], [9, 8, 7]])
    free = text(model, prompt, max_new_tokens=12, temperature=0.0)
    stop = int(free[0, 0])
    stopped = text(model, prompt, max_new_tokens=12, temperature=0.0, stop=stop)
    other = free[1].tolist()
    assert stopped.shape[1] == (other.index(stop) + 1 if stop in other else 12)


def test_no_graph_is_kept(model):
    assert not any(token.requires_grad for token in generate(model, torch.tensor([[1]]), max_new_tokens=2))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (torch.tensor([1, 2]), {}, r"prompt must have shape .* got \(2,\)"),
        (torch.zeros(1, 0, dtype=torch.long), {}, r"prompt must have shape .* got \(1, 0\)"),
        (torch.zeros(0, 5, dtype=torch.long), {}, r"prompt must have shape .* got \(0, 5\)"),
        (torch.tensor([[1.7]]), {}, "prompt must be integers, got torch.float32"),
        ([[True]], {}, "prompt must be integers, got torch.bool"),
        (["abc"], {}, r"prompt must be tokens, got text, .* \['abc'\]"),
        ("abc", {}, "prompt must be tokens, got text, .* 'abc'"),
        ([[0, 300]], {}, "prompt must be from 0 to 255, got values from 0 to 300"),
        ([[-1]], {}, "prompt must be from 0 to 255, got values from -1 to -1"),
        (torch.tensor([[1]]), {"temperature": float("nan")}, "temperature must be a number >= 0, got nan"),
        (torch.tensor([[1]]), {"max_new_tokens": 0}, "max_new_tokens must be an integer from 1 to 2.31 - 1, got 0"),
        (torch.tensor([[1]]), {"context": 0}, "context must be an integer from 1 to 2.31 - 1, got 0"),
        (torch.tensor([[1]]), {"context": 2049}, "context must be at most the [0-9]+ learned positions, got 2049"),
        (torch.tensor([[1]]), {"max_new_tokens": 2.5}, "max_new_tokens must be an integer from 1 to 2.31 - 1, got 2.5"),
        (torch.tensor([[1]]), {"stop": "\n"}, r"stop must be a token or tokens, .* stop_strings\), got '\\n'"),
        (torch.tensor([[1]]), {"stop": ["a", 3]}, r"stop must be a token or tokens, .* got \['a', 3\]"),
        ([[1]], {"stop": 256}, "stop must be tokens from 0 to 255, which can be drawn, got 256"),
        ([[1]], {"stop": [3, -1]}, "stop must be tokens from 0 to 255, which can be drawn, got -1"),
        ([[1]], {"stop": 10**30}, "stop must be tokens from 0 to 255, which can be drawn, got 10{30}"),
        ([[None]], {}, r"prompt must be rows of integers, got \[None\]"),
        ([["a"]], {}, r"prompt must be rows of integers, got \['a'\]"),
        ([[1, [2]]], {}, r"prompt must be rows of integers, got \[1, \[2\]\]"),
        ([(1, None)], {}, r"prompt must be rows of integers, got \(1, None\)"),
        ([[10**30]], {}, r"prompt must be rows of integers, got \[10{30}\]"),
        (iter([[1]]), {}, "prompt must be a tensor or a sequence of sequences of tokens, got list_iterator"),
        (None, {}, "prompt must be a tensor or a sequence of sequences of tokens, got NoneType"),
        ([[1]], {"temperature": "1"}, "temperature must be a number >= 0, got '1'"),
        ([[1]], {"top_k": True}, "top_k must be None or an integer and at least 1, got True"),
        ([[1]], {"top_p": "0.9"}, "top_p must be None or a number above 0 and at most 1, got '0.9'"),
        ([[1]], {"min_p": "x"}, "min_p must be None or a number from 0 to 1, got 'x'"),
        ([[1]], {"repetition_penalty": 1e7}, "repetition_penalty must be a number from 1e-6 to 1e6, got 1"),
        ([[1]], {"repetition_penalty": None}, "repetition_penalty must be a number from 1e-6 to 1e6, got None"),
        ([[1]], {"seed": 1.5}, "seed must be None or an integer of 64 bits, .* got 1.5"),
        ([[1]], {"seed": "a"}, "seed must be None or an integer of 64 bits, .* got 'a'"),
        ([[1]], {"stop": True}, "stop must be a token or tokens, .* got True"),
        ([[1]], {"use_cache": "no"}, "use_cache must be True or False, got 'no'"),
        ([[1]], {"cuda_graph": "yes"}, "cuda_graph must be None or True or False, got 'yes'"),
        ([[1]], {"tokenizer": "bytes"}, "tokenizer must be None or a tokenizer, got 'bytes': load_tokenizer reads one"),
        ([[1]], {"stop_strings": None}, "stop_strings must be a sequence of texts that are not empty, got None"),
        (torch.tensor([[1]]), {"temperature": -1.0}, "temperature must be a number >= 0, got -1"),
        (torch.tensor([[1]]), {"top_k": 0}, "top_k must be None or an integer and at least 1, got 0"),
        (torch.tensor([[1]]), {"top_k": 2.5}, "top_k must be None or an integer and at least 1, got 2.5"),
        ([[1]], {"top_p": 0.0}, "top_p must be None or a number above 0 and at most 1, got 0"),
        (torch.tensor([[1]]), {"min_p": 1.5}, "min_p must be None or a number from 0 to 1, got 1.5"),
        (
            torch.tensor([[1]]),
            {"repetition_penalty": 0.0},
            "repetition_penalty must be a number from 1e-6 to 1e6, got 0",
        ),
        (torch.tensor([[1]]), {"top_p": 1.5}, "top_p must be None or a number above 0 and at most 1, got 1.5"),
    ],
)
def test_bad_arguments_are_named_at_the_call_and_not_at_the_first_token(model, prompt, options, message):
    with pytest.raises(ValueError, match=message):
        generate(model, prompt, **options)


def test_only_a_language_model_generates(model):
    with pytest.raises(ValueError, match="model must be a GPT, got Linear"):
        generate(torch.nn.Linear(2, 2), [[1]])


def test_seeds_and_stops_may_be_of_numpy_and_torch(model):
    def tokens(**options):
        return [int(token) for token in generate(model, [[1, 2]], max_new_tokens=6, **options)]

    assert tokens(seed=np.int64(3)) == tokens(seed=3)
    last = tokens(seed=3)[1]
    assert (
        tokens(seed=3, stop=torch.tensor([last]))
        == tokens(seed=3, stop=torch.tensor(last))
        == tokens(seed=3, stop=np.array(last))
        == tokens(seed=3, stop=last)
    )
