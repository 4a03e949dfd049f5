"""The factor of the decay as the Triton kernels compute it: of every pair, or split into that of a query and of a key.

By itself at distances that are too long to interpret whole calls, and in whole calls against the reference.
"""

import pytest
import torch

from longshort import HeadPlan, attention

from ..cases import Case, assert_close, assert_no_worse_than_rounding, run, run_in_rounding

triton = pytest.importorskip("triton", reason="the package triton is not installed")
tl = triton.language

from longshort.ops.options import GLOBAL, Options  # noqa: E402
from longshort.ops.triton import launch  # noqa: E402
from longshort.ops.triton.prepared import layout_of  # noqa: E402
from longshort.ops.triton.scores import FADES, fading, scores  # noqa: E402
from longshort.ops.triton.tiles import KERNELS, TileShape, use  # noqa: E402
from longshort.ops.triton.walks import on_side  # noqa: E402

FAR = 131_072
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def factors(positions, decays, out, t, N: tl.constexpr):
    decay = tl.load(decays)
    j = tl.load(positions + tl.arange(0, N))
    x, derivative = scores(tl.full((N,), 1.0, tl.float32), t, j, decay, 0.0, 0.0, True, False, False)
    tl.store(out + tl.arange(0, N), x)
    tl.store(out + N + tl.arange(0, N), derivative)


@pytest.mark.parametrize("decay", [0.0, 1e-5, 1e-3, 1.0])
def test_the_factor_is_exact_at_every_distance_of_a_long_text(decay):
    j = torch.tensor([FAR, FAR - 1, FAR - 2, FAR - 1000, FAR - 65_537, 3, 1, 0], dtype=torch.int32)
    out = torch.full((2, len(j)), torch.nan, device=DEVICE)
    factors[(1,)](j.to(DEVICE), torch.tensor([decay], device=DEVICE), out, FAR, len(j))
    exact = torch.exp(-decay * (FAR - j).double())
    torch.testing.assert_close(out.cpu().double(), exact.expand(2, -1), atol=1e-12, rtol=2e-5)


@triton.jit
def split_factors(decays, out, first, border, M: tl.constexpr, N: tl.constexpr, SIDE: tl.constexpr):
    t_M, j_N = first + tl.arange(0, M), border + tl.arange(0, N)
    fade_M, fade_N = fading(t_M, j_N, border, tl.load(decays), SIDE)
    tl.store(out + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], fade_M[:, None] * fade_N[None, :])


@pytest.mark.parametrize("decay", [0.0, 1e-5, 1e-3, 0.1, FADES])
@pytest.mark.parametrize("distance", [-127, 0, 1, 128, 700, 65_537, FAR])
@pytest.mark.parametrize("side", [1, -1], ids=["keys before", "keys after"])
def test_split_factor_is_exact_in_a_tile_at_any_distance_and_finite_beyond_the_query(decay, distance, side):
    size, border = 128, FAR + 5
    out = torch.full((size, size), torch.nan, device=DEVICE)
    split_factors[(1,)](torch.tensor([decay], device=DEVICE), out, border + side * distance, border, size, size, side)
    i = torch.arange(size, dtype=torch.float64)
    exact = torch.exp(-decay * (distance + side * (i[:, None] - i[None, :])))
    torch.testing.assert_close(out.cpu().double(), exact, atol=1e-12, rtol=2e-5)
    assert (out < 1e18).all()


SPLIT, STEEP = (0.001, 0.1, FADES), (0.001, 0.17, 1.0)
FLAGS = {
    "split": (SPLIT, {}, True),
    "largest of all": ((0.0, 0.0, FADES), {}, True),
    "too steep": (STEEP, {}, False),
    "just too steep": ((0.0, 0.0, 0.17), {}, False),
    "none": (None, {}, False),
    "nothing decays": ((0.0, 0.0, 0.0), {}, False),
    "softcap": (SPLIT, {"softcap": 4.0}, False),
    "negative scale": (SPLIT, {"scale": -0.7}, False),
    "slopes": (SPLIT, {"slopes": (0.1, 0.0, 0.02)}, False),
    "two-sided": (SPLIT, {"causal": False}, True),
}


@pytest.mark.parametrize("name", FLAGS)
def test_factor_is_split_where_scores_are_logits_times_a_positive_number(name):
    decays, options, expected = FLAGS[name]
    q = torch.zeros(1, 3, 4, 16)
    options = Options(windows=(GLOBAL,) * 3, decays=decays, **options)
    assert launch._Call.of(layout_of(q, q, q), options, "ieee", first=0).flags["FADE"] == expected


def check(decays, windows=(None, 7, 70), n_queries=100, slopes=None, **fields):
    plan = HeadPlan(windows=windows, decays=decays, slopes=slopes)
    fields = {"batch": 1, "dim": 16, "n_keys": n_queries, "kv_heads": len(windows), "poison": True} | fields
    case = Case(plan=plan, n_queries=n_queries, **fields)
    if case.dtype == torch.float32:
        assert_close(run(case, "triton"), run(case, "reference", torch.float64), 5e-5)
    else:
        assert_no_worse_than_rounding(run(case, "triton"), run(case, "reference", torch.float64), run_in_rounding(case))


BOTH_SIDES = pytest.mark.parametrize(
    "causal", [pytest.param(True, id="causal"), pytest.param(False, id="two-sided", marks=pytest.mark.slow)]
)
"""Steep, short and mixed cases of the two-sided form are quick below; these repeat the causal ones at length."""
OPTIONS = {
    "plain": {},
    "global": {"windows": (None, None, None)},
    "grouped": {"kv_heads": 1},
    "more keys": {"n_queries": 40, "n_keys": 141},
    "large scale": {"scale": 3.0},
    "negative scale": {"scale": -0.7},
    "softcap": {"softcap": 4.0},
    "slopes": {"slopes": (0.1, 0.0, 0.02)},
    "segments": {"segments": "sorted", "batch": 2},
    "left padding": {"segments": "left padding", "batch": 2},
    "shuffled segments": {"segments": "shuffled"},
    "fp16": {"dtype": torch.float16},
}


@BOTH_SIDES
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.every(3)
def test_decaying_call_with_each_option_agrees_with_the_reference(name, causal):
    check(SPLIT, causal=causal, **OPTIONS[name])


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "two-sided"])
def test_steep_decay_agrees_with_the_reference(causal):
    check(STEEP, causal=causal)


@pytest.mark.parametrize("n_queries", [1, 63, 64, 65, 129, 200])
@BOTH_SIDES
@pytest.mark.every(3)
def test_decaying_row_of_a_length_around_a_tile_agrees_with_the_reference(n_queries, causal):
    check((0.1, FADES), (None, 64), n_queries=n_queries, causal=causal)


@pytest.mark.parametrize("shape", [(16, 64), (64, 16), (128, 128)], ids=["wide", "tall", "large"])
@BOTH_SIDES
@pytest.mark.every(3)
def test_decay_in_tiles_of_any_shape_and_walks_in_parts_agrees_with_the_reference(shape, causal):
    with use({name: TileShape(*shape, 1, 4, parts=2) for name in KERNELS}):
        check((0.1, FADES), (None, 50), n_queries=140, n_keys=150, causal=causal)


@BOTH_SIDES
@pytest.mark.parametrize("segments", [None, pytest.param("sorted", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_masked_pairs_where_the_factor_is_zero_in_fp32_agree_with_the_reference(segments, causal):
    check((FADES, FADES), (None, 701), n_queries=100, n_keys=900, segments=segments, causal=causal)


@pytest.mark.slow
def test_masked_pairs_far_after_their_query_agree_with_the_reference():
    with use({name: TileShape(64, 128, 1, 4, parts=1) for name in KERNELS}):
        check((FADES,), (701,), n_queries=800, causal=False)


@pytest.mark.slow
def test_few_rows_of_a_long_decaying_past_agree_with_the_reference():
    with use({name: TileShape(16, 128, 1, 4, parts=1) for name in KERNELS}):
        check((1e-3, FADES), (None, None), n_queries=3, n_keys=FAR // 16)


def test_nan_of_a_decaying_head_stays_visible_in_it_alone():
    q, k, v = torch.randn(3, 1, 2, 80, 16).unbind()
    k[0, 1, 30] = torch.nan
    plan = HeadPlan(windows=(None, 5), decays=(0.1, 0.01))
    result = attention(q, k, v, plan, stats=True, backend="triton")
    assert result.out[0, 1, 30:35].isnan().all() and result.lse[0, 1, 30:35].isnan().all()
    assert result.stats.max[1].isnan() and result.stats.min[1].isnan()
    assert result.out[0, 0].isfinite().all() and result.stats.abs_max[0].isfinite()


@triton.jit
def sides(out, start, stop, first, OWN: tl.constexpr, STEP: tl.constexpr):
    for SIDE in tl.static_range(1, -2, -1):
        begin, end = on_side(start, stop, first, SIDE, OWN, STEP)
        tl.store(out + 2 * (1 - SIDE), begin)
        tl.store(out + 2 * (1 - SIDE) + 1, end)


@pytest.mark.parametrize(("own", "step"), [(64, 64), (128, 32), (16, 128)])
@pytest.mark.parametrize("first", [-200, -64, -1, 0, 1, 31, 63, 64, 127, 400, 900])
def test_every_tile_of_a_walk_is_on_one_side_or_mixed(first, own, step):
    start, stop = 128, 600
    bounds = torch.full((6,), -1, dtype=torch.int32, device=DEVICE)
    sides[(1,)](bounds, start, stop, first, own, step)
    before, mixed, after = (range(*bounds[i : i + 2].tolist(), step) for i in (0, 2, 4))
    assert [*before, *mixed, *after] == [*range(start, stop, step)]
    assert all(at + step - 1 <= first for at in before) and all(at >= first + own - 1 for at in after)
    assert all(at + step - 1 > first and at < first + own - 1 for at in mixed)
