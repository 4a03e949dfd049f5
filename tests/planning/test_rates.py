"""Every measured rate follows from the file that it names."""

import json
import re
import statistics
from pathlib import Path

import pytest

from longshort.planning import Machines, rates
from longshort.reach.costs import mean_visible

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
PROFILE = (RESULTS / rates.PROFILE).read_text()
STEP = PROFILE[PROFILE.index("== ls: 60.16") : PROFILE.index("The nanoGPT-style peer")]
TOKENS, LAYERS, WIDTH, CLASSES = 8 * 4096, 12, 768, 50_304
BLOCKS = LAYERS * 12 * WIDTH**2


def kernels(*names):
    """Milliseconds of the kernels of a profiled 124M step whose names contain one of these."""
    rows = re.findall(r"^ +([\d.]+) +[\d.]+x (.*)$", STEP, re.M)
    return sum(float(ms) for ms, kernel in rows if any(name in kernel for name in names))


def attention(work, name, direction, shape):
    rows = json.loads((RESULTS / rates.KERNELS).read_text())["rows"]
    wanted = {"work": work, "name": name, "direction": direction, "shape": shape}
    (row,) = [row for row in rows if wanted.items() <= row.items()]
    return 1e-3 * statistics.median(row["milliseconds"])


def test_matrix_products():
    seconds = 1e-3 * kernels("nvjet", "splitKreduce")
    assert 6 * (BLOCKS + CLASSES * WIDTH) * TOKENS / seconds == pytest.approx(rates.MATMUL, rel=0.01)


def test_bytes_outside_products_and_attention():
    seconds = 1e-3 * (kernels("triton_", "reduce_kernel<128") - kernels("fused_cat_transpose"))
    assert 96 * WIDTH * LAYERS * TOKENS / seconds == pytest.approx(rates.STREAM, rel=0.02)


def test_cross_entropy_and_adamw():
    assert 4 * TOKENS * CLASSES / (1e-3 * kernels("cross_entropy")) == pytest.approx(rates.CROSS_ENTROPY, rel=0.01)
    weights = BLOCKS + (CLASSES + 4096 + 25) * WIDTH
    assert 28 * weights / (1e-3 * kernels("multi_tensor_apply")) == pytest.approx(rates.ADAMW, rel=0.01)


def test_gaps_between_kernels():
    idle = float(re.search(r"idle ([\d.]+) ms in 585 gaps", PROFILE)[1])
    assert 1e-3 * idle / LAYERS == pytest.approx(rates.GAP, rel=0.01)


LONGEST = {32: (8, 6, 8192, 100), 64: (1, 12, 32768, 128), 128: (1, 32, 32768, 128)}
"""Batch, heads, length and window of the longest measured sequences, by head dim."""


@pytest.mark.parametrize("head_dim", LONGEST)
@pytest.mark.parametrize(("way", "direction", "flops"), [(0, "forward", 4), (1, "backward", 10)])
def test_global_heads(head_dim, way, direction, flops):
    batch, heads, length, window = LONGEST[head_dim]
    shape = f"B{batch} H{heads} T{length} D{head_dim} w{window}"
    work = flops * head_dim * batch * length * mean_visible(None, length)
    ours = [attention(kind, "longshort", direction, shape) for kind in ("ls", "local")]
    one = work / (ours[0] - ours[1])
    assert one == pytest.approx(rates.GLOBAL[head_dim][way], rel=0.01)
    every = heads * work / attention("full", "cuDNN", direction, shape)
    assert max(one, every) == pytest.approx(rates.FULL[head_dim][way], rel=0.01)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("way", "direction", "flops", "moved"), [(0, "forward", 4, 8), (1, "backward", 10, 16)])
def test_local_heads(head_dim, way, direction, flops, moved):
    batch, heads, length, window = LONGEST[head_dim]
    seconds = attention("local", "longshort", direction, f"B{batch} H{heads} T{length} D{head_dim} w{window}")
    features = (heads - 1) * batch * length * head_dim
    counted = max(
        flops * (window + rates.TILE) * features / rates.LOCAL[way], moved * features / rates.LOCAL_STREAM[way]
    )
    assert counted == pytest.approx(seconds, rel=0.12)


def test_rates_of_another_gpu_are_assumed_and_in_proportion_to_its_peaks():
    own, other = (rates.figures(Machines(gpu=gpu), 128) for gpu in ("h200", "a100"))
    assert {figure.origin for figure in own} == {"measured"} and {figure.origin for figure in other} == {"assumed"}
    assert other[0].value / own[0].value == pytest.approx(312 / 989)
    assert other[5].value / own[5].value == pytest.approx(2.04 / 4.8)
