"""Two processes under torchrun are one run."""

import re

import pytest
import torch
import torch.distributed as dist

from longshort.runs.log import read_log
from longshort.train import train
from longshort.train.checkpoints.checkpoint import load_checkpoint
from longshort.train.machine import distributed
from longshort.train.machine.distributed import World, choose_device, joined
from tests.elastic import launch

from ..tiny import records, tiny_config

CHANGES = ["run.steps=6", "run.save_every=3", "run.accumulate=2", "stability.guard=skip"]
CHANGES += ["telemetry.entropy_every=3", "telemetry.logits_every=1"]


def test_two_processes_give_the_losses_of_one_with_the_same_global_batch(corpus, tmp_path, context):
    agent = context.Process(target=launch, args=(train, tiny_config(corpus, tmp_path / "two", *CHANGES)))
    agent.start()
    train(tiny_config(corpus, tmp_path / "one", *CHANGES))
    agent.join(120)
    assert agent.exitcode == 0
    one, two = (records(tmp_path / name, "train") for name in ("one", "two"))
    for mine, theirs in zip(one, two, strict=True):  # one writer: one line a step
        assert mine["step"] == theirs["step"]
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
        assert mine["tokens"] == theirs["tokens"]
        torch.testing.assert_close(
            torch.tensor(mine["logit_max"]), torch.tensor(theirs["logit_max"]), rtol=1e-3, atol=1e-5
        )
    evaluations = [records(tmp_path / name, "eval")[0]["loss"] for name in ("one", "two")]
    assert evaluations[0] == pytest.approx(evaluations[1], rel=1e-4)
    log = read_log(tmp_path / "two")
    assert [record["kind"] for record in log].count("run") == 1 and log[0]["world_size"] == 2
    models = [load_checkpoint(tmp_path / name).model for name in ("one", "two")]
    torch.testing.assert_close(models[0], models[1], rtol=1e-3, atol=1e-4)


def test_one_process_asks_no_other():
    world = World(0, 1, torch.device("cpu"))
    assert world.is_writer and world.agree(True) and not world.agree(False)
    assert world.mean(torch.tensor(3.0)) == 3
    world.wait()


def test_auto_is_a_device_that_this_machine_has():
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "", "meta"])
def test_a_device_of_no_kind_is_named(name):
    with pytest.raises(ValueError, match=f"device must be auto, cpu, cuda or cuda:N, got '{name}'"):
        choose_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has it")
def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="PyTorch finds no CUDA GPU, got 'cuda'"):
        choose_device("cuda")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"RANK": "x"}, "RANK must be an integer of at least 0, as torchrun sets it, got 'x'"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE must be an integer of at least 0, as torchrun sets it, got '-1'"),
        ({"RANK": "²"}, "RANK must be an integer of at least 0, as torchrun sets it, got '²'"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK must be below WORLD_SIZE=2, got 2; torchrun sets both"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 needs MASTER_ADDR and MASTER_PORT too; torchrun sets them all"),
    ],
)
def test_what_torchrun_would_not_set_is_refused(given, message, monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"), joined("cpu"):
        pass


@pytest.fixture
def four_gpus(monkeypatch):
    """The numbers of the devices that were made the current one, which is the third at first."""
    used = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: used.append(device.index))
    return used


@pytest.mark.parametrize(
    ("name", "local_rank", "device"),
    [
        ("auto", None, "cuda:2"),
        ("cuda", None, "cuda:2"),
        ("cuda:1", None, "cuda:1"),
        ("cuda", 3, "cuda:3"),
        ("cuda:1", 3, "cuda:3"),
        ("cpu", 3, "cpu"),
    ],
)
def test_each_process_of_a_machine_has_a_gpu_of_its_own(name, local_rank, device, four_gpus):
    assert choose_device(name, local_rank) == torch.device(device)


@pytest.mark.parametrize(
    ("local_rank", "message"),
    [
        (None, "device must be a GPU of this machine, cuda:0 to cuda:3, got 'cuda:9'"),
        (4, "LOCAL_RANK must be below 4, the number of GPUs of this machine, got 4; start fewer processes on it"),
    ],
)
def test_a_gpu_beyond_those_of_the_machine_is_refused(local_rank, message, four_gpus):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        choose_device("cuda:9", local_rank)


@pytest.mark.parametrize(("size", "gpu"), [(1, 2), (8, 1)])
def test_the_gpu_is_that_of_the_rank_on_its_own_machine(size, gpu, four_gpus, monkeypatch):
    started = []
    monkeypatch.setattr(distributed, "_unused_store", lambda rank, size: None)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **options: started.append((backend, options)))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: started.append("ended"))
    for name, value in {"WORLD_SIZE": size, "RANK": size - 1, "LOCAL_RANK": 1, "MASTER_ADDR": "here"}.items():
        monkeypatch.setenv(name, str(value))
    with joined("cuda") as world:
        assert world == World(size - 1, size, torch.device("cuda", gpu)) and four_gpus == [gpu]
    among = {"store": None, "rank": size - 1, "world_size": size}
    assert started == ([] if size == 1 else [("cpu:gloo,cuda:nccl", among), "ended"])
