"""A run that is no longer finite: said at once, stopped and told of; good checkpoints stay, bad ones are refused."""

import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from longshort.cli import app
from longshort.runs import load_run
from longshort.train import TrainingStopped, train
from longshort.train.checkpoints.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from longshort.train.divergence import grown_heads, nonfinite_weight
from longshort.train.models import load_trained
from longshort.train.sweeps.processes import run_all

from .test_spikes import spoil_losses, weights_are_finite
from .tiny import records, tiny_config

BAD = 7
"""Number of the first batch whose loss is not finite; its step is one later."""


class Listener:
    def __init__(self):
        self.messages = []

    def record(self, record, *, steps): ...

    def message(self, text):
        self.messages.append(text)


def config_of(corpus, out, *overrides):
    return tiny_config(corpus, out, "run.save_every=2", "run.keep=1", "run.steps=30", *overrides)


@pytest.mark.parametrize("guard", ["off", "warn"])
def test_a_run_that_is_not_finite_stops_and_keeps_its_last_finite_checkpoint(corpus, tmp_path, monkeypatch, guard):
    spoil_losses(monkeypatch, *range(BAD, 100))
    config = config_of(corpus, tmp_path / "run", f"stability.guard={guard}", "stability.nonfinite_cap=4")
    with pytest.raises(
        TrainingStopped, match=rf"diverged at step {BAD + 1}: .*optimizer\.lr below.*step-0000000{BAD - 1}"
    ):
        train(config)
    (end,) = records(tmp_path / "run", "end")
    assert (end["status"], end["step"], end["since"]) == ("diverged", BAD + 4, BAD + 1)
    assert [path.name for path in (tmp_path / "run/checkpoints").glob("step-*")] == [f"step-0000000{BAD - 1}"]
    assert weights_are_finite(tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.status == "diverged" and run.diverged_at == BAD + 1 and run.is_finished(30)
    assert math.isnan(run.final_loss)


def test_a_guard_that_skips_every_step_stops_too_and_saves_nothing_that_is_of_no_use(corpus, tmp_path):
    config = config_of(
        corpus, tmp_path / "run", "stability.guard=skip", "stability.nonfinite_cap=4", "optimizer.lr=1e30"
    )
    with pytest.raises(TrainingStopped, match="diverged at step 2"):
        train(config)
    assert not list((tmp_path / "run").glob("checkpoints/step-*"))
    assert load_run(tmp_path / "run").diverged_at == 2


def test_the_first_step_that_is_not_finite_is_said_at_once(corpus, tmp_path, monkeypatch):
    spoil_losses(monkeypatch, *range(BAD, 100))
    heard = Listener()
    with pytest.raises(TrainingStopped):
        train(config_of(corpus, tmp_path / "run"), heard)
    assert heard.messages[0].startswith(f"warning: step {BAD + 1}: the loss is nan")
    assert sum("the loss is nan" in message for message in heard.messages) == 1
    assert any(f"step {BAD + 3}: not saved, since" in message for message in heard.messages)


def test_with_a_cap_of_zero_it_goes_on_to_the_end_and_diverged_all_the_same(corpus, tmp_path, monkeypatch):
    spoil_losses(monkeypatch, *range(BAD, 100))
    with pytest.raises(TrainingStopped):
        train(config_of(corpus, tmp_path / "run", "stability.nonfinite_cap=0"))
    assert records(tmp_path / "run", "end")[0]["step"] == 30


def test_a_last_step_that_breaks_the_weights_is_no_finish(corpus, tmp_path):
    with pytest.raises(TrainingStopped, match="the run diverged at step 1"):
        train(tiny_config(corpus, tmp_path / "run", "run.steps=1", "optimizer.lr=1e38", "optimizer.weight_decay=1e30"))
    assert not (tmp_path / "run/checkpoints").exists()


def test_steps_that_the_guard_skips_are_counted_only_in_a_row(corpus, tmp_path, monkeypatch):
    spoil_losses(monkeypatch, *range(BAD, 30, 2))
    config = config_of(corpus, tmp_path / "run", "stability.guard=skip", "stability.nonfinite_cap=2", "run.steps=29")
    assert train(config).status == "finished"


def test_a_rate_far_too_high_ends_the_command_with_one_line(corpus, tmp_path):
    (tmp_path / "c.yaml").write_text(json.dumps(tiny_config(corpus, tmp_path / "run").to_dict()))
    result = CliRunner().invoke(app, ["train", str(tmp_path / "c.yaml"), "optimizer.lr=1e30"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the run diverged at step 2: no head's logits grew before that; try an ")
    assert result.stderr.count("\n") == 1


def test_a_process_that_diverges_has_a_result(corpus, tmp_path):
    assert run_all([tiny_config(corpus, tmp_path / "run", "optimizer.lr=1e30")], jobs=1)
    assert "diverged at step 2" in (tmp_path / "run/output.txt").read_text()


@pytest.fixture
def lost_checkpoint(corpus, tmp_path):
    train(tiny_config(corpus, tmp_path / "run", "run.steps=2"))
    good = load_checkpoint(tmp_path / "run")
    weights = {name: torch.full_like(value, math.nan) for name, value in good.model.items()}
    state = {key: value for key, value in good.state.items() if key not in ("format", "sha256", "step")}
    save_checkpoint(good.path.parent, step=9, model=weights, trainer=good.trainer, state=state)
    return tmp_path / "run"


@pytest.mark.parametrize("verb", [["evaluate"], ["generate"], ["export", "DIR"]], ids=lambda verb: verb[0])
def test_weights_that_are_not_finite_are_refused(lost_checkpoint, tmp_path, verb):
    arguments = [verb[0], str(lost_checkpoint), *(str(tmp_path / "exported") for _ in verb[1:])]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1 and result.stdout == ""
    assert "step-00000009: weights are not finite (" in result.stderr
    assert not (tmp_path / "exported").exists()


def test_the_refusal_names_the_checkpoint_and_an_earlier_one_is_taken(lost_checkpoint):
    with pytest.raises(CheckpointError, match="name an earlier checkpoint"):
        load_trained(lost_checkpoint)
    assert load_trained(lost_checkpoint / "checkpoints/step-00000002")[1].step == 2


def test_a_sum_that_overflows_is_not_taken_for_a_number_that_is_not_finite():
    huge = torch.full((4,), torch.finfo(torch.float64).max, dtype=torch.float64)
    assert nonfinite_weight({"a": huge, "steps": torch.tensor(3)}) is None
    assert nonfinite_weight({"a": huge, "b": torch.tensor([1.0, math.inf])}) == "b"


def test_heads_whose_logits_grew_are_named_with_the_step_where_it_began(corpus, tmp_path):
    train(tiny_config(corpus, tmp_path / "run", "run.steps=1"))
    run = load_run(tmp_path / "run")
    logits_NLH = np.ones((10, *run.logits_NLH.shape[1:]))
    logits_NLH[:, 0, 1] = [2, 2, 2, 2, 2, 5, 3, 5, 90, 80]  # back below twice the usual one at the seventh
    logits_NLH[8:, 0, 0] = math.nan  # lost without having grown
    object.__setattr__(run, "logits_NLH", logits_NLH)
    object.__setattr__(run, "logit_steps", np.arange(10, 110, 10))
    (growth,) = grown_heads(run)
    assert (growth.layer, growth.head, growth.step, growth.usual, growth.last) == (0, 1, 80, 2.0, 80.0)


def test_a_run_that_stopped_by_its_cap_can_be_resumed_from_what_it_saved(corpus, tmp_path, monkeypatch):
    changes = ("stability.guard=skip", "stability.nonfinite_cap=2", "run.save_every=1", "run.steps=8")
    with monkeypatch.context() as patch:
        spoil_losses(patch, 3, 4)
        with pytest.raises(TrainingStopped):
            train(tiny_config(corpus, tmp_path / "run", *changes))
    assert train(tiny_config(corpus, tmp_path / "run", *changes)).status == "finished"


def test_a_run_that_was_moved_says_that_it_diverged_all_the_same(corpus, tmp_path, monkeypatch):
    spoil_losses(monkeypatch, *range(BAD, 100))

    class Mover(Listener):
        def record(self, record, *, steps):
            if record["kind"] == "train" and record["step"] == BAD:
                (tmp_path / "run").rename(tmp_path / "moved")

    with pytest.raises(TrainingStopped, match="its log cannot be read"):
        train(tiny_config(corpus, tmp_path / "run", "run.save_every=0"), Mover())
    assert records(tmp_path / "moved", "end")[0]["status"] == "diverged"
