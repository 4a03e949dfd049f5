"""The tokenizer of a checkpoint is that of its run, and of no folder around it."""

from pathlib import Path

import pytest

from longshort.data.tokenizer import ByteTokenizer
from longshort.files import write_json
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


def test_another_vocabulary_than_that_of_the_checkpoint_is_noticed(tmp_path):
    write_json(tmp_path / "tokenizer.json", ByteTokenizer().to_dict())
    mine, other = (
        Checkpoint(tmp_path / "step-1", 1, {}, {}, {"vocabulary": vocabulary})
        for vocabulary in (ByteTokenizer().fingerprint, "another")
    )
    assert checkpoint_tokenizer(mine).vocab_size == 257
    with pytest.raises(ValueError, match=r"tokenizer\.json: damaged, or not the tokenizer"):
        checkpoint_tokenizer(other)


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
