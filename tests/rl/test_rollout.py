"""Rollouts replayed: the same inputs, and log-probabilities that are those of the direct computation."""

from dataclasses import replace

import pytest
import torch

from longshort import GPT, generate
from longshort.generation import AUTHORS_CLAMP, SoftThinking
from longshort.losses import LossSettings
from longshort.rl import FORMS, kl_estimate, rollout

from ..small import small_config
from .largest import Largest

ROWS = [[5, 6, 7, 8], [3], [20, 10]]


def build(**options):
    torch.manual_seed(0)
    return GPT(small_config(**{"vocab_size": 40, "init_std": 0.2, "context": 32} | options)).double().eval()


def drawn(model, **changes):
    thinking = SoftThinking(**{"end": 7, "tau": 0.5, "top_k": 8} | changes.pop("fields", {}))
    result = rollout(model, ROWS, thinking, **{"max_new_tokens": 16, "seed": 4} | changes)
    assert result.soft.any() and (~result.soft & (result.tokens >= 0)).any()
    return result


def gaussian(model, **changes):
    fields = {"noise": "gaussian", "sigma": 0.3, "temperature": 0.5} | changes.pop("fields", {})
    end = rollout(model, ROWS, SoftThinking(end=39, **fields), max_new_tokens=16, seed=4).tokens[0, 5].item()
    return drawn(model, fields=fields | {"end": end}, **changes)


@pytest.mark.parametrize("draw", [drawn, gaussian])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_replay_has_exactly_the_inputs_of_the_rollout(draw, positions, monkeypatch):
    model, seen = build(positions=positions), []
    forward = model._hidden

    def watched(tokens, embeddings, *rest):
        seen.append(model.embedding(tokens) if embeddings is None else embeddings.clone())
        return forward(tokens, embeddings, *rest)

    monkeypatch.setattr(model, "_hidden", watched)
    result = draw(model)
    width = result.prompts.shape[1] + result.tokens.shape[1] - 1
    assert torch.equal(torch.cat(seen, dim=1)[:, -width:], result.inputs(model)["embeddings"])


def direct(model, result, form):
    """From all of the logits, sequence by sequence without padding."""
    scored = torch.zeros(result.tokens.shape, dtype=torch.float64)
    for row, pad in enumerate(result.padding.tolist()):
        embeddings = result.inputs(model)["embeddings"][row : row + 1, pad:]
        logits = model(embeddings=embeddings).logits[0, -result.tokens.shape[1] :]
        for step, token in enumerate(result.tokens[row].tolist()):
            if result.soft[row, step]:
                ids, g = result.ids[row, step], result.values[row, step]
                ids, g = (ids[g > -torch.inf], g[g > -torch.inf]) if form != "code" else (ids, g)
                log_p = (logits[step, ids] / result.thinking.temperature).log_softmax(-1)
                if form == "categorical":
                    scored[row, step] = log_p[ids == token]
                    continue
                u = g - log_p if form == "paper" else (g - log_p).clamp(-1.5, 3)[log_p > -3]
                density = -u - torch.exp(-u)
                scored[row, step] = density.sum() if form == "paper" else density.mean()
            elif token >= 0:
                scored[row, step] = (logits[step] / result.temperature).log_softmax(-1)[token]
    return scored


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, {"tie_embeddings": False}, {"loss": LossSettings(exponent=0.5)}])
def test_log_probabilities_are_those_of_the_whole_logits(form, options):
    model = build(**options)
    result = drawn(model, stop=11, temperature=0.8, fields={"temperature": 1.3, "clamp": AUTHORS_CLAMP})
    with torch.no_grad():
        for parameter in model.parameters():  # as after an update: on the policy itself no bound is reached
            parameter += 0.1 * torch.randn_like(parameter)
    torch.testing.assert_close(result.log_probs(model, form=form, chunk=5), direct(model, result, form))


def test_gaussian_soft_tokens_are_scored_by_their_distance_from_the_mixture_as_it_is_now():
    model = build(tie_embeddings=False)
    result = gaussian(model, stop=11, temperature=0.8, fields={"top_p": 0.8})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    hidden = model.hidden(**result.inputs(model))[0][:, result.prompts.shape[1] - 1 :]
    logits = hidden @ model.head_weight.T
    scored = (logits / 0.8).log_softmax(-1).gather(-1, result.tokens.clamp(min=0)[..., None])[..., 0] * result.mask
    ends = 0
    for row, step in result.soft.nonzero().tolist():
        ids = result.ids[row, step][result.values[row, step] > -torch.inf]
        s = (logits[row, step, ids] / 0.5).softmax(-1) @ model.embedding.weight[ids]
        ending = result.tokens[row, step] == result.thinking.end
        scored[row, step] = 0 if ending else -(result.noisy[row, step] - s).square().sum() / (2 * 0.3**2)
        ends += ending
    got = result.log_probs(model, chunk=5)
    assert ends > 0
    torch.testing.assert_close(got, scored)
    parameters = list(model.parameters())
    both = (torch.autograd.grad(x.sum(), parameters) for x in (got, scored))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other)


def test_noisy_inputs_stay_as_they_were_drawn_and_tokens_are_those_of_the_table_now():
    model = build()
    result = gaussian(model)
    with torch.no_grad():
        model.embedding.weight += 1
    inputs = result.inputs(model)["embeddings"][:, result.prompts.shape[1] :]
    noisy = (result.soft & (result.tokens != result.thinking.end))[:, :-1]
    assert torch.equal(inputs[noisy], result.noisy[:, :-1][noisy])
    assert torch.equal(inputs[~noisy], model.embedding(result.tokens[:, :-1][~noisy]))


def test_gaussian_scores_give_a_ratio_of_exactly_1_before_an_update():
    model = build().float()
    result = gaussian(model)
    assert torch.equal(result.log_probs(model), result.log_probs(model).detach())
    width, noisy = 32, result.soft & (result.tokens != result.thinking.end)
    mean = -2 * result.log_probs(model)[noisy].mean() / width  # of squares of normal numbers
    assert mean.item() == pytest.approx(1, abs=0.15)


def test_discrete_tokens_alone_are_rolled_out_replayed_and_scored():
    model = build()
    result = rollout(model, ROWS, None, max_new_tokens=16, temperature=0.8, seed=4)
    assert not result.soft.any() and result.ids.shape == (3, 16, 0)
    logits = [
        model(torch.tensor([[*prompt, *drawn]])).logits[0, len(prompt) - 1 : -1]
        for prompt, drawn in zip(ROWS, result.tokens.tolist(), strict=True)
    ]
    log_p = (torch.stack(logits) / 0.8).log_softmax(-1)
    scores = result.scores(model, entropy=True, chunk=5)
    torch.testing.assert_close(scores.log_probs, log_p.gather(-1, result.tokens[..., None])[..., 0])
    torch.testing.assert_close(scores.entropy, -(log_p.exp() * log_p).sum(-1))


def test_entropies_of_mixtures_and_tokens_have_the_temperature_of_their_draw():
    model = build()
    result = drawn(model, stop=11, temperature=0.8, fields={"temperature": 1.3})
    scores = result.scores(model, entropy=True)
    assert torch.equal(scores.log_probs, result.log_probs(model))
    hidden = model.hidden(**result.inputs(model))[0][:, result.prompts.shape[1] - 1 :]
    temperature = torch.where(result.soft, 1.3, 0.8)[..., None]
    log_p = (hidden @ model.head_weight.T / temperature).log_softmax(-1)
    torch.testing.assert_close(scores.entropy, -(log_p.exp() * log_p).sum(-1) * result.mask)


def test_the_logits_of_a_whole_rollout_never_exist():
    model = build(vocab_size=5000)
    prompts, options = ROWS * 6, {"max_new_tokens": 16, "seed": 0}
    end = rollout(model, prompts, SoftThinking(end=4999), **options).tokens[:, 0].mode().values.item()
    result = rollout(model, prompts, SoftThinking(end=end), **options)
    assert result.soft.sum() > 32 and (~result.soft).sum() > 32
    with Largest() as largest:
        result.scores(model, form="categorical", entropy=True, chunk=4).log_probs.sum().backward()
    assert largest.numbers == 5000 * 32  # the gradient of the weight


def test_a_part_has_the_scores_of_its_sequences():
    model = build()
    result = drawn(model, stop=11)
    result = replace(result, drawn_log_probs=result.log_probs(model).detach())
    for chosen in (slice(1, 3), torch.tensor([2, 0])):
        part = result.part(chosen)
        torch.testing.assert_close(part.log_probs(model), result.log_probs(model)[chosen])
        assert torch.equal(part.drawn_log_probs, result.drawn_log_probs[chosen])
    with pytest.raises(ValueError, match=r"sequences must be a slice or a tensor of places, .* got 0"):
        result.part(0)


def test_the_share_of_true_mixtures_counts_largest_weights():
    result = drawn(build(), stop=11, fields={"top_p": 1.0})
    weights = [
        result.thinking.weights(ids, values).max().item()
        for ids, values in zip(result.ids[result.soft], result.values[result.soft], strict=True)
    ]
    for below in (0.9, 0.6):
        expected = sum(weight < below for weight in weights) / len(weights)
        assert 0 < expected < 1 and result.mixed_share(below).item() == pytest.approx(expected)
    assert rollout(build(), ROWS, max_new_tokens=2).mixed_share() == 0


def test_the_gap_is_the_mean_divergence_from_what_was_kept_when_drawing():
    model = build()
    result = drawn(model, stop=11)
    with pytest.raises(ValueError, match="drawn_log_probs must be kept for the gap, got None"):
        result.gap(model)
    kept = replace(result, drawn_log_probs=result.log_probs(model).detach() + 0.1)
    estimate = kl_estimate(torch.tensor(0.1), torch.tensor(0.0)).item()
    assert kept.gap(model).item() == pytest.approx(estimate) and estimate == pytest.approx(0.00484, abs=1e-5)


def test_the_estimate_of_the_divergence_has_its_mean():
    p, q = (torch.tensor(shares, dtype=torch.float64).log() for shares in ((0.7, 0.2, 0.1), (0.5, 0.1, 0.4)))
    exact = (p.exp() * (p - q)).sum()
    torch.testing.assert_close((p.exp() * kl_estimate(p, q)).sum(), exact)
    assert (kl_estimate(p, q) >= 0).all()


def test_after_its_end_a_sequence_has_no_log_probability():
    model = build()
    free = drawn(model)
    stop = free.tokens[0, 12].item()
    result = drawn(model, stop=stop)
    ended = result.tokens < 0
    assert ended.any() and (result.log_probs(model)[ended] == 0).all() and not result.soft[ended].any()


@pytest.mark.parametrize("form", FORMS)
def test_recomputed_log_probabilities_give_a_ratio_of_exactly_1(form):
    model = build().float()
    result = drawn(model)
    old = result.log_probs(model, form=form).detach()
    ratio = (result.log_probs(model, form=form) - old).exp()
    assert (ratio == 1).all()


def test_gradients_reach_every_parameter_but_not_through_the_weights_of_a_mixture():
    model = build()
    result = drawn(model)
    result.log_probs(model).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    assert not result.thinking.weights(result.ids, result.values).requires_grad


def test_mixtures_without_noise_have_no_score():
    model = build()
    result = rollout(model, ROWS, SoftThinking(end=39, noise="none"), max_new_tokens=4)
    with pytest.raises(ValueError, match="noise must be gumbel or gaussian for mixtures to have a score, got none"):
        result.scores(model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0 in rollouts, got 0.0"),
        ({"max_new_tokens": 30}, "must fit in the context of 32, got 4 and 30"),
        ({"fields": {"end": 40}}, "end must be a token from 0 to 39, got 40"),
    ],
)
def test_what_cannot_be_rolled_out_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        drawn(build(), **changes)


def test_a_head_with_a_bias_is_not_scored_without_it():
    model = build()
    result = rollout(model, ROWS, None, max_new_tokens=4, seed=0)
    model.head = torch.nn.Linear(*model.head_weight.shape[::-1], dtype=torch.float64)
    with pytest.raises(ValueError, match="model must have a head without a bias, got Linear with one"):
        result.log_probs(model)


@pytest.mark.parametrize("thinking", [None, SoftThinking(end=39, noise="gaussian", sigma=0.3), SoftThinking(end=39)])
def test_a_form_that_there_is_not_is_named_whatever_was_drawn(thinking):
    model = build()
    result = rollout(model, ROWS, thinking, max_new_tokens=4, seed=0)
    with pytest.raises(ValueError, match="form must be paper, code or categorical, got 'papre'"):
        result.log_probs(model, form="papre")


class Adapted(torch.nn.Module):
    """As adapters are put around a layer: the weight it shows is not all that it looks up."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.weight = inner, inner.weight
        self.added = torch.nn.Embedding(*inner.weight.shape).double()

    def forward(self, tokens):
        return self.inner(tokens) + self.added(tokens)


@pytest.mark.parametrize("kind", ["trained in its place", "compiled", "parametrized"])
def test_an_embedding_that_shows_its_whole_table_thinks_as_it_would_alone(kind):
    model = build()
    expected = drawn(model)
    if kind == "compiled":
        model.embedding = torch.compile(model.embedding, backend="eager")
    elif kind == "parametrized":
        torch.nn.utils.parametrize.register_parametrization(model.embedding, "weight", torch.nn.Identity())
    else:
        model.embedding = Replaced(model.embedding)
    found = drawn(model)
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.log_probs(model), expected.log_probs(model))


class Replaced(torch.nn.Module):
    """As PEFT wraps a layer of which it trains a copy."""

    def __init__(self, inner):
        super().__init__()
        self.original_module = torch.nn.Embedding(*inner.weight.shape).double()
        self.modules_to_save = torch.nn.ModuleDict({"default": inner})

    @property
    def weight(self):
        return self.modules_to_save["default"].weight

    def forward(self, tokens):
        return self.modules_to_save["default"](tokens)


def test_an_adapter_around_the_embedding_is_refused_with_mixtures_and_counts_without_them():
    model, message = build(), "model must have an embedding that is its table alone with soft thinking, got Adapted"
    before = drawn(model)
    model.embedding = Adapted(model.embedding)
    with pytest.raises(ValueError, match=message):
        generate(model, ROWS, thinking=before.thinking)
    with pytest.raises(ValueError, match=message):
        drawn(model)
    with pytest.raises(ValueError, match=message):
        before.log_probs(model)
    assert rollout(model, ROWS, None, max_new_tokens=8, seed=0, log_probs=True).gap(model) < 1e-12
