"""Soft thinking: what a mixture is, how it is drawn, and what the engine does with it."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from longshort import generate
from longshort.data.tokenizer import ByteTokenizer
from longshort.generation import (
    AUTHORS_CLAMP,
    SoftThinking,
    ThinkingRecord,
    decoder,
    gaussian_log_density,
    gumbel_log_density,
    mixed,
)

from .drawn import build
from .drawn import text as written

ROWS = [[5, 6, 7, 8, 9, 10, 11], [3], [200, 100, 50]]
text = partial(written, max_new_tokens=20)
P = torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04])


@pytest.fixture(scope="module")
def model():
    return build()


def quiet(**changes):
    """Thinking without noise, in mixtures of several tokens."""
    return SoftThinking(**{"end": 256, "noise": "none", "tau": 1.0, "top_k": 4} | changes)


def inputs(model, monkeypatch):
    """Collects the embeddings (B, T, C) of each forward pass."""
    seen, forward = [], model._hidden

    def watched(tokens, embeddings, *rest):
        seen.append(model.embedding(tokens) if embeddings is None else embeddings.clone())
        return forward(tokens, embeddings, *rest)

    monkeypatch.setattr(model, "_hidden", watched)
    return seen


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("end", -1, "a token, an integer and at least 0"),
        ("end", "x", "a token, an integer and at least 0"),
        ("top_k", 0, "an integer and at least 1"),
        ("top_k", 2.5, "an integer and at least 1"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", float("nan"), "above 0 and at most 1"),
        ("temperature", 0.0, "a finite number above 0"),
        ("tau", 0.0, "a finite number above 0"),
        ("tau", float("inf"), "a finite number above 0"),
        ("noise", "laplace", "gumbel, gaussian or none"),
        ("clamp", (3.0, -1.5), "None or a lower and a higher bound"),
        ("clamp", 3.0, "None or a lower and a higher bound"),
        ("sigma", 0.5, "None with noise gumbel"),
    ],
)
def test_a_bad_field_is_named_with_what_would_be_right(name, value, what):
    with pytest.raises(ValueError) as error:
        SoftThinking(**{"end": 0} | {name: value})
    assert str(error.value) == f"{name} must be {what}, got {value!r}"


@pytest.mark.parametrize("sigma", [None, 0.0, float("nan"), "x"])
def test_gaussian_noise_needs_its_size(sigma):
    with pytest.raises(ValueError, match="sigma must be a finite number above 0 with noise gaussian, got"):
        SoftThinking(end=0, noise="gaussian", sigma=sigma)


def test_gaussian_noise_takes_no_clamp():
    with pytest.raises(ValueError, match="clamp must be None with noise gaussian, got"):
        SoftThinking(end=0, noise="gaussian", sigma=1.0, clamp=AUTHORS_CLAMP)


def test_gaussian_mixtures_are_weighted_by_p_with_noise_of_size_sigma_on_the_embedding():
    thinking = SoftThinking(end=9, top_k=4, top_p=0.85, noise="gaussian", sigma=0.3)
    ids, values = thinking.draw(P.log().expand(2000, 5))
    p = torch.tensor([5 / 9, 3 / 9, 1 / 9, 0.0])
    torch.testing.assert_close(thinking.weights(ids, values), p.expand(2000, 4))
    table = torch.randn(5, 6)
    noise = thinking.embedding_noise(torch.empty(2000, 6), generator=torch.Generator().manual_seed(0))
    got = thinking.inputs(table, ids, values, noise)
    torch.testing.assert_close(got - noise, (p @ table[:4]).expand(2000, 6))
    assert noise.std().item() == pytest.approx(0.3, rel=0.03) and abs(noise.mean().item()) < 0.01


def test_the_end_mark_enters_without_gaussian_noise():
    thinking = SoftThinking(end=2, noise="gaussian", sigma=0.3)
    table, ids, values = (
        torch.randn(5, 6),
        torch.tensor([[2, 1], [1, 2]]),
        torch.tensor([[0.6, 0.4]]).log().expand(2, 2),
    )
    got = thinking.inputs(table, ids, values, torch.ones(2, 6))
    assert torch.equal(got[0], table[2])
    torch.testing.assert_close(got[1], 0.6 * table[1] + 0.4 * table[2] + 1)


def test_truncation_renormalises_after_top_k_and_after_top_p():
    ids, log_p = SoftThinking(end=0, top_k=4, top_p=0.85).truncated(P.flip(0).log()[None])
    assert ids.tolist() == [[4, 3, 2, 1]]
    # Of the first four, .52, .31, .10 and .06: the first three are the fewest that reach .85.
    torch.testing.assert_close(log_p.exp(), torch.tensor([[5 / 9, 3 / 9, 1 / 9, 0.0]]))


def test_a_top_p_of_1_drops_no_token():
    logits = torch.tensor([[20.0, 19.0, 2.0, 1.0, 0.0]])
    _, log_p = SoftThinking(end=99, top_p=1.0).truncated(logits)
    torch.testing.assert_close(log_p, logits.log_softmax(-1))


def test_temperature_divides_the_logits():
    _, log_p = SoftThinking(end=0, top_p=1.0, temperature=0.5).truncated(P.log()[None])
    torch.testing.assert_close(log_p.exp()[0], P.square() / P.square().sum())


@pytest.mark.parametrize(("extreme", "expected"), [(1e-300, [1.0, 0.0, 0.0]), (1e300, [0.5, 0.5, 0.0])])
def test_extreme_temperatures_give_their_limits(extreme, expected):
    thinking = SoftThinking(end=9, top_k=3, temperature=extreme, tau=extreme, noise="none")
    ids = torch.arange(3)
    assert thinking.weights(ids, torch.tensor([2.0, 1.0, -torch.inf])).tolist() == expected
    assert thinking.truncated(torch.tensor([[2.0, 1.0, -torch.inf]]))[1].exp()[0].tolist() == expected


def test_a_mixture_never_holds_a_token_that_top_p_dropped():
    thinking = SoftThinking(end=9, top_p=0.6, tau=1.0)
    ids, values = thinking.draw(P.log().expand(1000, 5), generator=torch.Generator().manual_seed(0))
    weights = thinking.weights(ids, values)
    assert (weights[:, 2:] == 0).all() and (weights[:, :2] > 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1000))


def test_the_end_mark_has_all_the_weight_where_it_has_the_largest():
    thinking = SoftThinking(end=7, tau=1.0)
    ids, values = torch.tensor([[7, 3], [3, 7]]), torch.tensor([[0.1, 0.0], [0.1, 0.0]])
    weights = thinking.weights(ids, values)
    assert weights[0].tolist() == [1.0, 0.0]
    torch.testing.assert_close(weights[1], values[1].softmax(-1))


def shares(thinking, draws=200_000):
    """How often each of five tokens has the largest weight, and the standard error of it."""
    ids, values = thinking.draw(P.log().expand(draws, 5), generator=torch.Generator().manual_seed(0))
    weights = thinking.weights(ids, values)
    assert (weights.amax(-1) > 0.999).float().mean() > 0.99  # one token alone
    largest = ids.gather(-1, weights.argmax(-1, keepdim=True))
    share = torch.bincount(largest[:, 0], minlength=5) / draws
    return share, (share * (1 - share) / draws).sqrt()


def test_towards_tau_0_unclamped_noise_is_sampling():
    share, error = shares(SoftThinking(end=99, top_p=1.0, tau=1e-6))
    assert ((share - P).abs() < 4 * error).all(), share


def test_towards_tau_0_sampling_is_from_what_the_truncation_leaves():
    share, error = shares(SoftThinking(end=99, top_k=4, top_p=0.85, tau=1e-6))
    assert ((share - torch.tensor([5 / 9, 3 / 9, 1 / 9, 0, 0])).abs() <= 4 * error).all(), share


def test_the_authors_clamp_makes_rare_tokens_rarer():
    share, error = shares(SoftThinking(end=99, top_p=1.0, tau=1e-6, clamp=AUTHORS_CLAMP))
    assert share[4].item() == pytest.approx(0.026, abs=0.001)  # .04 without it
    assert ((share - P)[:2] > 4 * error[:2]).all() and ((share - P)[2:] < -4 * error[2:]).all()


def test_mixed_is_the_weighted_sum_and_one_token_alone_is_its_embedding():
    table, ids = torch.randn(9, 6), torch.tensor([[1, 4, 1], [2, 0, 5]])
    weights = torch.tensor([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]])
    got = mixed(table, ids, weights)
    torch.testing.assert_close(got[0], 0.7 * table[1] + 0.3 * table[4])
    assert torch.equal(got[1], table[0])


def test_one_token_a_mixture_is_greedy(model):
    thinking = SoftThinking(end=256, top_k=1)
    greedy = text(model, ROWS)
    assert text(model, ROWS, thinking=thinking, temperature=1.0, seed=0) == greedy
    assert text(model, ROWS, thinking=quiet()) != greedy


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
@pytest.mark.parametrize("context", [128, 16])
def test_thinking_is_the_same_with_and_without_a_cache(positions, context):
    """And past the context, where all that is seen goes through the model for every token."""
    model = build(positions=positions, context=context)
    assert text(model, ROWS, thinking=quiet()) == text(model, ROWS, thinking=quiet(), use_cache=False)


@pytest.mark.parametrize("context", [128, 16])
def test_each_sequence_of_a_batch_ends_its_thinking_as_it_would_alone(context):
    model = build(context=context)
    free = text(model, ROWS, thinking=quiet())
    end = free[0][4]
    thinking, record = quiet(end=end), ThinkingRecord()
    drawn = text(model, ROWS, thinking=thinking, record=record)
    assert drawn == [text(model, [row], thinking=thinking)[0] for row in ROWS]
    for row, soft in zip(drawn, record.soft.tolist(), strict=True):
        thought = row.index(end) + 1 if end in row else len(row)
        assert soft == [True] * thought + [False] * (len(row) - thought)
    assert len({sum(soft) for soft in record.soft.tolist()}) > 1


def test_after_the_end_mark_the_text_is_that_of_the_tokens_alone(model):
    end = text(model, [ROWS[0]], thinking=quiet())[0][0]
    (drawn,) = text(model, [ROWS[0]], thinking=quiet(end=end))
    assert drawn == [end, *text(model, [[*ROWS[0], end]], max_new_tokens=19)[0]]


def test_the_record_rebuilds_what_went_into_the_model(monkeypatch):
    model, record = build(), ThinkingRecord()
    fields, sampled = {"noise": "gumbel", "tau": 0.5}, {"temperature": 1.0, "seed": 1}
    end = text(model, ROWS, thinking=quiet(**fields), **sampled)[0][4]
    thinking = quiet(end=end, **fields)
    seen = inputs(model, monkeypatch)
    tokens = torch.tensor(text(model, ROWS, thinking=thinking, record=record, **sampled))
    assert not record.soft.all()
    rebuilt = mixed(model.embedding.weight, record.ids, thinking.weights(record.ids, record.values))
    rebuilt = rebuilt.where(record.soft[..., None], model.embedding(tokens))
    assert torch.equal(torch.cat(seen[1:], dim=1), rebuilt[:, :-1])
    largest = record.ids.gather(-1, record.values.argmax(-1, keepdim=True))[..., 0]
    assert torch.equal(largest[record.soft], tokens[record.soft])


def test_gaussian_thinking_is_the_same_with_and_without_a_cache_and_ends_at_the_most_probable_mark(model):
    thinking = SoftThinking(end=256, top_k=4, noise="gaussian", sigma=0.3)
    end = text(model, ROWS, thinking=thinking, seed=1)[0][4]
    thinking, record = replace(thinking, end=end), ThinkingRecord()
    drawn = text(model, ROWS, thinking=thinking, record=record, seed=1)
    assert drawn == text(model, ROWS, thinking=thinking, use_cache=False, seed=1)
    assert record.soft[0].sum() == drawn[0].index(end) + 1 and record.noise.shape == (3, 20, 32)
    assert torch.equal(record.ids[..., 0][record.soft], torch.tensor(drawn)[record.soft])


def test_a_sequence_that_has_ended_thinks_no_more(model):
    free = text(model, ROWS, thinking=quiet())
    stop, record = free[0][3], ThinkingRecord()
    drawn = text(model, ROWS, thinking=quiet(), stop=stop, record=record)
    assert drawn[0] == free[0][: free[0].index(stop) + 1] + [-1] * (20 - free[0].index(stop) - 1)
    assert (record.soft == (torch.tensor(drawn) != -1)).all()


def test_the_seed_repeats_the_noise(model):
    thinking = SoftThinking(end=256, top_k=20, top_p=1.0)
    one, same, other = (text(model, ROWS, thinking=thinking, seed=seed) for seed in (1, 1, 2))
    assert one == same != other


def test_thinking_does_not_depend_on_the_default_dtype(model):
    def text():
        thinking = SoftThinking(end=3, top_k=4)
        return written(model, [[1, 2], [4]], thinking=thinking, max_new_tokens=6, seed=0)

    before = text()
    torch.set_default_dtype(torch.bfloat16)  # as where large models are made
    try:
        assert text() == before
    finally:
        torch.set_default_dtype(torch.float32)


def test_tokens_that_the_tokenizer_does_not_have_are_in_no_mixture():
    record = ThinkingRecord()
    text(build(vocab_size=320), [[1]], thinking=quiet(top_k=300), tokenizer=ByteTokenizer(), record=record)
    assert record.ids.shape == (1, 20, 257) and record.ids.max() == 256


def test_thinking_by_steps_is_the_same(model, monkeypatch):
    expected = text(model, ROWS, thinking=quiet(), use_cache=False)
    monkeypatch.setattr(decoder, "decodes_by_steps", lambda device: True)
    assert text(model, ROWS, thinking=quiet(), cuda_graph=False) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thinking": "soft"}, "thinking must be None or a SoftThinking, got 'soft'"),
        ({"thinking": quiet(end=257)}, "end must be a token from 0 to 256, got 257"),
        ({"record": ThinkingRecord()}, "record must be None without thinking"),
    ],
)
def test_what_thinking_cannot_do_is_one_clear_error(model, options, message):
    with pytest.raises(ValueError, match=message):
        generate(model, ROWS, **options)


def test_a_record_is_filled_once(model):
    record = ThinkingRecord()
    with pytest.raises(ValueError, match="record must hold at least one step, got none"):
        _ = record.ids
    text(model, ROWS, thinking=quiet(), record=record)
    with pytest.raises(ValueError, match="record must be empty, got one of 20 steps"):
        generate(model, ROWS, thinking=quiet(), record=record)


def test_density_of_clamped_noise_is_that_of_its_bounds():
    values, log_p = torch.tensor([[9.0, 0.5]]), torch.zeros(1, 2)
    expected = gumbel_log_density(torch.tensor([[3.0, 0.5]]), log_p)
    torch.testing.assert_close(gumbel_log_density(values, log_p, clamp=AUTHORS_CLAMP), expected)
    assert not torch.allclose(gumbel_log_density(values, log_p), expected)


def test_density_of_half_precision_is_summed_in_fp32():
    inputs, mixtures = torch.randn(2, 3, 64).bfloat16()
    found = gaussian_log_density(inputs, mixtures, sigma=0.5)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, gaussian_log_density((inputs - mixtures).float(), torch.zeros(3, 64), sigma=0.5))


def test_end_mark_that_enters_without_its_noise_has_no_density():
    thinking = SoftThinking(end=3, noise="gaussian", sigma=0.5)
    ids, values, noise = torch.tensor([[3, 1], [1, 3]]), torch.tensor([[0.0, -1.0]] * 2), torch.ones(2, 4)
    assert thinking.log_density(ids, values, values, noise).tolist() == [0.0, -8.0]
