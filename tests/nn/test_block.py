"""The block and its MLP against a few lines of algebra."""

from typing import Any

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
    with pytest.raises(ValueError, match=r"activation must be one of gelu, .*, relu2, got 'relu'"):
        MLP(4, 8, activation="relu")


@pytest.mark.parametrize(("kind", "of_gate"), [("swiglu", F.silu), ("geglu", lambda x: F.gelu(x, approximate="tanh"))])
def test_gated_mlp_multiplies_its_second_half_by_the_activated_first(kind: str, of_gate: Any) -> None:
    mlp, x = MLP(4, 6, activation=kind, bias=True), torch.randn(3, 4)
    gate, up = (x @ part.T for part in mlp.up.weight.split([6, 6]))
    gate, up = gate + mlp.up.bias[:6], up + mlp.up.bias[6:]
    torch.testing.assert_close(mlp(x), mlp.down(of_gate(gate) * up))
    assert mlp.up.rows == [6, 6] and mlp.down.weight.shape == (4, 6)


def test_relu2_is_the_square_of_relu() -> None:
    mlp, x = MLP(4, 6, activation="relu2"), torch.randn(3, 4)
    torch.testing.assert_close(mlp(x), mlp.down(mlp.up(x).clamp(min=0) ** 2))


def test_each_matrix_of_a_gated_mlp_has_its_own_spectral_norm() -> None:
    mlp = MLP(8, 6, activation="swiglu", sigma_reparam=True)
    norms = [torch.linalg.matrix_norm(part, 2) for part in mlp.up.effective_weight().split(6)]  # type: ignore[operator]
    torch.testing.assert_close(torch.stack(norms), torch.ones(2))


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_norms_stand_where_the_placement_says(placement: str, norm: str) -> None:
    block = Block(16, LSAttention(16, HeadPlan.full(2)), MLP(16, 64), norm=norm, placement=placement)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 9, 16)

    def of(part: Any, name: str, x: Any) -> Any:
        before, after = getattr(block, f"{name}_norm"), getattr(block, f"{name}_out_norm")
        assert (before is not None, after is not None) == (placement != "post", placement != "pre")
        y = part(x if before is None else before(x))
        return x + (y if after is None else after(y))

    torch.testing.assert_close(block(x), of(block.mlp, "mlp", of(block.attention, "attention", x)))


def test_unknown_placement_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="placement must be one of pre, post, sandwich, got 'both'"):
        Block(16, LSAttention(16, HeadPlan.full(2)), MLP(16, 64), placement="both")
