"""A run whose sequences several processes share (parallel.cp) is the run of one process."""

import pytest
import torch

from longshort.data.stream import TokenStream
from longshort.train import ConfigError, TrainConfig, train
from longshort.train.checkpoints.checkpoint import load_checkpoint
from longshort.train.machine.distributed import World
from longshort.train.progress import Silent
from longshort.train.trainer import Trainer

from .tiny import differences, records, tiny_config

SPOILED = 4
"""Number of the batch whose targets are the wrong ones, in runs whose name says so."""
MESHES = {
    "2 x 2": ["parallel.dp_shard=2", "parallel.cp=2"],
    "4": ["parallel.cp=4"],
    "2 copies x 2": ["parallel.cp=2"],
}
SHORT = ["run.steps=10", "telemetry.logits_every=1"]
RUNS = {
    "spoiled": [
        "run.steps=6",
        "telemetry.logits_every=1",
        "data.segments=true",
        "run.accumulate=2",
        "run.eval_every=3",
        "run.save_every=3",
        "telemetry.entropy_every=3",
        "stability.guard=rollback",
        "stability.guard_warmup=3",
        "stability.guard_window=5",
        "stability.guard_threshold=0.1",
    ],
    "plain": ["run.steps=50", "run.eval_every=25", "telemetry.entropy_every=25", "telemetry.layer_gradients=true"],
    "muon": [*SHORT, "optimizer.kind=muon", "stability.clip=tensor", "run.checkpoint_activations=attention"],
    "clipped": [*SHORT, "stability.qk_clip=0.02", "stability.guard=skip", "loss.z_loss=0.01", "parallel.reshard=false"],
    "smoothed": [*SHORT, "model.smoothing=3", "model.positions=alibi"],
}
RECALL = {"name": "recall", "length": 32, "pairs": 2, "symbols": 16, "train": 40, "validation": 8, "test": 8}
slow = pytest.mark.slow


def of(name, corpus, out, *more):
    if name in RUNS:
        return tiny_config(corpus, out / name, "data.batch_size=8", *RUNS[name], *more)
    values = tiny_config(corpus, out / name).to_dict() | {"task": RECALL, "data": {"batch_size": 8}}
    return TrainConfig.from_dict(values).with_overrides(["run.steps=8", "run.eval_every=4", *more])


def trained(group, values):
    """One of the processes of a run, or its only one."""

    def batch(self, step, **ranks):
        found = right(self, step, **ranks)
        return found._replace(targets=250 - found.targets % 100) if step == SPOILED else found

    config = TrainConfig.from_dict(values)
    rank, size = (0, 1) if group is None else (group.rank(), group.size())
    right = TokenStream.batch
    TokenStream.batch = batch if "spoiled" in config.run.out else right
    try:
        Trainer(config, World(rank, size, torch.device("cpu")), Silent()).run()
    finally:
        TokenStream.batch = right


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGSHORT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    """The folder of a run in one process, by its name."""
    out, made = tmp_path_factory.mktemp("alone"), set()

    def run(name):
        if name not in made:
            trained(None, of(name, corpus, out).to_dict())
            made.add(name)
        return out / name

    return run


def check_equal(one, several):
    """Losses, gradient norms, statistics, evaluations, verdicts and weights."""
    mine, theirs = records(one, "train"), records(several, "train")
    assert [record["step"] for record in mine] == [record["step"] for record in theirs]
    for expected, found in zip(mine, theirs, strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
        for key in {"logit_max", "logit_min", "entropy"} & expected.keys():
            torch.testing.assert_close(torch.tensor(found[key]), torch.tensor(expected[key]), rtol=1e-3, atol=1e-4)
    evaluated = {record["step"]: record for record in records(several, "eval")}
    for expected in records(one, "eval"):
        found = evaluated[expected["step"]]
        for key in {"loss", "accuracy", "exact"} & expected.keys():
            assert found[key] == pytest.approx(expected[key], abs=1e-5)
    spikes = [[(record["step"], record["batch"]) for record in records(out, "spike")] for out in (one, several)]
    assert spikes[0] == spikes[1]
    torch.testing.assert_close(load_checkpoint(several).model, load_checkpoint(one).model, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("mesh", "name"),
    [
        ("2 x 2", "spoiled"),
        *(pytest.param(mesh, "plain", marks=slow) for mesh in MESHES),
        *(pytest.param("2 copies x 2", name, marks=slow) for name in ("muon", "clipped", "smoothed", "recall")),
    ],
)
def test_losses_and_all_else_are_those_of_one_process(mesh, name, corpus, alone, ranks, tmp_path):
    ranks.run(trained, of(name, corpus, tmp_path, *MESHES[mesh]).to_dict(), size=4)
    check_equal(alone(name), tmp_path / name)
    assert len(records(tmp_path / name, "spike")) == (name == "spoiled")


@slow
@pytest.mark.parametrize("name", ["plain", "spoiled"])
def test_two_processes_are_enough(name, corpus, alone, ranks, tmp_path):
    ranks.run(trained, of(name, corpus, tmp_path, "parallel.cp=2").to_dict(), size=2)
    check_equal(alone(name), tmp_path / name)


@slow
def test_a_resumed_run_repeats_one_that_was_not_stopped(corpus, ranks, tmp_path):
    """On the same mesh bit for bit; in one process within rounding."""
    whole, stopped, alone = (tmp_path / name for name in ("whole", "stopped", "alone"))
    mesh = [*MESHES["2 x 2"], "telemetry.logits_every=1"]
    config = [tiny_config(corpus, out, "run.steps=12", "run.save_every=6", *mesh) for out in (whole, stopped)]
    ranks.run(trained, config[0].to_dict(), size=4)
    ranks.run(trained, config[1].with_overrides(["run.steps=6"]).to_dict(), size=4)
    train(tiny_config(corpus, alone, "run.steps=6", "run.save_every=6", "telemetry.logits_every=1"))
    ranks.run(trained, config[1].to_dict(), size=4)
    ranks.run(trained, config[0].with_overrides([f"run.out={alone}"]).to_dict(), size=4)
    assert differences(whole, stopped) == []
    check_equal(whole, alone)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (["parallel.cp=3"], r"parallel.cp must divide the 64 tokens .*, got 3; 2, 4, 8, 16, 32, 64 would fit"),
        (["model.attention_chunk=8", "parallel.cp=2"], "model.attention_chunk must be null with parallel.cp=2, got 8"),
    ],
)
def test_what_cannot_be_shared_is_refused(changes, reason, corpus, tmp_path):
    with pytest.raises(ConfigError, match=reason):
        tiny_config(corpus, tmp_path, *changes)


def test_classifiers_are_refused(corpus, tmp_path):
    values = tiny_config(corpus, tmp_path).to_dict() | {"task": {"name": "listops", "length": 32}, "data": {}}
    values["parallel"] = {"cp": 2}
    with pytest.raises(ConfigError, match=r"parallel.cp must be 1 for the task listops"):
        TrainConfig.from_dict(values)


@pytest.mark.parametrize(
    ("model", "changes", "reason"),
    [
        ({}, ["parallel.cp=16"], "parallel.cp must be at most 8 for sequences of 64 tokens, got 16"),
        (
            {"n_global": None, "window": None, "plan": {"windows": [None, 8], "firsts": [0, 2]}},
            ["parallel.cp=4", "data.segments=true"],
            "parallel.cp must be 1, got 4: layer 0: segments must be None for streaming heads",
        ),
    ],
)
def test_heads_that_reach_too_far_are_refused_at_the_start(model, changes, reason, corpus, tmp_path):
    config = tiny_config(corpus, tmp_path, *changes, **model)
    with pytest.raises(ConfigError, match=reason):
        Trainer(config, World(0, config.parallel.cp, torch.device("cpu")), Silent())


def test_a_batch_is_for_as_many_processes_as_read_it(corpus, tmp_path):
    config = tiny_config(corpus, tmp_path, "data.batch_size=3", "parallel.cp=2")
    with pytest.raises(ConfigError, match=r"data.batch_size must be a multiple of 2 groups of 2 processes times"):
        Trainer(config, World(0, 4, torch.device("cpu")), Silent())
