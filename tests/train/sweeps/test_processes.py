"""Runs in processes of their own: how far they are, and what they say when they fail."""

import os
import signal
import time
from pathlib import Path

import pytest

from longshort.train import ConfigError, train
from longshort.train.sweeps import processes as runner
from longshort.train.sweeps.processes import RunFailed, run_all

from ...report.synthetic import run_record, write_lines


def test_a_failing_run_is_reported_with_its_last_words(config, tmp_path):
    broken = config.with_overrides([f"run.out={tmp_path / 'run'}", f"data.path={tmp_path / 'nowhere'}"])
    with pytest.raises(RunFailed, match=rf"the run {tmp_path / 'run'} failed: .*nowhere"):
        run_all([broken], jobs=1, poll_seconds=0.1)


def test_where_a_folder_holds_another_run_none_starts_and_nothing_is_written(config, tmp_path):
    first, second = (config.with_overrides([f"run.out={tmp_path / name}", "run.steps=2"]) for name in "ab")
    train(second)
    held = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    others = [each.with_overrides(["data.share=0.5"]) for each in (first, second)]
    with pytest.raises(ConfigError, match=r"b: holds a run with data\.share=1\.0, not 0\.5; set it back to resume"):
        run_all(others, jobs=2, poll_seconds=0.1)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == held


def test_a_run_that_a_signal_ended_is_not_reported_with_what_it_printed_before(config, tmp_path, monkeypatch):
    out = tmp_path / "run"
    (tmp_path / "killed.py").write_text(
        "import os, signal\nprint('all is well', flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunFailed, match=r"failed: SIGKILL ended it$"):
        run_all([config.with_overrides([f"run.out={out}"])], jobs=1, poll_seconds=0.05, module="killed")


class Ended:
    """A run that ended well."""

    def poll(self):
        return 0

    wait = terminate = poll


SLEEPER = "import sys, time, pathlib\npathlib.Path(sys.argv[1]).with_name('started').touch()\ntime.sleep(60)\n"


def test_a_terminated_call_takes_its_runs_along(config, tmp_path, monkeypatch):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.syspath_prepend(tmp_path)
    started, began = tmp_path / "run" / "started", time.monotonic()

    def watch(readers):
        if started.exists():
            os.kill(os.getpid(), signal.SIGTERM)

    processes = []
    start = runner.launch
    monkeypatch.setattr(runner, "launch", lambda *a: processes.append(start(*a)) or processes[-1])
    changed = config.with_overrides([f"run.out={tmp_path / 'run'}"])
    assert not run_all([changed], jobs=1, poll_seconds=0.05, module="sleeper", watch=watch)
    assert time.monotonic() - began < 30
    assert [process.returncode for process in processes] == [-signal.SIGTERM]


def test_an_error_in_the_call_leaves_no_run_behind(config, tmp_path, monkeypatch):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.syspath_prepend(tmp_path)
    processes = []
    start = runner.launch
    monkeypatch.setattr(runner, "launch", lambda *a: processes.append(start(*a)) or processes[-1])

    def watch(readers):
        raise OSError("the terminal is gone")

    changed = config.with_overrides([f"run.out={tmp_path / 'run'}"])
    with pytest.raises(OSError, match="the terminal is gone"):
        run_all([changed], jobs=1, poll_seconds=0.05, module="sleeper", watch=watch)
    assert [process.returncode for process in processes] == [-signal.SIGTERM]


def test_the_end_of_an_earlier_shorter_run_does_not_make_it_finished(config, tmp_path, monkeypatch):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    monkeypatch.syspath_prepend(tmp_path)
    write_lines(tmp_path / "run", [run_record(), {"kind": "end", "step": 2, "status": "finished"}])
    for steps, finished in ((2, True), (4, False)):
        changed = config.with_overrides([f"run.out={tmp_path / 'run'}", f"run.steps={steps}"])
        assert run_all([changed], jobs=1, poll_seconds=0.05, module="sleeper", until=0.0) == finished


class Sleeping:
    """A process that runs until it is told to end; `trained` leaves what a training that is over does."""

    def __init__(self, config, clock):
        self.out, self.clock, self.code, self.ended_at = Path(config.run.out), clock, None, None

    def trained(self):
        write_lines(self.out, [run_record(), {"kind": "end", "step": 2, "status": "finished"}])
        return self

    def poll(self):
        return self.code

    def terminate(self):
        if self.code is None:
            self.code, self.ended_at = -signal.SIGTERM, self.clock[0]

    wait = poll


def test_at_its_time_a_call_ends_what_runs_and_starts_nothing_more(config, tmp_path):
    started = []

    def start(config):
        assert not started
        started.append(config.run.out)
        return Sleeping(config, [0.0])

    configs = [config.with_overrides([f"run.out={tmp_path / name}"]) for name in "ab"]
    assert not run_all(configs, jobs=1, poll_seconds=0.0, until=0.0, start=start)
    assert started == [str(tmp_path / "a")]


@pytest.mark.parametrize("told", [False, True], ids=["by its time", "by a signal"])
def test_a_run_that_is_trained_has_more_time_for_what_comes_after(config, tmp_path, monkeypatch, told):
    clock, runs = [0.0], {}
    monkeypatch.setattr(runner.time, "monotonic", lambda: clock[0])

    def start(config):
        run = runs[Path(config.run.out).name] = Sleeping(config, clock)
        return run.trained() if run.out.name == "trained" else run

    def watch(readers):
        clock[0] += 1.0
        if told and clock[0] == 12.0:
            os.kill(os.getpid(), signal.SIGTERM)

    configs = [config.with_overrides([f"run.out={tmp_path / name}", "run.steps=2"]) for name in ("short", "trained")]
    run_all(configs, jobs=2, poll_seconds=0.0, until=10.0, grace=5.0, start=start, watch=watch)
    assert (runs["short"].ended_at, runs["trained"].ended_at) == (10.0, 12.0 if told else 15.0)


def test_the_cores_are_divided_among_the_runs(config, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    monkeypatch.setattr(runner, "launch", lambda out, threads, module: given.append(threads) or Ended())
    configs = [config.with_overrides([f"run.out={tmp_path / name}"]) for name in "abc"]
    run_all(configs, jobs=4, poll_seconds=0.0)
    run_all(configs[:1], jobs=4, poll_seconds=0.0, threads=5)
    assert given == [2, 2, 2, 5]
