"""Steps are timed alone: no run is on the device while another one is timed, and times are kept."""

import json
import threading

import pytest
import torch
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.engine.timing import StepClock


@pytest.mark.slow  # a process for each variant
def test_steps_of_each_variant_are_timed_and_times_are_kept(corpus, tmp_path):
    for variant in ("ls", "plain"):
        options = ("--data", str(corpus), "--out", str(tmp_path), "--time-steps", "--variants", variant)
        shown = CliRunner().invoke(app, ["endurance", "--quick", "--device", "cpu", *options])
        assert shown.exit_code == 0, shown.output
    times = json.loads((tmp_path / "step_times.json").read_text())
    assert set(times) == {"ls", "plain"} and all(entry["seconds"] > 0 for entry in times.values())
    assert not list(tmp_path.glob("*/metrics.jsonl")) and not list((tmp_path / "timing").iterdir())


def finish(clock):
    for step, seconds in ((20, 1.0), (30, 3.0)):
        clock.record({"kind": "train", "step": step, "seconds": seconds}, steps=30)


def clock(folder, name):
    return StepClock(folder / name, torch.device("cpu"))


def start(clock):
    clock.record({"kind": "train", "step": 1, "seconds": 0.0}, steps=30)


def assert_waits_for(waiting, release):
    thread = threading.Thread(target=waiting)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    release()
    thread.join(5)
    assert not thread.is_alive()


def test_a_run_does_not_begin_while_another_is_timed(tmp_path):
    first = clock(tmp_path, "a")
    start(first)
    assert_waits_for(lambda: finish(clock(tmp_path, "b")), lambda: finish(first))
    assert json.loads((tmp_path / "a" / "step_time.json").read_text())["seconds"] == pytest.approx(0.2)


def test_a_run_is_not_timed_before_the_others_have_taken_their_first_step(tmp_path):
    first, second = clock(tmp_path, "a"), clock(tmp_path, "b")

    def rest():
        start(second)
        finish(second)

    threading.Timer(0.4, finish, [first]).start()
    assert_waits_for(lambda: start(first), threading.Thread(target=rest).start)
