"""Rotary and sinusoidal encodings against their formulas."""

import math

import pytest
import torch

from longshort.nn import rotary, segment_positions, sinusoidal


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
