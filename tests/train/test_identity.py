"""Whether a checkpoint is of this run: what was not yet a key then had its default."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from longshort.data.prepare import prepare
from longshort.runs import load_run, log
from longshort.train import ConfigError, train
from longshort.train.checkpoints.checkpoint import Checkpoint
from longshort.train.identity import check_same_run, check_same_texts
from longshort.train.sweeps.processes import run_all
from longshort.train.sweeps.trials import Trial

from .tiny import tiny_config


def checkpoint_without(config, section, key=None):
    """Written before there was this key, or the section."""
    written = config.to_dict()
    (written[section] if key else written).pop(key or section)
    state = {"config": written, "vocabulary": "bytes"}
    return Checkpoint(path=Path("step-1"), step=1, model={}, trainer={}, state=state)


@pytest.mark.parametrize(
    ("section", "key"),
    [("model", "smoothing_side"), ("optimizer", "eps"), ("data", "corruption"), ("loss", None), ("task", None)],
)
def test_a_run_from_before_a_key_existed_goes_on_with_its_default(tmp_path, section, key):
    config = tiny_config("data", tmp_path)
    check_same_run(config, checkpoint_without(config, section, key), "bytes")


def test_a_run_from_before_a_key_existed_does_not_go_on_with_another_value(tmp_path):
    config = tiny_config("data", tmp_path, "optimizer.eps=1e-4", smoothing=5)
    with pytest.raises(ConfigError, match=r"holds a run with model\.smoothing=None, not 5"):
        check_same_run(config, checkpoint_without(config, "model", "smoothing"), "bytes")
    with pytest.raises(ConfigError, match=r"holds a run with optimizer\.eps=1e-08, not 0\.0001"):
        check_same_run(config, checkpoint_without(config, "optimizer", "eps"), "bytes")


@pytest.mark.parametrize(
    ("overrides", "remedy"),
    [
        ([], r"data\.path=data; prepare the data with .*: longshort data TEXT --out FOLDER --tokenizer .*run$"),
        (["data.path=new"], r"data\.path=new; set data\.path=data again, or prepare the data with"),
        (
            ["data.path=null", "task.name=listops", "model.context=2000"],
            r"other examples than the task listops gives here; choose another",
        ),
    ],
)
def test_another_vocabulary_comes_with_a_remedy(tmp_path, overrides, remedy):
    before = tiny_config("data", tmp_path / "run")
    config = before.with_overrides(overrides)
    checkpoint = checkpoint_without(config if config.task.name else before, "optimizer", "eps")
    with pytest.raises(ConfigError, match=remedy):
        check_same_run(config, checkpoint, "another")


def test_resuming_reads_the_log_once(config, tmp_path, monkeypatch):
    config = config.with_overrides([f"run.out={tmp_path / 'run'}", "run.steps=2"])
    train(config)
    parsed, parse = [], log.Line.parse
    monkeypatch.setattr(
        log.Line, "parse", lambda file, number, text: parsed.append(number) or parse(file, number, text)
    )
    train(config.with_overrides(["run.steps=3"]))
    assert parsed.count(2) == 1


def test_the_log_of_a_resumed_run_has_the_configuration_that_it_went_on_with(config, tmp_path):
    out = tmp_path / "run"
    config = config.with_overrides([f"run.out={out}", "run.steps=2"])
    for steps, recorded in ((2, 2), (3, 3), (1, 3)):  # fewer than it has taken change nothing
        train(config.with_overrides([f"run.steps={steps}"]))
        assert load_run(out).config["run"]["steps"] == recorded


def test_a_resumed_run_goes_on_at_wandb_and_in_tensorboard(config, tmp_path, monkeypatch):
    ids, purged = [], []
    run = SimpleNamespace(log=lambda scalars, step: None, finish=lambda: None)
    writer = SimpleNamespace(add_scalar=lambda name, value, step: None, close=lambda: None)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda *, id, **about: [ids.append(id), run][1]))
    monkeypatch.setitem(
        sys.modules,
        "torch.utils.tensorboard",
        SimpleNamespace(SummaryWriter=lambda folder, purge_step: [purged.append(purge_step), writer][1]),
    )
    config = config.with_overrides([f"run.out={tmp_path / 'run'}", "run.tensorboard=true", "run.wandb=mine"])
    for steps in (2, 3):
        train(config.with_overrides([f"run.steps={steps}"]))
    assert ids[0] == ids[1] and purged == [0, 3]


@pytest.fixture
def two_texts(tmp_path):
    """Two data folders of bytes, which have one vocabulary."""
    for name, words in (("first", "one two three "), ("second", "four five six ")):
        (tmp_path / f"{name}.txt").write_text("\n<|endoftext|>\n".join([words * 40] * 10))
        prepare(tmp_path / f"{name}.txt", tmp_path / name, split=(0.8, 0.1, 0.1))
    return tmp_path / "first", tmp_path / "second"


def test_a_run_does_not_go_on_with_another_text_of_the_same_vocabulary(two_texts, tmp_path):
    first, second = two_texts
    short = [f"run.out={tmp_path / 'run'}", "run.steps=2"]
    config = tiny_config(first, tmp_path / "run", *short)
    train(config)
    log_before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    other = config.with_overrides([f"data.path={second}", "run.steps=4"])
    with pytest.raises(
        ConfigError, match=rf"another (train|validation) text than .*second; set data.path={first} again"
    ):
        train(other)
    assert not Trial("plain", 0, other.with_overrides(["run.steps=2"])).is_finished
    with pytest.raises(ConfigError, match=r"another (train|validation) text"):
        run_all([other], jobs=1)  # before anything starts
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == log_before
    second.rename(tmp_path / "away")
    first.rename(second)  # the same text elsewhere
    assert Trial("plain", 0, other.with_overrides(["run.steps=2"])).is_finished
    assert train(other).step == 4


def test_a_finished_run_stays_finished_when_its_text_is_gone(two_texts, tmp_path):
    first, _ = two_texts
    config = tiny_config(first, tmp_path / "run", "run.steps=2")
    train(config)
    first.rename(tmp_path / "away")
    assert Trial("plain", 0, config).is_finished
    assert not Trial("plain", 0, config.with_overrides(["run.steps=4"])).is_finished


def test_a_run_that_did_not_record_its_texts_goes_on(two_texts, tmp_path):
    config = tiny_config(two_texts[0], tmp_path / "run")
    for known in ({}, {"texts": None}, {"texts": {}}):
        check_same_texts(config, known, {"train": "a", "validation": "b"})
