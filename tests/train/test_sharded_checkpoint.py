"""Checkpoints of sharded runs: bit for bit the same on any mesh, verified, either complete or absent."""

import json
from pathlib import Path

import pytest

from longshort.train import load_model, train
from longshort.train.checkpoint import CHECKPOINTS, checkpoint_names, load_checkpoint, newest_checkpoint

from ..processes import in_processes
from .tiny import losses, tiny_config

CHANGES = ["data.batch_size=4", "run.save_every=3", "optimizer.kind=muon", "stability.clip=tensor", "run.keep=9"]


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    """A run of six steps in one process, saved at the third too."""
    out = tmp_path_factory.mktemp("alone") / "run"
    train(tiny_config(corpus, out, *CHANGES, "run.steps=6", sigma_reparam=True))
    return out


@pytest.fixture(scope="module")
def sharded(corpus, tmp_path_factory, alone):
    """By two processes: the last checkpoint of that run read and written again; the run, begun by one process; the run
    in two parts, in one, and its first part alone; and the run, killed in its last checkpoint.
    """
    out = tmp_path_factory.mktemp("sharded")
    begun = tiny_config(corpus, out / "begun-alone", *CHANGES, "run.steps=3", sigma_reparam=True)
    train(begun)
    runs = [(steps, name) for name in ("begun-alone", "two", "whole", "killed") for steps in (6,)]
    runs[1:1] = [(3, "two"), (3, "left")]
    again = {"read": str(last(alone)), "write": str(out / "again"), "mesh": [1, 2]}
    changes = [["parallel.dp_shard=2", f"run.steps={steps}", f"run.out={out / name}"] for steps, name in runs]
    do(out, 2, [again, *({"train": begun.with_overrides(change).to_dict()} for change in changes)], killed=0)
    return out


def do(out, world, tasks, **options):
    (out / "tasks.json").write_text(json.dumps(tasks))
    in_processes(world, Path(__file__).with_name("several.py"), out / "tasks.json", **options)


def last(run):
    return run / CHECKPOINTS / "step-00000006"


def same(one, other):
    first, second = load_checkpoint(one), load_checkpoint(other)
    for kind in ("model", "trainer"):
        mine, theirs = getattr(first, kind), getattr(second, kind)
        assert mine.keys() == theirs.keys()
        different = [name for name in mine if not mine[name].equal(theirs[name])]
        assert not different, different


def test_weights_and_moments_are_the_same_bits_on_any_mesh(alone, sharded, tmp_path):
    same(alone, sharded / "again")
    meshes, source = {"four": [1, 4], "copies": [2, 2]}, str(sharded / "again" / "step-00000006")
    do(tmp_path, 4, [{"read": source, "write": str(tmp_path / name), "mesh": mesh} for name, mesh in meshes.items()])
    for name in meshes:
        same(alone, tmp_path / name)


def test_each_process_writes_its_shards_as_safetensors(sharded):
    names = {path.name for path in (sharded / "again" / "step-00000006").iterdir()}
    shards = {f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2)}
    assert names == shards | {"state.json"}


def test_a_run_resumed_on_the_same_mesh_is_the_run_that_was_never_stopped(sharded):
    assert losses(sharded / "two") == losses(sharded / "whole")
    same(sharded / "two", sharded / "whole")


def test_a_run_of_one_process_is_resumed_by_two(alone, sharded):
    assert losses(sharded / "begun-alone") == pytest.approx(losses(alone), abs=1e-5)


def test_a_run_of_two_processes_is_resumed_by_one(corpus, alone, sharded):
    config = tiny_config(corpus, sharded / "left", *CHANGES, "run.steps=6", sigma_reparam=True)
    train(config)
    assert losses(sharded / "left") == pytest.approx(losses(alone), abs=1e-5)
    folder = sharded / "left" / CHECKPOINTS
    formats = [load_checkpoint(folder / name).state["format"] for name in checkpoint_names(folder)]
    assert formats == [2, 1]


def test_a_process_killed_while_saving_leaves_the_checkpoint_before(corpus, alone, sharded):
    killed = sharded / "killed"
    assert checkpoint_names(killed / CHECKPOINTS) == ["step-00000003"]
    assert len(list((killed / CHECKPOINTS).glob(".step-00000006.*"))) == 1
    train(tiny_config(corpus, killed, *CHANGES, "run.steps=6", sigma_reparam=True))
    assert losses(killed) == pytest.approx(losses(alone), abs=1e-5)
    assert not list((killed / CHECKPOINTS).glob(".step-*"))


def test_the_model_of_a_sharded_checkpoint_is_loaded_like_any_other(alone, sharded):
    mine, theirs = (load_model(path)[0].state_dict() for path in (alone, sharded / "again"))
    assert all(mine[name].equal(theirs[name]) for name in mine)


@pytest.mark.parametrize("damage", ["changed", "missing", "added"])
def test_a_damaged_shard_is_found_and_the_checkpoint_before_it_used(damage, sharded, tmp_path):
    folder = tmp_path / CHECKPOINTS
    for name in ("step-00000003", "step-00000006"):
        (folder / name).mkdir(parents=True)
        for path in (sharded / "whole" / CHECKPOINTS / name).iterdir():
            (folder / name / path.name).write_bytes(path.read_bytes())
    shard = folder / "step-00000006" / "shard-00002-model-00001-of-00001.safetensors"
    if damage == "changed":
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
    elif damage == "missing":
        shard.unlink()
    else:
        shard.with_name("shard-00003-model-00001-of-00001.safetensors").write_bytes(shard.read_bytes())
    said = []
    assert newest_checkpoint(folder, said.append).step == 3
    assert len(said) == 1 and "step-00000006" in said[0] and "shard-0000" in said[0]
