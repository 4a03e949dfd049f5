"""A run whose model is sharded over 2 or 4 processes is the run of one process: losses, gradients, verdicts, clips."""

import json
from pathlib import Path

import pytest
import torch

from longshort.train import ConfigError, TrainConfig, train
from longshort.train.checkpoint import load_checkpoint
from longshort.train.models import build_model

from ..processes import in_processes
from .several import spoil
from .tiny import records, tiny_config

SCRIPT = Path(__file__).with_name("several.py")
MESHES = {
    "two": (2, ["parallel.dp_shard=-1"]),
    "four": (4, ["parallel.dp_shard=4"]),
    "hsdp": (4, ["parallel.dp_shard=2"]),
}
SHORT = ["run.steps=10", "telemetry.logits_every=1"]
GUARD = ["run.steps=16", "stability.guard_warmup=4", "stability.guard_window=6", "stability.guard_threshold=3"]
GUARD += ["run.save_every=5"]
RUNS = {
    "plain": ["run.steps=50", "run.eval_every=25", "telemetry.entropy_every=25", "telemetry.layer_gradients=true"],
    "muon": [*SHORT, "optimizer.kind=muon", "run.checkpoint_activations=true", "parallel.reshard=false"],
    "clips": [*SHORT, "stability.qk_clip=0.02", "stability.clip=tensor", "run.accumulate=2", "loss.z_loss=0.01"],
    "sigma": [*SHORT, "model.sigma_reparam=true", "model.bias=true"],
    "still": ["run.steps=1", "optimizer.lr=1e-30", "optimizer.weight_decay=0"],
    "spoiled-skip": [*GUARD, "stability.guard=skip"],
    "spoiled-rollback": [*GUARD, "stability.guard=rollback"],
}
TASKS = {"listops": {"length": 32}, "recall": {"length": 32, "pairs": 2, "symbols": 16}}
ROWS = {"train": 40, "validation": 8, "test": 8}
NAMES = [*RUNS, *TASKS]
CASES = [("two", name) for name in NAMES]
CASES += [("four", name) for name in ("plain", "muon", "clips", "sigma", "still", "spoiled-rollback", "recall")]
CASES += [("hsdp", name) for name in ("plain", "muon", "clips", "spoiled-skip")]


def cases(*names):
    """On each mesh, those of these runs that it makes."""
    return pytest.mark.parametrize(("mesh", "name"), [case for case in CASES if case[1] in names])


def of(name, corpus, out, *more):
    if name in RUNS:
        return tiny_config(corpus, out / name, "data.batch_size=8", *RUNS[name], *more)
    values = tiny_config(corpus, out / name).to_dict() | {"task": {"name": name, **TASKS[name], **ROWS}}
    values["data"] = {"batch_size": 8}
    return TrainConfig.from_dict(values).with_overrides(["run.steps=8", "run.eval_every=4", *more])


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGSHORT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    """The folder of every run, in one process."""
    out = tmp_path_factory.mktemp("alone")
    for name in NAMES:
        spoil("spoiled" in name)
        train(of(name, corpus, out))
    spoil(False)
    return out


@pytest.fixture(scope="module")
def folders(corpus, tmp_path_factory):
    """For each mesh, the folder of its runs."""
    found = {mesh: tmp_path_factory.mktemp(mesh) for mesh in MESHES}
    for world in (2, 4):
        here = [(mesh, name) for mesh, name in CASES if MESHES[mesh][0] == world]
        configs = [of(name, corpus, found[mesh], *MESHES[mesh][1]) for mesh, name in here]
        path = tmp_path_factory.mktemp("tasks") / "tasks.json"
        path.write_text(json.dumps([{"train": config.to_dict()} for config in configs]))
        in_processes(world, SCRIPT, path)
    return found


@cases(*NAMES)
def test_losses_and_gradient_norms_are_those_of_one_process(mesh, name, alone, folders):
    one, several = (records(out / name, "train") for out in (alone, folders[mesh]))
    assert [record["step"] for record in one] == [record["step"] for record in several]
    for mine, theirs in zip(one, several, strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], abs=1e-5)
        assert theirs["grad_norm"] == pytest.approx(mine["grad_norm"], rel=1e-3)
        for key in ("logit_max", "logit_min", "entropy"):
            if key in mine:
                torch.testing.assert_close(torch.tensor(theirs[key]), torch.tensor(mine[key]), rtol=1e-3, atol=1e-5)
    first, second = (load_checkpoint(out / name) for out in (alone, folders[mesh]))
    torch.testing.assert_close(second.model, first.model, rtol=1e-3, atol=1e-4)
    assert second.trainer.keys() == first.trainer.keys()


@cases("plain", *TASKS)
def test_evaluations_are_those_of_one_process(mesh, name, alone, folders):
    one, several = (records(out / name, "eval") for out in (alone, folders[mesh]))
    assert len(one) == 2
    for key in {"loss", "accuracy", "exact"} & one[0].keys():
        assert [record[key] for record in several] == pytest.approx([record[key] for record in one], abs=1e-5)


@cases("plain")
def test_gradient_norms_of_layers_are_those_of_one_process(mesh, name, alone, folders):
    one, several = (records(out / name, "train")[-1]["layer_gradients"] for out in (alone, folders[mesh]))
    assert several == pytest.approx(one, rel=1e-3)


@cases("spoiled-skip", "spoiled-rollback")
def test_all_ranks_follow_one_verdict_on_a_spike(mesh, name, alone, folders):
    for out in (alone, folders[mesh]):
        assert [(record["step"], record["batch"]) for record in records(out / name, "spike")] == [(14, 13)]


def test_clips_were_at_work(alone):
    largest = [torch.tensor(record["logit_max"]).max() for record in records(alone / "clips", "train")]
    assert max(largest) > 0.02


@cases("still")
def test_weights_at_the_start_do_not_depend_on_the_number_of_processes(mesh, name, corpus, folders, tmp_path):
    """Each process draws all weights, from the seed alone, and keeps its rows."""
    config = of(name, corpus, tmp_path)
    torch.manual_seed(config.run.seed)
    drawn, found = build_model(config).state_dict(), load_checkpoint(folders[mesh] / name).model
    assert found.keys() == drawn.keys() and all(found[key].equal(drawn[key]) for key in drawn)


def test_sizes_that_do_not_fit_the_processes_are_refused(corpus, tmp_path):
    with pytest.raises(
        ConfigError, match=r"parallel.dp_shard=2 \* parallel.cp=1 must divide .* 1, got 2.* or start a mul"
    ):
        train(tiny_config(corpus, tmp_path, "parallel.dp_shard=2"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (["parallel.dp_shard=0"], "parallel.dp_shard must be -1"),
        (["parallel.reduce=fp16"], "parallel.reduce must be one of fp32, bf16"),
    ],
)
def test_what_cannot_be_had_is_refused(changes, reason, corpus, tmp_path):
    with pytest.raises(ConfigError, match=reason):
        tiny_config(corpus, tmp_path, *changes)
