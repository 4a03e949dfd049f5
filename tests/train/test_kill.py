"""Real `kill -9` at random moments: the run that is left goes on, bit for bit, as if it had never been stopped."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from longshort.runs.log import METRICS
from longshort.train import train

from .tiny import differences, losses, records, tiny_config

EVERYTHING = [
    "run.steps=40",
    "run.save_every=3",
    "run.eval_every=7",
    "run.accumulate=2",
    "data.segments=true",
    "schedule.kind=wsd",
    "stability.clip=tensor",
    "stability.guard=skip",
    "stability.guard_warmup=5",
    "stability.guard_window=8",
    "stability.guard_threshold=0.7",
]
"""All that has a state of its own; a threshold so low that ordinary noise is skipped now and then."""


def everything(corpus, out):
    return tiny_config(corpus, out, *EVERYTHING, dropout=0.1, sigma_reparam=True)


@pytest.fixture(scope="module")
def processes():
    """Processes that start at once: forked from one that has torch loaded and has never used it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["longshort.train", "torch._dynamo"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the server looks there for what it loads
        yield context


@pytest.fixture(scope="module")
def uninterrupted(corpus, processes, tmp_path_factory):
    """The run that is never stopped."""
    out = tmp_path_factory.mktemp("kill") / "uninterrupted"
    process = processes.Process(target=train, args=(everything(corpus, out),))
    process.start()
    process.join(200)
    assert process.exitcode == 0
    assert 1 <= len(records(out, "spike")) <= 20  # the guard has something to remember
    return out


def size(path):
    return path.stat().st_size if path.exists() else 0


def wait_for_progress(log, before, alive):
    """Until the run has written something new: it is at work then."""
    for _ in range(6000):
        if size(log) != before or not alive():
            return
        time.sleep(0.01)


def assert_same_run(out, reference):
    assert losses(out) == losses(reference)
    assert differences(out, reference) == []
    for kind in ("eval", "spike"):
        mine, theirs = (
            [{k: v for k, v in record.items() if k != "seconds"} for record in records(folder, kind)]
            for folder in (out, reference)
        )
        assert mine == theirs
    steps = [record["step"] for record in records(out, "train") + records(out, "spike")]
    assert sorted(steps) == list(range(1, 41))


@pytest.mark.slow
def test_a_run_killed_many_times_is_bit_for_bit_the_run_that_never_was(corpus, processes, uninterrupted, tmp_path):
    moments, out = random.Random(1), tmp_path / "run"
    span = records(uninterrupted, "end")[0]["seconds"] / 4
    kills = 0
    for _ in range(60):
        before = size(out / METRICS)
        process = processes.Process(target=train, args=(everything(corpus, out),))
        process.start()
        wait_for_progress(out / METRICS, before, process.is_alive)
        process.join(moments.uniform(0, span) if kills < 15 else 200)
        process.kill()  # nothing happens if it has ended
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    assert kills >= 5
    assert_same_run(out, uninterrupted)


def start_runner(config, path):
    path.write_text(json.dumps(config.to_dict()))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-m", "longshort.train.sweeps.processes", str(path)], env=environment)


@pytest.mark.slow
def test_the_runners_process_survives_kill_and_sigterm(corpus, uninterrupted, tmp_path):
    out, log = tmp_path / "run", tmp_path / "run" / METRICS
    for number, delay in ((signal.SIGKILL, 0.4), (signal.SIGTERM, 0.2), (None, 0)):
        before = size(log)
        process = start_runner(everything(corpus, out), tmp_path / "config.json")
        wait_for_progress(log, before, lambda process=process: process.poll() is None)
        if number is not None:
            time.sleep(delay)
            process.send_signal(number)
        code = process.wait(200)
        assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0)
        if number == signal.SIGTERM and records(out, "end")[0]["step"] < 40:
            assert records(out, "end")[0]["status"] == "interrupted"
    assert records(out, "end")[0]["status"] == "finished"
    assert_same_run(out, uninterrupted)
