"""Rollouts drawn again and again from one model, in memory that stays where it is.

On a GPU one captured step serves all of them, and finds the weights as they are by then.

Shapes: B sequences, P columns of the prompts padded on the left, T new tokens, k tokens of a mixture.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from longshort.generation import Sampling, SoftThinking
from longshort.generation.arguments import (
    Prompt,
    check_lengths,
    check_model,
    check_seed,
    check_thinking,
    prompt_rows,
    stop_tokens,
)
from longshort.generation.decoder import Decoder, left_padded
from longshort.generation.draws import Draws
from longshort.model import GPT
from longshort.nn.modes import evaluating
from longshort.numeric import check_count
from longshort.rl.rollout import Rollout

_LOOKED_AT = 16
"""On a GPU, steps between two looks at whether all sequences have ended: each look waits for the device."""


class Sampler:
    """Draws rollouts of one size.

    >>> from longshort import GPTConfig
    >>> model = GPT(GPTConfig.preset("tiny"))
    >>> sampler = Sampler(model, SoftThinking(end=10), batch_size=2, max_prompt=3, max_new_tokens=6)
    >>> sampler.draw([[1, 2, 3], [4]], seed=0).tokens.shape
    torch.Size([2, 6])
    """

    def __init__(
        self,
        model: GPT,
        thinking: SoftThinking | None = None,
        *,
        batch_size: int,
        max_prompt: int,
        max_new_tokens: int = 128,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: int | Collection[int] | None = None,
        dtype: torch.dtype | None = None,
        use_cache: bool = True,
        cuda_graph: bool | None = None,
        log_probs: bool = False,
    ) -> None:
        """Make room for `batch_size` prompts of at most `max_prompt` tokens.

        With a `dtype` other than the model's, a copy of the model in it draws, which gets the model's weights before
        each rollout. With `log_probs`, rollouts keep those they were drawn with, for `Rollout.gap`. The rest is as in
        `generate`.
        """
        check_model(model)
        for name, count in (("batch_size", batch_size), ("max_prompt", max_prompt), ("max_new_tokens", max_new_tokens)):
            check_count(name, count)
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        if temperature == 0:
            raise ValueError(f"temperature must be above 0 in rollouts, got {temperature}")
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"dtype must be None or a floating-point dtype of torch, got {dtype!r}")
        context = model.config.context
        if max_prompt + max_new_tokens > context + 1:
            raise ValueError(
                f"prompts and max_new_tokens must fit in the context of {context}, "
                f"got {max_prompt} and {max_new_tokens}"
            )
        check_thinking(thinking, None, model.config.vocab_size, model.embedding)
        self._model, self._thinking, self._temperature = model, thinking, temperature
        self._copy = None if dtype in (None, model.embedding.weight.dtype) else _empty_copy(model, dtype)
        if self._copy is not None and not _has_same_weights(self._copy, model):
            raise ValueError(
                "dtype must be None or the model's for a model that has more than the weights of its configuration, "
                f"such as an adapter, or is compiled, got {dtype}"
            )
        self._batch_size, self._max_prompt, self._max_new_tokens = batch_size, max_prompt, max_new_tokens
        self._device = model.embedding.weight.device
        self._generator = torch.Generator(self._device)
        self._stops = stop_tokens(stop, model.config.vocab_size)
        drawing = model if self._copy is None else self._copy
        self._draws = Draws(
            batch_size,
            max_new_tokens,
            sampling=sampling,
            thinking=thinking,
            stops=self._stops,
            vocabulary=model.config.vocab_size,
            device=self._device,
            generator=self._generator,
            table=drawing.embedding.weight.detach(),
            log_probs=log_probs,
        )
        self._decoder = Decoder(
            drawing,
            self._draws,
            max_prompt=max_prompt,
            use_cache=use_cache,
            graph=cuda_graph,
            generator=self._generator,
        )

    def draw(self, prompts: Prompt, *, seed: int | None = None) -> Rollout:
        """Think and write after each prompt. The same seed gives the same rollout; None one from the global seed."""
        check_seed(seed)
        rows = prompt_rows(prompts, self._model.config.vocab_size)
        check_lengths(self._model, rows, self._max_new_tokens)
        longest = max(map(len, rows))
        if len(rows) != self._batch_size or longest > self._max_prompt:
            raise ValueError(
                f"prompts must be {self._batch_size} of at most {self._max_prompt} tokens, "
                f"got {len(rows)} of at most {longest}"
            )
        self._generator.manual_seed(int(torch.randint(2**62, ())) if seed is None else seed)
        if self._copy is not None:
            weights = self._model.state_dict()
            for name, tensor in self._copy.state_dict().items():
                tensor.copy_(weights[name])
        with evaluating(self._model):
            self._draws.reset()
            self._decoder.start(rows)
            steps = self._run()
        drawn = self._draws
        soft, ids, values = (x[:, :steps].clone() for x in (drawn.soft, drawn.ids, drawn.values))
        noisy = None
        if drawn.noise is not None and self._thinking is not None:
            table = self._model.embedding.weight.detach()
            noisy = self._thinking.inputs(table, ids, values, drawn.noise[:, :steps])
        padded, padding = left_padded(rows)
        return Rollout(
            prompts=padded.to(self._device),
            padding=padding.to(self._device),
            tokens=drawn.tokens[:, :steps].clone(),
            thinking=self._thinking,
            soft=soft,
            ids=ids,
            values=values,
            temperature=self._temperature,
            noisy=noisy,
            drawn_log_probs=None if drawn.log_probs is None else drawn.log_probs[:, :steps].clone(),
        )

    def _run(self) -> int:
        """Take all steps, or fewer if all sequences end; returns their number."""
        count = self._draws.tokens.shape[1]
        every = _LOOKED_AT if self._device.type == "cuda" else 1
        for step in range(1, count + 1):
            self._decoder.step()
            if self._stops and (step % every == 0 or step == count) and bool(self._draws.ended.all()):
                return self._last_drawn()
        return count

    def _last_drawn(self) -> int:
        """Columns that hold a token."""
        return int((self._draws.tokens >= 0).any(0).sum())


def _has_same_weights(copy: GPT, model: GPT) -> bool:
    """Has the model all of the copy's weights, and in the copy's modules no others? It may have modules besides."""
    own, parts = copy.state_dict().keys(), dict(copy.named_children())
    theirs = model.state_dict().keys()
    return own <= theirs and not any(name.partition(".")[0] in parts for name in theirs - own)


def _empty_copy(model: GPT, dtype: torch.dtype | None) -> GPT:
    with torch.random.fork_rng(devices=[]):  # its weights are overwritten: leave the seeds alone
        return GPT(model.config).to(device=model.embedding.weight.device, dtype=dtype).eval().requires_grad_(False)


def rollout(
    model: GPT, prompts: Prompt, thinking: SoftThinking | None = None, *, seed: int | None = None, **options: Any
) -> Rollout:
    """One rollout, by a `Sampler` of its own; `options` are the sampler's.

    >>> from longshort import GPTConfig
    >>> model = GPT(GPTConfig.preset("tiny"))
    >>> drawn = rollout(model, [[1, 2, 3], [4]], SoftThinking(end=10), max_new_tokens=6, seed=0)
    >>> drawn.tokens.shape, drawn.log_probs(model).shape
    (torch.Size([2, 6]), torch.Size([2, 6]))
    """
    check_model(model)
    rows = prompt_rows(prompts, model.config.vocab_size)
    sampler = Sampler(model, thinking, batch_size=len(rows), max_prompt=max(map(len, rows)), **options)
    return sampler.draw(rows, seed=seed)
