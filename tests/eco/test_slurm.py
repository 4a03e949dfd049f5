"""Sweeps through submitit: its own executor for this machine in the place of Slurm's."""

import os
import signal
import time
from pathlib import Path

import pytest
import submitit

from longshort.train import train
from longshort.train.sweeps import slurm
from longshort.train.sweeps.processes import MODULE, RunFailed, run_all
from longshort.train.sweeps.slurm import Slurm

from ..train.tiny import losses, tiny_config


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "_executor", lambda folder: submitit.LocalExecutor(folder=folder))
    return Slurm(tmp_path / "slurm", {"time": "5"})


def test_runs_in_jobs_are_the_runs_of_this_process(corpus, tmp_path, start):
    train(tiny_config(corpus, tmp_path / "here"))
    configs = [tiny_config(corpus, tmp_path / "job"), tiny_config(corpus, tmp_path / "other", "run.seed=1")]
    assert run_all(configs, jobs=2, poll_seconds=0.1, start=start)
    assert losses(tmp_path / "job") == losses(tmp_path / "here") != losses(tmp_path / "other")


def test_a_failing_job_is_reported_with_the_last_words_of_its_run(tmp_path, start):
    with pytest.raises(RunFailed, match=r"the run .*job failed: .*nowhere"):
        run_all([tiny_config(tmp_path / "nowhere", tmp_path / "job")], jobs=1, poll_seconds=0.1, start=start)


def test_a_job_whose_time_is_nearly_up_saves_and_resumes(corpus, tmp_path, start):
    steps = ["run.steps=200", "run.save_every=1000"]
    train(tiny_config(corpus, tmp_path / "here", *steps))
    run = start(tiny_config(corpus, tmp_path / "job", *steps))
    log = tmp_path / "job" / "metrics.jsonl"
    while not (log.exists() and '"step": 20' in log.read_text()):
        assert run.poll() is None
        time.sleep(0.02)
    for process in processes_of(tmp_path / "job"):
        os.kill(process, signal.SIGUSR2)
    assert run.wait() == 0
    assert '"kind": "resume"' in log.read_text()
    assert losses(tmp_path / "job") == losses(tmp_path / "here")


def processes_of(out):
    """The run's process and its parent, submitit's: Slurm signals every process of a job."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, status = (folder / "cmdline").read_bytes().split(b"\0"), (folder / "stat").read_text()
        except OSError:
            continue
        if MODULE.encode() in words and any(str(out).encode() in word for word in words):
            return [int(folder.name), int(status.rpartition(")")[2].split()[1])]
    raise AssertionError("the run has no process")
