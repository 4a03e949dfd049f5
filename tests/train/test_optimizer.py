"""AdamW's groups and its state by name."""

import pytest
import torch

from longshort import GPT
from longshort.train.config import OptimizerConfig
from longshort.train.optimizer import build_optimizer, load_optimizer_tensors, optimizer_tensors

from ..small import small_config

CPU = torch.device("cpu")


def made(**changes):
    torch.manual_seed(0)
    model = GPT(small_config(bias=True, sigma_reparam=True, **changes))
    return model, build_optimizer(model, OptimizerConfig(lr=1e-2, weight_decay=0.3, betas=(0.8, 0.9)), CPU)


def step(model, optimizer, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(256, (2, 20), generator=generator)
    model(tokens, tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_only_tensors_of_two_or_more_dimensions_decay():
    model, optimizer = made()
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.3 if parameter.ndim >= 2 else 0.0), name
    assert len(decay) == len(list(model.parameters()))
    assert {0.0, 0.3} == set(decay.values())


def test_settings_reach_the_optimizer():
    _, optimizer = made()
    assert optimizer.defaults["lr"] == 1e-2 and optimizer.defaults["betas"] == (0.8, 0.9)


def test_frozen_parameters_are_left_out():
    model, _ = made()
    model.embedding.weight.requires_grad_(False)
    optimizer = build_optimizer(model, OptimizerConfig(), CPU)
    assert not any(p is model.embedding.weight for group in optimizer.param_groups for p in group["params"])


def test_the_state_is_named_after_the_parameters():
    model, optimizer = made()
    assert optimizer_tensors(optimizer, model) == {}
    step(model, optimizer, 0)
    names = set(optimizer_tensors(optimizer, model))
    assert names == {f"{n}/{part}" for n, _ in model.named_parameters() for part in ("step", "exp_avg", "exp_avg_sq")}


@pytest.mark.parametrize("tie", [False, True])
def test_a_restored_optimizer_takes_the_next_steps_bit_for_bit(tie):
    model, optimizer = made(tie_embeddings=tie)
    step(model, optimizer, 0)
    step(model, optimizer, 1)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    tensors = {name: value.clone() for name, value in optimizer_tensors(optimizer, model).items()}
    other, restored = made(tie_embeddings=tie)
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
