"""Training the modern presets: through the trainer, its checkpoints and the export."""

import pytest
import torch

from longshort.hf import LongShortForCausalLM
from longshort.hf.export import export_checkpoint
from longshort.train import TrainConfig, load_model, train

from .tiny import differences, losses

CUT = [
    "model.n_layers=2",
    "model.width=64",
    "model.context=64",
    "model.reach={pattern: ladder, nope: true, largest: 32}",
    "schedule.warmup=2",
    "schedule.kind=constant",
]
CUT += ["data.batch_size=4", "run.device=cpu", "run.eval_every=0", "run.eval_batches=1", "run.save_every=4"]
GEMMA = ["model.norm_placement=sandwich", "model.norm_unit_offset=true", "model.mlp=geglu", "model.tie_embeddings=true"]
GEMMA += ["model.embedding_scale=16", "model.attention_scale=0.2", "loss.logit_softcap=30", "loss.z_loss=1e-4"]


@pytest.mark.parametrize("overrides", [[], GEMMA], ids=["preset", "gemma"])
def test_a_modern_run_is_resumed_exactly_and_exported(overrides, corpus, tmp_path):
    for name, stages in (("whole", [8]), ("parts", [4, 8])):
        for steps in stages:
            more = [f"data.path={corpus}", f"run.out={tmp_path / name}", f"run.steps={steps}"]
            assert train(TrainConfig.load("modern-10m", [*CUT, *overrides, *more])).status == "finished"
    assert not differences(tmp_path / "whole", tmp_path / "parts")
    assert losses(tmp_path / "whole")[8] < losses(tmp_path / "whole")[1]
    model, _ = load_model(tmp_path / "whole")
    exported = LongShortForCausalLM.from_pretrained(export_checkpoint(tmp_path / "whole", tmp_path / "hf")).eval()
    tokens = torch.randint(257, (2, 40))
    with torch.no_grad():
        assert torch.equal(exported(tokens).logits, model(tokens).logits)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_modern_10m_trains_on_a_cpu(corpus, tmp_path):
    settings = [f"data.path={corpus}", f"run.out={tmp_path}", "run.device=cpu", "run.steps=200", "data.batch_size=4"]
    settings += ["data.length=64", "run.eval_every=0", "run.eval_batches=4", "run.save_every=0"]
    found = train(TrainConfig.load("modern-10m", [*settings, "schedule.warmup=20"]))
    by_step = losses(tmp_path)
    assert found.status == "finished" and max(by_step[step] for step in range(20, 201)) < by_step[1]
    assert sum(by_step[step] for step in range(191, 201)) / 10 < 2.0  # letters of words that are drawn at random
