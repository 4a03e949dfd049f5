"""Prefill and decode: the prompt goes through the model in chunks, then one token per step, with a cache of keys.

Shapes: B rows, L columns of a batch padded on the left, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longshort.generation.graphs import DecodingStep
from longshort.generation.sampling import Sampling
from longshort.generation.soft import SoftThinking, ThinkingRecord, Thoughts
from longshort.model import GPT
from longshort.nn import KVCache, LSStaticCache

if TYPE_CHECKING:
    from longshort.data.tokenizer import Tokenizer

ENDED = -1
"""What a sequence that has ended yields while others continue."""
_PREFILL = 1024
"""Tokens of the prompt that go through the model at once."""
_WORTH_A_GRAPH = 8
"""Fewer new tokens are decoded before a graph would be captured."""

Prompt = Tensor | Sequence[Sequence[int] | Tensor]


def generate(
    model: GPT,
    prompt: Prompt,
    *,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    stop: int | Collection[int] | None = None,
    stop_strings: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
    thinking: SoftThinking | None = None,
    record: ThinkingRecord | None = None,
    callback: Callable[[Tensor], object] | None = None,
    use_cache: bool = True,
    cuda_graph: bool | None = None,
) -> Iterator[Tensor]:
    """Yield the next token (B,) of each sequence of the prompt, step after step.

    Past `model.config.context` the model sees the last `context` tokens, counted from position 0 as in training: then
    each token takes a pass over all of them, cache or not.

    Args:
        prompt: (B, T) tokens, or B sequences of different lengths; `TextStream` takes text.
        temperature, top_k, top_p, min_p, repetition_penalty: see `Sampling`.
        seed: makes the draw repeatable; the global generator otherwise.
        stop: a sequence ends with this token, or any of these, and yields -1 from then on; the last to end ends all.
        stop_strings: a sequence also ends once its new text holds one of these; needs the `tokenizer`.
        tokenizer: if given, tokens that it does not have, as those that fill a vocabulary up, are never drawn.
        thinking: each sequence starts with soft thinking, and yields the token of largest weight of each mixture. After
            its end mark, tokens are drawn as the options above say, which do not bear on the thinking; a `stop` ends a
            sequence in its thinking too. On a GPU, decoding then runs without a CUDA graph.
        record: gets the mixtures that are drawn.
        callback: called with each (B,) as it is drawn: everything is then drawn at once, and returned at the end.
        use_cache: False runs the whole sequence through the model for every token: the same text, slowly.
        cuda_graph: on a GPU, decode by replaying a captured step; if None, where more than a few tokens are wanted, and
            with a warning if the model cannot be captured. True insists, False takes the plain way.

    >>> from longshort import GPTConfig
    >>> model = GPT(GPTConfig.preset("tiny"))
    >>> tokens = list(generate(model, torch.zeros(1, 1, dtype=torch.long), max_new_tokens=5, seed=0))
    >>> len(tokens), tokens[0].shape
    (5, torch.Size([1]))
    >>> [row.shape for row in generate(model, [[1, 2, 3], [4]], max_new_tokens=2)]
    [torch.Size([2]), torch.Size([2])]
    """
    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty
    )
    if not isinstance(max_new_tokens, Integral) or not 1 <= max_new_tokens < 2**31:
        raise ValueError(f"max_new_tokens must be an integer from 1 to 2^31 - 1, got {max_new_tokens}")
    if isinstance(stop_strings, str) or not all(stop_strings):
        raise ValueError(f"stop_strings must be a sequence of texts that are not empty, got {stop_strings!r}")
    if stop_strings and tokenizer is None:
        raise ValueError("stop_strings need the tokenizer, got None")
    stops = [] if stop is None else [stop] if isinstance(stop, Integral) else list(stop)
    if not all(isinstance(token, Integral) for token in stops):
        raise ValueError(f"stop must be a token or tokens, as integers (texts are for stop_strings), got {stop!r}")
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed must be an integer of 64 bits, from -2^63 to 2^63 - 1, got {seed}")
    known = model.config.vocab_size
    vocabulary = known if tokenizer is None else min(known, tokenizer.vocab_size)
    _check_thinking(thinking, record, vocabulary, cuda_graph)
    text = _Text.of(model, prompt, max_new_tokens, use_cache, cuda_graph, soft=thinking is not None)
    if thinking is not None:
        size = (len(text.tokens), max_new_tokens, min(thinking.top_k, vocabulary))
        text.thoughts = Thoughts(thinking, record, *size, device=text.tokens.device)
    ends = _Ends(stops, tuple(stop_strings), tokenizer, [[] for _ in range(len(text.tokens))])
    generator = None if seed is None else torch.Generator(text.tokens.device).manual_seed(seed)
    drawn = _draw(model, text, max_new_tokens, sampling, generator, ends, vocabulary)
    if callback is None:
        return drawn
    taken = []
    for token in drawn:
        callback(token)
        taken.append(token)
    return iter(taken)


@dataclass
class _Text:
    """A batch padded on the left, with room for what is drawn."""

    tokens: Tensor
    """(B, L): the first `length` columns are filled."""
    length: int
    padding: Tensor | None
    """(B, 1) columns of padding before each sequence; None if there is none at all."""
    cache: KVCache | None
    step: DecodingStep | None
    """Takes the token after the prefill and all later ones; None on a CPU, where the cache grows."""
    prompt_length: int
    cached: int = 0
    """Columns that went through the model."""
    thoughts: Thoughts | None = None
    """What stands in the columns after the prompt, where they are mixtures of tokens."""

    @classmethod
    def of(
        cls, model: GPT, prompt: Prompt, count: int, use_cache: bool, graph: bool | None = None, *, soft: bool = False
    ) -> _Text:
        rows = _rows(prompt, model.config.vocab_size)
        length = max(len(row) for row in rows)
        tokens = torch.zeros(len(rows), length + count, dtype=torch.long, device=model.embedding.weight.device)
        for row, ids in zip(tokens, rows, strict=True):
            row[length - len(ids) : length] = ids
        padding = [[length - len(row)] for row in rows]
        # What lies past the context is never cached, and the last token drawn goes through the model no more.
        held = min(length + count - 1, model.config.context)
        usable = use_cache and length <= model.config.context
        on_gpu = _decodes_by_steps(tokens.device) and not soft  # a captured step takes tokens alone
        if graph and not (on_gpu and usable):
            raise ValueError(
                f"cuda_graph needs a model on a GPU, use_cache and a prompt within the context of "
                f"{model.config.context}, got {tokens.device}, use_cache={use_cache} and {length} tokens"
            )
        cache, step = None, None
        if usable:
            cache = model.new_cache(len(rows), max_length=held, rollback=0, static=on_gpu)
        if isinstance(cache, LSStaticCache):
            wanted = count > _WORTH_A_GRAPH if graph is None else graph
            step = DecodingStep(model, cache, graph=wanted, required=graph is True)
        return cls(
            tokens=tokens,
            length=length,
            padding=torch.tensor(padding, device=tokens.device) if any(pad for (pad,) in padding) else None,
            cache=cache,
            step=step,
            prompt_length=length,
        )

    def append(self, chosen: Tensor) -> None:
        self.tokens[:, self.length] = chosen
        self.length += 1

    def seen(self, vocab_size: int) -> Tensor:
        """(B, V) which tokens each sequence holds."""
        held = torch.zeros(len(self.tokens), vocab_size + 1, dtype=torch.bool, device=self.tokens.device)
        tokens = self.tokens[:, : self.length]
        if self.padding is not None:
            column = torch.arange(self.length, device=tokens.device)
            tokens = tokens.where(column >= self.padding, vocab_size)
        return held.scatter_(1, tokens, True)[:, :vocab_size]

    def next_logits(self, model: GPT) -> Tensor:
        """(B, V) of the token after the last."""
        context, stop = model.config.context, self.length
        if self.cache is None or stop > context:
            logits = model(**self._part(model, max(0, stop - context), stop, max(0, stop - context))).logits
        else:
            # All but the last token need no logits, whose (L, V) would be the largest tensor of all.
            for first in range(self.cached, stop - 1, _PREFILL):
                part = self._part(model, first, min(first + _PREFILL, stop - 1), 0)
                model(**part, cache=self.cache, return_logits=False)
            self.cached = stop
            last = self._part(model, stop - 1, stop, 0)
            if self.step is not None:
                return self.step(**last)
            logits = model(**last, cache=self.cache).logits
        assert logits is not None
        return logits[:, -1].float()

    def _part(self, model: GPT, first: int, stop: int, origin: int) -> dict[str, Tensor]:
        """Columns first to stop as the model takes them, position 0 being in column `origin` or after the padding."""
        part = self._inputs(model, first, stop)
        if self.padding is None:
            return part
        column = torch.arange(first, stop, device=self.tokens.device)
        segments = torch.where(column < self.padding, -1, 0)
        return part | {"segments": segments, "positions": (column - self.padding.clamp(min=origin)).clamp(min=0)}

    def _inputs(self, model: GPT, first: int, stop: int) -> dict[str, Tensor]:
        if self.thoughts is None or stop <= self.prompt_length:
            return {"tokens": self.tokens[:, first:stop]}
        start = max(first, self.prompt_length)
        before = model.embedding(self.tokens[:, first:start])
        drawn = self.thoughts.embeddings(model.embedding.weight, start - self.prompt_length, stop - self.prompt_length)
        return {"embeddings": torch.cat((before, drawn), dim=1)}


@dataclass
class _Ends:
    """Which sequences have ended."""

    tokens: list[int]
    strings: tuple[str, ...]
    tokenizer: Tokenizer | None
    written: list[list[int]]
    """Tokens drawn, by sequence: the end of them is searched for strings."""
    rows: set[int] = field(default_factory=set)

    @property
    def all(self) -> bool:
        return len(self.rows) == len(self.written)

    def mask(self, chosen: Tensor) -> Tensor:
        """The tokens (B,) with -1 for the sequences that ended before."""
        if not self.rows:
            return chosen
        return chosen.index_fill(0, torch.tensor(sorted(self.rows), device=chosen.device), ENDED)

    def note(self, chosen: Tensor) -> None:
        if not (self.tokens or self.strings):
            return
        for row, token in enumerate(chosen.tolist()):
            if row not in self.rows:
                self.written[row].append(token)
                if token in self.tokens or self._holds_string(self.written[row]):
                    self.rows.add(row)

    def _holds_string(self, written: list[int]) -> bool:
        """A token writes at least a byte, so a string that just became whole began within as many tokens."""
        if not self.strings or self.tokenizer is None:
            return False
        longest = max(len(string.encode()) for string in self.strings)
        text = self.tokenizer.decode(written[-longest - 1 :])
        return any(string in text for string in self.strings)


@torch.no_grad()
def _draw(
    model: GPT,
    text: _Text,
    count: int,
    sampling: Sampling,
    generator: torch.Generator | None,
    ends: _Ends,
    vocabulary: int,
) -> Iterator[Tensor]:
    seen = text.seen(model.config.vocab_size)[:, :vocabulary] if sampling.repetition_penalty != 1 else None
    for _ in range(count):
        logits = text.next_logits(model)[:, :vocabulary]
        chosen = sampling.draw(logits, seen=seen, generator=generator)
        if text.thoughts is not None:
            chosen = text.thoughts.step(logits, chosen, generator)
        text.append(chosen)
        if seen is not None:
            seen.scatter_(1, chosen[:, None], True)
        shown = ends.mask(chosen)
        ends.note(chosen)
        if text.thoughts is not None and ends.rows:
            text.thoughts.leave(ends.rows)
        yield shown
        if ends.all:
            return


def _check_thinking(
    thinking: SoftThinking | None, record: ThinkingRecord | None, vocabulary: int, graph: bool | None
) -> None:
    if thinking is None:
        if record is not None:
            raise ValueError("record must be None without thinking, got a ThinkingRecord")
        return
    if not isinstance(thinking, SoftThinking):
        raise ValueError(f"thinking must be None or a SoftThinking, got {thinking!r}")
    if thinking.end >= vocabulary:
        raise ValueError(f"end must be a token from 0 to {vocabulary - 1}, got {thinking.end}")
    if record is not None and len(record):
        raise ValueError(f"record must be empty, got one of {len(record)} steps")
    if graph:
        raise ValueError("cuda_graph must be None or False with thinking, got True")


def _decodes_by_steps(device: torch.device) -> bool:
    """With a static cache? On a CPU the plain form is as fast, and takes memory only as it grows."""
    return device.type == "cuda"


def _rows(prompt: Prompt, vocab_size: int) -> list[Tensor]:
    if isinstance(prompt, Tensor):
        if prompt.ndim != 2 or not prompt.numel():
            raise ValueError(f"prompt must have shape (batch, at least one token), got {tuple(prompt.shape)}")
        rows = list(prompt)
    elif isinstance(prompt, str) or any(isinstance(row, str) for row in prompt):
        raise ValueError(f"prompt must be tokens, got text, which a tokenizer encodes: {prompt!r}")
    else:
        rows = [torch.as_tensor(row) for row in prompt]
    if not rows or any(row.ndim != 1 or not len(row) for row in rows):
        raise ValueError(f"prompt must be rows of at least one token each, got {[tuple(row.shape) for row in rows]}")
    for row in rows:
        if row.is_floating_point() or row.dtype == torch.bool:
            raise ValueError(f"prompt must be integers, got {row.dtype}")
        least, most = (int(bound) for bound in row.long().aminmax())
        if least < 0 or most >= vocab_size:
            raise ValueError(f"prompt must be from 0 to {vocab_size - 1}, got values from {least} to {most}")
    return rows
