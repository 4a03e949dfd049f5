"""The pre-LN block against its two lines of algebra."""

import pytest
import torch
from torch.nn import functional as F

from longshort import HeadPlan
from longshort.nn import MLP, Block, LSAttention, SigmaLinear


def test_block_adds_attention_and_mlp_of_normalised_input_to_the_residual() -> None:
    block = Block(16, LSAttention(16, HeadPlan.full(2)), MLP(16, 64))
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 9, 16)
    middle = x + block.attention(F.layer_norm(x, (16,), block.attention_norm.weight))
    normalised = F.layer_norm(middle, (16,), block.mlp_norm.weight)
    expected = middle + F.gelu(normalised @ block.mlp.up.weight.T) @ block.mlp.down.weight.T
    torch.testing.assert_close(block(x), expected)
    assert not any(name.endswith("bias") for name, _ in block.named_parameters())


def test_block_passes_statistics_on() -> None:
    block, x = Block(16, LSAttention(16, HeadPlan.full(2)), MLP(16, 64)), torch.randn(2, 9, 16)
    assert torch.equal(block(x), block(x, stats=True).out)
    assert block(x, stats="max").stats.min is None
    assert torch.equal(block(x, stats=True).stats.max, block.attention(block.attention_norm(x), stats=True).stats.max)


def test_tanh_activation_is_gpt2s_approximation() -> None:
    mlp, x = MLP(4, 8, activation="gelu_tanh", bias=True), torch.randn(3, 4)
    torch.testing.assert_close(mlp(x), mlp.down(F.gelu(mlp.up(x), approximate="tanh")))
    assert not torch.allclose(mlp(x), mlp.down(F.gelu(mlp.up(x))), rtol=0, atol=1e-7)


def test_sigma_reparam_covers_both_layers_of_the_mlp() -> None:
    mlp = MLP(4, 8, sigma_reparam=True)
    assert isinstance(mlp.up, SigmaLinear) and isinstance(mlp.down, SigmaLinear)


def test_unknown_activation_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="activation must be one of gelu, gelu_tanh, got 'relu'"):
        MLP(4, 8, activation="relu")
