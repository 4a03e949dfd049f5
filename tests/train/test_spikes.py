"""The spike guard at work in training: warn, skip, roll back, give up."""

import math

import pytest
import torch

from longshort.data.stream import TokenStream
from longshort.model import GPT
from longshort.runs.log import read_log
from longshort.train import TrainingStopped, train
from longshort.train.checkpoints.checkpoint import load_checkpoint
from longshort.train.trainer import Trainer

from .tiny import differences, losses, records, tiny_config

GUARD = ["stability.guard_warmup=4", "stability.guard_window=6", "run.save_every=5"]
BAD = 21
"""Number of the batch that is spoiled: the step after it counts from 1."""


def spoil_batches(monkeypatch, *numbers):
    """Outliers: rows of tokens that never occur in the text, which no model of it expects."""
    original = TokenStream.batch

    def batch(self, step, **ranks):
        found = original(self, step, **ranks)
        if step in numbers and self.token_file.path.name == "train.tokens":
            generator = torch.Generator().manual_seed(step)
            rubbish = torch.randint(130, 250, found.tokens.shape, generator=generator)
            return found._replace(tokens=rubbish, targets=rubbish.flip(-1))
        return found

    monkeypatch.setattr(TokenStream, "batch", batch)


def spoil_losses(monkeypatch, *numbers, value=math.nan):
    """A loss that is not finite, and gradients likewise, at the given batches."""
    original = Trainer._forward_backward

    def forward_backward(self, batch, with_stats):
        number = self.progress.batch
        forward = GPT.forward

        def broken(model, *arguments, **options):
            output = forward(model, *arguments, **options)
            return output._replace(loss=output.loss * value)

        with monkeypatch.context() as patch:
            if number in numbers:
                patch.setattr(GPT, "forward", broken)
            return original(self, batch, with_stats)

    monkeypatch.setattr(Trainer, "_forward_backward", forward_backward)


def weights_are_finite(out):
    checkpoint = load_checkpoint(out)
    return all(value.isfinite().all() for value in (*checkpoint.model.values(), *checkpoint.trainer.values()))


def config_of(corpus, out, action, *changes, steps=25):
    return tiny_config(corpus, out, *GUARD, f"stability.guard={action}", f"run.steps={steps}", *changes)


def test_without_a_spike_the_guard_changes_nothing(corpus, tmp_path):
    for action in ("off", "skip", "rollback"):
        train(config_of(corpus, tmp_path / action, action, steps=8))
    assert losses(tmp_path / "skip") == losses(tmp_path / "rollback") == losses(tmp_path / "off")
    assert [name for name in differences(tmp_path / "skip", tmp_path / "off") if name != "guard"] == []


@pytest.mark.parametrize("change", ["stability.guard=warn", "stability.qk_clip=100"])
def test_the_guard_and_qk_clip_read_the_largest_logits_at_every_step_and_both_are_recorded_when_due(
    corpus, tmp_path, monkeypatch, change
):
    asked, original = [], Trainer._forward_backward

    def forward_backward(self, batch, with_stats):
        asked.append(with_stats)
        return original(self, batch, with_stats)

    monkeypatch.setattr(Trainer, "_forward_backward", forward_backward)
    train(tiny_config(corpus, tmp_path / "run", change, "run.steps=5", "telemetry.logits_every=3"))
    assert asked == [True, "max", True, "max", "max"]
    found = [{"logit_max", "logit_min"} & set(record) for record in records(tmp_path / "run", "train")]
    assert [len(names) for names in found] == [2, 0, 2, 0, 0]


@pytest.mark.parametrize("spoil", [spoil_batches, spoil_losses], ids=["outlier", "nan"])
def test_skip_drops_the_step_and_goes_on(corpus, tmp_path, monkeypatch, spoil):
    spoil(monkeypatch, BAD)
    assert train(config_of(corpus, tmp_path / "run", "skip")).status == "finished"
    (spike,) = records(tmp_path / "run", "spike")
    assert (spike["step"], spike["batch"], spike["action"]) == (BAD + 1, BAD, "skip")
    assert list(losses(tmp_path / "run")) == [step for step in range(1, 26) if step != BAD + 1]
    assert weights_are_finite(tmp_path / "run")
    moments = load_checkpoint(tmp_path / "run").trainer
    assert moments["embedding.weight/step"].item() == 24


def test_a_skipped_step_leaves_no_trace_in_weights_and_moments(corpus, tmp_path, monkeypatch):
    spoil_losses(monkeypatch, BAD, value=math.inf)
    train(config_of(corpus, tmp_path / "before", "skip", "schedule.warmup=0", steps=BAD))
    train(config_of(corpus, tmp_path / "after", "skip", "schedule.warmup=0", steps=BAD + 1))
    assert set(differences(tmp_path / "before", tmp_path / "after")) <= {"step", "guard", "progress"}


def test_a_spike_is_recorded_with_its_batch_its_rows_and_every_heads_logits(corpus, tmp_path, monkeypatch):
    spoil_batches(monkeypatch, BAD)
    config = config_of(corpus, tmp_path / "run", "skip")
    train(config)
    (spike,) = records(tmp_path / "run", "spike")
    assert spike["loss"] > spike["threshold"]
    assert len(spike["indices"]) == 4
    assert torch.tensor(spike["logit_max"]).shape == (2, 2)
    assert "is above" in spike["reason"]


def test_a_gradient_that_is_not_finite_is_a_spike_though_the_loss_is_fine(corpus, tmp_path, monkeypatch):
    original = Trainer._forward_backward

    def forward_backward(self, batch, with_stats):
        loss = original(self, batch, with_stats)
        if self.progress.batch == BAD:
            self.model.embedding.weight.grad[0, 0] = math.nan
        return loss

    monkeypatch.setattr(Trainer, "_forward_backward", forward_backward)
    train(config_of(corpus, tmp_path / "run", "skip"))
    (spike,) = records(tmp_path / "run", "spike")
    assert spike["reason"] == "the gradient norm is nan" and spike["loss"] is not None
    assert weights_are_finite(tmp_path / "run")


def test_warn_records_the_spike_and_takes_the_step_all_the_same(corpus, tmp_path, monkeypatch):
    spoil_batches(monkeypatch, BAD)
    for action in ("warn", "off"):
        train(config_of(corpus, tmp_path / action, action))
    (spike,) = [r for r in records(tmp_path / "warn", "spike") if r["batch"] == BAD]
    assert spike["action"] == "warn"
    assert losses(tmp_path / "warn") == losses(tmp_path / "off")
    assert not records(tmp_path / "off", "spike")


@pytest.mark.parametrize("spoil", [spoil_batches, spoil_losses], ids=["outlier", "nan"])
def test_rollback_returns_to_the_last_checkpoint_and_drops_the_batch(corpus, tmp_path, monkeypatch, spoil):
    spoil(monkeypatch, BAD)
    assert train(config_of(corpus, tmp_path / "run", "rollback")).status == "finished"
    (spike,) = records(tmp_path / "run", "spike")
    assert (spike["step"], spike["batch"], spike["action"]) == (BAD + 1, BAD, "rollback")
    progress = load_checkpoint(tmp_path / "run").state["progress"]
    assert progress["dropped"] == [BAD]
    assert progress["batch"] == 26  # twenty-five steps and the one dropped
    assert [record["step"] for record in records(tmp_path / "run", "train")] == list(range(1, 26))
    assert weights_are_finite(tmp_path / "run")


def test_a_rollback_gives_the_run_that_never_met_the_batch(corpus, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        spoil_losses(patch, BAD)
        train(config_of(corpus, tmp_path / "rolled", "rollback"))
    original = TokenStream.batch

    def without_it(self, step, **ranks):
        later = step >= BAD and self.token_file.path.name == "train.tokens"
        return original(self, step + later, **ranks)

    monkeypatch.setattr(TokenStream, "batch", without_it)
    train(config_of(corpus, tmp_path / "without", "off"))
    assert losses(tmp_path / "rolled") == losses(tmp_path / "without")


def test_batches_dropped_one_after_the_other_are_all_left_out(corpus, tmp_path, monkeypatch):
    spoil_losses(monkeypatch, BAD, BAD + 1)
    assert train(config_of(corpus, tmp_path / "run", "rollback")).status == "finished"
    progress = load_checkpoint(tmp_path / "run").state["progress"]
    assert progress["dropped"] == [BAD, BAD + 1] and progress["batch"] == 27


def test_a_run_interrupted_right_after_a_rollback_saves_which_batch_it_dropped(corpus, tmp_path, monkeypatch):
    spoil_losses(monkeypatch, 5)
    original = Trainer._roll_back

    def interrupted(self, *arguments):
        original(self, *arguments)
        self._interrupt()

    monkeypatch.setattr(Trainer, "_roll_back", interrupted)
    assert train(config_of(corpus, tmp_path / "run", "rollback")).status == "interrupted"
    found = load_checkpoint(tmp_path / "run")
    assert (found.step, found.state["progress"]["dropped"]) == (5, [5])


def test_a_rollback_to_the_start_needs_no_earlier_checkpoint(corpus, tmp_path, monkeypatch):
    spoil_losses(monkeypatch, 1)
    assert train(config_of(corpus, tmp_path / "run", "rollback", steps=6)).status == "finished"
    assert load_checkpoint(tmp_path / "run").state["progress"]["dropped"] == [1]


def test_a_rollback_repeats_no_evaluation(corpus, tmp_path, monkeypatch):
    spoil_losses(monkeypatch, BAD)
    train(config_of(corpus, tmp_path / "run", "rollback", "run.eval_every=5"))
    assert [record["step"] for record in records(tmp_path / "run", "eval")] == [5, 10, 15, 20, 25]


def test_rollback_stops_the_run_after_the_cap(corpus, tmp_path, monkeypatch):
    spoil_losses(monkeypatch, *range(BAD, 100))
    with pytest.raises(TrainingStopped, match=r"stopped at step .*: 3 rollbacks, and stability.guard_cap is 2"):
        train(config_of(corpus, tmp_path / "run", "rollback", "stability.guard_cap=2"))
    assert len(records(tmp_path / "run", "spike")) == 3
    assert weights_are_finite(tmp_path / "run")


def test_in_the_cool_down_only_what_is_not_finite_is_a_spike(corpus, tmp_path, monkeypatch):
    spoil_losses(monkeypatch, BAD)
    spoil_batches(monkeypatch, BAD + 2)
    cooled, judged = tmp_path / "cooled", tmp_path / "judged"
    train(config_of(corpus, cooled, "rollback", "stability.guard_cooldown=20"))
    train(config_of(corpus, judged, "rollback", "stability.guard_cooldown=0"))
    assert [spike["batch"] for spike in records(cooled, "spike")] == [BAD]
    assert [spike["batch"] for spike in records(judged, "spike")] == [BAD, BAD + 2]


def test_a_rolled_back_run_that_is_stopped_goes_on_as_if_never_stopped(corpus, tmp_path, monkeypatch):
    spoil_losses(monkeypatch, BAD)
    train(config_of(corpus, tmp_path / "whole", "rollback"))

    class Killed(BaseException):
        pass

    original = Trainer._finish_step

    def killed(self, *arguments):
        original(self, *arguments)
        if self.progress.dropped and self.progress.step == 23:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_finish_step", killed)
        with pytest.raises(Killed):
            train(config_of(corpus, tmp_path / "run", "rollback"))
    train(config_of(corpus, tmp_path / "run", "rollback"))
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert differences(tmp_path / "run", tmp_path / "whole") == []
    spikes = [(r["step"], r["batch"]) for r in read_log(tmp_path / "run") if r["kind"] == "spike"]
    assert spikes == [(BAD + 1, BAD)]
