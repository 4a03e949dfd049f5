"""What was damaged since it was written is noticed before it is used."""

import json
import shutil

import pytest

from longshort.data.prepare import prepare
from longshort.generation.sample import text_stream
from longshort.runs.log import METRICS
from longshort.train import train
from longshort.train.progress import Silent

from .tiny import tiny_config


class Told(Silent):
    """A reporter that remembers what it was told."""

    def __init__(self):
        self.messages = []

    def message(self, text):
        self.messages.append(text)


@pytest.mark.parametrize("name", ["train.tokens", "validation.tokens"])
def test_damaged_tokens_are_not_trained_on(corpus, tmp_path, name):
    data = shutil.copytree(corpus, tmp_path / "data")
    content = bytearray((data / name).read_bytes())
    content[100] ^= 1
    (data / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: damaged: its header says checksum"):
        train(tiny_config(data, tmp_path / "run"))


def test_merges_that_changed_are_noticed_by_training_and_by_generating(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be " * 400)
    data = prepare(tmp_path / "text.txt", tmp_path / "data", vocab_size=262, split=(0.5, 0.25, 0.25), workers=1).folder
    config = tiny_config(data, tmp_path / "run", "run.steps=1", vocab_size=262)
    out = train(config).out
    for folder, use in ((out, lambda: text_stream(out, "to be")), (data, lambda: train(config))):
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        merges = tokenizer["model"]["merges"]
        merges[0], merges[1] = merges[1], merges[0]
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        with pytest.raises(ValueError, match=r"tokenizer.json: damaged, or not the tokenizer"):
            use()


def test_a_log_that_was_cut_short_is_noticed_when_the_run_is_resumed(finished, corpus, tmp_path):
    out = shutil.copytree(finished, tmp_path / "run")
    lines = (out / METRICS).read_text().splitlines(keepends=True)
    (out / METRICS).write_text("".join(lines[:11]))
    told = Told()
    train(tiny_config(corpus, out, "run.steps=31"), told)
    assert any("it lacks 20 of the 30 steps so far, from 11 to 30" in text for text in told.messages)


def test_the_log_of_another_run_is_refused_when_the_run_is_resumed(finished, corpus, tmp_path):
    out = shutil.copytree(finished, tmp_path / "run")
    other = train(tiny_config(corpus, tmp_path / "other", "run.steps=2", "run.seed=1")).out
    shutil.copyfile(other / METRICS, out / METRICS)
    before = (out / METRICS).read_bytes()
    with pytest.raises(ValueError, match=r"from a run with run.seed=1, but the checkpoints beside it"):
        train(tiny_config(corpus, out, "run.steps=31"))
    assert (out / METRICS).read_bytes() == before


def test_what_a_stopped_process_did_not_prune_is_pruned_when_the_run_is_resumed(finished, corpus, tmp_path):
    out = shutil.copytree(finished, tmp_path / "run")
    shutil.copytree(out / "checkpoints" / "step-00000030", out / "checkpoints" / "step-00000010")
    train(tiny_config(corpus, out, "run.keep=1"))
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000030"]
