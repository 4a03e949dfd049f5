"""Steps whose numbers are read one step late, as on a GPU, leave the run that reads them at once."""

import math
import os
import signal

import pytest
import torch

from longshort.runs.log import read_log
from longshort.stability import SpikeGuard
from longshort.train import TrainingStopped, train
from longshort.train.late import Late, Mark, Numbers, Step
from longshort.train.trainer import Trainer

from .test_spikes import BAD, config_of, spoil_batches, spoil_losses, weights_are_finite
from .tiny import differences, losses, records, tiny_config

TIMES = ("seconds", "tokens_per_second", "crc32")


def step(number):
    numbers = Numbers(torch.tensor(float(number)), torch.tensor(1.0), None, None)
    return Step(number=number, batch=number - 1, indices=(), start=Mark(torch.device("cpu")), rate=0.1, numbers=numbers)


def read_late(monkeypatch):
    monkeypatch.setattr("longshort.train.late.at_once", lambda device: False)


def timeless(out):
    """The log without its header and what depends on the clock."""
    return [{k: v for k, v in record.items() if k not in TIMES} for record in read_log(out)[1:]]


def both(monkeypatch, make, tmp_path):
    """Train at once and late; returns both folders."""
    train(make(tmp_path / "at-once"))
    with monkeypatch.context() as patch:
        read_late(patch)
        train(make(tmp_path / "late"))
    return tmp_path / "at-once", tmp_path / "late"


def test_a_step_is_handed_out_when_the_next_is_launched(monkeypatch):
    read_late(monkeypatch)
    late = Late(torch.device("cpu"))
    assert late.exchange(step(1)) is None and late.holds
    ready = late.exchange(step(2))
    assert ready.step.number == 1 and ready.numbers.loss == 1.0
    assert late.last().step.number == 2 and late.last() is None and not late.holds
    assert late.exchange(step(3), wait=True).step.number == 3 and not late.holds
    late.exchange(step(4))
    late.forget()
    assert late.last() is None


def test_on_a_cpu_a_step_is_handed_out_at_once():
    late = Late(torch.device("cpu"))
    assert late.exchange(step(1)).step.number == 1 and not late.holds


@pytest.mark.parametrize(
    "changes",
    [
        ["telemetry.logits_every=3", "run.eval_every=4"],
        ["telemetry.entropy_every=3", "telemetry.layer_gradients=true", "stability.qk_clip=0.1"],
        ["stability.guard=skip", "stability.clip=tensor", "run.accumulate=2"],
    ],
)
def test_the_log_and_the_weights_are_the_same(corpus, tmp_path, monkeypatch, changes):
    one, other = both(monkeypatch, lambda out: tiny_config(corpus, out, "run.steps=12", *changes), tmp_path)
    assert timeless(one) == timeless(other)
    assert differences(one, other) == []


@pytest.mark.parametrize("action", ["warn", "skip", "rollback"])
@pytest.mark.parametrize("spoil", [spoil_batches, spoil_losses], ids=["outlier", "nan"])
def test_a_spike_is_dealt_with_in_the_same_way(corpus, tmp_path, monkeypatch, action, spoil):
    if (action, spoil) == ("warn", spoil_losses):
        pytest.skip("a step that is not finite, once taken, leaves no weights to compare")
    spoil(monkeypatch, BAD)
    one, other = both(monkeypatch, lambda out: config_of(corpus, out, action), tmp_path)
    assert len(records(one, "spike")) >= 1
    assert timeless(one) == timeless(other)
    assert differences(one, other) == []


def test_the_device_skips_what_the_guard_will_call_a_spike(corpus, tmp_path, monkeypatch):
    read_late(monkeypatch)
    spoil_losses(monkeypatch, BAD)
    decided = []
    original = Trainer._apply

    def apply(self, numbers, *, unless_a_spike=False):
        original(self, numbers, unless_a_spike=unless_a_spike)
        decided.append((unless_a_spike, self.optimizer.found_inf is not None and bool(self.optimizer.found_inf)))

    monkeypatch.setattr(Trainer, "_apply", apply)
    train(config_of(corpus, tmp_path / "run", "skip", "telemetry.logits_every=0"))
    assert decided == [(False, False)] + [(True, number == BAD) for number in range(1, 25)]
    assert weights_are_finite(tmp_path / "run")


@pytest.mark.parametrize("history", [[], [1.0, 1.1] * 5])
@pytest.mark.parametrize("loss", [1.05, 30.0, math.nan, math.inf])
@pytest.mark.parametrize("in_a_row", [0, 3])
def test_the_verdict_on_the_device_is_that_of_the_guard(history, loss, in_a_row):
    guard = SpikeGuard(window=10, warmup=4, cap=3)
    for accepted in history:
        guard.judge(accepted)
    guard.in_a_row = in_a_row
    before = guard.state_dict()
    found = bool(guard.spikes(torch.tensor(loss)))
    assert guard.state_dict() == before
    assert found == guard.judge(torch.tensor(loss).item()).spike


def test_a_gradient_that_is_not_finite_is_skipped_on_the_device_though_the_loss_is_fine(corpus, tmp_path, monkeypatch):
    read_late(monkeypatch)
    original = Trainer._forward_backward

    def forward_backward(self, batch, with_stats):
        loss = original(self, batch, with_stats)
        if self.progress.batch == BAD:
            self.model.embedding.weight.grad[0, 0] = math.inf
        return loss

    monkeypatch.setattr(Trainer, "_forward_backward", forward_backward)
    train(config_of(corpus, tmp_path / "run", "skip"))
    assert [spike["step"] for spike in records(tmp_path / "run", "spike")] == [BAD + 1]
    assert weights_are_finite(tmp_path / "run")


def test_rollbacks_beyond_the_cap_end_the_run_where_they_would_at_once(corpus, tmp_path, monkeypatch):
    spoil_losses(monkeypatch, *range(BAD, 100))
    ends = []
    for name in ("at-once", "late"):
        if name == "late":
            read_late(monkeypatch)
        with pytest.raises(TrainingStopped, match="3 rollbacks, and"):
            train(config_of(corpus, tmp_path / name, "rollback", "stability.guard_cap=2"))
        (end,) = records(tmp_path / name, "end")
        ends.append((end["step"], end["since"], [r["step"] for r in records(tmp_path / name, "spike")]))
    assert ends[0] == ends[1]
    assert weights_are_finite(tmp_path / "late")


def test_a_run_that_stays_not_finite_ends_a_step_later_and_says_since_when(corpus, tmp_path, monkeypatch):
    read_late(monkeypatch)
    spoil_losses(monkeypatch, *range(5, 100))
    with pytest.raises(TrainingStopped, match="diverged at step 6"):
        train(tiny_config(corpus, tmp_path / "run", "stability.nonfinite_cap=3", "run.save_every=0"))
    assert list(losses(tmp_path / "run")) == [*range(1, 10)]


def test_an_interrupted_run_records_its_last_step_and_resumes(corpus, tmp_path, monkeypatch):
    original = Trainer._gradients

    def interrupted(self, *arguments):
        if self.progress.step == 6 and not (tmp_path / "told").exists():
            (tmp_path / "told").touch()
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *arguments)

    train(tiny_config(corpus, tmp_path / "whole", "run.steps=12"))
    read_late(monkeypatch)
    monkeypatch.setattr(Trainer, "_gradients", interrupted)
    assert train(tiny_config(corpus, tmp_path / "run", "run.steps=12")).status == "interrupted"
    assert list(losses(tmp_path / "run")) == [*range(1, 8)]
    train(tiny_config(corpus, tmp_path / "run", "run.steps=12"))
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert differences(tmp_path / "run", tmp_path / "whole") == []


def test_the_times_of_all_steps_add_up_to_the_time_of_training(corpus, tmp_path, monkeypatch):
    """Each step takes one tick of a clock of our own, however late it is recorded; evaluation takes a hundred."""
    read_late(monkeypatch)
    clock = [1000.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    gradients, evaluate = Trainer._gradients, Trainer._evaluate

    def ticking(self, *arguments):
        clock[0] += 1
        return gradients(self, *arguments)

    def slow(self):
        clock[0] += 100
        return evaluate(self)

    monkeypatch.setattr(Trainer, "_gradients", ticking)
    monkeypatch.setattr(Trainer, "_evaluate", slow)
    train(tiny_config(corpus, tmp_path / "run", "run.steps=9", "run.eval_every=4", "telemetry.logits_every=0"))
    assert [record["seconds"] for record in records(tmp_path / "run", "train")] == [*range(1, 10)]
