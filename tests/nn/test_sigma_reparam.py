"""Sigma-reparametrisation: spectral norms, gradients, and a state that only `update_sigma` changes."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longshort.nn import SigmaLinear, update_sigma


def spectral_norms(layer: SigmaLinear) -> Tensor:
    return torch.stack([torch.linalg.matrix_norm(part, 2) for part in layer.effective_weight().split(layer.rows)])


def test_each_fused_matrix_has_spectral_norm_gamma() -> None:
    layer = SigmaLinear(12, rows=(20, 6, 6))
    torch.testing.assert_close(spectral_norms(layer), torch.ones(3))
    with torch.no_grad():
        layer.gamma.copy_(torch.tensor([0.5, 2.0, 3.0]))
    torch.testing.assert_close(spectral_norms(layer), layer.gamma.detach())


def test_layer_is_the_linear_map_by_the_normalised_weight() -> None:
    layer, x = SigmaLinear(12, rows=(20,), bias=True), torch.randn(3, 12)
    weight = layer.weight / torch.linalg.matrix_norm(layer.weight, 2)
    torch.testing.assert_close(layer(x), F.linear(x, weight, layer.bias))


def test_updates_find_the_spectral_norm_of_a_changed_weight() -> None:
    layer = SigmaLinear(12, rows=(20, 6))
    nn.init.normal_(layer.weight)
    assert not torch.allclose(spectral_norms(layer), torch.ones(2), rtol=1e-2)
    for _ in range(200):
        update_sigma(nn.Sequential(layer))
    torch.testing.assert_close(spectral_norms(layer), torch.ones(2), rtol=1e-3, atol=0)


def test_one_update_is_one_step_of_power_iteration() -> None:
    layer = SigmaLinear(12, rows=(20,))
    nn.init.normal_(layer.weight)
    before = layer.right_singular[0].clone()
    layer.update_sigma()
    expected = layer.weight.T @ (layer.weight @ before)
    torch.testing.assert_close(layer.right_singular[0], expected / expected.norm())


def test_forward_and_backward_leave_the_state_alone() -> None:
    layer = SigmaLinear(12, rows=(20,)).train()
    nn.init.normal_(layer.weight)
    before = layer.right_singular.clone()
    layer(torch.randn(3, 12)).sum().backward()
    assert torch.equal(layer.right_singular, before)


def test_gradient_is_the_true_one_where_the_singular_vectors_are_exact() -> None:
    layer = SigmaLinear(5, rows=(4,)).double()
    layer.reset_sigma()
    direction = torch.randn(4, 5, dtype=torch.float64)
    (layer.effective_weight() * direction).sum().backward()
    weight = layer.weight.detach().clone().requires_grad_()
    (weight / torch.linalg.matrix_norm(weight, 2) * direction).sum().backward()
    torch.testing.assert_close(layer.weight.grad, weight.grad)


def test_state_travels_with_the_state_dict() -> None:
    layer, other = SigmaLinear(12, rows=(20, 6)), SigmaLinear(12, rows=(20, 6))
    nn.init.normal_(layer.weight)
    layer.update_sigma()
    other.load_state_dict(layer.state_dict())
    x = torch.randn(3, 12)
    assert torch.equal(layer(x), other(x))


def test_sigma_stays_fp32_under_autocast() -> None:
    layer = SigmaLinear(12, rows=(20,))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.effective_weight().dtype == torch.float32
        torch.testing.assert_close(spectral_norms(layer), torch.ones(1))
        assert layer(torch.randn(3, 12)).dtype == torch.bfloat16


def test_forward_has_shapes_on_the_meta_device() -> None:
    with torch.device("meta"):
        layer = SigmaLinear(6, rows=(4, 2))
        assert layer(torch.randn(3, 6)).shape == (3, 6)


def test_weight_of_zeros_gives_zeros() -> None:
    layer = SigmaLinear(12, rows=(20,))
    nn.init.zeros_(layer.weight)
    assert layer(torch.randn(3, 12)).eq(0).all()
