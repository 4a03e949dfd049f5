"""What a comparison says before it trains."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from longshort.data import DataError
from longshort.data.tokens import TokenFile
from longshort.train import TrainConfig
from longshort.train.sweeps.announcement import Forecast, announce_data, announce_runs

TINY = TrainConfig.load("tiny")


def reader(step, seconds):
    return SimpleNamespace(step=None if step is None else SimpleNamespace(step=step, seconds=seconds))


def test_the_data_is_named_with_its_tokens(corpus):
    config = TINY.with_overrides([f"data.path={corpus}", "run.steps=10", "data.length=16"])
    tokens = len(TokenFile.open(corpus / "train.tokens"))
    assert announce_data(config) == f"training on {corpus} ({tokens:,} tokens); each run reads 1,280 tokens"


def test_a_share_of_the_data_is_named_and_one_too_small_is_refused_before_any_run(corpus):
    config = TINY.with_overrides([f"data.path={corpus}", "run.steps=10", "data.length=16"])
    assert " tokens, a share of 0.25 of them); each" in announce_data(config.with_overrides(["data.share=0.25"]))
    with pytest.raises(DataError, match=r"share of 1e-06 is 0, .* a larger data\.share"):
        announce_data(config.with_overrides(["data.share=1e-6"]))


def test_the_default_text_is_called_by_its_name(corpus, monkeypatch):
    monkeypatch.setattr("longshort.train.text.default_data", lambda: corpus)
    said = announce_data(TINY)
    assert "the text of Python's standard library" in said and "since no data.path is given" in said


def test_a_task_is_named():
    assert announce_data(TrainConfig.load("recall")) == "training on examples of the task recall"


def test_the_runs_are_counted():
    assert announce_runs([TINY], 0, jobs=2) == "1 run of 500 steps"
    assert announce_runs([TINY] * 3, 1, jobs=2) == "3 runs of 500 steps each, 2 at a time; 1 more is finished already"


def test_the_time_is_told_once_after_the_first_steps():
    said = []
    config = replace(TINY, run=replace(TINY.run, steps=1000))
    forecast = Forecast([config] * 4, 2, said.append)
    forecast({"a": reader(4, 4.0), "b": reader(None, 0)})
    assert said == []
    forecast({"a": reader(10, 10.0), "b": reader(10, 20.0), "c": reader(None, 0)})
    assert said == ["all runs together will take about 50 minutes"]  # 3,980 steps of 1.5 s, two at a time
    forecast({"a": reader(20, 20.0)})
    assert len(said) == 1
