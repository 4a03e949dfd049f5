"""`GPT` without its head: the hidden states alone, or a class for each sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutputWithPast

from longshort.hf.backbone import GivesStates, Inputs
from longshort.hf.cache import LongShortCache
from longshort.hf.config import LongShortConfig
from longshort.hf.shell import LongShortPreTrainedModel, given_input


class _Headless(LongShortPreTrainedModel):
    """A `GPT` whose head is left out, also when a folder that has one is loaded."""

    _keys_to_ignore_on_load_unexpected = [r"^model\.head\."]  # noqa: RUF012 (transformers' own form)

    def __init__(self, config: LongShortConfig) -> None:
        super().__init__(config)
        self.model.head = None


class LongShortModel(GivesStates, _Headless):
    """The model without a head; `AutoModel` opens it.

    >>> sizes = dict(vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    >>> model = LongShortModel(LongShortConfig(**sizes, num_global_heads=1, local_window=8)).eval()
    >>> model(torch.ones(1, 5, dtype=torch.long)).last_hidden_state.shape
    torch.Size([1, 5, 32])
    """

    def __init__(self, config: LongShortConfig) -> None:
        super().__init__(config)
        self.post_init()

    @property
    def base_model(self) -> LongShortModel:
        return self


class LongShortForSequenceClassification(_Headless):
    """The model with a linear layer, `score`, over the last token of each sequence: classes, numbers, or a reward.

    >>> sizes = dict(vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_labels=3)
    >>> model = LongShortForSequenceClassification(LongShortConfig(**sizes, num_global_heads=1, local_window=8))
    >>> model(torch.ones(2, 5, dtype=torch.long), labels=torch.tensor([0, 2])).logits.shape
    torch.Size([2, 3])
    """

    def __init__(self, config: LongShortConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels or 0
        self.score = nn.Linear(config.hidden_size, self.num_labels, bias=False)
        self.post_init()

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
        **kwargs: Any,
    ) -> SequenceClassifierOutputWithPast | tuple:
        """Scores (B, num_labels) of each sequence, and with `labels` their loss, by `config.problem_type`.

        A sequence's last token is the last that `attention_mask` shows; without a mask, the last that is not
        `pad_token_id`. The other arguments are those of `LongShortForCausalLM`.
        """
        inputs = Inputs(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, output_attentions
        )
        output = self._states(inputs, output_hidden_states)
        logits = self.score(output.last_hidden_state)
        last = self._last_tokens(given_input(input_ids, inputs_embeds), attention_mask).to(logits.device)
        pooled = logits[torch.arange(len(logits), device=logits.device), last]
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, pooled_logits=pooled, config=self.config)
        result = SequenceClassifierOutputWithPast(
            loss=loss, logits=pooled, past_key_values=output.past_key_values, hidden_states=output.hidden_states
        )
        return self._as_wanted(result, return_dict)

    def _last_tokens(self, given: Tensor, mask: Tensor | None) -> Tensor:
        """(B,) the index of each sequence's last token."""
        length = given.shape[1]
        if mask is not None:
            real = mask[:, -length:] > 0
        elif given.ndim == 2 and self.config.pad_token_id is not None:
            real = given != self.config.pad_token_id
        else:
            return torch.full(given.shape[:1], length - 1, device=given.device)
        return (real * torch.arange(length, device=real.device)).argmax(dim=1)

    def _init_weights(self, module: nn.Module) -> None:
        if module is self.score:
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        else:
            super()._init_weights(module)
