"""Training learned sinks: neither decayed nor given to Muon or QK-clip; resumed and exported with the rest."""

import pytest
import torch

from longshort import GPT
from longshort.hf import LongShortForCausalLM
from longshort.hf.export import export_checkpoint
from longshort.stability import qk_clip
from longshort.train import load_model, train
from longshort.train.optimizer import build_optimizer
from longshort.train.settings.config import OptimizerConfig

from ..small import small_config
from .tiny import differences, tiny_config

REACH = {"pattern": "long_short", "n_global": 1, "window": 8, "sinks": True}


def sinks_of(model):
    return [block.attention.sinks for block in model.blocks]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_sinks_are_of_adamw_and_do_not_decay(kind):
    model = GPT(small_config(reach=REACH))
    optimizer = build_optimizer(model, OptimizerConfig(kind=kind, weight_decay=0.3), torch.device("cpu"))
    (group,) = [g for g in optimizer.param_groups if any(p is sinks_of(model)[0] for p in g["params"])]
    assert group["weight_decay"] == 0 and group.get("rows") is None
    assert all(any(p is sinks for p in group["params"]) for sinks in sinks_of(model))


def test_qk_clip_does_not_touch_sinks():
    model = GPT(small_config(reach=REACH))
    for sinks in sinks_of(model):
        torch.nn.init.constant_(sinks, 7.0)
    before = model.blocks[0].attention.qkv.weight.clone()
    qk_clip(model, torch.full((2, 4), 1000.0), threshold=10.0)
    assert not torch.equal(model.blocks[0].attention.qkv.weight, before)
    assert all((sinks == 7.0).all() for sinks in sinks_of(model))


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_run_learns_sinks_is_resumed_exactly_and_exported(kind, corpus, tmp_path):
    changes = {"n_global": None, "window": None, "reach": REACH}
    for name, stages in (("whole", [20]), ("parts", [10, 20])):
        for steps in stages:
            more = [f"run.steps={steps}", f"optimizer.kind={kind}", "stability.qk_clip=5", "schedule.kind=constant"]
            assert train(tiny_config(corpus, tmp_path / name, *more, **changes)).status == "finished"
    assert not differences(tmp_path / "whole", tmp_path / "parts")
    model, _ = load_model(tmp_path / "whole")
    assert all(sinks.all() for sinks in sinks_of(model))
    exported = LongShortForCausalLM.from_pretrained(export_checkpoint(tmp_path / "whole", tmp_path / "hf")).eval()
    tokens = torch.randint(257, (2, 40))
    with torch.no_grad():
        assert torch.equal(exported(tokens, use_cache=False).logits, model(tokens).logits)
