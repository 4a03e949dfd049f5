"""Rotary and sinusoidal encodings against their formulas."""

import math
from typing import Any

import pytest
import torch

from longshort import HeadPlan
from longshort.nn import RopeScaling, rotary, segment_positions, sinusoidal
from longshort.nn.positions import place, placed_heads
from longshort.reach import LayerReach, QueryTemperature


def test_rotary_turns_each_pair_by_position_times_its_frequency() -> None:
    x = torch.randn(2, 7, 3, 6, dtype=torch.float64)
    turned = rotary(x, torch.arange(7), theta=100.0)
    for t in range(7):
        for i in range(3):
            angle = t * 100.0 ** (-2 * i / 6)
            pair = torch.complex(x[:, t, :, i], x[:, t, :, i + 3]) * complex(math.cos(angle), math.sin(angle))
            torch.testing.assert_close(turned[:, t, :, i], pair.real)
            torch.testing.assert_close(turned[:, t, :, i + 3], pair.imag)


def test_rotary_products_depend_on_the_distance_only() -> None:
    q, k = torch.randn(2, 1, 9, 2, 8, dtype=torch.float64)

    def products(shift: int) -> torch.Tensor:
        positions = torch.arange(9) + shift
        return torch.einsum("bthd,bshd->bhts", rotary(q, positions), rotary(k, positions))

    torch.testing.assert_close(products(0), products(1234))
    assert not torch.allclose(products(0), torch.einsum("bthd,bshd->bhts", q, k))


def test_rotary_takes_positions_row_by_row() -> None:
    x = torch.randn(2, 5, 3, 4)
    rows = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 0, 1, 2]])
    turned = rotary(x, rows)
    for b in range(2):
        torch.testing.assert_close(turned[b : b + 1], rotary(x[b : b + 1], rows[b]))


def test_rotary_keeps_the_dtype_and_computes_angles_in_fp32() -> None:
    x = torch.randn(1, 1, 1, 8)
    position = torch.tensor([4097])  # bfloat16 cannot tell it from 4096
    turned = rotary(x.bfloat16(), position)
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned.float(), rotary(x.bfloat16().float(), position), rtol=1e-2, atol=1e-2)


def test_sinusoidal_has_sine_in_even_and_cosine_in_odd_features() -> None:
    table = sinusoidal(torch.tensor([0, 3, 50]), 8, dtype=torch.float64)
    for row, position in enumerate((0, 3, 50)):
        for i in range(4):
            angle = position / 10000 ** (2 * i / 8)
            assert table[row, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[row, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_odd_number_of_features_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="even number of features, got 7"):
        sinusoidal(torch.arange(3), 7)


def test_positions_restart_where_the_segment_changes() -> None:
    segments = torch.tensor([[0, 0, 5, 5, 5, 2], [3, -1, -1, 0, 3, 3]])
    assert segment_positions(segments).tolist() == [[0, 1, 0, 1, 2, 0], [0, 0, 1, 0, 0, 1]]


def test_yarn_leaves_the_amplitude_of_sequences_that_are_not_longer() -> None:
    factors = {factor: RopeScaling(kind="yarn", factor=factor).amplitude for factor in (0.5, 1.0, math.e)}
    assert factors == {0.5: 1.0, 1.0: 1.0, math.e: pytest.approx(1.1)}


def rotation(rope: dict[str, Any]) -> Any:
    """That of transformers for a head of 16 features."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(hidden_size=64, num_attention_heads=4, rope_parameters={"rope_theta": 500.0} | rope)
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize(
    ("scaling", "rope"),
    [
        (RopeScaling(kind="linear", factor=4.0), {"rope_type": "linear", "factor": 4.0}),
        (
            RopeScaling(kind="llama3", factor=8.0, low_freq_factor=1.5, high_freq_factor=6.0, original_context=100),
            {
                **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.5, "high_freq_factor": 6.0},
                "original_max_position_embeddings": 100,
            },
        ),
        (
            RopeScaling(kind="yarn", factor=8.0, original_context=100, beta_fast=6.0, beta_slow=0.5),
            {
                **{"rope_type": "yarn", "factor": 8.0, "beta_fast": 6.0, "beta_slow": 0.5},
                "original_max_position_embeddings": 100,
            },
        ),
        (
            RopeScaling(kind="yarn", factor=8.0, original_context=100, truncate=False, attention_factor=1.7),
            {
                **{"rope_type": "yarn", "factor": 8.0, "truncate": False, "attention_factor": 1.7},
                "original_max_position_embeddings": 100,
            },
        ),
        *(
            (
                RopeScaling(kind="yarn", factor=8.0, original_context=context),
                {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": context},
            )
            for context in (6, 4096)
        ),
    ],
    ids=["linear", "llama3", "yarn", "yarn, no truncation", "yarn, nothing turns", "yarn, everything turns"],
)
def test_scaled_angles_are_those_of_transformers(scaling: RopeScaling, rope: dict[str, Any]) -> None:
    plain, theirs = rotation({"rope_type": "default"}).inv_freq, rotation(rope)
    torch.testing.assert_close(scaling.scaled(plain, theta=500.0), theirs.inv_freq)
    assert not torch.allclose(theirs.inv_freq, plain)
    x = torch.randn(1, 1, 1, 16)
    angles = 77 * theirs.inv_freq
    cos, sin = angles.cos() * theirs.attention_scaling, angles.sin() * theirs.attention_scaling
    first, second = x.chunk(2, -1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    torch.testing.assert_close(rotary(x, torch.tensor([77]), theta=500.0, scaling=scaling), turned)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "dynamic", "factor": 2.0}, "rope_scaling.kind must be one of linear, llama3, yarn, got 'dynamic'"),
        ({"kind": "yarn", "factor": 2.0, "truncate": 1}, "rope_scaling.truncate must be True or False, got 1"),
        ({"kind": "yarn", "factor": 2.0, "attention_factor": 0}, "rope_scaling.attention_factor must be .*, got 0"),
        ({"kind": "yarn", "factor": 2.0, "beta_slow": 40}, "beta_fast must be above beta_slow=40, got 32.0"),
        ({"kind": "linear", "factor": 2.0, "heads": "local"}, "rope_scaling.heads must be one of all, global, got"),
        ({"kind": "linear", "factor": 0}, "rope_scaling.factor must be a number from 1e-30 to .*, got 0"),
        ({"kind": "linear"}, "rope_scaling must have factor, got {'kind': 'linear'}"),
        ({"kind": "linear", "factor": 2.0, "scale": 3}, "rope_scaling has no field 'scale'"),
        (
            {"kind": "llama3", "factor": 2.0, "low_freq_factor": 4.0},
            "rope_scaling.high_freq_factor must be above low_freq_factor=4.0, got 4.0",
        ),
        (
            {"kind": "llama3", "factor": 2.0, "original_context": 8.5},
            "rope_scaling.original_context must be an integer, got 8.5",
        ),
    ],
)
def test_wrong_scaling_is_a_clear_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RopeScaling.from_dict(values)


WINDOWS = (None, None, 8, 8, 4, 4)


@pytest.mark.parametrize(
    "options",
    [
        {"global_share": 0.0},
        {"local_share": 0.0},
        {"global_base": 1e6},
        {"global_share": 0.5},
        {"temperature": QueryTemperature(scale=0.1, every=4)},
    ],
    ids=["global heads not rotated", "local heads not rotated", "two bases", "half the features", "temperature"],
)
@pytest.mark.parametrize("kv_heads", [6, 3])
@pytest.mark.parametrize("scaled", [False, True])
def test_heads_of_several_kinds_are_placed_alike_compiled_and_part_by_part(
    options: dict[str, Any], kv_heads: int, scaled: bool
) -> None:
    scaling = RopeScaling(kind="yarn", factor=4.0, original_context=4, heads="global") if scaled else None
    reach = LayerReach(plan=HeadPlan(windows=WINDOWS), **options)
    heads = placed_heads(reach, kv_heads, 8, 100.0, scaling)
    assert len(heads) == 2
    q, k = (torch.randn(2, 5, n, 8, requires_grad=True) for n in (6, kv_heads))
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 0, 1, 9, 30]])
    torch.compiler.reset()  # the layouts of all cases are more than one function may be compiled for
    compiled = torch.compile(place, backend="aot_eager", fullgraph=True)
    found, expected = (form_and_gradients(form, q, k, positions, heads) for form in (compiled, place))
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)
    group = 6 // kv_heads
    for x, each, placed in ((q, group, expected[0]), (k, 1, expected[1])):
        first = 0
        for alike in heads:
            part = x[:, :, first : first + each * alike.kv_heads]
            if alike.theta is not None and alike.features == 8 and alike.temperature is None:
                part = rotary(part, positions, theta=alike.theta, scaling=alike.scaling)
            if alike.features in (0, 8) and alike.temperature is None:
                assert torch.equal(placed[:, :, first : first + each * alike.kv_heads], part)
            first += each * alike.kv_heads


def form_and_gradients(form: Any, q: torch.Tensor, k: torch.Tensor, *rest: Any) -> list[torch.Tensor]:
    placed = form(q, k, *rest)
    weights = [torch.linspace(-1, 1, x.numel()).view_as(x) for x in placed]
    total = sum((x * w).sum() for x, w in zip(placed, weights, strict=True))
    return [*placed, *torch.autograd.grad(total, (q, k))]
