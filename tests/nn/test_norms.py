"""RMS norm and the three variants of QK-norm against their formulas."""

import pytest
import torch
from torch import Tensor

from longshort.nn import QKNorm, RMSNorm
from longshort.nn.norms import token_norm


def unit_rms(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    return x / (x.square().mean(dim, keepdim=True) + 1e-6).sqrt()


def with_random_gain(norm: QKNorm) -> Tensor:
    assert norm.norm.weight is not None
    return torch.nn.init.normal_(norm.norm.weight).detach()


def test_head_variant_normalises_each_head_and_shares_one_gain() -> None:
    norm, x = QKNorm("head", 3, 8), torch.randn(2, 5, 3, 8)
    gain = with_random_gain(norm)
    assert gain.shape == (8,)
    torch.testing.assert_close(norm(x), unit_rms(x, -1) * gain)


def test_width_variant_normalises_all_heads_at_once() -> None:
    norm, x = QKNorm("width", 3, 8), torch.randn(2, 5, 3, 8)
    gain = with_random_gain(norm)
    assert gain.shape == (24,)
    torch.testing.assert_close(norm(x), unit_rms(x, (-2, -1)) * gain.view(3, 8))


def test_plain_variant_has_no_parameters() -> None:
    norm, x = QKNorm("plain", 3, 8), torch.randn(2, 5, 3, 8)
    assert not list(norm.parameters())
    torch.testing.assert_close(norm(x), unit_rms(x, -1))


def test_norm_is_computed_in_fp32_and_returned_in_the_input_dtype() -> None:
    norm = RMSNorm(8)
    x = (300 * torch.randn(4, 8)).half()  # squares overflow fp16
    assert norm(x).dtype == torch.float16
    torch.testing.assert_close(norm(x).float(), unit_rms(x.float(), -1), rtol=1e-3, atol=1e-3)


def test_unknown_variant_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="qk_norm must be None or one of head, width, plain, got 'layer'"):
        QKNorm("layer", 3, 8)


def test_gain_with_a_unit_offset_is_one_plus_the_weight() -> None:
    norm, x = RMSNorm(8, unit_offset=True), torch.randn(4, 8)
    torch.testing.assert_close(norm(x), unit_rms(x, -1))
    weight = torch.nn.init.normal_(norm.weight).detach()  # type: ignore[arg-type]
    torch.testing.assert_close(norm(x), unit_rms(x, -1) * (1 + weight))
    norm.reset_parameters()
    torch.testing.assert_close(norm(x), unit_rms(x, -1))


def test_norms_are_those_of_transformers() -> None:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x = 3 * torch.randn(4, 8)
    for theirs, options in ((LlamaRMSNorm, {}), (Gemma3RMSNorm, {"unit_offset": True})):
        norm, other = RMSNorm(8, eps=1e-3, **options), theirs(8, eps=1e-3)
        torch.nn.init.normal_(norm.weight)  # type: ignore[arg-type]
        other.load_state_dict(norm.state_dict())
        torch.testing.assert_close(norm(x), other(x))


def test_a_norm_of_tokens_is_one_of_two_kinds() -> None:
    layer = token_norm("layer", 8, eps=0.1, bias=True)
    assert isinstance(layer, torch.nn.LayerNorm) and layer.eps == 0.1 and layer.bias is not None
    assert isinstance(token_norm("rms", 8, bias=True), RMSNorm)
    with pytest.raises(ValueError, match="norm must be one of layer, rms, got 'batch'"):
        token_norm("batch", 8)
    with pytest.raises(ValueError, match="norm_unit_offset must be False unless norm is rms, got True"):
        token_norm("layer", 8, unit_offset=True)
