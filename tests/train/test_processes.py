"""Runs in processes of their own: how far they are, and what they say when they fail."""

import json
import os
import signal
import time

import pytest

from longshort.files import write_atomically
from longshort.train import processes as runner
from longshort.train.log import METRICS
from longshort.train.processes import Follower, RunFailed, run_all


def test_a_failing_run_is_reported_with_its_last_words(config, tmp_path):
    broken = config.with_overrides([f"run.out={tmp_path / 'run'}", f"data.path={tmp_path / 'nowhere'}"])
    with pytest.raises(RunFailed, match=rf"the run {tmp_path / 'run'} failed: .*nowhere"):
        run_all([broken], jobs=1, poll_seconds=0.1)


def line(step, **values):
    return json.dumps({"kind": "train", "step": step, **values}) + "\n"


def test_a_follower_takes_in_whole_lines_only(tmp_path):
    follower = Follower(tmp_path)
    follower.update()
    assert follower.latest == {}
    path = tmp_path / METRICS
    path.write_text(line(1) + line(2)[:9])
    follower.update()
    assert follower.latest["train"]["step"] == 1
    with path.open("a") as file:
        file.write(line(2)[9:])
    follower.update()
    assert follower.latest["train"]["step"] == 2


def test_a_follower_keeps_the_newest_record_that_has_logits(tmp_path):
    (tmp_path / METRICS).write_text(line(1, logit_max=[[1]]) + line(2))
    follower = Follower(tmp_path)
    follower.update()
    assert follower.latest["logits"]["step"] == 1 and follower.latest["train"]["step"] == 2


@pytest.mark.parametrize("grown", [0, 20])
def test_a_follower_reads_a_rewound_log_again_even_if_it_has_outgrown_the_old_one(tmp_path, grown):
    write_atomically(tmp_path / METRICS, "".join(line(step) for step in range(1, 9)))
    follower = Follower(tmp_path)
    follower.update()
    rewound = [line(step, note="of another length") for step in range(1, 4 + grown)]
    write_atomically(tmp_path / METRICS, "".join(rewound))
    follower.update()
    assert follower.latest["train"]["step"] == 3 + grown


def test_a_run_that_a_signal_ended_is_not_reported_with_what_it_printed_before(config, tmp_path, monkeypatch):
    out = tmp_path / "run"
    (tmp_path / "killed.py").write_text(
        "import os, signal\nprint('all is well', flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunFailed, match=r"failed: SIGKILL ended it$"):
        run_all([config.with_overrides([f"run.out={out}"])], jobs=1, poll_seconds=0.05, module="killed")


SLEEPER = "import sys, time, pathlib\npathlib.Path(sys.argv[1]).with_name('started').touch()\ntime.sleep(60)\n"


def test_a_terminated_call_takes_its_runs_along(config, tmp_path, monkeypatch):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.syspath_prepend(tmp_path)
    started, began = tmp_path / "run" / "started", time.monotonic()

    def watch(followers):
        if started.exists():
            os.kill(os.getpid(), signal.SIGTERM)

    processes = []
    start = runner._start
    monkeypatch.setattr(runner, "_start", lambda *a: processes.append(start(*a)) or processes[-1])
    changed = config.with_overrides([f"run.out={tmp_path / 'run'}"])
    assert not run_all([changed], jobs=1, poll_seconds=0.05, module="sleeper", watch=watch)
    assert time.monotonic() - began < 30
    assert [process.returncode for process in processes] == [-signal.SIGTERM]


def test_an_error_in_the_call_leaves_no_run_behind(config, tmp_path, monkeypatch):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.syspath_prepend(tmp_path)
    processes = []
    start = runner._start
    monkeypatch.setattr(runner, "_start", lambda *a: processes.append(start(*a)) or processes[-1])

    def watch(followers):
        raise OSError("the terminal is gone")

    changed = config.with_overrides([f"run.out={tmp_path / 'run'}"])
    with pytest.raises(OSError, match="the terminal is gone"):
        run_all([changed], jobs=1, poll_seconds=0.05, module="sleeper", watch=watch)
    assert [process.returncode for process in processes] == [-signal.SIGTERM]


def test_the_end_of_an_earlier_shorter_run_does_not_make_it_finished(config, tmp_path, monkeypatch):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.syspath_prepend(tmp_path)
    write_atomically(tmp_path / "run" / METRICS, json.dumps({"kind": "end", "step": 2, "status": "finished"}) + "\n")
    for steps, finished in ((2, True), (4, False)):
        changed = config.with_overrides([f"run.out={tmp_path / 'run'}", f"run.steps={steps}"])
        assert run_all([changed], jobs=1, poll_seconds=0.05, module="sleeper", until=0.0) == finished
