"""The examples of a run on a task, and the share of its questions that a model answers correctly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from longshort.data.stream import Batch
from longshort.data.tasks import IGNORED, Task, open_task, task_vocabulary
from longshort.data.tasks.example_stream import ExampleStream
from longshort.model import GPT
from longshort.train.config import ConfigError, TrainConfig
from longshort.train.distributed import World
from longshort.train.models import Model
from longshort.train.precision import autocast


@dataclass(frozen=True)
class TaskData:
    """A task and how a run batches it; the counterpart of `TextData`."""

    task: Task
    batch_size: int

    @classmethod
    def open(cls, config: TrainConfig, message: Callable[[str], None] = lambda text: None) -> TaskData:
        """The task that the configuration names. A generated task is generated on first use, which can take minutes."""
        name = config.task.name
        assert name is not None
        needed = task_vocabulary(name, config.task)
        if needed > config.model.vocab_size:
            raise ConfigError(
                f"model.vocab_size must be at least {needed}, the vocabulary of the task {name}, "
                f"got {config.model.vocab_size}"
            )
        task = open_task(name, config.task, progress=_every_tenth(name, message))
        return cls(task, config.data.batch_size)

    @property
    def fingerprint(self) -> str:
        return self.task.fingerprint

    @property
    def tokenizer_checksum(self) -> str | None:
        """None, since a task's tokens are not text."""
        return None

    def stream(self, split: str, *, seed: int) -> ExampleStream:
        """Batches of one split."""
        return ExampleStream(self.task, split, batch_size=self.batch_size, seed=seed)

    def keep_tokenizer(self, out: Path) -> None:
        """Do nothing: a task's tokens are not text, so it has no tokenizer."""


def draw_tasks(configs: Iterable[TrainConfig], message: Callable[[str], None]) -> None:
    """Generate the examples that these runs need once, before parallel runs would each generate them."""
    for config in {config.task: config for config in configs if config.task.name is not None}.values():
        TaskData.open(config, message)


def _every_tenth(name: str, message: Callable[[str], None]) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done * 10 // total > (done - 1000) * 10 // total:
            message(f"generating {name}: {done:,} of {total:,} examples")

    return progress


@torch.no_grad()
def answer_scores(model: Model, batches: Iterable[Batch], *, world: World, precision: str) -> dict[str, float]:
    """Mean loss and accuracy over all questions; `exact` is the share of sequences with every answer right.

    A classifier answers one question per sequence, so it has no `exact`.
    """
    was_training = model.training
    model.eval()
    sums = torch.zeros(5, dtype=torch.float64, device=world.device)
    for batch in batches:
        tokens, targets = batch.tokens.to(world.device), batch.targets.to(world.device)
        segments = None if batch.segments is None else batch.segments.to(world.device)
        with autocast(precision, world.device):
            logits, asked = _answers(model, tokens, targets, segments)
        losses = F.cross_entropy(logits.float(), asked, reduction="none").double()
        right = logits.argmax(-1) == asked
        rows = _rows(right, targets, getattr(model, "group", None))
        sums += torch.stack((losses.sum(), right.sum(), asked.new_tensor(len(asked)), *rows))
    model.train(was_training)
    loss, right_answers, questions, right_rows, rows = world.mean(sums).tolist()
    scores = {"loss": loss / questions, "accuracy": right_answers / questions}
    return scores | ({"exact": right_rows / rows} if isinstance(model, GPT) else {})


def _answers(model: Model, tokens: Tensor, targets: Tensor, segments: Tensor | None) -> tuple[Tensor, Tensor]:
    """(questions, classes) scores and (questions,) right answers; logits of other positions are never computed."""
    if not isinstance(model, GPT):
        return model(tokens, segments=segments).logits, targets
    asked = targets != IGNORED
    hidden, _ = model.hidden(tokens, segments=segments)
    scores = model.config.loss.transform(model.scores(hidden[asked]))
    return scores, targets[asked]


def _rows(right: Tensor, targets: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """The number of sequences without a wrong answer, also on the processes that share them, and of all sequences."""
    if targets.ndim == 1:
        return right.sum(), right.new_tensor(len(right), dtype=torch.long)
    wrong = torch.zeros(targets.shape, dtype=torch.bool, device=targets.device)
    wrong[targets != IGNORED] = ~right
    wrong_rows = wrong.any(1).long()
    if group is not None:
        dist.all_reduce(wrong_rows, op=dist.ReduceOp.MAX, group=group)
    return (wrong_rows == 0).sum(), right.new_tensor(len(targets), dtype=torch.long)
