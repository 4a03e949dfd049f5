"""The tokens of a run: its data folder, checked against what the model expects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from longshort.data import default_data
from longshort.data.stream import TokenStream
from longshort.data.tokenizer import TOKENIZER_FILE, load_tokenizer
from longshort.data.tokens import TokenFile
from longshort.files import write_atomically
from longshort.train.settings.config import ConfigError, TrainConfig

READ_THROUGH = 1 << 30
"""Of a larger file only the header and size are checked: reading all of it would delay every start."""


def text_folder(config: TrainConfig) -> Path:
    """The folder that the configuration names, or the standard library's, which is prepared on first use."""
    return default_data() if config.data.path is None else Path(config.data.path)


def texts_of(config: TrainConfig) -> dict[str, str]:
    """As `texts_in`, of the data of a run; empty if they are not text."""
    is_text = config.task.name is None and config.rl.task is None
    return texts_in(text_folder(config)) if is_text else {}


def texts_in(folder: Path) -> dict[str, str]:
    """What the texts for training and validation are known by: checksums of their tokens."""
    return {split: TokenFile.open(folder / f"{split}.tokens").checksum for split in ("train", "validation")}


def open_tokens(path: Path, fingerprint: str | None = None) -> TokenFile:
    """The token file, checked in full if it has at most `READ_THROUGH` bytes."""
    small = path.is_file() and path.stat().st_size <= READ_THROUGH
    return TokenFile.open(path, verify=small, fingerprint=fingerprint)


@dataclass(frozen=True)
class TextData:
    """A prepared data folder and how a run cuts it into sequences."""

    folder: Path
    config: TrainConfig
    fingerprint: str
    tokenizer_checksum: str | None
    texts: dict[str, str]
    """As `texts_in` gives them."""

    @classmethod
    def open(cls, config: TrainConfig, message: Callable[[str], None] = lambda text: None) -> TextData:
        """The folder that the configuration names, or the standard library's, which is prepared on first use."""
        if config.data.path is None:
            message("no data.path given: using the source text of this Python's standard library, as bytes")
        folder = text_folder(config)
        tokens = TokenFile.open(folder / "train.tokens")
        if tokens.vocab_size > config.model.vocab_size:
            raise ConfigError(
                f"model.vocab_size must be at least {tokens.vocab_size}, the vocabulary of {folder}, "
                f"got {config.model.vocab_size}"
            )
        load_tokenizer(folder, fingerprint=tokens.fingerprint, checksum=tokens.tokenizer_checksum)
        return cls(folder, config, tokens.fingerprint, tokens.tokenizer_checksum, texts_in(folder))

    def stream(self, split: str, *, seed: int) -> TokenStream:
        """Batches of one split, checked as in `open_tokens`; only training text is corrupted or cut short."""
        data, training = self.config.data, split == "train"
        return TokenStream(
            open_tokens(self.folder / f"{split}.tokens"),
            batch_size=data.batch_size,
            length=self.config.length,
            seed=seed,
            segments=data.segments,
            corruption=data.corruption if training else 0.0,
            share=data.share if training else 1.0,
        )

    def keep_tokenizer(self, out: Path) -> None:
        """Copy the tokenizer beside the checkpoints, which cannot be used without it."""
        content, kept = (self.folder / TOKENIZER_FILE).read_bytes(), out / TOKENIZER_FILE
        if not kept.is_file() or kept.read_bytes() != content:
            write_atomically(kept, content)  # replaces a link rather than writing through it
