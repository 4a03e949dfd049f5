"""`GPT` as a transformers model: a shell that translates names, masks and caches and computes nothing itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import logging

from longshort.files import write_atomically
from longshort.hf.backbone import Backbone, TiedHead, between, outputs_of
from longshort.hf.cache import LongShortCache
from longshort.hf.config import LongShortConfig
from longshort.hf.masks import layout
from longshort.model import GPT
from longshort.model.gpt import IGNORED_TARGET, GPTOutput

_logger = logging.get_logger(__name__)

_CODE_FILE = "longshort_classes.py"
_CODE = '''"""Names the classes of the package longshort (pip install 'longshort[hf]') for trust_remote_code=True."""

from longshort.hf import LongShortConfig, LongShortForCausalLM

__all__ = ["LongShortConfig", "LongShortForCausalLM"]
'''
"""A file in saved folders for programs that cannot `import longshort.hf`: `trust_remote_code=True` finds it."""


class LongShortForCausalLM(PreTrainedModel, GenerationMixin):
    """A language model in which each attention head has its own reach, for use anywhere in transformers.

    `model.model` is the `GPT`; `LongShortForCausalLM.from_gpt(gpt)` wraps an existing one. `model.base_model` is the
    same without the head, called as transformers' base models are: see `Backbone`.

    >>> from longshort import GPTConfig
    >>> model = LongShortForCausalLM.from_gpt(GPT(GPTConfig.preset("tiny"))).eval()
    >>> model.generate(torch.ones(1, 5, dtype=torch.long), max_new_tokens=8).shape
    torch.Size([1, 13])
    """

    config: LongShortConfig
    config_class = LongShortConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 (transformers' own form)
    _input_embed_layer = "embedding"

    def __init__(self, config: LongShortConfig) -> None:
        super().__init__(config)
        self.model = GPT(config.to_gpt())
        if config.tie_word_embeddings:
            self.tied_head = TiedHead(self.get_input_embeddings)
        self.post_init()

    @classmethod
    def from_gpt(cls, gpt: GPT, **more: Any) -> LongShortForCausalLM:
        """Wrap this `GPT`, sharing its weights; `more` are further fields of `LongShortConfig`."""
        if not gpt.blocks[0].attention.causal:  # type: ignore[union-attr]
            raise ValueError("gpt must be causal, as transformers expects of this class, got a two-sided one")
        config = LongShortConfig.from_gpt(gpt.config, dtype=gpt.embedding.weight.dtype, **more)
        with torch.device("meta"):
            model = cls(config)
        model.model = gpt
        return model.train(gpt.training)

    @property
    def base_model(self) -> Backbone:
        """The model without its head; `base_model_prefix` still names the `GPT`, whose weights it shares."""
        return Backbone(self.model, self.config, self._run_gpt)

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
        shape = _given(input_ids, inputs_embeds).shape[:2]
        if labels is not None and labels.shape != shape:
            raise ValueError(f"labels must have shape {tuple(shape)}, got {tuple(labels.shape)}")
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        output, states, cache = self._run_gpt(
            input_ids,
            attention_mask,
            position_ids,
            past_key_values,
            inputs_embeds,
            use_cache,
            output_attentions,
            targets=targets,
            watched=between(self.model) if wanted else (),
            return_logits=not skip_logits,
            last_logits=logits_to_keep if isinstance(logits_to_keep, int) and logits_to_keep else None,
        )
        logits = output.logits
        if isinstance(logits_to_keep, Tensor) and logits is not None:
            logits = logits[:, logits_to_keep]
        result = CausalLMOutputWithPast(
            loss=_scaled(output.loss, targets, num_items_in_batch),  # type: ignore[arg-type]
            logits=logits,  # type: ignore[arg-type]
            past_key_values=cache,
            hidden_states=tuple(states) if wanted else None,  # type: ignore[arg-type]
        )
        as_dict = self.config.return_dict if return_dict is None else return_dict
        return result if as_dict else result.to_tuple()

    def _run_gpt(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        past_key_values: LongShortCache | None,
        inputs_embeds: Tensor | None,
        use_cache: bool | None,
        output_attentions: bool | None,
        *,
        targets: Tensor | None = None,
        watched: Iterable[nn.Module],
        **options: Any,
    ) -> tuple[GPTOutput, list[Tensor], LongShortCache | None]:
        """The `GPT`'s output for inputs in transformers' terms, what the modules `watched` put out, and the cache.

        The first arguments are those of `forward`, `options` those of `GPT`.
        """
        self._refuse(output_attentions, past_key_values)
        given = _given(input_ids, inputs_embeds)
        batch_size, length = given.shape[:2]
        cache = past_key_values
        if cache is None and self._wants_cache(use_cache, targets):
            cache = LongShortCache(self.config)
        past = 0 if cache is None else cache.get_seq_length()
        positions, segments = layout(attention_mask, position_ids, batch_size=batch_size, past=past, new=length)
        self._check_length(past + length, positions)
        with outputs_of(watched) as states:
            output = self.model(
                input_ids,
                targets,
                embeddings=inputs_embeds,
                segments=segments,
                positions=positions,
                cache=None if cache is None else cache.opened(self.model, batch_size, given.device),
                **options,
            )
        return output, states, cache

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embedding = value

    def get_output_embeddings(self) -> nn.Module:
        """The head; if tied, a `TiedHead`, whose weight is the embedding's."""
        return self.tied_head if self.model.head is None else self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        if not isinstance(new_embeddings, TiedHead):  # which stays what it is when the embedding is replaced
            self.model.head = new_embeddings

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As in transformers; also updates the vocabulary of the `GPT`."""
        embedding = super().resize_token_embeddings(*args, **kwargs)
        self.model.config = self.config.to_gpt()
        return embedding

    def save_pretrained(self, save_directory: Any, is_main_process: bool = True, **options: Any) -> None:  # type: ignore[override]
        """As in transformers, plus a file that names the classes: see `_CODE`."""
        module = _CODE_FILE.removesuffix(".py")
        self.config.auto_map = {
            "AutoConfig": f"{module}.LongShortConfig",
            "AutoModelForCausalLM": f"{module}.LongShortForCausalLM",
        }
        if is_main_process and not Path(save_directory).is_file():
            write_atomically(Path(save_directory, _CODE_FILE), _CODE)
        super().save_pretrained(save_directory, is_main_process, **options)

    def _init_weights(self, module: nn.Module) -> None:
        """Let the `GPT`, which knows the projections into the residual stream, draw the weights.

        transformers calls this for each module that has weights of its own that were not loaded.
        """
        for name, part in self.model.named_modules():
            if part is module:
                self.model.init_module(name, part)

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

    def _wants_cache(self, use_cache: bool | None, targets: Tensor | None) -> bool:
        if targets is not None or self.training:
            return False
        if use_cache is not None:
            return use_cache
        return bool(self.config.use_cache and not torch.is_grad_enabled() and self._why_no_cache() is None)

    def _why_no_cache(self) -> str | None:
        try:
            self.model.blocks[0].attention.check_cacheable()
        except ValueError as problem:
            return str(problem)
        return None

    def _refuse(self, output_attentions: bool | None, cache: Any) -> None:
        if output_attentions or (output_attentions is None and self.config.output_attentions):
            raise ValueError("output_attentions must be False, got True: the attention probabilities never exist")
        if cache is not None and not isinstance(cache, LongShortCache):
            raise ValueError(
                f"past_key_values must be a longshort.hf.LongShortCache, got {type(cache).__name__}: "
                "its layers do not keep each head's own reach"
            )

    def _check_length(self, length: int, positions: Tensor | None) -> None:
        """Raise past the last learned position, where a GPU would stop with an assertion that names nothing."""
        context = self.config.max_position_embeddings
        if self.model.position_embedding is None or length <= context or torch.compiler.is_compiling():
            return
        last = length - 1 if positions is None else int(positions.max())
        if last >= context:
            raise ValueError(
                f"positions must be below max_position_embeddings={context}, as they are learned, got {last}"
            )


def _given(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    """Whichever of the two was given."""
    given = input_ids if input_ids is not None else inputs_embeds
    if given is None or (input_ids is not None and inputs_embeds is not None):
        came = "neither" if given is None else "both"
        raise ValueError(f"input must be input_ids or inputs_embeds, got {came}")
    if given.ndim != (2 if inputs_embeds is None else 3):
        name, shape = ("input_ids", "") if inputs_embeds is None else ("inputs_embeds", ", hidden_size")
        raise ValueError(f"{name} must have shape (batch, length{shape}), got {tuple(given.shape)}")
    return given


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
