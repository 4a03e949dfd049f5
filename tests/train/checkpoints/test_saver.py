"""Checkpoints are written beside training, one after the other, and a write that fails is an error of the run."""

import threading

import pytest
import torch

from longshort.train import train
from longshort.train.checkpoints.checkpoint import CHECKPOINTS, checkpoint_names, load_checkpoint
from longshort.train.checkpoints.together import Saver, newest_together
from longshort.train.machine.distributed import World
from longshort.train.trainer import Trainer

from ..several import Held, replaced_finish, unwritable
from ..tiny import records, tiny_config

CPU = torch.device("cpu")


def assert_writes_are_beside_training(events):
    """Of a run of four steps, saved twice."""
    assert [event for event in events if event[0] != "step"] == [("begins", 2), ("ends", 2), ("begins", 4), ("ends", 4)]
    assert events.index(("step", 3)) < events.index(("ends", 2))


def test_training_continues_while_a_checkpoint_is_written_and_the_next_one_waits_for_it(corpus, tmp_path):
    held = Held(4)
    with replaced_finish(held.finish):
        train(tiny_config(corpus, tmp_path, "run.steps=4", "run.save_every=2"), held)
    assert_writes_are_beside_training(held.events)


def test_a_checkpoint_holds_what_the_model_held_when_it_was_saved(tmp_path):
    model, world = torch.nn.Linear(2, 2), World(0, 1, CPU)
    moments, expected = {"m": torch.ones(2)}, model.weight.detach().clone()
    changed = threading.Event()
    with Saver(tmp_path, model, world) as saver:
        saver._thread.submit(changed.wait)  # before the write
        saver.save(step=1, trainer=moments, state={})
        with torch.no_grad():
            model.weight.zero_(), moments["m"].zero_()
        changed.set()
    found = load_checkpoint(tmp_path)
    assert found.model["weight"].equal(expected) and found.trainer["m"].equal(torch.ones(2))


def test_a_write_that_fails_ends_the_run_and_leaves_the_checkpoint_before(corpus, tmp_path):
    with replaced_finish(unwritable(20)), pytest.raises(OSError, match="the disk is full"):
        train(tiny_config(corpus, tmp_path, "run.steps=40"))
    assert checkpoint_names(tmp_path / CHECKPOINTS) == ["step-00000010"]
    assert not list((tmp_path / CHECKPOINTS).glob(".step-*"))
    assert records(tmp_path, "train")[-1]["step"] <= 30 and not records(tmp_path, "end")


def test_a_write_that_failed_is_an_error_of_the_next(tmp_path):
    with replaced_finish(unwritable(1)), Saver(tmp_path, torch.nn.Linear(2, 2), World(0, 1, CPU)) as saver:
        saver.save(step=1, trainer={}, state={})
        with pytest.raises(OSError, match="the disk is full"):
            saver.save(step=2, trainer={}, state={})
        saver.save(step=3, trainer={}, state={})
    assert checkpoint_names(tmp_path) == ["step-00000003"]


def test_a_write_that_failed_is_found_between_checkpoints(tmp_path):
    with replaced_finish(unwritable(1)), Saver(tmp_path, torch.nn.Linear(2, 2), World(0, 1, CPU)) as saver:
        saver.save(step=1, trainer={}, state={})
        saver._thread.submit(int).result()  # after the write
        with pytest.raises(OSError, match="the disk is full"):
            saver.check()


def test_the_error_that_ended_the_run_is_the_one_that_is_reported(tmp_path):
    told = pytest.raises(RuntimeError, match="failed beside the write")
    with told, replaced_finish(unwritable(1)), Saver(tmp_path, torch.nn.Linear(2, 2), World(0, 1, CPU)) as saver:
        saver.save(step=1, trainer={}, state={})
        raise RuntimeError("failed beside the write")


def test_all_processes_read_what_the_first_one_found(tmp_path, monkeypatch):
    model = torch.nn.Linear(2, 2)
    with Saver(tmp_path, model, World(0, 1, CPU)) as saver:
        for step in (1, 2):
            saver.save(step=step, trainer={}, state={})
    monkeypatch.setattr(World, "told", lambda self, found: tmp_path / "step-00000001")
    assert newest_together(tmp_path, model, World(1, 2, CPU), pytest.fail).step == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_of_processes_that_hold_the_whole_model_the_first_writes_it(rank, tmp_path):
    with Saver(tmp_path, torch.nn.Linear(2, 2), World(rank, 2, CPU)) as saver:
        saver.save(step=1, trainer={}, state={})
    assert checkpoint_names(tmp_path) == ["step-00000001"][rank:]


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_process_tidies_up(rank, tmp_path):
    done = []
    with Saver(tmp_path, torch.nn.Linear(2, 2), World(rank, 2, CPU)) as saver:
        saver._write(lambda folder: done.append("written"), lambda: done.append("tidied"), {})
    assert done == ["written", "tidied"][: 2 - rank]


def test_a_run_that_fails_waits_for_its_last_checkpoint(corpus, tmp_path, monkeypatch):
    def fail(self):
        raise RuntimeError("failed beside the write")

    step = Trainer._step
    monkeypatch.setattr(Trainer, "_step", lambda self: fail(self) if self.progress.step == 2 else step(self))
    with pytest.raises(RuntimeError, match="failed beside the write"):
        train(tiny_config(corpus, tmp_path, "run.steps=4", "run.save_every=2"))
    assert load_checkpoint(tmp_path).step == 2
