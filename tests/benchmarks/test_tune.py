"""The search of tile shapes: what of it needs no GPU."""

import pytest
import torch

from benchmarks import tune
from benchmarks.shapes import Shape

pytest.importorskip("triton", reason="the package triton is not installed")


def test_a_search_names_what_failed_and_finds_the_fastest():
    def prepare(entrant, numbers):
        if numbers == (3,):
            raise RuntimeError("out of shared memory")
        entrant.sample = lambda: 1.0 / numbers[0]

    found = tune.search([(1,), (2,), (3,)], prepare, rounds=3)
    assert [row["failed"] for row in found] == [None, None, "RuntimeError: out of shared memory"]
    assert [row["shape"] for row in tune.fastest(found)] == [[2], [1]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_search_without_a_gpu_is_refused():
    with pytest.raises(ValueError, match="needs a GPU"):
        tune.run(progress=lambda line: None)


def test_candidates_are_tile_shapes_that_rows_padding_allows():
    from longshort.ops.triton.tiles import KERNELS, TileShape

    assert tuple(tune.CANDIDATES) == KERNELS
    for candidates in tune.CANDIDATES.values():
        assert len(set(candidates)) == len(candidates)
        assert all(TileShape(*c).rows <= 128 for c in candidates)


@pytest.mark.slow
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


def test_each_kernel_of_decodings_search_is_compiled_once():
    from longshort.ops.decode.launch import joined_at_a_time

    shapes = [Shape(batch=b, heads=4, length=32768, head_dim=64, window=128) for b in (1, 8)]
    found = tune.distinct_kernels(shapes, processors=132)
    sizes = {numbers[:3] + numbers[4:] for numbers in tune.decode_candidates(64)}
    assert joined_at_a_time(64) == 64 and {numbers[:3] + numbers[4:] for _, numbers in found} == sizes
    assert len(found) == 2 * len(sizes)  # few parts, joined at once, and many
    assert all(len(tune.decode_candidates(dim)) <= 44 for dim in (16, 32, 64, 96, 128, 256))
