"""A run of several processes that loses one is restarted by torchrun, and ends as if nothing had happened."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

from longshort.runs.log import METRICS, read_log
from longshort.train import train
from longshort.train.distributed import _unused_store
from tests.elastic import launch

from .tiny import differences, losses, records, tiny_config

STEPS = ["run.steps=8", "run.save_every=3", "run.eval_every=4"]
SHARDED = "parallel.dp_shard=2"


def has_steps(out, count):
    log = Path(out, METRICS)
    return log.exists() and log.read_text().count('"kind": "train"') >= count


def train_and_lose(config, victim):
    """Train; at the first attempt, the rank `victim` is killed when the log has five steps."""

    def kill():
        while not has_steps(config.run.out, 5):
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGKILL)

    if int(os.environ["RANK"]) == victim and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        threading.Thread(target=kill, daemon=True).start()
    train(config)


def launch_all(runs):
    for config, victim in runs:
        launch(train_and_lose, config, victim, restarts=0 if victim is None else 1)


def assert_same_run(out, reference, steps=8):
    assert losses(out) == losses(reference)
    assert [record["step"] for record in records(out, "train")] == list(range(1, steps + 1))
    assert [record["loss"] for record in records(out, "eval")] == [r["loss"] for r in records(reference, "eval")]
    assert differences(out, reference) == []
    assert [record["kind"] for record in read_log(out)].count("run") == 1


def test_a_run_that_loses_a_process_resumes_by_itself_and_ends_bit_for_bit_as_another(corpus, tmp_path, monkeypatch):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["longshort.train", "torch._dynamo", "torch.distributed.run"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the server looks there for what it loads
    cases = {"whole": ([], 0), "sharded": ([SHARDED], 1)}
    runs = []
    for name, (changes, victim) in cases.items():
        runs.append((tiny_config(corpus, tmp_path / name, *STEPS, *changes), None))
        runs.append((tiny_config(corpus, tmp_path / f"{name}-killed", *STEPS, *changes), victim))
    agent = context.Process(target=launch_all, args=(runs,))
    agent.start()
    agent.join(120)
    assert agent.exitcode == 0
    for name in cases:
        assert [record["step"] for record in records(tmp_path / f"{name}-killed", "resume")] in ([3], [4], [6])
        assert_same_run(tmp_path / f"{name}-killed", tmp_path / name)
