"""A run of several processes that loses one is restarted by torchrun, and ends as if nothing had happened."""

import json
import os
import signal
import socket
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
from longshort.train.machine.distributed import _unused_store
from tests.elastic import launch

from .tiny import differences, losses, records, tiny_config

STEPS = ["run.steps=8", "run.save_every=3", "run.eval_every=4"]
SHARDED = "parallel.dp_shard=2"


def has_steps(out, count):
    log = Path(out, METRICS)
    return log.exists() and log.read_text().count('"kind": "train"') >= count


def train_and_lose(config, victim):
    """Train; the rank `victim` is killed once, when the log has five steps."""
    killed = Path(f"{config.run.out}-lost-a-process")

    def kill():
        while not has_steps(config.run.out, 5):
            time.sleep(0.002)
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    if int(os.environ["RANK"]) == victim and not killed.exists():
        threading.Thread(target=kill, daemon=True).start()
    train(config)


def launch_all(runs, **options):
    for config, victim in runs:
        launch(train_and_lose, config, victim, restarts=0 if victim is None else 1, **options)


def assert_same_run(out, reference, steps=8):
    assert losses(out) == losses(reference)
    assert [record["step"] for record in records(out, "train")] == list(range(1, steps + 1))
    assert [record["loss"] for record in records(out, "eval")] == [r["loss"] for r in records(reference, "eval")]
    assert differences(out, reference) == []
    assert [record["kind"] for record in read_log(out)].count("run") == 1


@pytest.mark.parametrize(
    ("changes", "victim"), [([SHARDED], 1), pytest.param([], 0, marks=pytest.mark.slow)], ids=["sharded", "whole"]
)
def test_a_run_that_loses_a_process_resumes_by_itself_and_ends_bit_for_bit_as_another(
    changes, victim, corpus, tmp_path, context
):
    undisturbed = tiny_config(corpus, tmp_path / "undisturbed", *STEPS, *changes)
    killed = tiny_config(corpus, tmp_path / "killed", *STEPS, *changes)
    agent = context.Process(target=launch_all, args=([(undisturbed, None), (killed, victim)],))
    agent.start()
    agent.join(120)
    assert agent.exitcode == 0
    assert [record["step"] for record in records(tmp_path / "killed", "resume")] in ([3], [4], [6])
    assert_same_run(tmp_path / "killed", tmp_path / "undisturbed")


@pytest.mark.slow
def test_two_machines_one_of_which_counts_no_restart_find_each_other_again(corpus, tmp_path, context):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = {"machines": 2, "processes": 1, "endpoint": f"localhost:{free.getsockname()[1]}"}
    killed = tiny_config(corpus, tmp_path / "killed", *STEPS)
    agents = [context.Process(target=launch_all, args=([(killed, 1)],), kwargs=place) for _ in range(2)]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join(120)
    assert [agent.exitcode for agent in agents] == [0, 0]
    launch_one = context.Process(target=launch_all, args=([(tiny_config(corpus, tmp_path / "one", *STEPS), None)],))
    launch_one.start()
    launch_one.join(120)
    assert_same_run(tmp_path / "killed", tmp_path / "one")


@pytest.mark.slow
def test_the_torchrun_command_restarts_a_run_killed_before_and_after_its_first_checkpoint(corpus, tmp_path):
    config = tiny_config(corpus, tmp_path / "run", *STEPS, "run.steps=80", "run.save_every=40", "run.save_best=false")
    (tmp_path / "config.yaml").write_text(json.dumps(config.to_dict()))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    train_it = ["-m", "longshort", "train", str(tmp_path / "config.yaml")]
    undisturbed = [*command, *train_it, f"run.out={tmp_path / 'undisturbed'}"]
    assert subprocess.run(undisturbed, env=environment, timeout=250).returncode == 0
    agent = subprocess.Popen([*command, "--max-restarts=2", *train_it], env=environment)
    try:
        for steps, rank in ((5, 1), (45, 0)):
            while not has_steps(config.run.out, steps):
                assert agent.poll() is None
                time.sleep(0.002)
            workers = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
            os.kill(int(workers[rank]), signal.SIGKILL)
        assert agent.wait(250) == 0
    finally:
        agent.terminate()
        agent.wait(60)
    assert [record["step"] for record in records(tmp_path / "run", "resume")] == [40]
    assert_same_run(tmp_path / "run", tmp_path / "undisturbed", steps=80)


def test_ranks_agree_on_a_name_for_their_attempt_whatever_an_earlier_one_left_in_the_store(monkeypatch):
    store = dist.HashStore()
    monkeypatch.setattr(dist, "rendezvous", lambda method: iter([(store, 0, 0)]))
    store.set("rank/1", "a process that was killed before rank 0 answered")

    def attempt(delays):
        def join(rank):
            time.sleep(delays[rank])
            found = _unused_store(rank, 3)
            found.set(f"address {rank}", str(delays))
            return [found.get(f"address {other}").decode() for other in range(3)]

        with ThreadPoolExecutor(3) as ranks:
            return list(ranks.map(join, range(3)))

    for delays in ((0.05, 0, 0), (0, 0.05, 0), (0, 0, 0.05), (0, 0, 0)):
        assert attempt(delays) == [[str(delays)] * 3] * 3  # never what an earlier attempt wrote
