"""Soft thinking with any causal model of transformers: rollouts, and what the model gives to the tokens it drew.

The draws and the scores are those of `longshort.generation` and `longshort.rl`. Here the model is called as all models
of transformers are: with embeddings, a mask of padded batches, and its own cache.

Shapes: B sequences, P columns of the prompts padded on the left, T new tokens, k tokens of a mixture, C width.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longshort.generation import Sampling, SoftThinking
from longshort.generation.arguments import adds_to_its_weight
from longshort.generation.draws import Draws, tokens_of
from longshort.numeric import check_count
from longshort.rl import Rollout, Scores, soft_log_probs, token_scores
from longshort.rl.log_probs import Form

_BESIDE_THE_HEAD = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "logits_mup_width_multiplier",
    "logits_soft_cap",
    "output_logit_soft_cap",
    "lm_head_multiplier",
    "output_multiplier",
    "score_exponent",
)
"""Settings of models whose logits are more than the product of the head and the hidden state."""


@torch.no_grad()
def soft_rollout(
    model: Any,
    prompts: Tensor,
    mask: Tensor,
    thinking: SoftThinking,
    *,
    max_new_tokens: int,
    sampling: Sampling,
    stops: Sequence[int],
) -> Rollout:
    """Think and write after each prompt: mixtures until the end mark, then tokens drawn by `sampling`.

    It draws from torch's global generators, as transformers' `generate` does.

    Args:
        model: a causal model of transformers, in evaluation mode.
        prompts: (B, P) tokens, padded on the left.
        mask: (B, P) 0 for padding.
        max_new_tokens: length at which a sequence is cut.
        stops: tokens that end a sequence, also while it thinks.

    >>> from longshort import GPT, GPTConfig
    >>> from longshort.hf import LongShortForCausalLM
    >>> model = LongShortForCausalLM.from_gpt(GPT(GPTConfig.preset("tiny"))).eval()
    >>> prompts = torch.tensor([[1, 2, 3], [0, 0, 4]])
    >>> drawn = soft_rollout(
    ...     model, prompts, (prompts > 0).long(), SoftThinking(end=10), max_new_tokens=6, sampling=Sampling(), stops=()
    ... )
    >>> drawn.tokens.shape, soft_scores(model, drawn).log_probs.shape
    (torch.Size([2, 6]), torch.Size([2, 6]))
    """
    _check_thinking(thinking)
    check_count("max_new_tokens", max_new_tokens)
    if not bool((mask[:, :-1] <= mask[:, 1:]).all() and mask[:, -1].all()):
        raise ValueError("mask must be 0 before each prompt alone, which is padded on the left, got one that is not so")
    embedding = model.get_input_embeddings()
    vocabulary, device = len(model.get_output_embeddings().weight), prompts.device
    if thinking.end >= vocabulary:
        raise ValueError(f"end must be a token from 0 to {vocabulary - 1}, got {thinking.end}")
    draws = Draws(
        len(prompts),
        max_new_tokens,
        sampling=sampling,
        thinking=thinking,
        stops=stops,
        vocabulary=vocabulary,
        device=device,
        table=embedding.weight,
    )
    draws.note_prompt(tokens_of(prompts, mask > 0, vocabulary))
    last = {"logits_to_keep": 1} if _takes(model, "logits_to_keep") else {}
    inputs, positions, cache = embedding(prompts), _positions(mask), None
    for count in range(1, max_new_tokens + 1):
        more = {"position_ids": positions} if _takes(model, "position_ids") else {}
        output = model(inputs_embeds=inputs, attention_mask=mask, past_key_values=cache, use_cache=True, **more, **last)
        cache = output.past_key_values
        if cache is None:
            raise ValueError(f"model must return past_key_values for rollouts, got none from {type(model).__name__}")
        draws.step(output.logits[:, -1].float())
        if count == max_new_tokens or draws.ended.all():
            break
        new = slice(count - 1, count)
        inputs = _embedded(
            embedding, thinking, draws.tokens[:, new], draws.soft[:, new], draws.ids[:, new], draws.values[:, new]
        )
        mask, positions = F.pad(mask, (0, 1), value=1), positions[:, -1:] + 1
    return Rollout(
        prompts=prompts,
        padding=prompts.shape[1] - (mask[:, : prompts.shape[1]] > 0).sum(1),
        tokens=draws.tokens[:, :count],
        thinking=thinking,
        soft=draws.soft[:, :count],
        ids=draws.ids[:, :count],
        values=draws.values[:, :count],
        temperature=sampling.temperature,
    )


def soft_scores(model: Any, drawn: Rollout, *, form: Form = "paper") -> Scores:
    """What the model gives each token of a rollout, each (B, T): log-probabilities and entropies; 0 after the end.

    As `Rollout.scores` has it for a `GPT`: mixtures by `soft_log_probs` on the values that were stored, tokens by their
    log-probability in the whole vocabulary. The entropy is that of the whole vocabulary at the rollout's temperature.
    """
    _check_thinking(drawn.thinking)
    assert drawn.thinking is not None
    if drawn.thinking.noise == "none" and form != "categorical":
        raise ValueError(f"noise must be gumbel for mixtures to have a score in the form {form}, got none")
    check_head(model)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    before = slice(0, -1)  # no prediction follows the last token
    inputs = _embedded(
        embedding,
        drawn.thinking,
        drawn.tokens[:, before],
        drawn.soft[:, before],
        drawn.ids[:, before],
        drawn.values[:, before],
    )
    column = torch.arange(drawn.prompts.shape[1] + inputs.shape[1], device=inputs.device)
    mask = (column >= drawn.padding[:, None]).long()
    more = {"position_ids": _positions(mask)} if _takes(model, "position_ids") else {}
    hidden = model.base_model(
        inputs_embeds=torch.cat((embedding(drawn.prompts), inputs), dim=1),
        attention_mask=mask,
        use_cache=False,
        **more,
    ).last_hidden_state
    hidden = hidden[:, drawn.prompts.shape[1] - 1 :].flatten(0, 1)
    places, soft = (x.flatten().nonzero()[:, 0] for x in (drawn.mask, drawn.soft))
    of_tokens = token_scores(hidden[places], head.weight, drawn.tokens.flatten()[places], temperature=drawn.temperature)
    of_soft = soft_log_probs(
        hidden[soft],
        head.weight,
        drawn.ids.flatten(0, 1)[soft],
        drawn.values.flatten(0, 1)[soft],
        form=form,
        clamp=drawn.thinking.clamp if form == "code" else None,
        temperature=drawn.thinking.temperature,
    )
    empty = torch.zeros(drawn.tokens.numel(), dtype=of_soft.dtype, device=hidden.device)
    log_probs = empty.index_put((places,), of_tokens.log_probs).index_put((soft,), of_soft)
    entropy = empty.index_put((places,), of_tokens.entropy)  # type: ignore[arg-type]
    return Scores(log_probs.view(drawn.tokens.shape), entropy.view(drawn.tokens.shape))


def _check_thinking(thinking: SoftThinking | None) -> None:
    if not isinstance(thinking, SoftThinking):
        raise ValueError(f"thinking must be a SoftThinking, got {thinking!r}")
    if thinking.noise == "gaussian":
        raise ValueError("noise must be gumbel or none with a model of transformers, got gaussian")


def check_head(model: Any) -> None:
    """Raise unless the model's logits are the product of its head and the hidden state, as they are scored."""
    config, head = bare(model).config.get_text_config(), bare(model).get_output_embeddings()
    for name in _BESIDE_THE_HEAD:
        if getattr(config, name, None) not in (None, 1):
            raise ValueError(f"{name} must be None or 1 with soft thinking, got {getattr(config, name)}")
    if getattr(head, "bias", None) is not None:
        raise ValueError(f"model must have a head without a bias, got {type(head).__name__} with one")
    if adds_to_its_weight(head):
        raise ValueError(f"model must have a head that is its weight matrix alone, got {type(head).__name__}")


def _embedded(
    embedding: nn.Module, thinking: SoftThinking, tokens: Tensor, soft: Tensor, ids: Tensor, values: Tensor
) -> Tensor:
    """(B, n, C): what enters the model for tokens (B, n), of which some are mixtures.

    The layer is called, unlike in `generation.mixed`, which knows its table: some models' layers scale what they read.
    """
    single = embedding(tokens.clamp(min=0))
    weights = thinking.weights(ids, values).to(single.dtype)
    parts = (embedding(ids[..., i]) * weights[..., i : i + 1] for i in range(ids.shape[-1]))
    return torch.where(soft[..., None], reduce(torch.add, parts), single)


def _positions(mask: Tensor) -> Tensor:
    """(B, n): they count from the first token of each sequence that is not padding."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def bare(model: Any) -> Any:
    """The model inside a wrapper such as PEFT's."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _takes(model: Any, name: str) -> bool:
    return name in inspect.signature(type(bare(model)).forward).parameters
