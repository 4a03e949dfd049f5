"""Log-probabilities in chunks against the direct forms, and the gradient of the Gumbel score."""

import pytest
import torch

from longshort.generation import AUTHORS_CLAMP, SoftThinking
from longshort.losses import transform_scores
from longshort.rl import FORMS, gaussian_log_probs, soft_log_probs, token_log_probs, token_scores

from .largest import Largest

N, D, V, K = 7, 4, 30, 3


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, D, dtype=torch.float64, generator=generator) for n in (N, V))
    ids = torch.stack([torch.randperm(V, generator=generator)[:K] for _ in range(N)])
    noise = -torch.empty(N, K, dtype=torch.float64).exponential_(generator=generator).log()
    values = (hidden @ weight.T).gather(1, ids).log_softmax(-1) + noise
    values[2, 2] = values[5, 1:] = -torch.inf  # as top_p leaves them
    return hidden.requires_grad_(), weight.requires_grad_(), ids, values


def direct(hidden, weight, ids, values, form, temperature=1.0):
    """Token by token, as the formulas are written."""
    scores = []
    for h, tokens, g in zip(hidden, ids, values, strict=True):
        if form != "code":
            tokens, g = tokens[g > -torch.inf], g[g > -torch.inf]
        log_p = (weight[tokens] @ h / temperature).log_softmax(-1)
        if form == "categorical":
            scores.append(log_p[g.argmax()])
            continue
        u = g - log_p
        if form == "code":
            u = u.clamp(-1.5, 3)[log_p > -3]
        density = -u - torch.exp(-u)
        scores.append(density.sum() if form == "paper" else density.mean())
    return torch.stack(scores)


def assert_same_with_gradients(got, expected, inputs):
    torch.testing.assert_close(got, expected)
    pull = torch.arange(1.0, N + 1, dtype=torch.float64)
    both = (torch.autograd.grad(scores @ pull, inputs) for scores in (got, expected))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_soft_tokens_have_the_score_and_the_gradients_of_the_direct_form(case, form, chunk):
    hidden, weight, ids, values = case
    got = soft_log_probs(hidden, weight, ids, values, form=form, chunk=chunk, temperature=0.7)
    expected = direct(hidden, weight, ids, values, form, temperature=0.7)
    assert_same_with_gradients(got, expected, (hidden, weight))


@pytest.mark.parametrize("chunk", [None, 3])
def test_tokens_have_the_log_probability_and_the_gradients_of_the_direct_form(case, chunk):
    hidden, weight, ids, _ = case
    got = token_log_probs(hidden, weight, ids[:, 0], temperature=0.7, chunk=chunk)
    expected = (hidden @ weight.T / 0.7).log_softmax(-1).gather(1, ids[:, :1])[:, 0]
    assert_same_with_gradients(got, expected, (hidden, weight))


@pytest.mark.parametrize("chunk", [None, 3])
def test_the_entropy_is_that_of_the_whole_vocabulary_and_a_constant(case, chunk):
    hidden, weight, ids, _ = case
    scores = token_scores(hidden, weight, ids[:, 0], temperature=0.7, chunk=chunk)
    log_p = (hidden @ weight.T / 0.7).log_softmax(-1)
    torch.testing.assert_close(scores.entropy, -(log_p.exp() * log_p).sum(-1))
    assert not scores.entropy.requires_grad


def test_log_probabilities_are_the_same_to_the_bit_with_and_without_the_entropy(case):
    hidden, weight, ids, _ = (x.float() if x.is_floating_point() else x for x in case)
    with_entropy = token_scores(hidden, weight, ids[:, 0], chunk=3).log_probs
    assert torch.equal(with_entropy, token_log_probs(hidden, weight, ids[:, 0], chunk=3))


@pytest.mark.parametrize("chunk", [None, 3])
def test_gaussian_soft_tokens_have_the_score_and_the_gradients_of_the_direct_form(case, chunk):
    hidden, weight, ids, values = case
    table, inputs = torch.randn(V, 5).double().requires_grad_(), torch.randn(N, 5).double()
    options = {"table": table, "sigma": 0.4, "temperature": 0.7, "chunk": chunk}
    got = gaussian_log_probs(hidden, weight, ids, values, inputs, **options)
    expected = []
    for h, tokens, g, drawn in zip(hidden, ids, values, inputs, strict=True):
        tokens = tokens[g > -torch.inf]
        s = (weight[tokens] @ h / 0.7).softmax(-1) @ table[tokens]
        expected.append(-(drawn - s).square().sum() / (2 * 0.4**2))
    assert_same_with_gradients(got, torch.stack(expected), (hidden, weight, table))


def test_gradients_are_those_of_finite_differences(case):
    hidden, weight, ids, values = case
    for form in FORMS:
        assert torch.autograd.gradcheck(
            lambda h, w, form=form: soft_log_probs(h, w, ids, values, form=form, chunk=3), (hidden, weight)
        )
    assert torch.autograd.gradcheck(lambda h, w: token_log_probs(h, w, ids[:, 0], chunk=3), (hidden, weight))


def test_the_bounds_of_the_form_code_can_be_set(case):
    hidden, weight, ids, values = case
    usual = soft_log_probs(hidden, weight, ids, values, form="code")
    assert torch.equal(usual, soft_log_probs(hidden, weight, ids, values, form="code", clamp=AUTHORS_CLAMP))
    assert not torch.equal(usual, soft_log_probs(hidden, weight, ids, values, form="code", clamp=(-0.1, 0.1)))


def test_damped_scores_are_scored_as_they_are_drawn(case):
    hidden, weight, ids, values = case

    def damp(scores):
        return transform_scores(scores, 0.5, 0.01)

    got = token_log_probs(hidden, weight, ids[:, 0], transform=damp)
    torch.testing.assert_close(got, damp(hidden @ weight.T).log_softmax(-1).gather(1, ids[:, :1])[:, 0])
    soft = soft_log_probs(hidden[:1], weight, ids[:1], values[:1], transform=damp)
    u = values[0] - damp(weight[ids[0]] @ hidden[0]).log_softmax(-1)
    torch.testing.assert_close(soft[0], (-u - torch.exp(-u)).sum())


def test_the_logits_of_all_tokens_never_exist():
    n, v, chunk = 64, 500, 8
    hidden, weight = torch.randn(n, D, requires_grad=True), torch.randn(v, D, requires_grad=True)
    ids, values = torch.randint(v, (n, K)), torch.randn(n, K)
    for score in (token_log_probs, token_scores):
        with Largest() as largest:
            scored = score(hidden, weight, ids[:, 0], chunk=chunk)
            (scored if isinstance(scored, torch.Tensor) else scored.log_probs).sum().backward()
        assert chunk * v <= largest.numbers < 2 * chunk * v
    for form in FORMS:
        with Largest() as largest:
            soft_log_probs(hidden, weight, ids, values, form=form, chunk=chunk).sum().backward()
        assert largest.numbers == v * D  # the gradient of the weight


def test_towards_tau_0_the_exact_score_has_the_categorical_gradient_in_mean():
    """Five tokens, a reward for each: the estimates from Gumbel scores lie about the exact policy gradient."""
    draws = 200_000
    logits = torch.tensor([1.0, 0.5, 0.0, -0.5, -1.5], dtype=torch.float64)
    rewards = torch.tensor([0.0, 1.0, -0.5, 2.0, 3.0], dtype=torch.float64)
    thinking = SoftThinking(end=99, top_p=1.0, tau=1e-6)
    ids, values = thinking.draw(logits.expand(draws, 5), generator=torch.Generator().manual_seed(0))
    hidden, head = logits.expand(draws, 5).clone().requires_grad_(), torch.eye(5, dtype=torch.float64)
    chosen = ids.gather(1, thinking.weights(ids, values).argmax(-1, keepdim=True))[:, 0]

    gradients = {}
    for form in FORMS:
        scores = soft_log_probs(hidden, head, ids, values, form=form)
        (gradients[form],) = torch.autograd.grad(rewards[chosen] @ scores, hidden)
    every = logits.expand(5, 5).clone().requires_grad_()
    expected_reward = (logits.softmax(-1) * rewards) @ token_log_probs(every, head, torch.arange(5))
    exact = torch.autograd.grad(expected_reward, every)[0].sum(0)

    means = {form: gradient.mean(0) for form, gradient in gradients.items()}
    error = gradients["paper"].std(0) / draws**0.5
    assert ((means["paper"] - exact).abs() < 3 * error).all(), (means["paper"], exact, error)
    assert (exact.abs() > 10 * error).any()
    assert means["code"].norm() < exact.norm() / 2  # the clamped mean is a smaller step


def test_given_the_token_the_exact_score_has_the_gradient_of_its_log_probability_in_mean():
    draws = 200_000
    logits = torch.tensor([1.0, 0.5, 0.0, -0.5, -1.5], dtype=torch.float64)
    thinking = SoftThinking(end=99, top_p=1.0)
    ids, values = thinking.draw(logits.expand(draws, 5), generator=torch.Generator().manual_seed(0))
    hidden = logits.expand(draws, 5).clone().requires_grad_()
    scores = soft_log_probs(hidden, torch.eye(5, dtype=torch.float64), ids, values)
    (gradients,) = torch.autograd.grad(scores.sum(), hidden)
    for token, expected in enumerate(torch.eye(5, dtype=torch.float64) - logits.softmax(-1)):
        given = gradients[thinking.token(ids, values) == token]
        error = given.std(0) / len(given) ** 0.5
        assert ((given.mean(0) - expected).abs() < 3.5 * error).all() and (expected.abs() > 5 * error).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": "exact"}, "form must be paper, code or categorical, got 'exact'"),
        ({"form": "code", "clamp": (3.0, -1.5)}, r"clamp must be None or a lower and a higher bound, got \(3"),
        ({"temperature": 0.0}, "temperature must be a number above 0, got 0.0"),
        ({"temperature": "1"}, "temperature must be a number above 0, got '1'"),
        ({"chunk": 0}, "chunk must be None or an integer and at least 1, got 0"),
        ({"chunk": 1.5}, "chunk must be None or an integer and at least 1, got 1.5"),
        ({"ids": torch.full((N, K), V)}, f"ids must be from 0 to {V - 1}, got values from {V} to {V}"),
        ({"ids": torch.full((N, K), -1)}, f"ids must be from 0 to {V - 1}, got values from -1 to -1"),
        ({"ids": torch.zeros(3, K, dtype=torch.long)}, r"ids must be int64 of shape \(7, k\)"),
        ({"values": torch.zeros(N, K + 1)}, r"values must be floating-point of the shape of ids, \(7, 3\)"),
        ({"weight": torch.zeros(V, D + 1)}, "weight must have the 4 features of hidden, got 5"),
        ({"hidden": torch.zeros(N)}, "hidden must be a floating-point matrix"),
    ],
)
def test_what_cannot_be_scored_is_named(case, change, message):
    given = dict(zip(("hidden", "weight", "ids", "values"), case, strict=True)) | change
    with pytest.raises(ValueError, match=message):
        soft_log_probs(**given)
