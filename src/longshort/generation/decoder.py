"""Prefill and decode: the prompt goes through the model in chunks, then one token per step, with a cache of keys.

Shapes: B sequences, P columns of prompts padded on the left, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longshort.generation.draws import Draws, tokens_of
from longshort.generation.graphs import CapturedStep
from longshort.generation.prefill import shared_prefill
from longshort.model import GPT
from longshort.nn import LSStaticCache

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_PREFILL = 1024
"""Tokens of each prompt that go through the model at once."""
_WORTH_A_GRAPH = 8
"""Fewer new tokens are decoded before a graph would be captured."""


class Decoder:
    """Runs a model over prompts and over what is drawn after them.

    On a GPU a step, from the last draw to the next, is captured once and replayed, also for later prompts: `start`
    keeps the memory, and finds the weights as they are by then.
    """

    def __init__(
        self,
        model: GPT,
        draws: Draws,
        *,
        max_prompt: int,
        context: int | None = None,
        use_cache: bool = True,
        padded: bool = True,
        graph: bool | None = None,
        generator: torch.Generator | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        """`padded`: prompts may have different lengths; the others are as in `generate`."""
        self._model, self._draws, self._padded, self._group = model, draws, padded, group
        self._context = context = context or model.config.context
        (batch, count), device = draws.tokens.shape, draws.tokens.device
        on_gpu, usable = decodes_by_steps(device), use_cache and max_prompt <= context
        if graph and not (on_gpu and usable):
            raise ValueError(
                f"cuda_graph needs a model on a GPU, use_cache and a prompt within the context of "
                f"{context}, got {device}, use_cache={use_cache} and {max_prompt} tokens"
            )
        if group is not None and not usable:
            raise ValueError(
                f"group needs use_cache and a prompt within the context of {context}, got use_cache={use_cache} and "
                f"{max_prompt} tokens"
            )
        # What lies past the context is never cached, and the last token drawn goes through the model no more.
        held = min(max_prompt + count - 1, context)
        self._cache = model.new_cache(batch, max_length=held, rollback=0, static=on_gpu) if usable else None
        captured = isinstance(self._cache, LSStaticCache)
        self._step = CapturedStep(
            self._next_draw,
            graph=captured and (count > _WORTH_A_GRAPH if graph is None else graph),
            required=graph is True,
            generator=generator,
            on_failure=self._cache.nothing_was_written if isinstance(self._cache, LSStaticCache) else lambda: None,
        )
        self._prompt, self._padding = draws.tokens[:, :0], draws.tokens[:, :0]
        self._drawn = 0

    @torch.no_grad()
    def start(self, prompts: Sequence[Tensor]) -> None:
        """Take these prompts, one for each sequence; the next step draws what follows them."""
        prompt, padding = left_padded(prompts)
        device = self._draws.tokens.device
        self._prompt, self._padding = prompt.to(device), padding.to(device)[:, None]
        self._drawn = 0
        if self._cache is not None:
            self._cache.reset()

    @torch.no_grad()
    def step(self) -> Tensor:
        """Draw the next tokens (B,), which the next step overwrites if it is captured; see `Draws.step`."""
        length = self._prompt.shape[1] + self._drawn
        first = max(0, length - self._context)
        if self._cache is None or first:
            shown = self._draws.step(self._logits(self._part(first, length, first)))
        elif not self._drawn and self._group is not None:
            logits = shared_prefill(self._model, cache=self._cache, group=self._group, **self._part(0, length, 0))
            shown = self._draws.step(logits.float())
        elif not self._drawn:
            for start in range(0, length, _PREFILL):
                stop = min(start + _PREFILL, length)
                if stop < length:  # nobody asks for logits there
                    self._model(**self._part(start, stop, 0), cache=self._cache, return_logits=False)
                else:
                    shown = self._draws.step(self._logits(self._part(start, stop, 0) | {"cache": self._cache}))
        else:
            shown = self._step()
        self._drawn += 1
        return shown

    def seen(self) -> Tensor:
        """(B, V) which tokens each prompt holds."""
        column = torch.arange(self._prompt.shape[1], device=self._prompt.device)
        return tokens_of(self._prompt, column >= self._padding, self._model.config.vocab_size)

    def _next_draw(self) -> Tensor:
        return self._draws.step(self._logits(self._draws.last_input() | {"cache": self._cache}))

    def _logits(self, inputs: dict) -> Tensor:
        """(B, V) of the token after the last."""
        logits = self._model(**inputs, last_logits=1).logits
        assert logits is not None
        return logits[:, -1].float()

    def _part(self, first: int, stop: int, origin: int) -> dict:
        """Columns first to stop as the model takes them, position 0 being in column `origin` or after the padding."""
        part = self._inputs(first, stop)
        if not self._padded:
            return part
        column = torch.arange(first, stop, device=self._prompt.device)
        segments = torch.where(column < self._padding, -1, 0)
        return part | {"segments": segments, "positions": (column - self._padding.clamp(min=origin)).clamp(min=0)}

    def _inputs(self, first: int, stop: int) -> dict[str, Tensor]:
        width = self._prompt.shape[1]
        prompt = self._prompt[:, first:stop]
        if stop <= width:
            return {"tokens": prompt}
        drawn = self._draws.inputs(max(first, width) - width, stop - width)
        if "tokens" in drawn:
            return {"tokens": torch.cat((prompt, drawn["tokens"]), dim=1)}
        before = self._model.embedding(prompt)
        return {"embeddings": torch.cat((before, drawn["embeddings"]), dim=1)}


def left_padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Sequences of different lengths as (B, P), zeros before them, and the number (B,) of these zeros.

    >>> left_padded([torch.tensor([5, 6]), torch.tensor([7])])
    (tensor([[5, 6],
            [0, 7]]), tensor([0, 1]))
    """
    device, longest = rows[0].device, max(map(len, rows))
    padding = torch.tensor([longest - len(row) for row in rows], device=device)
    padded = torch.zeros(len(rows), longest, dtype=torch.long, device=device)
    held = torch.arange(longest, device=device) >= padding[:, None]
    return padded.masked_scatter_(held, torch.cat(list(rows)).long()), padding


def decodes_by_steps(device: torch.device) -> bool:
    """With a static cache? On a CPU the plain form is as fast, and takes memory only as it grows."""
    return device.type == "cuda"
