"""Text to tokens and back: raw bytes, which need no training, or byte-level BPE through the package `tokenizers`.

Both are lossless. Neither ever produces the end-of-document token from text: only `prepare` inserts it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from longshort.data.errors import DataError
from longshort.data.reading import SEPARATOR
from longshort.files import parse_json, write_json

if TYPE_CHECKING:
    import tokenizers

TOKENIZER_FILE = "tokenizer.json"
LARGEST_VOCABULARY = 10_000_000
_LONGEST_WORD = 1000
"""Characters of a stretch with or without blanks that merges are learned from: the time grows with its square."""
_BLANK = re.compile(r"\s")
_STRETCH = re.compile(rf"(\S{{{_LONGEST_WORD}}})(?=\S)|(\s{{{_LONGEST_WORD}}})\s+")
_END_TOKENS = (SEPARATOR, "<|end_of_text|>", "</s>", "<eos>")
"""Names of the end-of-document token in widely used vocabularies, in order of preference."""


class Tokenizer(Protocol):
    """What the rest of the package needs from a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """sha256 of the vocabulary: equal for two tokenizers whose ids mean the same."""

    @property
    def end_of_document(self) -> int: ...

    @property
    def beginning(self) -> tuple[int, ...]:
        """What tokenizer.json puts before a text, such as Llama's <|begin_of_text|>; `encode` leaves it out."""

    def encode(self, text: str) -> NDArray[Any]:
        """Token ids of a text, uint16 or, for vocabularies beyond 65,536, uint32."""

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        """The text of token ids; the end of a document has no text. Bytes that are not UTF-8 become U+FFFD."""

    def to_dict(self) -> dict[str, Any]:
        """The content of tokenizer.json; `tokenizer_from_dict` reads it back."""


class ByteTokenizer:
    """The 256 byte values of UTF-8 text and an end-of-document token.

    >>> ByteTokenizer().encode("é!")
    array([195, 169,  33], dtype=uint16)
    >>> ByteTokenizer().decode([195, 169, 33, 256])
    'é!'
    """

    vocab_size = 257
    end_of_document = 256
    beginning = ()

    @property
    def fingerprint(self) -> str:
        return _fingerprint({f"<0x{byte:02X}>": byte for byte in range(256)} | {SEPARATOR: self.end_of_document})

    def encode(self, text: str) -> NDArray[Any]:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint16)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        numbers = np.asarray(ids, dtype=np.int64).reshape(-1)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < self.vocab_size):
            raise ValueError(f"ids must be from 0 to {self.vocab_size - 1}, got {numbers.min()} to {numbers.max()}")
        return numbers[numbers < 256].astype(np.uint8).tobytes().decode(errors="replace")

    def to_dict(self) -> dict[str, Any]:
        return {"type": "bytes", "vocab_size": self.vocab_size}


class BPETokenizer:
    """Byte-level BPE; its tokenizer.json is Hugging Face's, readable by `tokenizers` and `transformers`.

    >>> tokenizer = BPETokenizer.train(["to be or not to be"], vocab_size=260)
    >>> tokenizer.decode(tokenizer.encode("to be!"))
    'to be!'
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        vocabulary = inner.get_vocab(with_added_tokens=True)
        end = next((token for token in _END_TOKENS if token in vocabulary), None)
        if end is None:
            raise DataError(f"the tokenizer has no end-of-document token; it must have one of {', '.join(_END_TOKENS)}")
        # Without these, a text that quotes the end token would end its document there.
        inner.encode_special_tokens = True
        inner.add_special_tokens([end])
        self._inner = inner
        self._dtype = token_dtype(max(vocabulary.values()) + 1)
        self.vocab_size = max(vocabulary.values()) + 1
        self.end_of_document = vocabulary[end]
        self.fingerprint = _fingerprint(vocabulary)
        self.beginning = _beginning(inner)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> BPETokenizer:
        """Learn merges from texts. The vocabulary is smaller than asked for if the texts have too few pairs."""
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers, trainers

        if not 257 <= vocab_size <= LARGEST_VOCABULARY:  # the package aborts the process if it cannot allocate
            raise DataError(
                f"vocab_size must be from 257 (the bytes and the end of a document) to "
                f"{LARGEST_VOCABULARY:,}, got {vocab_size}"
            )
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[SEPARATOR],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator((_with_breaks(text) for text in texts), trainer)
        return cls(inner)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> BPETokenizer:
        import tokenizers

        try:
            inner = tokenizers.Tokenizer.from_str(json.dumps(data))
        except Exception as error:  # the package raises a bare Exception
            raise DataError(f"not a tokenizer.json of Hugging Face tokenizers ({error})") from None
        inner.no_truncation()  # transformers saves both as they were in its last call
        inner.no_padding()
        return cls(inner)

    @classmethod
    def load(cls, path: Path | str) -> BPETokenizer:
        tokenizer = load_tokenizer(path)
        if not isinstance(tokenizer, cls):
            raise DataError(f"{path}: holds the byte tokenizer; name a BPE vocabulary")
        return tokenizer

    def save(self, path: Path | str) -> Path:
        return write_json(Path(path), self.to_dict())

    def encode(self, text: str) -> NDArray[Any]:
        return np.array(self._inner.encode(text, add_special_tokens=False).ids, dtype=self._dtype)

    def decode(self, ids: Sequence[int] | NDArray[Any]) -> str:
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=True)

    def to_dict(self) -> dict[str, Any]:
        return json.loads(self._inner.to_str())


def _beginning(inner: tokenizers.Tokenizer) -> tuple[int, ...]:
    """What its post-processor puts before a text."""
    whole, text = (inner.encode("a", add_special_tokens=special).ids for special in (True, False))
    starts = range(len(whole) - len(text) + 1)
    return tuple(next((whole[:start] for start in starts if whole[start : start + len(text)] == text), ()))


def load_tokenizer(
    path_or_name: Path | str, *, fingerprint: str | None = None, checksum: str | None = None
) -> Tokenizer:
    """'bytes', a tokenizer.json, or a folder that holds one (prepared data, a checkpoint).

    Args:
        fingerprint: The fingerprint that it must have.
        checksum: The checksum that its content must have; the fingerprint covers the vocabulary, but not the merges.

    >>> load_tokenizer("bytes").vocab_size
    257
    """
    if path_or_name == "bytes":
        return ByteTokenizer()
    path = Path(path_or_name)
    file = path / TOKENIZER_FILE if path.is_dir() else path
    try:
        data = parse_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{file}: no such tokenizer; name a {TOKENIZER_FILE}, a folder with one, or 'bytes'") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read as a tokenizer ({error}); name a {TOKENIZER_FILE}") from None
    try:
        tokenizer = tokenizer_from_dict(data)
    except DataError as error:
        raise DataError(f"{file}: {error}") from None
    if checksum not in (None, tokenizer_checksum(data)) or fingerprint not in (None, tokenizer.fingerprint):
        raise DataError(f"{file}: damaged, or not the tokenizer that the tokens were made with; put that one back")
    return tokenizer


def tokenizer_from_dict(data: Any) -> Tokenizer:
    """The inverse of `Tokenizer.to_dict`.

    >>> tokenizer_from_dict(ByteTokenizer().to_dict()).end_of_document
    256
    """
    if not isinstance(data, dict):
        raise DataError(f"a tokenizer must be the object that a {TOKENIZER_FILE} holds, got a {type(data).__name__}")
    return ByteTokenizer() if data.get("type") == "bytes" or _is_bytes(data) else BPETokenizer.from_dict(data)


def byte_characters() -> list[str]:
    """The character that byte-level tokenizers use for each byte: itself if printable, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _is_bytes(data: dict[str, Any]) -> bool:
    """Whether it is our byte tokenizer as exported: every byte a token of its own value, no merges."""
    match data:
        case {
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
            "added_tokens": [{"id": ByteTokenizer.end_of_document, "content": end}],
            "model": {"type": "BPE", "vocab": dict(vocabulary), "merges": []},
        }:
            # Some versions of the package list the added tokens in the vocabulary too.
            known = {character: byte for byte, character in enumerate(byte_characters())}
            return end == SEPARATOR and vocabulary | {end: 256} == known | {end: 256}
    return False


def _with_breaks(text: str) -> str:
    """The text with a break in words that no language has, such as data in base64, and without most of long blanks.

    >>> _with_breaks(f"to be {'a' * 1001} {' ' * 5000}or") == f"to be {'a' * 1000}\\na {' ' * 999}or"
    True
    """
    half = _LONGEST_WORD // 2  # in such a stretch lie whole blocks of half its length: looking for these takes no time
    blocks = (text[start : start + half] for start in range(0, len(text) - half + 1, half))
    if not any(block.isspace() or _BLANK.search(block) is None for block in blocks):
        return text
    return _STRETCH.sub(lambda found: found[2] or f"{found[1]}\n", text)


def tokenizer_checksum(data: dict[str, Any]) -> str:
    """sha256 of the content of a tokenizer.json, whatever its formatting."""
    return f"sha256:{hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()}"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smaller of uint16 and uint32 that holds the vocabulary, in the byte order of token files.

    >>> token_dtype(65_536), token_dtype(65_537)
    (dtype('uint16'), dtype('uint32'))
    """
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def _fingerprint(vocabulary: dict[str, int]) -> str:
    pairs = sorted((number, token) for token, number in vocabulary.items())
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
