"""The tokenizer of a checkpoint is that of its run, and of no folder around it."""

from pathlib import Path

import pytest

from longshort.train.checkpoints.checkpoint import Checkpoint, CheckpointError
from longshort.train.checkpoints.tokenizer import checkpoint_tokenizer, tokenizer_folder


def test_it_lies_beside_a_checkpoint_or_in_its_run(tmp_path):
    checkpoint = tmp_path / "runs" / "run" / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    (tmp_path / "runs" / "tokenizer.json").touch()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json beside .*step-00000001: a checkpoint is read from"):
        tokenizer_folder(checkpoint)
    for folder in (tmp_path / "runs" / "run", checkpoint):  # a copy of a single checkpoint has it beside its files
        (folder / "tokenizer.json").touch()
        assert tokenizer_folder(checkpoint) == folder


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"task": {"name": "recall"}}, "those of the task recall, not text; longshort evaluate gives its accuracy"),
        ({"rl": {"task": "chains"}}, "those of the task chains, not text; longshort evaluate draws answers"),
    ],
)
def test_tokens_of_a_task_are_not_text(config, words):
    with pytest.raises(CheckpointError, match=words):
        checkpoint_tokenizer(Checkpoint(Path("step-1"), 1, {}, {}, {"config": config}))
