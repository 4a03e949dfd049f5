"""Attention within chunks: each is a row of its own, whatever the length, and no cache serves it."""

import pytest
import torch

from longshort import GPT, HeadPlan, LSAttention, attention
from longshort.nn.chunks import attend_within_chunks
from longshort.ops import Smoothing

from ..small import small_config

PLAN = HeadPlan(windows=(None, 3, None, 20), decays=(0.0, 0.1, 0.3, 0.02))


def inputs(length, batch=2, heads=4, dim=8):
    torch.manual_seed(0)
    return torch.randn(3, batch, heads, length, dim, dtype=torch.float64).unbind()


def piece(result, start, stop):
    return result.out[:, :, start:stop], result.lse[:, :, start:stop]


@pytest.mark.parametrize("length", [5, 6, 7, 18, 20])
@pytest.mark.parametrize("options", [{}, {"causal": False, "smoothing": Smoothing(width=3, side="centred")}])
def test_each_chunk_is_attended_as_if_alone(length, options):
    q, k, v = inputs(length)
    result = attend_within_chunks(q, k, v, PLAN, 6, stats=True, **options)
    largest = []
    for start in range(0, length, 6):
        stop = min(start + 6, length)
        alone = attention(*(x[:, :, start:stop] for x in (q, k, v)), PLAN, stats=True, **options)
        for mine, theirs in zip(piece(result, start, stop), (alone.out, alone.lse), strict=True):
            torch.testing.assert_close(mine, theirs)
        largest.append(alone.stats.max)
    torch.testing.assert_close(result.stats.max, torch.stack(largest).amax(0))


def test_chunks_keep_segments_and_smoothing_apart():
    q, k, v = inputs(20)
    segments = torch.randint(-1, 2, (2, 20), generator=torch.Generator().manual_seed(1))
    chunked = attend_within_chunks(q, k, v, PLAN, 8, segments=segments, smoothing=Smoothing(width=4))
    joint = torch.where(segments < 0, -1, segments + 10 * (torch.arange(20) // 8))
    expected = attention(q, k, v, PLAN, segments=joint, smoothing=Smoothing(width=4))
    torch.testing.assert_close(chunked.out, expected.out)
    torch.testing.assert_close(chunked.lse, expected.lse)


def test_an_empty_batch_gives_an_empty_result():
    result = attend_within_chunks(*inputs(20, batch=0), PLAN, 8, stats=True)
    assert result.out.shape == (0, 4, 20, 8) and result.lse.shape == (0, 4, 20)
    assert (result.stats.max == -torch.inf).all()


def test_gradients_go_through_the_cut():
    q, k, v = (x.requires_grad_() for x in inputs(20))
    segments = (torch.arange(20) // 8).expand(2, -1)
    chunked = attend_within_chunks(q, k, v, PLAN, 8).out
    expected = attention(q, k, v, PLAN, segments=segments).out
    for mine, theirs in zip(
        *(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (chunked, expected)), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_a_chunked_layer_projects_and_attends_chunk_by_chunk():
    torch.manual_seed(0)
    layer, x = LSAttention(32, PLAN, chunk=8, smoothing=3), torch.randn(2, 24, 32)
    alone = torch.cat([layer(part) for part in x.split(8, dim=1)], dim=1)
    torch.testing.assert_close(layer(x), alone, atol=1e-6, rtol=1e-5)


def test_a_chunked_model_has_no_cache():
    config = small_config(attention_chunk=16)
    with pytest.raises(ValueError, match="chunk must be None for decoding with a cache, got 16"):
        GPT(config).new_cache()


@pytest.mark.parametrize("chunk", [0, -1, 2.0, True])
def test_a_chunk_that_is_no_length_is_refused(chunk):
    with pytest.raises(ValueError, match="chunk must be None or an integer >= 1, got"):
        LSAttention(32, PLAN, chunk=chunk)


def test_segments_without_a_sign_are_refused():
    layer = LSAttention(8, HeadPlan.full(2), chunk=4)
    with pytest.raises(ValueError, match=r"segments must hold signed integers .* got torch\.uint8"):
        layer(torch.randn(1, 6, 8), segments=torch.zeros(1, 6, dtype=torch.uint8))
