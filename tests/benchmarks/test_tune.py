"""The search of tile shapes: what of it needs no GPU."""

import pytest
import torch

from benchmarks import tune
from benchmarks.registry import Shape

pytest.importorskip("triton", reason="the package triton is not installed")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_search_without_a_gpu_is_refused():
    with pytest.raises(ValueError, match="--tune must run on a CUDA GPU"):
        tune.run(progress=lambda line: None)


def test_candidates_are_tile_shapes_that_rows_padding_allows():
    from longshort.ops.triton.tiles import KERNELS, TileShape

    assert tuple(tune.CANDIDATES) == KERNELS
    for candidates in tune.CANDIDATES.values():
        assert len(set(candidates)) == len(candidates)
        assert all(TileShape(*c).rows <= 128 for c in candidates)


@pytest.mark.parametrize("kernel", tune.CANDIDATES)
def test_task_computes_the_same_with_any_candidate(kernel, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    shape = Shape(batch=1, heads=2, length=70, head_dim=16, window=9)
    inputs = [torch.randn(1, 2, 70, 16) for _ in range(4)]
    results = [
        tune.task(tune.Job(kernel, shape, c, parts=parts), inputs)()
        for c, parts in (((16, 16, 1, 4), 1), ((32, 16, 1, 4), 2))
    ]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
