"""Training on a GPU: compiled, and replayed as CUDA graphs, it gives the losses of eager training, and never waits."""

import math
from itertools import pairwise

import pytest
import torch

from longshort.train import train
from longshort.train.late import Numbers, _to_host
from longshort.train.trainer import Trainer

from ..train.test_spikes import BAD, config_of, spoil_losses, weights_are_finite
from ..train.tiny import differences, losses, make_corpus, records, tiny_config

COMPILED = ["run.compile=true", "run.cuda_graphs=false"]
GRAPHS = ["run.compile=true", "run.cuda_graphs=true"]


@pytest.mark.filterwarnings("ignore::UserWarning")  # inductor has much to say about fp32
@pytest.mark.parametrize(
    ("how", "window"), [(COMPILED, 9), (GRAPHS, 10), ([*GRAPHS, "run.compile_scope=block"], 11)], ids=str
)
def test_a_compiled_run_gives_the_losses_of_an_eager_one(how, window, tmp_path):
    """Eager comes last and each case has its own window: no other run has put its plan's tables on the device."""
    corpus = make_corpus(tmp_path)
    common = ("run.device=cuda", "run.precision=fp32", "run.steps=25", "telemetry.logits_every=5", "run.eval_every=10")
    for name, changes in (("compiled", how), ("eager", [])):
        train(tiny_config(corpus, tmp_path / name, *common, *changes, width=32, window=window))
    eager, compiled = (list(losses(tmp_path / name).values()) for name in ("eager", "compiled"))
    assert compiled == pytest.approx(eager, rel=2e-3)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("how", [[], COMPILED, GRAPHS, ["optimizer.kind=muon"]], ids=" ".join)
def test_deterministic_runs_are_equal_to_the_bit(how, tmp_path):
    corpus = make_corpus(tmp_path)
    common = ("run.device=cuda", "run.precision=bf16", "run.steps=25", "run.deterministic=true", "data.batch_size=16")
    for name in ("one", "other"):
        train(tiny_config(corpus, tmp_path / name, *common, *how, width=64))
    assert losses(tmp_path / "one") == losses(tmp_path / "other")
    assert differences(tmp_path / "one", tmp_path / "other") == []


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "how",
    [
        [],
        ["stability.guard=warn"],
        ["stability.guard=skip"],
        ["stability.guard=rollback"],
        ["stability.clip=tensor", "stability.qk_clip=100", "telemetry.layer_gradients=true"],
        ["data.segments=true", "run.accumulate=2"],
        ["optimizer.kind=muon", "stability.qk_clip=100"],
        ["optimizer.kind=muon", "stability.guard=skip"],
        COMPILED,
        GRAPHS,
    ],
    ids=" ".join,
)
def test_a_step_never_waits_for_the_gpu(how, tmp_path, monkeypatch):
    """From step 13 on: by then both kinds of steps are compiled, captured and replayed."""
    corpus, original, watched = make_corpus(tmp_path), Trainer._step, []

    def step(self):
        if self.progress.step < 12:
            return original(self)
        torch.cuda.set_sync_debug_mode("error")
        try:
            original(self)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        watched.append(self.progress.step)

    monkeypatch.setattr(Trainer, "_step", step)
    changes = ["run.device=cuda", "run.steps=20", "run.save_every=0", "telemetry.logits_every=3"]
    train(tiny_config(corpus, tmp_path / "run", *changes, *how, width=64))
    assert watched == [*range(13, 21)]
    assert [*losses(tmp_path / "run")] == [*range(1, 21)]


def test_numbers_are_copied_into_pinned_memory():
    x = torch.ones((), device="cuda")
    found = _to_host(Numbers(x, x, (x, x), x))
    assert all(y.is_pinned() for y in (found.loss, found.norm, *found.logits, found.layers))


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_what_the_gpu_skips_is_what_the_host_would(kind, tmp_path, monkeypatch):
    corpus = make_corpus(tmp_path)
    spoil_losses(monkeypatch, BAD)
    changes = ["run.device=cuda", "run.deterministic=true", f"optimizer.kind={kind}"]
    train(config_of(corpus, tmp_path / "gpu", "skip", *changes))
    monkeypatch.setattr("longshort.train.trainer._changes_more_than_weights", lambda config: True)
    train(config_of(corpus, tmp_path / "host", "skip", *changes))
    assert [spike["step"] for spike in records(tmp_path / "gpu", "spike")] == [BAD + 1]
    assert losses(tmp_path / "gpu") == losses(tmp_path / "host")
    assert differences(tmp_path / "gpu", tmp_path / "host") == []


def test_a_rollback_one_step_late_drops_the_batch_that_spiked(tmp_path, monkeypatch):
    corpus = make_corpus(tmp_path)
    spoil_losses(monkeypatch, BAD)
    assert train(config_of(corpus, tmp_path / "run", "rollback", "run.device=cuda")).status == "finished"
    assert [(spike["step"], spike["batch"]) for spike in records(tmp_path / "run", "spike")] == [(BAD + 1, BAD)]
    assert [*losses(tmp_path / "run")] == [*range(1, 26)]
    assert weights_are_finite(tmp_path / "run")


def test_steps_are_timed_by_the_gpu_and_add_up(tmp_path):
    train(tiny_config(make_corpus(tmp_path), tmp_path / "run", "run.device=cuda", "run.eval_every=10"))
    found = records(tmp_path / "run", "train")
    for before, record in pairwise(found):
        took = record["seconds"] - before["seconds"]
        assert took > 0 and math.isclose(record["tokens_per_second"], 4 * 64 / took, rel_tol=1e-3)


@pytest.mark.parametrize(("precision", "expected"), [("bf16", "high"), ("fp32", "highest")])
def test_tf32_is_allowed_in_a_bf16_run_alone_and_only_while_it_lasts(precision, expected, tmp_path, monkeypatch):
    found, original = [], Trainer._step
    monkeypatch.setattr(
        Trainer, "_step", lambda self: found.append(torch.get_float32_matmul_precision()) or original(self)
    )
    before = torch.get_float32_matmul_precision()
    changes = ["run.device=cuda", "run.steps=2", f"run.precision={precision}"]
    train(tiny_config(make_corpus(tmp_path), tmp_path / "run", *changes))
    assert found == [expected] * 2 and torch.get_float32_matmul_precision() == before
    assert records(tmp_path / "run", "run")[0]["matmul_precision"] == expected
