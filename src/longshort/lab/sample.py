"""Text from a checkpoint, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from longshort.data.tokenizer import load_tokenizer
from longshort.generation import generate
from longshort.train import load_model
from longshort.train.checkpoint import CheckpointError
from longshort.train.distributed import choose_device

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def stream_text(
    checkpoint: Path,
    prompt: str,
    *,
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = 0.95,
    seed: int | None = None,
    device: str = "cpu",
) -> Iterator[str]:
    """The prompt, then what the model writes after it; a character comes when all of its bytes are there."""
    chosen = choose_device(device)
    model, loaded = load_model(checkpoint, chosen)
    tokenizer = load_tokenizer(tokenizer_folder(loaded.path))
    start = tokenizer.encode(prompt).tolist()
    if not start:
        raise ValueError("prompt must hold at least one token, got an empty text")
    written: list[int] = []
    shown = ""
    yield prompt
    for token in generate(
        model,
        torch.tensor([start], device=chosen),
        max_new_tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=tokenizer.end_of_document,
    ):
        if int(token) == tokenizer.end_of_document:
            return
        written.append(int(token))
        text = tokenizer.decode(written)
        if not text.endswith(_REPLACEMENT):
            yield text[len(shown) :]
            shown = text


def tokenizer_folder(checkpoint: Path) -> Path:
    """The run's folder, which holds the tokenizer that its checkpoints were trained with."""
    for folder in (checkpoint, *checkpoint.parents[:2]):
        if (folder / "tokenizer.json").is_file():
            return folder
    raise CheckpointError(f"no tokenizer.json beside {checkpoint}: a checkpoint is read from within its run's folder")
