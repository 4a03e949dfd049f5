"""Retrieval: something said once in a long sequence is asked for later, in the tokens of any tokenizer.

Needles are numbers hidden in noise or in books, one of them or several under different keys (after RULER, arXiv
2404.06654); `variables` is RULER's variable tracking, one chain of four hops among variables with values of their own;
`recall` is multi-query associative recall (arXiv 2312.04927) of single tokens, at distances from a few tokens to the
whole sequence. Only the tokens of an answer are targets. An answer is right if each of them is the model's most likely
token: exactly then greedy decoding from the question gives the whole answer, so one forward pass decides it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longshort.data.corpus import SPLITS
from longshort.data.errors import DataError
from longshort.data.tasks.examples import IGNORED
from longshort.data.tasks.passkey import FILLER
from longshort.data.tasks.recall import generator
from longshort.data.tokenizer import Tokenizer, load_tokenizer
from longshort.data.tokens import TokenFile

KINDS = ("needle-noise", "needle-books", "needles-noise", "needles-books", "variables", "recall")
"""One needle or several, in noise or in books; variable tracking, in noise; recall, among other tokens."""
IN_BOOKS = tuple(kind for kind in KINDS if kind.endswith("-books"))
NEEDLES = 4
"""Needles of the kinds with several: one is asked for, the others have other keys."""
HOPS, DECOYS = 4, 4
"""Assignments along the chain after its first, and variables that do not belong to it."""
PAIRS = 16
"""Pairs of recall, each asked for once; a sixteenth of the length in shorter sequences."""
LEAST_DISTANCE = 4
"""The shortest distance from a pair to its query."""
_WORDS = """
anchor apple arrow basket beach bell bird book bottle bread bridge brush bucket button cabin candle canyon castle chair
clock cloud coat coin copper cotton crown desert door drum eagle engine falcon feather fence field flag flute forest
garden glass glove grain hammer hill horse island jacket kettle key ladder lamp leaf lemon lion market meadow mill
mirror moon mountain ocean olive orange paper pearl pencil pepper piano pillow
"""
WORDS = tuple(_WORDS.split())
"""The keys of needles."""
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_NOISE = tuple(f" {sentence.strip()}" for sentence in FILLER)
_SURROUNDINGS = 16
"""The fewest tokens in which something is hidden."""
_MOST_SYMBOLS, _TRIED_SYMBOLS, _FEWEST_SYMBOLS = 1024, 8192, 32
_VALUE_TOKENS, _NAME_TOKENS = 6, 4
"""The most tokens of a number of five digits and of a name of three letters, each after a space."""

Tokens = NDArray[np.int64]


class Retrieval:
    """Draws examples of every kind in the tokens of one tokenizer.

    Pieces of text are tokenized one by one, so an answer has the same tokens wherever it stands.

    Args:
        books: A folder made by `longshort data`, for the kinds in books; with another vocabulary, its text is
            tokenized again.
        beginning: Tokens that every example begins with, counted in its length.

    >>> from longshort.data.tokenizer import ByteTokenizer
    >>> retrieval = Retrieval(ByteTokenizer())
    >>> tokens, targets = retrieval.draw("needle-noise", "any key", length=256)
    >>> text = ByteTokenizer().decode(tokens)
    >>> text[text.index(" What"):][:34], ByteTokenizer().decode(targets[targets >= 0])
    (' What is the secret number of bott', ' 38570')
    """

    def __init__(self, tokenizer: Tokenizer, books: Path | str | None = None, beginning: Sequence[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.beginning = np.array(beginning, dtype=np.int64)
        self.books = None if books is None else Path(books)
        self.ids = functools.lru_cache(maxsize=1 << 14)(self._ids)
        self._files: dict[str, TokenFile] = {}

    def least(self, kind: str) -> int:
        """The shortest length that surely has room for an example of this kind."""
        if kind == "recall":
            return len(self.beginning) + 32
        word = max(len(self.ids(f" {word}")) for word in WORDS)
        if kind == "variables":
            alike = self._total(" VAR", " =", " VAR", ".") + 2 * _NAME_TOKENS
            first = self._total(" VAR", " =", ".") + _NAME_TOKENS + _VALUE_TOKENS
            question = self._total(*_ASKED_VARIABLES) + _VALUE_TOKENS
            said = HOPS * alike + (1 + DECOYS) * first + question + (1 + HOPS) * _NAME_TOKENS
        else:
            count = 1 if kind.startswith("needle-") else NEEDLES
            needle = self._total(*_NEEDLE, ".") + word + _VALUE_TOKENS
            said = count * needle + self._total(*_ASKED, *_NEEDLE) + 2 * word + _VALUE_TOKENS
        return len(self.beginning) + said + _SURROUNDINGS - 1

    def check(self, kinds: Sequence[str], length: int) -> None:
        """Raise where the kind is unknown, the length too short for it, or the books are missing."""
        for kind in kinds:
            if kind not in KINDS:
                raise DataError(f"kinds must be of {', '.join(KINDS)}, got {kind!r}")
            if kind in IN_BOOKS and self.books is None:
                raise DataError(f"{kind} must have books: give the folder of a corpus made by longshort data")
            if length < (least := self.least(kind)):
                raise DataError(f"length must be at least {least} for {kind} with this tokenizer, got {length}")

    def draw(self, kind: str, key: str, *, length: int, split: str = "test") -> tuple[Tokens, Tokens]:
        """One example, chosen by the key, as (tokens, targets), both (length,); books are those of the split."""
        tokens, targets = self._draw(kind, key, length - len(self.beginning), split)
        ignored = np.full_like(self.beginning, IGNORED)
        return np.concatenate((self.beginning, tokens)), np.concatenate((ignored, targets))

    def _draw(self, kind: str, key: str, length: int, split: str) -> tuple[Tokens, Tokens]:
        source = generator(f"{key}/{kind}/{length}")
        if kind == "recall":
            return self._recall(source, length)
        statements, question, answer = (
            self._variables(source) if kind == "variables" else self._needles(source, kind.startswith("needles"))
        )
        room = length + 1 - sum(len(piece) for piece in (*statements, question, answer))
        around = self._books if kind in IN_BOOKS else self._noise
        hay, places = around(source, room, split)
        row = np.concatenate((*_inserted(source, hay, places, statements), question, answer))
        targets = np.full(length, IGNORED, dtype=np.int64)
        targets[length - len(answer) :] = answer
        return row[:-1], targets

    @property
    def identity(self) -> list[str]:
        """What identifies the text of the books."""
        assert self.books is not None
        return [TokenFile.open(self.books / f"{split}.tokens").header["checksum"] for split in SPLITS]

    def _ids(self, text: str) -> Tokens:
        """Tokens of a piece of text in the middle of a sequence: some tokenizers treat the first word differently."""
        before, both = (self.tokenizer.encode(part).astype(np.int64) for part in ("\n", f"\n{text}"))
        if len(both) > len(before) and np.array_equal(both[: len(before)], before):
            return both[len(before) :]
        return self.tokenizer.encode(text).astype(np.int64)

    def _joined(self, *parts: str) -> Tokens:
        return np.concatenate([self.ids(part) for part in parts])

    def _total(self, *parts: str) -> int:
        return sum(len(self.ids(part)) for part in parts)

    def _needles(self, source: np.random.Generator, several: bool) -> tuple[list[Tokens], Tokens, Tokens]:
        """Statements, the question about one of them, and the answer."""
        count = NEEDLES if several else 1
        words = [f" {WORDS[i]}" for i in source.permutation(len(WORDS))[:count]]
        values = _values(source, count)
        said = [
            self._joined(_NEEDLE[0], word, _NEEDLE[1], value, ".") for word, value in zip(words, values, strict=True)
        ]
        asked = int(source.integers(count))
        question = self._joined(_ASKED[0], words[asked], _ASKED[1], _NEEDLE[0], words[asked], _NEEDLE[1])
        return said, question, self.ids(values[asked])

    def _variables(self, source: np.random.Generator) -> tuple[list[Tokens], Tokens, Tokens]:
        """Assignments in order, the question which variables have the value of the chain, and their names in order."""
        count = 1 + HOPS + DECOYS
        letters = len(_LETTERS)
        numbers = source.permutation(letters**3)[:count]
        names = [
            f" {_LETTERS[n // letters**2]}{_LETTERS[n // letters % letters]}{_LETTERS[n % letters]}" for n in numbers
        ]
        values = _values(source, 1 + DECOYS)
        chain, others = names[: 1 + HOPS], names[1 + HOPS :]
        said = [self._joined(" VAR", chain[0], " =", values[0], ".")]
        said += [self._joined(" VAR", name, " =", " VAR", last, ".") for last, name in itertools.pairwise(chain)]
        for name, value in zip(others, values[1:], strict=True):
            said.insert(int(source.integers(len(said) + 1)), self._joined(" VAR", name, " =", value, "."))
        return said, self._joined(_ASKED_VARIABLES[0], values[0], _ASKED_VARIABLES[1]), self._joined(*chain)

    def _recall(self, source: np.random.Generator, length: int) -> tuple[Tokens, Tokens]:
        """Pairs of a key and a value among other tokens; later the key again, whose next token is the value."""
        keys, values = self.symbols[::2], self.symbols[1::2]
        pairs = max(1, min(PAIRS, length // 16, len(keys) // 2))
        chosen = source.permutation(len(keys))
        others = np.concatenate((keys[chosen[pairs:]], values))
        tokens, targets = others[source.integers(len(others), size=length)], np.full(length, IGNORED, dtype=np.int64)
        free = np.ones(length + 1, dtype=bool)
        for key in keys[chosen[:pairs]]:
            value = values[source.integers(len(values))]
            first, query = _two_places(source, free)
            tokens[[first, first + 1, query]], targets[query] = (key, value, key), value
            tokens[query + 1 : query + 2] = value  # beyond the end if the query is last
        return tokens, targets

    @functools.cached_property
    def symbols(self) -> Tokens:
        """Tokens that stand for a text by themselves: neither special ones nor parts of a character."""
        found = []
        for number in np.random.Generator(np.random.PCG64(0)).permutation(self.tokenizer.vocab_size)[:_TRIED_SYMBOLS]:
            text = self.tokenizer.decode([int(number)])
            if text.strip() and text.isprintable() and self.tokenizer.encode(text).tolist() == [number]:
                found.append(number)
        if len(found) < _FEWEST_SYMBOLS:
            raise DataError(f"recall must have {_FEWEST_SYMBOLS} tokens that are text by themselves, got {len(found)}")
        return np.array(found[:_MOST_SYMBOLS], dtype=np.int64)

    def _noise(self, source: np.random.Generator, room: int, split: str) -> tuple[Tokens, Tokens]:
        """Sentences of no importance, cut to `room` tokens, and the places between them."""
        pieces: list[Tokens] = []
        while sum(map(len, pieces)) < room:
            pieces += [self.ids(_NOISE[i]) for i in source.integers(len(_NOISE), size=1 + room // 64)]
        hay = np.concatenate(pieces)
        ends = np.cumsum([len(piece) for piece in pieces]) - (len(hay) - room)
        return hay[len(hay) - room :], ends[ends >= 0]

    def _books(self, source: np.random.Generator, room: int, split: str) -> tuple[Tokens, Tokens]:
        """A passage of the corpus with `room` tokens, and the places after its full stops."""
        file = self._file(split)
        size, hay = room, np.zeros(0, dtype=np.int64)
        own = file.fingerprint == self.tokenizer.fingerprint
        while len(hay) < room:
            if size > len(file):
                raise DataError(
                    f"{file.path}: must have at least {size:,} tokens to hide something in, got {len(file):,}"
                )
            start = int(source.integers(len(file) - size + 1))
            passage = np.asarray(file.tokens[start : start + size]).astype(np.int64)
            passage = passage[passage != file.end_of_document]
            hay = passage if own else self._retold(passage)
            size += 64 + size // 8
        stop = self.ids("x.")[-1]
        return hay[:room], np.flatnonzero(hay[:room] == stop) + 1

    def _retold(self, passage: Tokens) -> Tokens:
        return self._ids(self._theirs.decode(passage).strip("\N{REPLACEMENT CHARACTER}"))

    @functools.cached_property
    def _theirs(self) -> Tokenizer:
        """The tokenizer of the books."""
        assert self.books is not None
        return load_tokenizer(self.books)

    def _file(self, split: str) -> TokenFile:
        """The text of the split, or of the next one that is not empty."""
        assert self.books is not None
        if split not in self._files:
            for name in (split, "validation", "train"):
                file = TokenFile.open(self.books / f"{name}.tokens")
                if len(file):
                    break
            self._files[split] = file
        return self._files[split]


_NEEDLE = (" The secret number of", " is")
_ASKED = (" What is the secret number of", "?")
_ASKED_VARIABLES = (" The variables with the value", " are:")


def _values(source: np.random.Generator, count: int) -> list[str]:
    return [f" {number:05d}" for number in source.choice(100_000, size=count, replace=False)]


def _inserted(source: np.random.Generator, hay: Tokens, places: Tokens, said: Sequence[Tokens]) -> list[Tokens]:
    """The haystack with the statements in order, each at a place of its own if there are enough."""
    if len(places) < len(said):
        places = np.arange(len(hay) + 1)
    at = np.sort(source.choice(places, size=len(said), replace=False))
    parts = np.split(hay, at)
    return [piece for pair in itertools.zip_longest(parts, said, fillvalue=hay[:0]) for piece in pair]


def _two_places(source: np.random.Generator, free: NDArray[np.bool_]) -> tuple[int, int]:
    """Places for a pair and its query, each of two tokens, at a distance drawn evenly on a logarithmic scale."""
    longest = len(free) - 2
    while True:
        distance = int(LEAST_DISTANCE * (longest / LEAST_DISTANCE) ** source.random())
        first = int(source.integers(longest - distance + 1))
        taken = [first, first + 1, first + distance, first + distance + 1]
        if free[taken].all():
            free[taken] = False
            return first, first + distance


def distances(tokens: NDArray[Any], targets: NDArray[Any]) -> NDArray[np.int64]:
    """How far back the pair of each query of a recall example is, in the order of the queries."""
    return np.array([query - np.flatnonzero(tokens == tokens[query])[0] for query in np.flatnonzero(targets >= 0)])


@functools.lru_cache(maxsize=4)
def _opened(tokenizer: str, books: str | None) -> Retrieval:
    return Retrieval(load_tokenizer(tokenizer), books)


def draw(
    key: str, *, length: int, kinds: tuple[str, ...], tokenizer: str, books: str | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The example of a key TASK/SEED/SPLIT/NUMBER; the kinds take turns."""
    _, _, split, number = key.split("/")
    kind = kinds[int(number) % len(kinds)]
    tokens, targets = _opened(tokenizer, books).draw(kind, key, length=length, split=split)
    return tokens.astype(np.uint32), targets.astype(np.int32)  # many wait in memory until they are written
