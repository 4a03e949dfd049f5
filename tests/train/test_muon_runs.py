"""Whole runs with Muon: they learn, resume, and obey every stability option."""

import pytest
import torch

from longshort.stability import qk_clip
from longshort.train import ConfigError, train
from longshort.train.checkpoints.checkpoint import load_checkpoint
from longshort.train.machine.distributed import World
from longshort.train.memory import need_of

from .test_late import both, timeless
from .test_spikes import BAD, config_of, spoil_batches, spoil_losses, weights_are_finite
from .test_trainer import Told, stop_after, trainer_of
from .tiny import differences, losses, records, tiny_config

MUON = "optimizer.kind=muon"


def muon_config(corpus, out, *changes, **model):
    return tiny_config(corpus, out, MUON, *changes, **model)


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["optimizer.muon_scale=spectral", "optimizer.muon_lr=0.05"],
        ["stability.clip=tensor"],
        ["stability.clip=none"],
        ["model.sigma_reparam=true"],
        ["model.n_kv_heads=1", "model.n_global=2", "model.qk_norm=head"],
    ],
    ids=" ".join,
)
def test_the_loss_falls(corpus, tmp_path, changes):
    train(muon_config(corpus, tmp_path / "run", *changes))
    found = losses(tmp_path / "run")
    assert found[30] < found[1] - 2


def test_the_run_and_its_log_name_the_optimizer(corpus, tmp_path):
    words, told = "Muon for 12 matrices (6,144 weights), AdamW for 8 other tensors", Told()
    train(muon_config(corpus, tmp_path / "run", "run.steps=1"), told)
    assert any(message.startswith(words) for message in told.messages)
    assert records(tmp_path / "run", "run")[0]["optimizer"].startswith(words)
    train(tiny_config(corpus, tmp_path / "plain", "run.steps=1"))
    assert records(tmp_path / "plain", "run")[0]["optimizer"] == "AdamW"


def test_a_stopped_run_goes_on_as_if_never_stopped(corpus, tmp_path, monkeypatch):
    changes = ["run.steps=12", "stability.clip=tensor"]
    train(muon_config(corpus, tmp_path / "whole", *changes))
    with monkeypatch.context() as patch:
        stop_after(patch, 7)
        assert train(muon_config(corpus, tmp_path / "run", *changes)).status == "interrupted"
    assert train(muon_config(corpus, tmp_path / "run", *changes)).status == "finished"
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert differences(tmp_path / "run", tmp_path / "whole") == []
    assert any(name.endswith("/momentum") for name in load_checkpoint(tmp_path / "run").trainer)


def test_another_optimizer_in_the_same_folder_is_refused(corpus, tmp_path):
    train(tiny_config(corpus, tmp_path / "run", "run.steps=1"))
    with pytest.raises(ConfigError, match=r"holds a run with optimizer.kind='adamw', not 'muon'"):
        train(muon_config(corpus, tmp_path / "run", "run.steps=2"))


def test_the_schedule_moves_both_learning_rates(corpus, tmp_path):
    trainer = trainer_of(muon_config(corpus, tmp_path, "optimizer.muon_lr=0.05", "schedule.warmup=10"))
    assert trainer._set_rate(4, peak=0.01, steps=30) == pytest.approx(0.005)
    assert [group["lr"] for group in trainer.optimizer.param_groups] == pytest.approx([0.025, 0.005, 0.005])


@pytest.mark.parametrize("spoil", [spoil_batches, spoil_losses], ids=["outlier", "nan"])
@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_a_spike_is_dealt_with_on_the_device_as_on_the_host(corpus, tmp_path, monkeypatch, action, spoil):
    spoil(monkeypatch, BAD)
    one, other = both(monkeypatch, lambda out: config_of(corpus, out, action, MUON), tmp_path)
    assert [record["step"] for record in records(one, "spike")] == [BAD + 1]
    assert timeless(one) == timeless(other)
    assert differences(one, other) == []
    assert weights_are_finite(other)


def test_with_qk_clip_it_is_muonclip(corpus, tmp_path):
    changes, largest = ["run.steps=20", "optimizer.lr=0.2", "telemetry.logits_every=1"], {}
    for bound in ("null", "0.2"):
        out = tmp_path / bound
        train(muon_config(corpus, out, *changes, f"stability.qk_clip={bound}"))
        largest[bound] = [max(max(row) for row in r["logit_max"]) for r in records(out, "train")]
    assert max(largest["null"]) > 1.0
    assert max(largest["0.2"]) < 0.6  # a step can pass the bound before it is brought back


def test_qk_clip_rescales_after_the_step_and_leaves_the_momentum(corpus, tmp_path):
    trainers = [
        trainer_of(muon_config(corpus, tmp_path, "stability.qk_clip=0.001")),
        trainer_of(muon_config(corpus, tmp_path)),
    ]
    for trainer in trainers:
        numbers = trainer._gradients(trainer.stream.batch(0), with_stats=True)
        trainer._apply(numbers)
    clipped, plain = trainers
    factors = qk_clip(plain.model, numbers.logits[0], threshold=0.001)
    assert factors.max() < 1
    for mine, theirs in zip(clipped.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        for name, value in clipped.optimizer.state[mine].items():
            assert torch.equal(value, plain.optimizer.state[theirs][name])


def test_memory_counts_one_moment_of_each_matrix(corpus, tmp_path):
    world = World(0, 1, torch.device("cpu"))
    adamw, muon = (
        need_of(make(corpus, tmp_path, "data.batch_size=1000", width=64), world) for make in (tiny_config, muon_config)
    )
    trainer = trainer_of(muon_config(corpus, tmp_path, width=64))
    matrices = sum(p.numel() for p in trainer.optimizer.param_groups[0]["params"])
    assert adamw.state - muon.state == 4 * matrices
    assert adamw.total - muon.total == 4 * matrices
