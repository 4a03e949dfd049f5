"""The retrieval suite: the share of right answers of a language model, by kind of example and length.

What is asked, and when an answer is right, is said in `longshort.data.tasks.retrieval`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table

from longshort.data.errors import DataError
from longshort.data.tasks.retrieval import KINDS, LEAST_DISTANCE, Retrieval, distances
from longshort.data.tokenizer import Tokenizer
from longshort.model import GPT
from longshort.nn.modes import evaluating
from longshort.train.evaluation.answers import model_answers, whole_answers
from longshort.train.evaluation.held_out import AT_ONCE
from longshort.train.machine.precision import autocast
from longshort.train.settings.config import ConfigError

LENGTHS = (1024, 2048, 4096, 8192, 16384)
EXAMPLES = 100
"""Examples of each kind at each length."""

Progress = Callable[[str, int, int], None]
"""Called with the kind, the length and the number of examples done."""


def evaluate_retrieval(
    model: GPT,
    tokenizer: Tokenizer,
    *,
    beginning: Sequence[int] = (),
    books: Path | None = None,
    lengths: Sequence[int] = LENGTHS,
    past_context: bool = False,
    kinds: Sequence[str] = KINDS,
    examples: int = EXAMPLES,
    seed: int = 0,
    split: str = "test",
    precision: str = "auto",
    progress: Progress = lambda kind, length, done: None,
) -> dict[str, Any]:
    """Right answers by kind and length; for recall also by the distance from the query back to its pair.

    What cannot be asked (a length past the model's context, a kind for which it is too short or the books are missing)
    is listed under `skipped`, with the reason.

    Args:
        beginning: Tokens that every sequence begins with, counted in its length.
        books: A folder made by `longshort data`, for the kinds in books.
        past_context: Ask beyond the model's context too, unless its positions are learned.
        split: The text of the books that is used; examples depend on it too, and on the seed.
    """
    if tokenizer.vocab_size > model.config.vocab_size:
        raise ConfigError(
            f"tokenizer must have no more tokens than the model, {model.config.vocab_size}, got {tokenizer.vocab_size}"
        )
    retrieval, rows, skipped = Retrieval(tokenizer, books, beginning), [], []
    for length in lengths:
        reason = _too_long(model, length, past_context)
        if reason is not None:
            skipped.append({"kind": None, "length": length, "reason": reason})
            continue
        for kind in kinds:
            try:
                retrieval.check((kind,), length)
                keys = (f"suite/{seed}/{split}/{number}" for number in range(examples))
                drawn = [retrieval.draw(kind, key, length=length, split=split) for key in keys]
            except DataError as error:
                skipped.append({"kind": kind, "length": length, "reason": str(error)})
                continue
            rows.append({"kind": kind, "length": length} | _scores(model, kind, drawn, precision, progress))
    return {"suite": "retrieval", "seed": seed, "split": split, "examples": examples, "rows": rows, "skipped": skipped}


def _too_long(model: GPT, length: int, past_context: bool) -> str | None:
    context = model.config.context
    if length <= context:
        return None
    if model.config.positions == "learned":
        return f"positions are learned for {context:,} tokens"
    return None if past_context else f"longer than the model's context of {context:,} tokens"


Drawn = Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]


@torch.no_grad()
def _scores(model: GPT, kind: str, drawn: Drawn, precision: str, progress: Progress) -> dict[str, Any]:
    right, device = [], next(model.parameters()).device
    with evaluating(model):
        for done, *batch in _batches(drawn):
            tokens, targets = (x.to(device) for x in batch)
            with autocast(precision, device):
                logits, asked = model_answers(model, tokens, targets, None)
            right.append(whole_answers(logits.argmax(-1) == asked, targets)[0].cpu())
            progress(kind, tokens.shape[1], done)
    answers = torch.cat(right).numpy()
    found: dict[str, Any] = {"questions": len(answers), "accuracy": float(answers.mean())}
    if kind == "recall":
        away = np.concatenate([distances(tokens, targets) for tokens, targets in drawn])
        found["by_distance"] = _by_distance(answers, away)
    return found


def _batches(drawn: Drawn) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """The number of examples so far with it, tokens and targets."""
    size = max(1, AT_ONCE // len(drawn[0][0]))
    for first in range(0, len(drawn), size):
        tokens, targets = (torch.from_numpy(np.stack(part)) for part in zip(*drawn[first : first + size], strict=True))
        yield min(first + size, len(drawn)), tokens, targets


def _by_distance(answers: NDArray[np.bool_], away: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Right answers by octaves of the distance."""
    found, low = [], LEAST_DISTANCE
    while low <= away.max():
        within = (away >= low) & (away < 2 * low)
        if within.any():
            share = float(answers[within].mean())
            found.append({"distance": f"{low}-{2 * low - 1}", "questions": int(within.sum()), "accuracy": share})
        low *= 2
    return found


def retrieval_tables(result: dict[str, Any]) -> list[Table]:
    """The result of `evaluate_retrieval` as tables: kinds by length, and recall by distance."""
    lengths = sorted({row["length"] for row in result["rows"]})
    shares = {(row["kind"], row["length"]): row["accuracy"] for row in result["rows"]}
    tables = [_table("right answers", "kind", dict.fromkeys(kind for kind, _ in shares), lengths, shares)]
    near = {(b["distance"], row["length"]): b["accuracy"] for row in result["rows"] for b in row.get("by_distance", ())}
    if near:
        names = sorted({distance for distance, _ in near}, key=lambda name: int(name.partition("-")[0]))
        tables.append(_table("recall by distance", "distance", names, lengths, near))
    return tables


def _table(title: str, name: str, lines: Any, lengths: Sequence[int], shares: dict[tuple[str, int], float]) -> Table:
    table = Table(title=title)
    table.add_column(name)
    for length in lengths:
        table.add_column(f"{length:,}", justify="right")
    for line in lines:
        cells = (f"{shares[line, length]:.1%}" if (line, length) in shares else "" for length in lengths)
        table.add_row(line, *cells)
    return table


def skipped_lines(result: dict[str, Any]) -> list[str]:
    """What was left out and why, in one line for each reason."""
    lines: dict[tuple[str | None, str], list[int]] = {}
    for entry in result["skipped"]:
        lines.setdefault((entry["kind"], entry["reason"]), []).append(entry["length"])
    return [
        f"skipped {'' if kind is None else f'{kind} at '}{', '.join(f'{n:,}' for n in at)} tokens: {reason}"
        for (kind, reason), at in lines.items()
    ]
