"""The groups of AdamW and of Muon, and their state by name."""

import pytest
import torch

from longshort import GPT
from longshort.model import SequenceClassifier
from longshort.stability import TensorClip
from longshort.train import ConfigError
from longshort.train.muon import Muon
from longshort.train.optimizer import (
    OptimizerState,
    build_guard,
    build_optimizer,
    describe_optimizer,
    load_optimizer_tensors,
    optimizer_tensors,
)
from longshort.train.settings.config import OptimizerConfig, StabilityConfig

from ..small import small_config

CPU = torch.device("cpu")


def made(kind="adamw", **changes):
    torch.manual_seed(0)
    model = GPT(small_config(bias=True, sigma_reparam=True, **changes))
    return model, build_optimizer(
        model, OptimizerConfig(kind=kind, lr=1e-2, weight_decay=0.3, betas=(0.8, 0.9), eps=1e-6), CPU
    )


def step(model, optimizer, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(256, (2, 20), generator=generator)
    model(tokens, tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_only_tensors_of_two_or_more_dimensions_decay(kind):
    model, optimizer = made(kind)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.3 if parameter.ndim >= 2 else 0.0), name
    assert len(decay) == len(list(model.parameters()))
    assert {0.0, 0.3} == set(decay.values())


def test_settings_reach_the_optimizer():
    _, optimizer = made()
    assert optimizer.defaults["lr"] == 1e-2 and optimizer.defaults["betas"] == (0.8, 0.9)
    assert optimizer.defaults["eps"] == 1e-6


def test_settings_reach_the_guard():
    guard = build_guard(StabilityConfig(guard_window=30, guard_threshold=5.0, guard_warmup=20, guard_cap=3))
    assert (guard.accepted.maxlen, guard.threshold, guard.warmup, guard.cap) == (30, 5.0, 20, 3)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_state_of_guard_and_clip_survives_its_packing(kind):
    def state():
        model, optimizer = made(kind)
        clip = TensorClip(model.parameters(), warmup=1)
        return OptimizerState(model, optimizer, build_guard(StabilityConfig()), clip)

    old, new = state(), state()
    for seed in range(3):
        step(old.model, old.optimizer, seed)
        old.guard.judge(2.0 + seed)
    tokens = torch.zeros(1, 4, dtype=torch.long)
    old.model(tokens, tokens).loss.backward()
    old.clip.clip()
    old.guard.judge(float("nan"))
    new.restore(*old.packed())
    assert new.guard.state_dict() == old.guard.state_dict() == {"accepted": [2.0, 3.0, 4.0], "in_a_row": 1}
    assert new.clip.steps == 1 and torch.equal(new.clip.means, old.clip.means)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_frozen_parameters_are_left_out(kind):
    model, _ = made()
    frozen = [model.embedding.weight, model.blocks[0].mlp.up.weight]
    for parameter in frozen:
        parameter.requires_grad_(False)
    optimizer = build_optimizer(model, OptimizerConfig(kind=kind), CPU)
    given = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(given) == len(list(model.parameters())) - 2
    assert not any(p is one for p in given for one in frozen)


@pytest.mark.parametrize("sigma_reparam", [False, True])
@pytest.mark.parametrize("tie", [False, True])
def test_muon_takes_the_matrices_of_the_blocks_with_each_projection_apart(sigma_reparam, tie):
    changes = {"n_kv_heads": 2, "n_global": 2, "positions": "learned", "qk_norm": "width", "bias": True}
    model = GPT(small_config(tie_embeddings=tie, sigma_reparam=sigma_reparam, **changes))
    optimizer = build_optimizer(model, OptimizerConfig(kind="muon"), CPU)
    rows = {
        id(p): heights
        for group in optimizer.param_groups
        for p, heights in zip(group["params"], group["rows"] or [None] * len(group["params"]), strict=True)
    }
    found = {name: rows[id(p)] for name, p in model.named_parameters()}
    assert {name: heights for name, heights in found.items() if heights is not None} == {
        f"blocks.{layer}.{name}.weight": heights
        for layer in range(2)
        for name, heights in {
            "attention.qkv": [32, 16, 16],
            "attention.out": [32],
            "mlp.up": [128],
            "mlp.down": [32],
        }.items()
    }


def test_a_layer_says_how_its_matrix_splits():
    model = GPT(small_config())
    model.blocks[0].mlp.up.rows = [64, 64]
    optimizer = build_optimizer(model, OptimizerConfig(kind="muon"), CPU)
    assert optimizer.param_groups[0]["rows"] == [[32] * 3, [32], [64, 64], [32], [32] * 3, [32], [128], [32]]


def test_muon_may_have_a_learning_rate_of_its_own():
    model = GPT(small_config())
    for rate, ratio in ((None, 1.0), (0.02, 20.0)):
        config = OptimizerConfig(kind="muon", lr=1e-3, muon_lr=rate, muon_momentum=0.8, muon_scale="spectral")
        first, *others = build_optimizer(model, config, CPU).param_groups
        assert first["lr"] == (rate or 1e-3) and first["lr_ratio"] == pytest.approx(ratio)
        assert (first["momentum"], first["scale"]) == (0.8, "spectral")
        assert all(group["lr"] == 1e-3 and "lr_ratio" not in group for group in others)


def test_a_classifier_has_matrices_for_muon_and_a_model_without_blocks_has_none():
    classifier = SequenceClassifier(small_config(positions="none"), n_classes=3)
    optimizer = build_optimizer(classifier, OptimizerConfig(kind="muon"), CPU)
    assert len(optimizer.param_groups[0]["params"]) == 8
    with pytest.raises(ConfigError, match=r"optimizer\.kind=muon needs a model whose blocks have trainable matrices"):
        build_optimizer(torch.nn.Linear(3, 3), OptimizerConfig(kind="muon"), CPU)


def test_the_optimizer_is_described_in_words():
    assert describe_optimizer(made()[1]) == "AdamW"
    optimizer = build_optimizer(GPT(small_config(positions="none")), OptimizerConfig(kind="muon"), CPU)
    text = describe_optimizer(optimizer)
    assert isinstance(optimizer, Muon)
    assert text == "Muon for 12 matrices (24,576 weights), AdamW for 7 other tensors (16,544)"


def test_the_state_is_named_after_the_parameters():
    model, optimizer = made()
    assert optimizer_tensors(optimizer, model) == {}
    step(model, optimizer, 0)
    names = set(optimizer_tensors(optimizer, model))
    assert names == {f"{n}/{part}" for n, _ in model.named_parameters() for part in ("step", "exp_avg", "exp_avg_sq")}


def test_muon_keeps_one_state_of_each_matrix_of_the_blocks():
    model, optimizer = made("muon")
    step(model, optimizer, 0)
    names = set(optimizer_tensors(optimizer, model))
    assert {name for name in names if name.startswith("blocks.0.mlp.up.weight/")} == {"blocks.0.mlp.up.weight/momentum"}
    assert {name for name in names if name.startswith("embedding.weight/")} == {
        f"embedding.weight/{part}" for part in ("step", "exp_avg", "exp_avg_sq")
    }


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("tie", [False, True])
def test_a_restored_optimizer_takes_the_next_steps_bit_for_bit(tie, kind):
    model, optimizer = made(kind, tie_embeddings=tie)
    step(model, optimizer, 0)
    step(model, optimizer, 1)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    tensors = {name: value.clone() for name, value in optimizer_tensors(optimizer, model).items()}
    other, restored = made(kind, tie_embeddings=tie)
    step(other, restored, 9)
    other.load_state_dict(weights)
    load_optimizer_tensors(restored, other, tensors)
    for seed in (2, 3):
        step(model, optimizer, seed)
        step(other, restored, seed)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    for name, value in optimizer_tensors(optimizer, model).items():
        assert torch.equal(value, optimizer_tensors(restored, other)[name]), name
