"""The choice of tile shapes, and walks cut into parts, under Triton's interpreter."""

import json
from dataclasses import replace

import pytest
import torch

from longshort import HeadPlan

from ..cases import Case, assert_close, run

pytest.importorskip("triton", reason="the package triton is not installed")

from longshort.ops.options import GLOBAL
from longshort.ops.triton import tiles
from longshort.ops.triton.tiles import KERNELS, TileShape, choose, parts_for, tile_shape, untuned, use

ROWS = [
    {"device": "A", "kernel": "forward", "head_dim": 64, "window": 128, "length": 2048, "shape": [64, 32, 3, 4]},
    {"device": "A", "kernel": "forward", "head_dim": 64, "window": 128, "length": 32768, "shape": [64, 64, 2, 4, 168]},
    {"device": "A", "kernel": "forward", "head_dim": 128, "window": 128, "length": 2048, "shape": [128, 64, 3, 8]},
]


@pytest.mark.parametrize(
    ("head_dim", "length", "row"),
    [(64, 1000, 0), (64, 20_000, 1), (33, 2048, 0), (65, 2048, 2), (128, 32768, 2)],
)
def test_row_of_the_smallest_sufficient_head_dim_and_nearest_length_is_chosen(head_dim, length, row):
    assert choose(ROWS, "forward", head_dim, 128, False, length) == TileShape(*ROWS[row]["shape"])


@pytest.mark.parametrize(("kernel", "head_dim"), [("grad_q", 64), ("forward", 256), ("forward", 16)])
def test_nothing_is_chosen_for_another_kernel_or_a_head_dim_far_from_any(kernel, head_dim):
    assert choose(ROWS, kernel, head_dim, 128, False, 2048) is None


def test_plan_without_a_long_head_has_rows_of_its_own_where_there_are_any():
    local = {**ROWS[0], "local": True, "shape": [64, 64, 2, 4, 96]}
    assert choose([*ROWS, local], "forward", 64, 128, True, 2048) == TileShape(64, 64, 2, 4, 96)
    assert choose([*ROWS, local], "forward", 64, 128, False, 2048) == TileShape(*ROWS[0]["shape"])
    assert choose(ROWS, "forward", 64, 128, True, 2048) == TileShape(*ROWS[0]["shape"])


def test_table_of_a_file_comes_before_the_packages_own(tmp_path, monkeypatch):
    own = {"device": "NVIDIA H200", "kernel": "forward", "head_dim": 64, "window": 128, "length": 8192}
    (tmp_path / "mine.json").write_text(json.dumps({"rows": [{**own, "shape": [16, 16, 1, 4]}]}))
    tiles._table.cache_clear()
    packaged = tiles._table("NVIDIA H200")
    monkeypatch.setenv("LONGSHORT_TILES", str(tmp_path / "mine.json"))
    tiles._table.cache_clear()
    mine = tiles._table("NVIDIA H200")
    tiles._table.cache_clear()
    assert mine[1:] == packaged and tiles._table("another GPU") == []
    assert choose(mine, "forward", 64, 128, False, 8192) == TileShape(16, 16, 1, 4)


def test_packaged_table_has_a_shape_for_every_kernel_and_head_dim():
    for kernel in KERNELS:
        for head_dim in (32, 64, 128):
            shape = choose(tiles._table("NVIDIA H200"), kernel, head_dim, 128, False, 4096)
            assert shape is not None and max(shape.rows, shape.columns) <= 128


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 64, 96, 128, 256])
def test_untuned_shapes_fit_the_shared_memory_of_small_gpus(head_dim, dtype):
    width = 1 << (head_dim - 1).bit_length()
    for kernel in KERNELS:
        shape = untuned(kernel, dtype, head_dim)
        owned, passed = (shape.rows, shape.columns) if kernel != "grad_kv" else (shape.columns, shape.rows)
        tensors = {"forward": 1, "grad_q": 2, "grad_kv": 2}[kernel]
        size = torch.empty(0, dtype=dtype).element_size() * width
        assert size * (owned * tensors + passed * 2 * shape.stages) <= 99 * 1024


SIZES = {"batch": 1, "tiles": 512, "steps": 512, "other": 64, "head_dim": 64, "causal": True, "processors": 132}


@pytest.mark.parametrize(
    ("reach", "change", "parts"),
    [
        ((GLOBAL,) + (128,) * 11, {}, 2),
        ((GLOBAL,) + (128,) * 11, {"batch": 8}, 1),
        ((GLOBAL,) * 12, {}, 1),
        ((GLOBAL,) + (128,) * 11, {"head_dim": 128}, 1),
        ((GLOBAL,) + (128,) * 11, {"tiles": 8, "steps": 8}, 1),
    ],
)
def test_only_a_lone_long_head_is_cut_in_two(reach, change, parts):
    assert parts_for(reach, **SIZES | change) == parts


def test_shapes_in_use_end_with_the_block():
    call = ("forward", torch.float32, 16, (GLOBAL,), 64, torch.device("cpu"))
    before = tile_shape(*call)
    with use({"forward": TileShape(16, 16, 1, 4)}):
        assert tile_shape(*call) == TileShape(16, 16, 1, 4) != before
    assert tile_shape(*call) == before


OPTIONS = {
    "plain": {},
    "grouped": {"kv_heads": 2},
    "more keys": {"n_keys": 141},
    "two-sided": {"causal": False},
    "padding": {"segments": "negatives"},
    "softcap": {"softcap": 3.0},
    "fewer tiles than parts": {"n_queries": 20, "n_keys": 20},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "plain" else pytest.mark.slow) for name in OPTIONS]
)
@pytest.mark.slow
def test_walks_in_parts_agree_with_the_reference(name):
    plan = HeadPlan(windows=(None, 7, None, 33))
    case = Case(**{"batch": 1, "n_queries": 101, "n_keys": 101, "kv_heads": 4, "dim": 16, "plan": plan} | OPTIONS[name])
    exact = run(case, "reference", torch.float64)
    with use({kernel: TileShape(32, 32, 1, 4, parts=3) for kernel in KERNELS}):
        got = run(replace(case, poison=True), "triton")
    assert_close(got, exact, 5e-5)
