"""What every model of this package is for transformers: a shell around `GPT` that translates names, masks and caches.

The classes with a head, or without one, add to it what they put out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from longshort.files import write_atomically
from longshort.hf.backbone import Backbone, Inputs, between, outputs_of
from longshort.hf.cache import LongShortCache
from longshort.hf.config import LongShortConfig
from longshort.hf.masks import check_chunks, layout
from longshort.model import GPT
from longshort.model.gpt import GPTOutput

AUTO_CLASSES = {
    "AutoModel": "LongShortModel",
    "AutoModelForCausalLM": "LongShortForCausalLM",
    "AutoModelForSequenceClassification": "LongShortForSequenceClassification",
}
"""The classes by the Auto class that opens them; each opens the folders of the others."""
_CODE_FILE = "longshort_classes.py"
_NAMES = ("LongShortConfig", *AUTO_CLASSES.values())
_CODE = f'''"""Names the classes of the package longshort (pip install 'longshort[hf]') for trust_remote_code=True."""

from longshort.hf import {", ".join(sorted(_NAMES))}

__all__ = [{", ".join(f'"{name}"' for name in sorted(_NAMES))}]
'''
"""A file in saved folders for programs that cannot `import longshort.hf`: `trust_remote_code=True` finds it."""


class LongShortPreTrainedModel(PreTrainedModel):
    """A `GPT` called as transformers calls its models; `model.model` is the `GPT`."""

    config: LongShortConfig
    config_class = LongShortConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 (transformers' own form)
    _input_embed_layer = "embedding"

    def __init__(self, config: LongShortConfig) -> None:
        super().__init__(config)
        self.model = GPT(config.to_gpt())

    @property
    def base_model(self) -> Any:
        """The model without its head; `base_model_prefix` still names the `GPT`, whose weights it shares."""
        return Backbone(self)

    def _states(self, inputs: Inputs, output_hidden_states: bool | None) -> BaseModelOutputWithPast:
        """The last hidden state (B, T, hidden_size), normalised, and all of them if wanted."""
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        watched = between(self.model) if wanted else (self.model.norm,)
        _, states, cache = self._run_gpt(inputs, watched=watched, return_logits=False)
        return BaseModelOutputWithPast(
            last_hidden_state=states[-1],
            past_key_values=cache,
            hidden_states=tuple(states) if wanted else None,
        )

    def _as_wanted(self, result: Any, return_dict: bool | None) -> Any:
        """The result, or a tuple of what it holds."""
        return result if (self.config.return_dict if return_dict is None else return_dict) else result.to_tuple()

    def _run_gpt(
        self, inputs: Inputs, *, targets: Tensor | None = None, watched: Iterable[nn.Module], **options: Any
    ) -> tuple[GPTOutput, list[Tensor], LongShortCache | None]:
        """The `GPT`'s output for inputs in transformers' terms, what the modules `watched` put out, and the cache.

        `options` are those of `GPT`.
        """
        cache = inputs.past_key_values
        self._refuse(inputs.output_attentions, cache)
        if cache is None and self._wants_cache(inputs.use_cache, targets):
            cache = LongShortCache(self.config)
        compiled = torch.compiler.is_compiling()
        run = self._run_eagerly if compiled and cache is not None else self._run_inner
        output, states = run(inputs, cache, targets, watched=watched, **options)
        return output, states, cache

    def _run_inner(
        self,
        inputs: Inputs,
        cache: LongShortCache | None,
        targets: Tensor | None,
        *,
        watched: Iterable[nn.Module],
        **options: Any,
    ) -> tuple[GPTOutput, list[Tensor]]:
        given = given_input(inputs.input_ids, inputs.inputs_embeds)
        batch_size, length = given.shape[:2]
        past = 0 if cache is None else cache.get_seq_length()
        positions, segments = layout(
            inputs.attention_mask, inputs.position_ids, batch_size=batch_size, past=past, new=length
        )
        self._check_length(past + length, positions)
        check_chunks(self.config.attention_chunk, segments)
        with outputs_of(watched) as states:
            output = self.model(
                inputs.input_ids,
                targets,
                embeddings=inputs.inputs_embeds,
                segments=segments,
                positions=positions,
                cache=None if cache is None else cache.opened(self.model, batch_size, given.device),
                **options,
            )
        return output, states

    _run_eagerly = torch.compiler.disable(
        _run_inner, reason="a cache counts its tokens in Python: each new token would be compiled anew"
    )

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embedding = value

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As in transformers; also updates the vocabulary of the `GPT`."""
        embedding = super().resize_token_embeddings(*args, **kwargs)
        self.model.config = self.config.to_gpt()
        return embedding

    def save_pretrained(self, save_directory: Any, is_main_process: bool = True, **options: Any) -> None:  # type: ignore[override]
        """As in transformers, plus a file that names the classes: see `_CODE`."""
        module = _CODE_FILE.removesuffix(".py")
        classes = {"AutoConfig": "LongShortConfig", **AUTO_CLASSES}
        self.config.auto_map = {auto: f"{module}.{name}" for auto, name in classes.items()}
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

    def _wants_cache(self, use_cache: bool | None, targets: Tensor | None) -> bool:
        if targets is not None or self.training:
            return False
        if use_cache is not None:
            return use_cache
        return bool(self.config.use_cache and not torch.is_grad_enabled() and self._why_no_cache() is None)

    def _why_no_cache(self) -> str | None:
        try:
            for block in self.model.blocks:
                block.attention.check_cacheable()
        except ValueError as problem:
            return str(problem)
        return None

    def _refuse(self, output_attentions: bool | None, cache: Any) -> None:
        if output_attentions or (output_attentions is None and self.config.output_attentions):
            raise ValueError("output_attentions must be False, got True: the attention probabilities never exist")
        if cache is not None and not isinstance(cache, LongShortCache):
            raise ValueError(
                f"past_key_values must be a longshort.hf.LongShortCache, got {type(cache).__name__}: "
                "its layers do not keep each head's own reach (PEFT's prefix tuning makes one; prompt tuning works)"
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


def given_input(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    """Whichever of the two was given."""
    given = input_ids if input_ids is not None else inputs_embeds
    if given is None or (input_ids is not None and inputs_embeds is not None):
        came = "neither" if given is None else "both"
        raise ValueError(f"input must be input_ids or inputs_embeds, got {came}")
    if given.ndim != (2 if inputs_embeds is None else 3):
        name, shape = ("input_ids", "") if inputs_embeds is None else ("inputs_embeds", ", hidden_size")
        raise ValueError(f"{name} must have shape (batch, length{shape}), got {tuple(given.shape)}")
    return given
