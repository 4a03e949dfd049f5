"""The examples of a run on a task, and the share of its questions that a model answers correctly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from longshort.data.stream import Batch
from longshort.data.tasks import IGNORED, Task, open_task, task_vocabulary
from longshort.data.tasks.example_stream import ExampleStream
from longshort.data.tokenizer import TOKENIZER_FILE, tokenizer_checksum
from longshort.files import write_json
from longshort.model import GPT
from longshort.nn.modes import evaluating
from longshort.train.checkpoints.checkpoint import Checkpoint
from longshort.train.machine.distributed import World
from longshort.train.machine.precision import autocast
from longshort.train.models import Model
from longshort.train.settings.config import ConfigError, TrainConfig


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
        """None unless the task's tokens are text."""
        return None if self.task.tokenizer is None else tokenizer_checksum(self.task.tokenizer.to_dict())

    @property
    def texts(self) -> dict[str, str]:
        """None, since the fingerprint covers the examples."""
        return {}

    def stream(self, split: str, *, seed: int) -> ExampleStream:
        """Batches of one split."""
        return ExampleStream(self.task, split, batch_size=self.batch_size, seed=seed)

    def keep_tokenizer(self, out: Path) -> None:
        """Write the tokenizer beside the checkpoints, if the task's tokens are text."""
        if self.task.tokenizer is not None:
            write_json(out / TOKENIZER_FILE, self.task.tokenizer.to_dict())

    def check_start(self, start: Checkpoint) -> None:
        """Raise if the weights that a run starts with were trained with another tokenizer than the task's."""
        if self.task.tokenizer is None:
            return
        config = start.state["config"]
        of_text = config.get("task", {}).get("name") is None and config.get("rl", {}).get("task") is None
        vocabulary = start.state.get("vocabulary") if of_text else None  # otherwise it identifies examples
        same = vocabulary in (None, self.task.tokenizer.fingerprint)
        if not same or start.state.get("tokenizer") not in (None, self.tokenizer_checksum):
            raise ConfigError(
                f"task.start: {start.path} was trained with another tokenizer than the task's; set task.tokenizer to "
                "the folder of its run"
            )


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
def answer_scores(
    model: Model, batches: Iterable[Batch], *, world: World, precision: str, kinds: Sequence[str] = ()
) -> dict[str, Any]:
    """Mean loss and accuracy over all questions; `exact` is the share of sequences with every answer right.

    A classifier answers one question per sequence, so it has no `exact`. For a task with `kinds` of examples, `by_kind`
    has the share of right answers of each, where an answer of several tokens is right as a whole; a kind without
    examples in these batches is left out, and all are where processes share sequences, which may cut an answer.
    Sequences that are asked nothing do not count.
    """
    group = getattr(model, "group", None)
    turns = () if group is not None else tuple(kinds)
    kinds = tuple(dict.fromkeys(turns))  # one may have several turns
    kind_of_turn = torch.tensor([kinds.index(kind) for kind in turns], dtype=torch.long, device=world.device)
    sums = torch.zeros(5 + 2 * len(kinds), dtype=torch.float64, device=world.device)
    with evaluating(model):
        for batch in batches:
            tokens, targets = batch.tokens.to(world.device), batch.targets.to(world.device)
            segments = None if batch.segments is None else batch.segments.to(world.device)
            with autocast(precision, world.device):
                logits, asked = model_answers(model, tokens, targets, segments)
            losses = F.cross_entropy(logits.float(), asked, reduction="none").double()
            right = logits.argmax(-1) == asked
            rows = _rows(right, targets, group)
            sums[:5] += torch.stack((losses.sum(), right.sum(), asked.new_tensor(len(asked)), *rows))
            if kinds:
                whole, of = whole_answers(right, targets)
                of_rows = kind_of_turn[torch.tensor(batch.indices, device=world.device) % len(turns)]
                sums[5:].index_add_(0, 2 * of_rows[of], whole.double())
                sums[5:].index_add_(0, 2 * of_rows[of] + 1, torch.ones_like(whole, dtype=torch.float64))
    loss, right_answers, questions, right_rows, rows_seen, *counts = world.mean(sums).tolist()
    scores: dict[str, Any] = {"loss": loss / questions, "accuracy": right_answers / questions}
    if isinstance(model, GPT):
        scores["exact"] = right_rows / rows_seen
    by_kind = zip(kinds, counts[::2], counts[1::2], strict=True)
    return scores | ({"by_kind": {kind: good / seen for kind, good, seen in by_kind if seen}} if kinds else {})


def whole_answers(right: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Which answers have only right tokens, and the sequence of each, both (answers,), in order.

    An answer is a run of adjacent positions with targets; `right` (positions with targets,) says which are right.

    >>> targets = torch.tensor([[-100, 5, 6, -100, 7], [8, -100, -100, 9, 9]])
    >>> whole_answers(torch.tensor([True, True, False, True, True, False]), targets)
    (tensor([ True, False,  True, False]), tensor([0, 0, 1, 1]))
    """
    asked = targets != IGNORED
    starts = asked.clone()
    starts[:, 1:] &= ~asked[:, :-1]
    number = starts.flatten().cumsum(0)[asked.flatten()] - 1
    rows = starts.nonzero()[:, 0]
    wrong = torch.zeros(len(rows), dtype=torch.long, device=targets.device).index_add_(0, number, (~right).long())
    return wrong == 0, rows


def model_answers(model: Model, tokens: Tensor, targets: Tensor, segments: Tensor | None) -> tuple[Tensor, Tensor]:
    """(questions, classes) scores and (questions,) right answers; logits of other positions are never computed."""
    asked = targets != IGNORED
    if not isinstance(model, GPT):
        return model(tokens, segments=segments).logits[asked], targets[asked]
    hidden, _ = model.hidden(tokens, segments=segments)
    scores = model.config.loss.transform(model.scores(hidden[asked]))
    return scores, targets[asked]


def _rows(right: Tensor, targets: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """The number of sequences without a wrong answer, also on the processes that share them, and of all that are asked
    something.
    """
    if targets.ndim == 1:
        return right.sum(), right.new_tensor(len(right), dtype=torch.long)
    asked = targets != IGNORED
    wrong = torch.zeros_like(asked)
    wrong[asked] = ~right
    of_rows = torch.stack((asked.any(1), wrong.any(1))).long()
    if group is not None:
        dist.all_reduce(of_rows, op=dist.ReduceOp.MAX, group=group)
    return (of_rows[0] > of_rows[1]).sum(), of_rows[0].sum()
