"""`GPT` as a causal language model of transformers: the shell with its head, its loss and generation."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import logging

from longshort.hf.backbone import Inputs, TiedHead, between
from longshort.hf.cache import LongShortCache
from longshort.hf.config import LongShortConfig
from longshort.hf.shell import LongShortPreTrainedModel, given_input
from longshort.model import GPT
from longshort.model.inputs import IGNORED_TARGET

_logger = logging.get_logger(__name__)


class LongShortForCausalLM(LongShortPreTrainedModel, GenerationMixin):
    """A language model in which each attention head has its own reach, for use anywhere in transformers.

    `model.model` is the `GPT`; `LongShortForCausalLM.from_gpt(gpt)` wraps an existing one. `model.base_model` is the
    same without the head, called as transformers' base models are: see `Backbone`.

    >>> from longshort import GPTConfig
    >>> model = LongShortForCausalLM.from_gpt(GPT(GPTConfig.preset("tiny"))).eval()
    >>> model.generate(torch.ones(1, 5, dtype=torch.long), max_new_tokens=8).shape
    torch.Size([1, 13])
    """

    def __init__(self, config: LongShortConfig) -> None:
        super().__init__(config)
        if config.tie_word_embeddings:
            self.tied_head = TiedHead(self.get_input_embeddings)
        self.post_init()

    @classmethod
    def from_gpt(cls, gpt: GPT, **more: Any) -> LongShortForCausalLM:
        """Wrap this `GPT`, sharing its weights; `more` are further fields of `LongShortConfig`."""
        if not gpt.causal:
            raise ValueError("gpt must be causal, as transformers expects of this class, got a two-sided one")
        config = LongShortConfig.from_gpt(gpt.config, dtype=gpt.embedding.weight.dtype, **more)
        with torch.device("meta"):
            model = cls(config)
        model.model = gpt
        return model.train(gpt.training)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: LongShortCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple:
        """Predict the token after each position.

        Args:
            input_ids: (B, T) tokens; or give `inputs_embeds` (B, T, hidden_size).
            attention_mask: (B, cached + T), 0 for padding, on either side. Without `position_ids`, positions count
                from the first token of each sequence that is not padding.
            position_ids: (T,) or (B, T). Without a mask, a position that does not follow the previous one begins a new
                segment (sequences packed without padding).
            past_key_values: a `LongShortCache`. There are no gradients then.
            labels: (B, T) the tokens themselves: the shift by one is done here. -100 is left out of the loss.
            use_cache: return a cache; if None, the configuration decides where no gradients are needed. Never with
                labels or in training mode.
            output_hidden_states: return the embeddings and each block's output, the last one normalised.
            logits_to_keep: return logits of this many last positions, or of these positions; of all if 0.
            skip_logits: return the loss alone: the (B, T, vocab_size) logits then never exist.
            num_items_in_batch: the loss is the sum over tokens divided by this, as the Trainer expects.
            kwargs: `shift_labels` (B, T), labels already shifted; the rest, of which transformers passes much, is
                ignored. (A parameter of that name would make the Trainer treat batches with only `labels` as
                unlabelled.)
        """
        if isinstance(logits_to_keep, int) and logits_to_keep < 0:
            raise ValueError(f"logits_to_keep must be 0 (all positions), a count or positions, got {logits_to_keep}")
        targets = _targets(labels, kwargs.get("shift_labels"))
        shape = given_input(input_ids, inputs_embeds).shape[:2]
        for name, given in (("labels", labels), ("shift_labels", kwargs.get("shift_labels"))):
            if given is not None and getattr(given, "shape", None) != shape:
                came = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
                raise ValueError(f"{name} must have shape {tuple(shape)}, got {came}")
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        inputs = Inputs(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, output_attentions
        )
        output, states, cache = self._run_gpt(
            inputs,
            targets=targets,
            watched=between(self.model) if wanted else (),
            return_logits=not skip_logits,
            last_logits=logits_to_keep if isinstance(logits_to_keep, int) and logits_to_keep else None,
        )
        logits = output.logits
        if isinstance(logits_to_keep, Tensor) and logits is not None:
            logits = logits[:, logits_to_keep]
        result = CausalLMOutputWithPast(
            loss=_scaled(output.loss, targets, num_items_in_batch),
            logits=logits,
            past_key_values=cache,
            hidden_states=tuple(states) if wanted else None,
        )
        return self._as_wanted(result, return_dict)

    def _states(self, inputs: Inputs, output_hidden_states: bool | None) -> BaseModelOutputWithPast:
        for name, plain in (("score_exponent", 1), ("final_logit_softcapping", None)):
            if (value := getattr(self.config, name)) != plain:
                raise ValueError(
                    f"{name} must be {plain} for base_model, got {value}: the head's weight times last_hidden_state "
                    "would not be the logits; call the model with output_hidden_states=True instead"
                )
        return super()._states(inputs, output_hidden_states)

    def get_output_embeddings(self) -> nn.Module:
        """The head; if tied, a `TiedHead`, whose weight is the embedding's."""
        return self.tied_head if self.model.head is None else self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        if not isinstance(new_embeddings, TiedHead):  # which stays what it is when the embedding is replaced
            self.model.head = new_embeddings

    def _prepare_generated_length(self, **settings: Any) -> Any:  # type: ignore[override]
        """Text must end with the learned positions: a pipeline asks for 256 new tokens, which may be too many."""
        prepared = super()._prepare_generated_length(**settings)  # type: ignore[misc]
        context, written = self.config.max_position_embeddings, settings["input_ids_length"]
        room = context + 1 - settings["inputs_tensor"].shape[1]  # the last token does not go through the model again
        if self.model.position_embedding is not None and 0 < room < prepared.max_length - written:
            if not prepared.is_assistant:
                _logger.warning_once(
                    f"text ends after {room} new tokens, at the end of the {context} learned positions"
                )
            prepared.max_length = written + room
        return prepared

    def _get_candidate_generator(self, *args: Any, **settings: Any) -> Any:
        """Drafts must end with the learned positions: prompt lookup goes on for as long as it finds text, and an
        assistant may have fewer positions."""
        wanted = args[0] if args else settings["generation_config"]
        if wanted.assistant_early_exit is not None:
            raise ValueError(f"assistant_early_exit must be None for this model, got {wanted.assistant_early_exit}")
        generator: Any = super()._get_candidate_generator(*args, **settings)  # type: ignore[misc]
        draft, longest = generator.get_candidates, wanted.max_length - 1
        assistant = settings.get("assistant_model")
        table = assistant.model.position_embedding if isinstance(assistant, LongShortForCausalLM) else None

        def within_reach(input_ids: Tensor, *args: Any, **settings: Any) -> tuple[Tensor, Tensor | None]:
            length = input_ids.shape[1]
            if table is not None and length > table.num_embeddings:
                return input_ids, None
            tokens, logits = draft(input_ids, *args, **settings)
            room = max(0, longest - length)
            return tokens[:, : length + room], None if logits is None else logits[:, :room]

        generator.get_candidates = within_reach
        return generator

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: transformers would note the failure in its log and return the prompts."""
        raise ValueError(
            "this model does not run with continuous batching (generate_batch, cache_implementation='paged'), which "
            "needs attention over a paged cache: call generate"
        )

    def _prepare_cache_for_generation(  # type: ignore[override]
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        """Otherwise `generate` makes a `DynamicCache`, which keeps everything for every head."""
        given = model_kwargs.get("past_key_values")
        if given is not None or generation_config.use_cache is False:
            self._refuse(None, given)
            super()._prepare_cache_for_generation(  # type: ignore[misc]
                generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
            )
            return
        if (reason := self._why_no_cache()) is not None:
            raise ValueError(f"use_cache must be False for this model: {reason}")
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic", "static"):
            raise ValueError(f"cache_implementation must be None, dynamic or static for this model, got {kind!r}")
        cache = LongShortCache(self.config, max_length=max_cache_length if kind == "static" else None)
        if generation_config.is_assistant:
            cache.activate_past_recording()
        model_kwargs["past_key_values"] = cache


def _targets(labels: Tensor | None, shift_labels: Tensor | None) -> Tensor | None:
    """What each position must predict."""
    if shift_labels is not None or labels is None:
        return shift_labels
    return F.pad(labels, (0, 1), value=IGNORED_TARGET)[:, 1:].long()


def _scaled(loss: Tensor | None, targets: Tensor | None, items: Tensor | int | None) -> Tensor | None:
    """The mean over targets as a sum over them divided by `items`."""
    if loss is None or targets is None or items is None:
        return loss
    items = items.to(loss.device) if isinstance(items, Tensor) else items
    return loss * (targets != IGNORED_TARGET).sum() / items
