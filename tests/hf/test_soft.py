"""Soft thinking with models of transformers: what is drawn, and that replay gives what drawing gave."""

import importlib
import sys
from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from longshort.generation import Sampling, SoftThinking
from longshort.generation.draws import tokens_of
from longshort.hf.soft import soft_rollout, soft_scores
from longshort.rl import FORMS, rollout

from .small import shell

END, STOP = 10, 11
THINKING = SoftThinking(end=END, top_k=4, tau=1.0)
PROMPTS = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 5], [0, 0, 0, 0, 9]])
MASK = (PROMPTS > 0).long()


def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=24, max_position_embeddings=64, initializer_range=0.3, **sizes))


def gpt2():
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=24, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3)
    )


MODELS = {"ours": lambda: shell(vocab_size=24), "tied": lambda: shell(vocab_size=24, tie_embeddings=True)}
MODELS |= {"llama": llama, "gpt2": gpt2}


@pytest.fixture(params=MODELS, scope="module")
def model(request):
    return MODELS[request.param]().eval()


def drawn(model, prompts=PROMPTS, mask=MASK, thinking=THINKING, count=20, stops=(STOP,), **sampling):
    torch.manual_seed(1)
    return soft_rollout(
        model, prompts, mask, thinking, max_new_tokens=count, sampling=Sampling(**sampling), stops=stops
    )


def test_mixtures_come_until_the_end_mark_and_tokens_after_it(model):
    rollout = drawn(model)
    for tokens, soft in zip(rollout.tokens.tolist(), rollout.soft.tolist(), strict=True):
        length = len([token for token in tokens if token >= 0])
        thought = [i + 1 for i, token in enumerate(tokens[:length]) if token in (END, STOP)]
        assert soft == [i < (thought[0] if thought else length) for i in range(len(tokens))]
        assert STOP not in tokens[: length - 1]
    assert rollout.soft.any() and (rollout.mask & ~rollout.soft).any()


def test_a_rollout_ends_with_its_longest_sequence(model):
    everything = tuple(range(24))
    assert drawn(model, stops=everything).tokens.shape == (3, 1)


def test_replay_sees_what_the_rollout_saw(model):
    # The log-probability that the draw itself had: g - noise, in the draw, is log p renormalised over the tokens kept.
    quiet = SoftThinking(end=END, top_k=4, tau=1.0, noise="none")
    rollout = drawn(model, thinking=quiet, stops=())
    expected = rollout.values.amax(-1)[rollout.soft]
    found = soft_scores(model, rollout, form="categorical").log_probs[rollout.soft]
    assert len(expected) > 10
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tied", [False, True])
def test_scores_are_those_of_the_gpt_inside(form, tied):
    model = shell(vocab_size=24, tie_embeddings=tied)
    bounded = drawn(model, thinking=replace(THINKING, clamp=(-1.0, 1.0)))
    expected = bounded.scores(model.model, form=form).log_probs
    torch.testing.assert_close(soft_scores(model, bounded, form=form).log_probs, expected)
    rollout = drawn(model, temperature=0.7)  # noise at a bound has a gradient or none as it is rounded
    ours, inside = soft_scores(model, rollout, form=form), rollout.scores(model.model, form=form)
    torch.testing.assert_close(ours.log_probs, inside.log_probs)
    gradients = []
    for scores in (ours, inside):
        model.zero_grad()
        scores.log_probs.sum().backward()
        gradients.append([weight.grad.clone() for weight in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_padding_changes_nothing(model):
    rollout = drawn(model)
    together = soft_scores(model, rollout)
    for i, prompt in enumerate(PROMPTS):
        bare = {"prompts": prompt[None, -MASK[i].sum() :], "padding": torch.zeros(1, dtype=torch.long)}
        scores = soft_scores(model, replace(rollout.part(slice(i, i + 1)), **bare))
        torch.testing.assert_close(scores.log_probs[0], together.log_probs[i], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(scores.entropy[0], together.entropy[i], rtol=1e-4, atol=1e-4)


def test_entropies_are_those_of_the_whole_vocabulary(model):
    rollout = drawn(model, thinking=SoftThinking(end=END, top_k=1), temperature=0.5)  # greedy: inputs are tokens
    tokens = torch.cat((PROMPTS, rollout.tokens.clamp(min=0)), dim=1)
    mask = torch.cat((MASK, torch.ones_like(rollout.tokens)), dim=1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(tokens, attention_mask=mask, position_ids=positions, use_cache=False).logits[:, 4:-1] / 0.5
    expected = torch.distributions.Categorical(logits=logits).entropy().masked_fill(~rollout.mask, 0)
    torch.testing.assert_close(soft_scores(model, rollout).entropy, expected, rtol=1e-4, atol=1e-4)


def test_a_model_without_a_cache_is_refused():
    model = shell(vocab_size=24, attention_chunk=8, n_global=None, window=None)
    with pytest.raises(ValueError, match="chunk must be None for decoding with a cache"):
        drawn(model)


def test_without_trl_its_trainer_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "longshort.hf.trl", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'longshort\[trl\]'"):
        importlib.import_module("longshort.hf.trl")


def test_mixtures_without_noise_have_no_score():
    model = llama().eval()
    rollout = drawn(model, thinking=replace(THINKING, noise="none"))
    with pytest.raises(
        ValueError, match="noise must be gumbel for mixtures to have a score in the form paper, got none"
    ):
        soft_scores(model, rollout)


def test_a_padding_token_that_stands_in_the_prompt_too_counts_as_seen():
    prompts, mask = torch.tensor([[5, 6, 0, 0]]), torch.tensor([[1, 1, 0, 0]])
    assert tokens_of(prompts, mask > 0, 8)[0].nonzero()[:, 0].tolist() == [5, 6]
    chat, real = torch.tensor([[5, 0, 6, 0, 0]]), torch.tensor([[True, True, True, False, False]])  # 0 ends turns too
    assert tokens_of(chat, real, 8)[0, 0] and tokens_of(chat.flip(1), real.flip(1), 8)[0, 0]


def test_a_model_whose_logits_are_more_than_its_head_is_not_scored():
    model = llama().eval()
    drawn = soft_rollout(model, PROMPTS, MASK, THINKING, max_new_tokens=4, sampling=Sampling(), stops=())
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(ValueError, match=r"final_logit_softcapping must be None or 1 with soft thinking, got 30\.0"):
        soft_scores(model, drawn)
    del model.config.final_logit_softcapping
    model.lm_head = torch.nn.Linear(32, 24)
    with pytest.raises(ValueError, match="model must have a head without a bias, got Linear with one"):
        soft_scores(model, drawn)


@pytest.mark.parametrize("name", ["logits_mup_width_multiplier", "logits_soft_cap", "output_logit_soft_cap"])
def test_other_names_of_a_scale_and_of_a_softcap_are_known(name):
    model = llama().eval()  # those of Inkling, RecurrentGemma and xLSTM
    setattr(model.config, name, 24.0)
    with pytest.raises(ValueError, match=rf"{name} must be None or 1 with soft thinking, got 24\.0"):
        soft_scores(model, drawn(model))


class Adapted(torch.nn.Module):
    """As adapters are put around a layer: the weight it shows is not all that it computes with."""

    bias = None

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer, self.added = base_layer, torch.nn.Linear(32, 24, bias=False)

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, hidden):
        return self.base_layer(hidden) + self.added(hidden)


def test_a_head_with_an_adapter_is_not_scored_as_if_it_had_none():
    model = llama().eval()
    model.lm_head = Adapted(model.lm_head)
    with pytest.raises(ValueError, match="model must have a head that is its weight matrix alone, got Adapted"):
        soft_scores(model, drawn(model))


def test_a_head_that_is_trained_and_saved_in_place_of_another_is_scored():
    model = llama().eval()
    rollout = drawn(model)
    head = torch.nn.Module()  # as PEFT makes them
    head.original_module, head.modules_to_save = torch.nn.Linear(32, 24, bias=False), torch.nn.ModuleDict()
    head.modules_to_save["default"] = model.lm_head
    head.weight, head.bias = model.lm_head.weight, None
    expected = soft_scores(model, rollout).log_probs
    model.lm_head = head
    assert torch.equal(soft_scores(model, rollout).log_probs, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": MASK.flip(1)}, "mask must be 0 before each prompt alone, which is padded on the left"),
        ({"mask": MASK * 0}, "mask must be 0 before each prompt alone, which is padded on the left"),
        ({"thinking": replace(THINKING, end=24)}, "end must be a token from 0 to 23, got 24"),
        ({"thinking": None}, "thinking must be a SoftThinking, got None"),
        ({"count": 0}, r"max_new_tokens must be an integer from 1 to 2\^31 - 1, got 0"),
    ],
)
def test_what_cannot_be_drawn_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        drawn(llama().eval(), **options)


@pytest.mark.parametrize(
    ("thinking", "message"),
    [
        (None, "thinking must be a SoftThinking, got None"),
        (SoftThinking(end=END, noise="gaussian", sigma=0.3), "noise must be gumbel or none with a model"),
    ],
)
def test_what_was_drawn_otherwise_is_not_scored(thinking, message):
    model = shell(vocab_size=24).eval()
    with pytest.raises(ValueError, match=message):
        soft_scores(model, rollout(model.model, [[1, 2]], thinking, max_new_tokens=4, seed=0))
