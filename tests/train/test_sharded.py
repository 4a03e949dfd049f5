"""A run whose model is sharded over 2 or 4 processes is the run of one process: losses, gradients, verdicts, clips."""

from functools import cache

import pytest
import torch

from longshort.planning.job import Job, Settings
from longshort.planning.machines import Machines
from longshort.planning.traffic import sharding
from longshort.train import ConfigError, TrainConfig, train
from longshort.train.checkpoints.checkpoint import load_checkpoint

from . import several
from .several import SPOILED
from .tiny import records, tiny_config

MESHES = {
    "two": (2, ["parallel.dp_shard=-1"]),
    "four": (4, ["parallel.dp_shard=4"]),
    "hsdp": (4, ["parallel.dp_shard=2"]),
}
SHORT = ["run.steps=4", "telemetry.logits_every=1"]
MEASURED = ["run.eval_every=2", "telemetry.entropy_every=2", "telemetry.layer_gradients=true"]
CLIPS = ["stability.qk_clip=0.02", "stability.clip=tensor"]
GUARD = ["run.steps=10", "stability.guard_warmup=4", "stability.guard_window=4", "stability.guard_threshold=3"]
GUARD += ["run.save_every=4"]
# The gradient of a bias of keys is 0 but for rounding, since softmax ignores what it adds to all logits of a query.
# With eps=1e-8 Adam makes steps of that rounding, and the logits differ by them: 7e-5 in fp32, 1e-7 in fp64.
SIGMA = ["model.sigma_reparam=true", "model.bias=true", "optimizer.eps=1e-5"]
RUNS = {
    "long": ["run.steps=50"],
    "clips": [*SHORT, *MEASURED, *CLIPS, "run.accumulate=2", "loss.z_loss=0.01"],
    "muon": [*SIGMA, "run.steps=2", "optimizer.kind=muon", "run.checkpoint_activations=true", "parallel.reshard=false"],
    "sigma": [*SHORT, *SIGMA],
    "spoiled-skip": [*GUARD, "stability.guard=skip"],
    "spoiled-rollback": [*GUARD, "stability.guard=rollback"],
}
TASKS = {"listops": {"length": 32}, "recall": {"length": 32, "pairs": 2, "symbols": 16}}
ROWS = {"train": 40, "validation": 8, "test": 8}
NAMES = [*RUNS, *TASKS]
QUICK = {"two": ("clips", "spoiled-rollback", "listops"), "four": (), "hsdp": ("muon",)}
"""Those of each mesh that `make test` runs; `make test-all` runs all."""
CASES = [
    pytest.param(mesh, name, marks=() if name in QUICK[mesh] else pytest.mark.slow) for mesh in MESHES for name in NAMES
]


def cases(*names):
    """These runs on each mesh."""
    return pytest.mark.parametrize(("mesh", "name"), [case for case in CASES if case.values[1] in names])


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory, ranks):
    """The folder of a run on a mesh, or, without one, in one process; trained when it is first asked for."""
    out, data = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("data")

    @cache
    def trained(name, mesh=None):
        config = of(name, corpus, out / str(mesh))
        if mesh is not None:
            size, changes = MESHES[mesh]
            ranks.run(several.train, config.with_overrides(changes).to_dict(), data, size=size)
        else:
            several.spoil("spoiled" in name)
            train(config)
            several.spoil(False)
        return out / str(mesh) / name

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGSHORT_CACHE", str(data))
        yield trained


def of(name, corpus, out):
    if name in RUNS:
        return tiny_config(corpus, out / name, "data.batch_size=8", *RUNS[name])
    values = tiny_config(corpus, out / name).to_dict() | {"task": {"name": name, **TASKS[name], **ROWS}}
    values["data"] = {"batch_size": 8}
    return TrainConfig.from_dict(values).with_overrides(["run.steps=2", "run.eval_every=1"])


@cases(*NAMES)
def test_losses_and_gradient_norms_are_those_of_one_process(mesh, name, run):
    one, several = (records(out, "train") for out in (run(name), run(name, mesh)))
    assert [record["step"] for record in one] == [record["step"] for record in several]
    for mine, theirs in zip(one, several, strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], abs=1e-5)
        assert theirs["grad_norm"] == pytest.approx(mine["grad_norm"], rel=1e-3)
        for key in ("logit_max", "logit_min", "entropy"):
            if key in mine:
                torch.testing.assert_close(torch.tensor(theirs[key]), torch.tensor(mine[key]), rtol=1e-3, atol=1e-5)
    first, second = (load_checkpoint(out) for out in (run(name), run(name, mesh)))
    torch.testing.assert_close(second.model, first.model, rtol=1e-3, atol=1e-4)
    assert second.trainer.keys() == first.trainer.keys()


@cases("clips", *TASKS)
def test_evaluations_are_those_of_one_process(mesh, name, run):
    one, several = (records(out, "eval") for out in (run(name), run(name, mesh)))
    assert len(one) == 2
    for key in {"loss", "accuracy", "exact"} & one[0].keys():
        assert [record[key] for record in several] == pytest.approx([record[key] for record in one], abs=1e-5)


@cases("clips")
def test_gradient_norms_of_layers_are_those_of_one_process(mesh, name, run):
    one, several = (records(out, "train")[-1]["layer_gradients"] for out in (run(name), run(name, mesh)))
    assert several == pytest.approx(one, rel=1e-3)


@cases("spoiled-skip", "spoiled-rollback")
def test_all_ranks_follow_one_verdict_on_a_spike(mesh, name, run):
    for out in (run(name), run(name, mesh)):
        assert [(record["step"], record["batch"]) for record in records(out, "spike")] == [(SPOILED + 1, SPOILED)]


def test_clips_were_at_work(run):
    largest = [torch.tensor(record["logit_max"]).max() for record in records(run("clips"), "train")]
    assert max(largest) > 0.02


def test_copies_of_shards_sum_their_gradients_in_every_micro_batch_as_a_plan_counts_them(corpus, ranks, tmp_path):
    for micro in (1, 2):
        changes = ["data.batch_size=8", "parallel.dp_shard=2", "run.steps=1", f"run.accumulate={micro}"]
        config = tiny_config(corpus, tmp_path / str(micro), *changes)
        job = Job(model=config.model, length=config.length, batch=8)
        spread = Settings(dp_replicate=2, dp_shard=2, accumulate=micro)
        planned = {sent.name: sent.bytes for sent in sharding(job, spread, Machines(gpus=4))}
        sent = 4 * ranks.run(several.all_reduced, config.to_dict(), size=4)[0]  # a ring of two sends as much
        assert planned["gradients of the copies"] == pytest.approx(sent, rel=0.01)


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
