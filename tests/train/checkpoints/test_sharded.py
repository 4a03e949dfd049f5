"""Checkpoints of sharded runs: bit for bit the same on any mesh, verified, either complete or absent."""

import hashlib
import shutil

import pytest
import torch

from longshort.train import load_model, train
from longshort.train.checkpoints.checkpoint import (
    CHECKPOINTS,
    checkpoint_names,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)

from ...ranks import RankDied
from .. import several
from ..tiny import losses, tiny_config
from .test_saver import assert_writes_are_beside_training

CHANGES = ["data.batch_size=4", "run.save_every=2", "optimizer.kind=muon", "stability.clip=tensor", "run.keep=9"]
STEPS = 4


def config_of(corpus, out, steps=STEPS, *changes):
    return tiny_config(corpus, out, *CHANGES, f"run.steps={steps}", *changes, sigma_reparam=True)


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    """A run of one process, saved half-way too; its last checkpoint also has tensors that are not fp32."""
    out = tmp_path_factory.mktemp("alone") / "run"
    train(config_of(corpus, out))
    found = load_checkpoint(out)
    others = {"count": torch.tensor(2**40 + 1), "embedding.weight/large": found.model["embedding.weight"].double() / 3}
    state = {key: value for key, value in found.state.items() if key not in ("format", "sha256", "step")}
    save_checkpoint(out / CHECKPOINTS, step=STEPS, model=found.model, trainer=found.trainer | others, state=state)
    return out


@pytest.fixture(scope="module")
def again(alone, tmp_path_factory, ranks):
    """The last checkpoint of that run, read and written again by two processes."""
    out = tmp_path_factory.mktemp("again")
    ranks.run(several.read_and_write, str(last(alone)), str(out), (1, 2), size=2)
    return out


@pytest.fixture(scope="module")
def by_two(corpus, ranks):
    """Trains in two processes; from the checkpoint in the folder, if there is one."""
    return lambda out, steps=STEPS: ranks.run(
        several.train, config_of(corpus, out, steps, "parallel.dp_shard=2").to_dict(), size=2
    )


@pytest.fixture(scope="module")
def half(by_two, tmp_path_factory):
    """The first half of the run, by two processes."""
    out = tmp_path_factory.mktemp("half") / "run"
    by_two(out, STEPS // 2)
    return out


@pytest.fixture(scope="module")
def written(corpus, tmp_path_factory, ranks):
    """The run, by two processes: its folder, and in which order it made steps and wrote checkpoints."""
    out = tmp_path_factory.mktemp("whole") / "run"
    config = config_of(corpus, out, STEPS, "parallel.dp_shard=2")
    return out, ranks.run(several.train_with_held_writes, config.to_dict(), size=2)[0]


@pytest.fixture(scope="module")
def whole(written):
    return written[0]


def last(run):
    return run / CHECKPOINTS / f"step-{STEPS:08d}"


def sums(run):
    """The SHA-256 of each tensor of the newest checkpoint."""
    found = load_checkpoint(run)
    tensors = {(kind, name): x for kind in ("model", "trainer") for name, x in getattr(found, kind).items()}
    return {name: hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest() for name, x in tensors.items()}


def test_weights_and_moments_are_the_same_bits_on_any_mesh(alone, again, tmp_path, ranks):
    expected = sums(alone)
    assert sums(again) == expected
    for mesh in ((1, 4), (2, 2)):
        target = tmp_path / str(mesh)
        ranks.run(several.read_and_write, str(again / last(alone).name), str(target), mesh, size=4)
        assert sums(target) == expected


def test_each_process_writes_its_shards_as_safetensors(alone, again):
    names = {path.name for path in (again / last(alone).name).iterdir()}
    shards = {f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2)}
    assert names == shards | {"state.json"}


def test_a_run_resumed_on_the_same_mesh_is_the_run_that_was_never_stopped(by_two, half, whole, tmp_path):
    out = shutil.copytree(half, tmp_path / "run")
    by_two(out)
    assert losses(out) == losses(whole)
    assert sums(out) == sums(whole)


def test_a_run_of_one_process_is_resumed_by_two(corpus, alone, by_two, tmp_path):
    train(config_of(corpus, tmp_path, STEPS // 2))
    by_two(tmp_path)
    assert losses(tmp_path) == pytest.approx(losses(alone), abs=1e-5)


def test_a_run_of_two_processes_is_resumed_by_one(corpus, alone, half, tmp_path):
    out = shutil.copytree(half, tmp_path / "run")
    train(config_of(corpus, out))
    assert losses(out) == pytest.approx(losses(alone), abs=1e-5)
    folder = out / CHECKPOINTS
    formats = [load_checkpoint(folder / name).state["format"] for name in checkpoint_names(folder)]
    assert formats == [2, 1]


def test_a_process_killed_while_saving_leaves_the_checkpoint_before(corpus, alone, half, tmp_path, ranks):
    out = shutil.copytree(half, tmp_path / "run")
    config = config_of(corpus, out, STEPS, "parallel.dp_shard=2")
    with pytest.raises(RankDied, match="rank 0 ended with -9"):
        ranks.run(several.train_and_die, config.to_dict(), STEPS, size=2)
    assert checkpoint_names(out / CHECKPOINTS) == [f"step-{STEPS // 2:08d}"]
    assert len(list((out / CHECKPOINTS).glob(f".step-{STEPS:08d}.*"))) == 1
    train(config_of(corpus, out))
    assert losses(out) == pytest.approx(losses(alone), abs=1e-5)
    assert not list((out / CHECKPOINTS).glob(".step-*"))


def test_training_continues_while_the_processes_write(written):
    assert_writes_are_beside_training(written[1])


def test_a_write_that_fails_in_one_process_fails_in_all(corpus, half, tmp_path, ranks):
    out = shutil.copytree(half, tmp_path / "run")
    config = config_of(corpus, out, STEPS, "parallel.dp_shard=2")
    assert ranks.run(several.train_and_fail, config.to_dict(), STEPS, size=2) == ["the disk is full"] * 2
    assert checkpoint_names(out / CHECKPOINTS) == [f"step-{STEPS // 2:08d}"]
    assert not list((out / CHECKPOINTS).glob(".step-*"))


def test_the_model_of_a_sharded_checkpoint_is_loaded_like_any_other(alone, again):
    mine, theirs = (load_model(path)[0].state_dict() for path in (alone, again))
    assert all(mine[name].equal(theirs[name]) for name in mine)


@pytest.mark.parametrize("damage", ["changed", "missing", "added"])
def test_a_damaged_shard_is_found_and_the_checkpoint_before_it_used(damage, whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run") / CHECKPOINTS
    before, newest = checkpoint_names(folder)
    shard = folder / newest / "shard-00002-model-00001-of-00001.safetensors"
    if damage == "changed":
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
    elif damage == "missing":
        shard.unlink()
    else:
        shard.with_name("shard-00003-model-00001-of-00001.safetensors").write_bytes(shard.read_bytes())
    said = []
    assert newest_checkpoint(folder, said.append).path.name == before
    assert len(said) == 1 and newest in said[0] and "shard-0000" in said[0]
