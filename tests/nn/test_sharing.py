"""A layer whose sequences several processes share."""

import pytest
import torch

from longshort import HeadPlan, LSAttention

PLAN = HeadPlan.long_short(n_heads=4, n_global=1, window=5)


def layer_against_one_process(group):
    torch.manual_seed(0)
    layer = LSAttention(16, PLAN, positions="rotary", qk_norm="head").double()
    x = torch.randn(2, 8 * group.size(), 16, dtype=torch.float64)
    expected = layer(x, stats=True)
    layer.share_sequences(group)
    own = slice(8 * group.rank(), 8 * group.rank() + 8)
    found = layer(x[:, own], stats=True)
    layer.share_sequences(None)
    same = [torch.equal(a, b) for a, b in zip(found.stats, expected.stats, strict=True)]
    undone = torch.equal(layer(x), expected.out)
    return float((found.out - expected.out[:, own]).abs().max()), all(same), undone


@pytest.mark.parametrize("size", [1, 3])
def test_positions_go_on_from_rank_to_rank(ranks, size):
    for error, same_statistics, undone in ranks.run(layer_against_one_process, size=size):
        assert error <= 1e-12 and same_statistics and undone


def test_what_does_not_look_back_only_is_refused():
    group = object()
    with pytest.raises(ValueError, match="causal must be True for a layer that shares sequences"):
        LSAttention(16, PLAN, causal=False).share_sequences(group)
    with pytest.raises(ValueError, match="chunk must be None for a layer that shares sequences among processes, got 4"):
        LSAttention(16, PLAN, chunk=4).share_sequences(group)
