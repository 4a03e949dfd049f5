"""From a prompt to text: tokens drawn by the engine, handed on as whole characters."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from longshort.generation.arguments import stop_tokens
from longshort.generation.decoded import REPLACEMENT, end_of_text, has_text, text_after
from longshort.generation.engine import generate

if TYPE_CHECKING:
    from longshort.data.tokenizer import Tokenizer
    from longshort.model import GPT


class TextStream:
    """Iterate over what the model writes after the prompt, in pieces; afterwards ask how fast it was.

    A piece comes when the bytes of its characters are all there and it can no longer begin a stop string. The text ends
    before the stop string, with a `stop` token, and at the end of a document. `beginning` are tokens that go before the
    prompt's; `options` are those of `generate`.

    >>> from longshort import GPT, GPTConfig
    >>> from longshort.data.tokenizer import ByteTokenizer
    >>> model = GPT(GPTConfig.preset("tiny", vocab_size=257))
    >>> stream = TextStream(model, ByteTokenizer(), "def ", max_new_tokens=8, seed=0)
    >>> text = "".join(stream)
    >>> stream.n_tokens <= 8, stream.tokens_per_second > 0
    (True, True)
    """

    def __init__(
        self,
        model: GPT,
        tokenizer: Tokenizer,
        prompt: str,
        *,
        beginning: Sequence[int] = (),
        stop: int | Collection[int] | None = None,
        stop_strings: Sequence[str] = (),
        **options: Any,
    ) -> None:
        if not isinstance(prompt, str):
            raise ValueError(f"prompt must be a text, got {prompt!r:.200}; generate takes tokens")
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise ValueError(f"prompt must be text in UTF-8, got {prompt!r}") from None
        start = [*beginning, *tokenizer.encode(prompt).tolist()]
        if not start:
            raise ValueError("prompt must hold at least one token, got an empty text")
        self._tokenizer, self._stop_strings = tokenizer, stop_strings
        self._before = end_of_text(tokenizer, start)
        self._tokens = generate(
            model,
            [start],
            stop=[tokenizer.end_of_document, *stop_tokens(stop, tokenizer.vocab_size)],
            stop_strings=stop_strings,
            tokenizer=tokenizer,
            **options,
        )
        self.n_tokens = 0
        """Tokens drawn so far."""
        self.seconds = 0.0
        """Time they took, the prompt included."""

    @property
    def tokens_per_second(self) -> float:
        return self.n_tokens / self.seconds if self.seconds else 0.0

    def __iter__(self) -> Iterator[str]:
        tail: list[int] = []
        shown, began = 0, time.perf_counter()
        text = ""
        for token in self._tokens:
            if has_text(self._tokenizer, int(token)):
                tail.append(int(token))
            self.n_tokens += 1
            self.seconds = time.perf_counter() - began
            text = text_after(self._tokenizer, self._before, tail)
            ready = len(text) - self._undecided(text)
            if ready > shown:
                yield text[shown:ready]
                shown = ready
            if ready == len(text):
                # What is decided is decoded no more, or a long text would take the square of its length.
                self._before, tail = end_of_text(self._tokenizer, [*self._before, *tail]), []
                text, shown = "", 0
        ends = [text.index(string) for string in self._stop_strings if string in text]
        rest = text[shown : min(ends)] if ends else text[shown:].rstrip(REPLACEMENT)
        if rest:
            yield rest

    def _undecided(self, text: str) -> int:
        """Characters at the end that may change, or that begin a stop string or hold one."""
        whole = text.rstrip(REPLACEMENT)
        decided = len(whole)
        for string in self._stop_strings:
            for length in range(min(len(string), len(whole)), 0, -1):
                if whole.endswith(string[:length]):
                    decided = min(decided, len(whole) - length)
                    break
            if string in text:
                decided = min(decided, text.index(string))
        return len(text) - decided
