"""`generate`: from prompts to tokens, one step after another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longshort.generation.arguments import (
    Prompt,
    check_context,
    check_lengths,
    check_model,
    check_seed,
    check_thinking,
    prompt_rows,
    stop_tokens,
)
from longshort.generation.decoded import MOST_BYTES, REPLACEMENT, end_of_text, has_text, text_after
from longshort.generation.decoder import Decoder
from longshort.generation.draws import ENDED, Draws
from longshort.generation.sampling import Sampling
from longshort.generation.soft import SoftThinking, ThinkingRecord
from longshort.model import GPT
from longshort.numeric import check_count
from longshort.ranges import SWITCH, optional

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from longshort.data.tokenizer import Tokenizer


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
    context: int | None = None,
    use_cache: bool = True,
    cuda_graph: bool | None = None,
    group: ProcessGroup | None = None,
) -> Iterator[Tensor]:
    """Yield the next token (B,) of each sequence of the prompt, step after step.

    Past the `context` the model sees the last `context` tokens, counted from position 0 as in training: then each token
    takes a pass over all of them, cache or not.

    Args:
        prompt: (B, T) tokens, or B sequences of different lengths; `TextStream` takes text.
        temperature, top_k, top_p, min_p, repetition_penalty: see `Sampling`.
        seed: makes the draw repeatable; the global generator otherwise.
        stop: a sequence ends with this token, or any of these, and yields -1 from then on; the last to end ends all.
        stop_strings: a sequence also ends once its new text holds one of these; needs the `tokenizer`.
        tokenizer: if given, tokens that it does not have, as those that fill a vocabulary up, are never drawn.
        thinking: each sequence starts with soft thinking, and yields the token of largest weight of each mixture. After
            its end mark, tokens are drawn as the options above say, which do not bear on the thinking; a `stop` ends a
            sequence in its thinking too.
        record: gets the mixtures that are drawn.
        callback: called with each (B,) as it is drawn: everything is then drawn at once, and returned at the end.
        context: how many tokens the model sees: `model.config.context` if None, as in training; also more than that,
            unless positions are learned.
        use_cache: False runs the whole sequence through the model for every token: the same text, slowly.
        cuda_graph: on a GPU, decode by replaying a captured step; if None, where more than a few tokens are wanted, and
            with a warning if the model cannot be captured. True insists, False takes the plain way.
        group: processes that share the prefill of the prompt, by position; each is called with the same arguments, then
            decodes on its own, and draws the same tokens from the same `seed`. See `shared_prefill`.

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
    check_model(model)
    check_count("max_new_tokens", max_new_tokens)
    if context is not None:
        check_context(model, context)
    texts = isinstance(stop_strings, Collection) and all(isinstance(text, str) and text for text in stop_strings)
    if isinstance(stop_strings, str) or not texts:
        raise ValueError(f"stop_strings must be a sequence of texts that are not empty, got {stop_strings!r}")
    if stop_strings and tokenizer is None:
        raise ValueError("stop_strings need the tokenizer, got None")
    if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
        raise ValueError(f"tokenizer must be None or a tokenizer, got {tokenizer!r:.200}: load_tokenizer reads one")
    SWITCH.check("use_cache", use_cache)
    optional(SWITCH).check("cuda_graph", cuda_graph)
    check_seed(seed)
    known = model.config.vocab_size
    vocabulary = known if tokenizer is None else min(known, tokenizer.vocab_size)
    stops = stop_tokens(stop, vocabulary)
    check_thinking(thinking, record, vocabulary, model.embedding)
    rows = prompt_rows(prompt, known)
    check_lengths(model, rows, max_new_tokens)
    device = model.embedding.weight.device
    generator = None if seed is None else torch.Generator(device).manual_seed(int(seed))
    draws = Draws(
        len(rows),
        max_new_tokens,
        sampling=sampling,
        thinking=thinking,
        stops=stops,
        vocabulary=vocabulary,
        device=device,
        generator=generator,
        table=model.embedding.weight.detach(),
    )
    longest, shortest = max(map(len, rows)), min(map(len, rows))
    decoder = Decoder(
        model,
        draws,
        max_prompt=longest,
        context=context,
        use_cache=use_cache,
        padded=shortest < longest,
        graph=cuda_graph,
        generator=generator,
        group=group,
    )
    strings = None
    if stop_strings and tokenizer is not None:
        before = [end_of_text(tokenizer, row.tolist()) for row in rows]
        strings = _StringEnds(tuple(stop_strings), tokenizer, before, [[] for _ in rows])
    drawn = _draw(decoder, draws, rows, record, strings, ends=bool(stops or stop_strings))
    if callback is None:
        return drawn
    taken = []
    for token in drawn:
        callback(token)
        taken.append(token)
    return iter(taken)


@dataclass
class _StringEnds:
    """Which sequences have ended with a string."""

    strings: tuple[str, ...]
    tokenizer: Tokenizer
    before: list[list[int]]
    """The end of each prompt, see `end_of_text`."""
    written: list[list[int]]
    """Tokens drawn that have text, by sequence: the end of them is searched for strings."""

    def found(self, shown: Tensor) -> list[int]:
        """The sequences whose text holds a string with these tokens (B,)."""
        tokens = shown.tolist()
        for written, token in zip(self.written, tokens, strict=True):
            if token != ENDED and has_text(self.tokenizer, token):
                written.append(token)
        return [i for i, token in enumerate(tokens) if token != ENDED and self._holds_string(i)]

    def _holds_string(self, sequence: int) -> bool:
        """Tokens write at least a byte each, so a string that just became whole began within as many tokens."""
        written = self.written[sequence]
        longest = max(len(string.encode()) for string in self.strings)
        for count in range(longest + 1, longest + 1 + MOST_BYTES):  # one of these does not begin within a character
            before = self.before[sequence] if count >= len(written) else []
            text = text_after(self.tokenizer, before, written[-count:])
            if any(string in text for string in self.strings):
                return True
            if REPLACEMENT not in text:
                break
        return False


def _draw(
    decoder: Decoder,
    draws: Draws,
    rows: list[Tensor],
    record: ThinkingRecord | None,
    strings: _StringEnds | None,
    *,
    ends: bool,
) -> Iterator[Tensor]:
    decoder.start(rows)
    draws.note_prompt(decoder.seen())
    for number in range(1, draws.tokens.shape[1] + 1):
        shown = decoder.step().clone()
        found = [] if strings is None else strings.found(shown)
        if found:
            draws.end(found)
        if record is not None:
            record.note(draws, number)
        yield shown
        if ends and bool(draws.ended.all()):
            return
