"""Evaluates a checkpoint on a whole split, and prints the results as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from longshort.data.stream import Batch, Window, document_numbers, targets_of_window, windows
from longshort.data.tokens import TokenFile
from longshort.model import GPT, lengthened
from longshort.train.checkpoints.checkpoint import Checkpoint, load_checkpoint
from longshort.train.checkpoints.tokenizer import beginning_of
from longshort.train.evaluation.answers import TaskData, answer_scores
from longshort.train.evaluation.calibration import fit_temperature, score_sample
from longshort.train.evaluation.held_out import evaluate_split
from longshort.train.machine.distributed import World, choose_device
from longshort.train.models import load_model, load_trained
from longshort.train.settings.config import ConfigError, TrainConfig
from longshort.train.text import TextData, open_tokens

_FITTED_WINDOWS = 8
"""Windows, one after another, that a temperature is fitted on."""


def evaluate_checkpoint(
    checkpoint: Path | Checkpoint,
    *,
    data: Path | None = None,
    split: str = "validation",
    length: int | None = None,
    stride: int | None = None,
    limit: int | None = None,
    bucket: int | None = None,
    yarn: bool = False,
    device: str = "auto",
    progress: Callable[[int], None] = lambda windows_done: None,
) -> dict[str, Any]:
    """Perplexity over a split of the run's own data, or of another folder with the same vocabulary.

    With `yarn`, the model is `lengthened` for windows of a `length` beyond its context.

    A model trained with loss.exponent below 1 is also evaluated with a plain softmax(s / T) of its scores, with T
    fitted on the split's first windows: `temperature`, `temperature_loss` and `temperature_perplexity`. Every window
    of an imported model begins with what its tokenizer puts before a text: `beginning`, if there is any.
    """
    if split not in ("train", "validation", "test"):
        raise ConfigError(f"split must be train, validation or test, got {split!r}")
    chosen = choose_device(device)
    found = checkpoint if isinstance(checkpoint, Checkpoint) else load_checkpoint(checkpoint)
    config = TrainConfig.from_dict(found.state["config"])
    if config.task.name is not None:
        texts = {"--data": data, "--length": length, "--stride": stride, "--limit": limit, "--bucket": bucket}
        for name, value in (texts | {"--yarn": yarn or None}).items():
            if value is not None:
                raise ConfigError(f"{name} is for text; {found.path} was trained on the task {config.task.name}")
        return evaluate_task(found, split=split, device=chosen, progress=progress)
    model, loaded = load_model(found, chosen)
    folder = data if data is not None else TextData.open(config).folder
    tokens = open_tokens(folder / f"{split}.tokens", loaded.state["vocabulary"])
    sizes: dict[str, Any] = {"length": length, "stride": stride, "limit": limit, "bucket": bucket, "yarn": yarn}
    numbers = text_scores(model, tokens, config, **sizes, beginning=beginning_of(loaded), progress=progress)
    return {"checkpoint": str(loaded.path), "step": loaded.step, "data": str(folder), "split": split, **numbers}


def text_scores(
    model: GPT,
    tokens: TokenFile,
    config: TrainConfig,
    *,
    length: int | None,
    stride: int | None,
    limit: int | None,
    bucket: int | None,
    yarn: bool = False,
    beginning: Sequence[int],
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """The numbers of `evaluate_checkpoint`."""
    device = model.embedding.weight.device
    length = length or config.length
    if yarn:
        model = lengthened(model, length)
    if config.model.positions == "learned" and length > config.model.context:
        raise ConfigError(
            f"length must be at most {config.model.context}, which positions are learned for, got {length}"
        )
    targets = targets_of_window(length, beginning)
    score = partial(
        evaluate_split,
        model,
        tokens,
        length=length,
        stride=stride or max(1, targets // 2),
        device=device,
        precision=config.run.precision,
        bucket=bucket or 256,
        limit=limit,
        segments=config.data.segments,
        beginning=beginning,
        progress=progress,
    )
    numbers = score() | ({"beginning": list(beginning)} if beginning else {}) | ({"yarn": True} if yarn else {})
    if (exponent := model.config.loss.exponent) < 1:
        first = list(windows(tokens, length, targets, _FITTED_WINDOWS, beginning))
        temperature = _temperature(model, first, tokens.end_of_document, config)
        plain = score(temperature=temperature)
        numbers |= {"exponent": exponent, "temperature": temperature}
        numbers |= {f"temperature_{key}": plain[key] for key in ("loss", "perplexity")}
    return numbers


def _temperature(model: GPT, first: list[Window], end_of_document: int, config: TrainConfig) -> float:
    """The temperature, fitted on these windows."""
    device = model.embedding.weight.device
    inputs, targets = (torch.stack(rows).to(device) for rows in zip(*(w[:2] for w in first), strict=True))
    documents = document_numbers(inputs, end_of_document) if config.data.segments else None
    return fit_temperature(*score_sample(model, inputs, targets, documents, config.run.precision))


def evaluate_task(
    checkpoint: Path | Checkpoint,
    *,
    split: str,
    device: torch.device,
    progress: Callable[[int], None] = lambda rows_done: None,
) -> dict[str, Any]:
    """Loss and accuracy over a whole split of the run's own task."""
    model, loaded = load_trained(checkpoint, device)
    config = TrainConfig.from_dict(loaded.state["config"])
    data = TaskData.open(config)
    stream = data.stream(split, seed=0)

    def counted() -> Iterator[Batch]:
        done = 0
        for batch in stream.in_order():
            yield batch
            done += len(batch.tokens)
            progress(done)

    where: dict[str, Any] = {"world": World(0, 1, device), "precision": config.run.precision}
    scores = answer_scores(model, counted(), kinds=data.task.kinds, **where)
    where = {"checkpoint": str(loaded.path), "step": loaded.step, "task": config.task.name, "split": split}
    return {**where, "examples": len(stream), **scores}


def evaluation_table(result: dict[str, Any]) -> Table:
    """The result of `evaluate_checkpoint` as a table."""
    if "task" not in result:
        return position_table(result)
    table = Table(title=f"{result['split']} of {result['task']}: {result['examples']:,} examples")
    scores: dict[str, float] = {n: result[n] for n in ("loss", "reward", "accuracy", "exact") if n in result}
    scores |= {f"pass@{k}": value for k, value in result.get("pass", {}).items()}
    for name in scores:
        table.add_column(name, justify="right")
    plain = ("loss", "reward")
    table.add_row(*(f"{value:.4f}" if name in plain else f"{value:.2%}" for name, value in scores.items()))
    return table


def position_table(result: dict[str, Any]) -> Table:
    """Loss and perplexity by position in the window, with the whole split in the last row."""
    title = f"{result['split']} of {result['data']}: {result['tokens']:,} tokens, {result['windows']} windows"
    table = Table(title=title)
    for name in ("positions", "loss", "perplexity"):
        table.add_column(name, justify="right")
    for row in result["buckets"]:
        table.add_row(row["positions"], f"{row['loss']:.4f}", f"{row['perplexity']:.3f}")
    table.add_section()
    table.add_row("all, each once", f"{result['loss']:.4f}", f"{result['perplexity']:.3f}")
    if "temperature" in result:
        name = f"scores untransformed, temperature {result['temperature']:.4g}"
        table.add_row(name, f"{result['temperature_loss']:.4f}", f"{result['temperature_perplexity']:.3f}")
    return table
