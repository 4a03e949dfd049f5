"""Classifiers of `las-causal` on a GPU: causal, with padding and batch norm, in the kernels and replayed as graphs."""

from dataclasses import replace

import pytest
import torch

from experiments import load
from experiments.engine.records import Options
from experiments.engine.sweep import plan_sweep
from longshort.train import train
from longshort.train.models import load_trained

from ..train.tiny import losses

SIZES = ("task.length=600", "model.width=64", "model.n_heads=4", "run.precision=fp32", "run.matmul=highest")


@pytest.mark.filterwarnings("ignore::UserWarning")  # inductor has much to say about fp32
@pytest.mark.parametrize("kind", ["none", "sinusoidal", "alibi", "decay", "smoothing", "las", "las-before"])
def test_a_causal_classifier_trains_as_the_reference_does(kind, tmp_path, monkeypatch):
    """Compiled block by block and replayed, with the Triton backend, against eager steps that form whole matrices."""
    monkeypatch.setenv("LONGSHORT_CACHE", str(tmp_path / "cache"))
    options = Options(out=tmp_path, device="cuda", quick=True, variants=(f"listops-{kind}",), steps=20, overrides=SIZES)
    (trial,) = plan_sweep(load("las-causal"), options, data=None)
    fast = trial.config
    assert (fast.model.backend, fast.run.compile, fast.run.cuda_graphs) == ("triton", True, True)
    run = replace(fast.run, compile=False, cuda_graphs=False, out=str(tmp_path / "eager"))
    train(fast)
    train(replace(fast, model=replace(fast.model, backend="reference"), run=run))
    folders = (trial.out, tmp_path / "eager")
    mine, theirs = (list(losses(folder).values()) for folder in folders)
    assert mine == pytest.approx(theirs, rel=2e-3)
    moments = [load_trained(folder)[0].trunk.norm.running_mean for folder in folders]
    torch.testing.assert_close(*moments, atol=2e-3, rtol=2e-2)
    assert moments[0].abs().max() > 0
