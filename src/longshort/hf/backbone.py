"""What trainers that compute their own loss ask of a causal model: its hidden states and its head's weight, separately.

TRL's trainers are such; transformers' own call the model and take its loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutputWithPast

from longshort.hf.cache import LongShortCache
from longshort.model import GPT


class Inputs(NamedTuple):
    """What every model here is called with, in transformers' terms."""

    input_ids: Tensor | None
    attention_mask: Tensor | None
    position_ids: Tensor | None
    past_key_values: LongShortCache | None
    inputs_embeds: Tensor | None
    use_cache: bool | None
    output_attentions: bool | None


class GivesStates:
    """The call of a model that puts out hidden states: `_states` computes them, `_as_wanted` hands them over."""

    _states: Callable[..., Any]
    _as_wanted: Callable[..., Any]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: LongShortCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast | tuple:
        """The last hidden state (B, T, hidden_size), normalised; the arguments are those of `LongShortForCausalLM`."""
        inputs = Inputs(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, output_attentions
        )
        return self._as_wanted(self._states(inputs, output_hidden_states), return_dict)


class Backbone(GivesStates, nn.Module):
    """The model without its head: what `LongShortForCausalLM.base_model` is.

    It shares everything with the model it comes from, and is made anew each time that it is asked for.

    >>> import torch
    >>> from longshort import GPTConfig
    >>> from longshort.hf import LongShortForCausalLM
    >>> model = LongShortForCausalLM.from_gpt(GPT(GPTConfig.preset("tiny")))
    >>> model.base_model(input_ids=torch.ones(1, 5, dtype=torch.long), use_cache=False).last_hidden_state.shape
    torch.Size([1, 5, 64])
    """

    def __init__(self, shell: Any) -> None:
        super().__init__()
        self.model, self.config, self.training = shell.model, shell.config, shell.model.training
        self._states, self._as_wanted = shell._states, shell._as_wanted


class TiedHead(nn.Module):
    """The head of a model whose embedding is its head: holds no weight, so that none is saved or counted twice."""

    bias = None

    def __init__(self, embedding: Callable[[], nn.Module]) -> None:
        """`embedding` gives the embedding as it is now: it may be replaced, as `resize_token_embeddings` does."""
        super().__init__()
        self._embedding = embedding

    @property
    def weight(self) -> Tensor:
        """(V, hidden_size), the embedding's own."""
        return self._embedding().weight  # type: ignore[return-value]

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weight)


def between(model: GPT) -> tuple[nn.Module, ...]:
    """What puts out the hidden states: the first block's input, each block's output, the last one normalised."""
    return (model.dropout, *model.blocks[:-1], model.norm)


@contextmanager
def outputs_of(watched: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    """Filled with the outputs of these modules while the model runs."""
    states: list[Tensor] = []
    handles = [module.register_forward_hook(lambda _m, _i, out: states.append(out)) for module in watched]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()
