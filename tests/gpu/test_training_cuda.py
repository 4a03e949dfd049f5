"""Training on a GPU: compiled, and replayed as CUDA graphs, it gives the losses of eager training."""

import pytest

from longshort.train import train

from ..train.tiny import differences, losses, make_corpus, tiny_config


@pytest.mark.filterwarnings("ignore::UserWarning")  # inductor has much to say about fp32
@pytest.mark.parametrize(
    "how",
    [
        ["run.compile=true"],
        ["run.compile=true", "run.cuda_graphs=true"],
        ["run.compile=true", "run.cuda_graphs=true", "run.compile_scope=block"],
    ],
    ids=" ".join,
)
def test_a_compiled_run_gives_the_losses_of_an_eager_one(how, tmp_path):
    corpus = make_corpus(tmp_path)
    common = ("run.device=cuda", "run.precision=fp32", "run.steps=25", "telemetry.logits_every=5", "run.eval_every=10")
    window = 8 + len(how)  # and eager last: no other run has put this plan's tables on the device
    for name, changes in (("compiled", how), ("eager", [])):
        train(tiny_config(corpus, tmp_path / name, *common, *changes, width=32, window=window))
    eager, compiled = (list(losses(tmp_path / name).values()) for name in ("eager", "compiled"))
    assert compiled == pytest.approx(eager, rel=2e-3)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("how", [[], ["run.compile=true"], ["run.compile=true", "run.cuda_graphs=true"]], ids=" ".join)
def test_deterministic_runs_are_equal_to_the_bit(how, tmp_path):
    corpus = make_corpus(tmp_path)
    common = ("run.device=cuda", "run.precision=bf16", "run.steps=25", "run.deterministic=true", "data.batch_size=16")
    for name in ("one", "other"):
        train(tiny_config(corpus, tmp_path / name, *common, *how, width=64))
    assert losses(tmp_path / "one") == losses(tmp_path / "other")
    assert differences(tmp_path / "one", tmp_path / "other") == []
