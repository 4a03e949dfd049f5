"""What must hold of any backend, whatever its arithmetic."""

from itertools import pairwise

import pytest
import torch

from longshort import HeadPlan, attention

from .cases import Case, small_tiles

LENGTH = 150
PLANS = {
    "windows": HeadPlan(windows=(None, 1, 2, 40, 40, 100)),
    "slopes": HeadPlan(windows=(None, 1, 2, 40, 40, 100), slopes=(0.1, 0.2, 0.3, 0, 0.01, 0.02)),
    "decays": HeadPlan(windows=(None, 1, 2, 40, 40, 100), decays=(0.1, 0.2, 0.3, 0, 0.01, 0.02)),
}


@pytest.fixture(params=["reference", "blocked", "blocked in small tiles"])
def attend(request):
    """A backend, with the tiles it takes by itself and with ones that these lengths fill many times."""

    def call(*args, **options):
        return attention(*args, **options, backend=request.param.split()[0])

    if request.param.endswith("tiles"):
        with small_tiles(parts=4):
            yield call
    else:
        yield call


@pytest.fixture(params=list(PLANS))
def plan(request):
    return PLANS[request.param]


def inputs(batch=2, heads=6, length=LENGTH, dim=8, **options):
    return torch.randn(3, batch, heads, length, dim, **options).unbind()


def within_window(plan, length, causal):
    """(H, T, S) by the words of the definition."""
    offset = torch.arange(length)[:, None] - torch.arange(length)
    return torch.stack([(offset.abs() < (w or length)) & ((offset >= 0) | (not causal)) for w in plan.windows])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_key_changes_the_rows_that_see_it_and_no_bit_of_any_other(attend, plan, causal, softcap):
    q, k, v = inputs()
    sees = within_window(plan, LENGTH, causal)
    before = attend(q, k, v, plan, causal=causal, softcap=softcap)
    for position in (0, 1, 31, 77, LENGTH - 1):
        k2, v2 = k.clone(), v.clone()
        k2[:, :, position], v2[:, :, position] = torch.randn(2, 2, 6, 8).unbind()
        after = attend(q, k2, v2, plan, causal=causal, softcap=softcap)
        changed = (after.out != before.out).any(-1).any(0), (after.lse != before.lse).any(0)
        seen = sees[:, :, position]
        for rows in changed:
            assert not rows[~seen].any()
        # A far key under a slope or a decay may weigh too little to show in fp32; a near one must show.
        near = (torch.arange(LENGTH) - position).abs() < 10
        assert changed[0][seen & near].all()


@pytest.mark.parametrize("causal", [True, False])
def test_value_gets_gradient_from_the_rows_that_see_it_and_from_no_other(attend, causal):
    plan = PLANS["windows"]
    q, k, v = inputs(batch=1)
    k.requires_grad_(), v.requires_grad_()
    sees = within_window(plan, LENGTH, causal)
    for row in (0, 39, 40, 99, LENGTH - 1):
        out = attend(q, k, v, plan, causal=causal).out
        grad_k, grad_v = torch.autograd.grad(out[:, :, row].sum(), (k, v))
        assert torch.equal((grad_v != 0).any(-1)[0], sees[:, row])
        assert not (grad_k != 0).any(-1)[0][~sees[:, row]].any()


def test_query_changes_its_own_row_alone(attend, plan):
    q, k, v = inputs()
    before = attend(q, k, v, plan).out
    q2 = q.clone()
    q2[:, :, 70] += 1
    changed = (attend(q2, k, v, plan).out != before).any(-1).any(0)
    changed[:, 70] = False
    assert not changed.any()


def test_permutation_of_the_batch_commutes(attend, plan):
    q, k, v = inputs(batch=3)
    segments = torch.randint(-1, 3, (3, LENGTH))
    order = torch.tensor([2, 0, 1])
    straight = attend(q, k, v, plan, segments=segments, stats=True)
    permuted = attend(q[order], k[order], v[order], plan, segments=segments[order], stats=True)
    torch.testing.assert_close(permuted.out, straight.out[order], rtol=0, atol=1e-6)
    torch.testing.assert_close(permuted.lse, straight.lse[order], rtol=0, atol=2e-6)
    torch.testing.assert_close(permuted.stats.max, straight.stats.max)


def test_permutation_of_the_heads_commutes(attend):
    q, k, v = inputs()
    order = [3, 0, 5, 1, 4, 2]
    windows, slopes = PLANS["slopes"].windows, PLANS["slopes"].slopes
    plan = HeadPlan(windows=[windows[i] for i in order], slopes=[slopes[i] for i in order])
    straight = attend(q, k, v, PLANS["slopes"], stats=True)
    permuted = attend(q[:, order], k[:, order], v[:, order], plan, stats=True)
    torch.testing.assert_close(permuted.out, straight.out[:, order], rtol=0, atol=1e-6)
    torch.testing.assert_close(permuted.stats.min, straight.stats.min[order])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n_queries", [LENGTH, 60])
def test_window_of_all_keys_or_more_equals_global_bit_for_bit(attend, causal, n_queries):
    q, k, v = inputs()
    q = q[:, :, -n_queries:]
    whole = attend(q, k, v, HeadPlan.full(6), causal=causal, stats=True)
    for window in (LENGTH, LENGTH + 1, 10**9):
        wide = attend(q, k, v, HeadPlan(windows=(window,) * 6), causal=causal, stats=True)
        assert all(torch.equal(a, b) for a, b in zip((*wide[:2], *wide[2]), (*whole[:2], *whole[2]), strict=True))


def test_window_one_short_of_all_keys_is_not_global(attend):
    q, k, v = inputs()
    whole = attend(q, k, v, HeadPlan.full(6)).out
    narrow = attend(q, k, v, HeadPlan(windows=(LENGTH - 1,) * 6)).out
    assert (narrow[:, :, -1] != whole[:, :, -1]).any(-1).all()
    torch.testing.assert_close(narrow[:, :, :-1], whole[:, :, :-1])


@pytest.mark.parametrize("extra", [1, 7, 50])
def test_appended_tokens_change_no_earlier_output(attend, plan, extra):
    q, k, v = inputs()
    whole = attend(q, k, v, plan)
    prefix = attend(*(x[:, :, :-extra] for x in (q, k, v)), plan)
    torch.testing.assert_close(prefix.out, whole.out[:, :, :-extra], rtol=0, atol=2e-6)
    torch.testing.assert_close(prefix.lse, whole.lse[:, :, :-extra], rtol=0, atol=4e-6)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n_queries", [1, 2, 40, 149])
def test_fewer_queries_give_the_last_rows_of_the_full_call(attend, plan, causal, n_queries):
    q, k, v = inputs()
    whole = attend(q, k, v, plan, causal=causal)
    last = attend(q[:, :, -n_queries:], k, v, plan, causal=causal)
    torch.testing.assert_close(last.out, whole.out[:, :, -n_queries:], rtol=0, atol=2e-6)
    torch.testing.assert_close(last.lse, whole.lse[:, :, -n_queries:], rtol=0, atol=4e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_contiguous_segments_equal_a_call_on_each(attend, plan, causal):
    q, k, v = inputs()
    bounds = (0, 1, 50, 51, 128, LENGTH)
    segments = torch.zeros(2, LENGTH, dtype=torch.int64)
    for first in bounds[1:-1]:
        segments[:, first:] += 1
    packed = attend(q, k, v, plan, causal=causal, segments=segments)
    for first, last in pairwise(bounds):
        alone = attend(*(x[:, :, first:last] for x in (q, k, v)), plan, causal=causal)
        torch.testing.assert_close(packed.out[:, :, first:last], alone.out, rtol=0, atol=2e-6)
        torch.testing.assert_close(packed.lse[:, :, first:last], alone.lse, rtol=0, atol=4e-6)


def test_names_of_segments_do_not_matter(attend, plan):
    q, k, v = inputs()
    segments = torch.randint(0, 3, (2, LENGTH))
    renamed = torch.tensor([7, 0, 2**40])[segments]
    a, b = (attend(q, k, v, plan, segments=ids) for ids in (segments, renamed))
    assert torch.equal(a.out, b.out) and torch.equal(a.lse, b.lse)


def test_one_segment_for_all_equals_none(attend, plan):
    q, k, v = inputs()
    one = attend(q, k, v, plan, segments=torch.full((2, LENGTH), 3), stats=True)
    none = attend(q, k, v, plan, stats=True)
    torch.testing.assert_close(one.out, none.out, rtol=0, atol=2e-6)
    torch.testing.assert_close(one.stats.max, none.stats.max)


def test_two_runs_give_equal_bits(attend, plan):
    case = Case(n_queries=LENGTH, n_keys=LENGTH, kv_heads=3, plan=plan, segments="shuffled")
    q, k, v, grad = case.tensors()

    def outcome(segments):
        result = attend(q, k, v, plan, segments=segments, stats=True)
        return result.out, result.lse, *result.stats, *torch.autograd.grad(result.out, (q, k, v), grad)

    for segments in (None, case.make_segments()):
        assert all(torch.equal(a, b) for a, b in zip(outcome(segments), outcome(segments), strict=True))


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_grouped_queries_equal_repeated_key_and_value_heads(attend, plan, kv_heads):
    q = torch.randn(2, 6, LENGTH, 8, requires_grad=True)
    k, v = (torch.randn(2, kv_heads, LENGTH, 8, requires_grad=True) for _ in range(2))
    grad = torch.randn_like(q)
    grouped = attend(q, k, v, plan, stats=True)
    repeated = attend(q, *(x.repeat_interleave(6 // kv_heads, dim=1) for x in (k, v)), plan, stats=True)
    torch.testing.assert_close(grouped.out, repeated.out, rtol=0, atol=2e-6)
    torch.testing.assert_close(grouped.stats, repeated.stats)
    grads = (torch.autograd.grad(result.out, (q, k, v), grad) for result in (grouped, repeated))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


def test_inputs_are_left_as_they_were(attend, plan):
    q, k, v = inputs()
    segments = torch.randint(-1, 2, (2, LENGTH))
    copies = [x.clone() for x in (q, k, v, segments)]
    q.requires_grad_()
    attend(q, k, v, plan, segments=segments, softcap=3.0, stats=True).out.sum().backward()
    assert all(torch.equal(a, b) for a, b in zip((q, k, v, segments), copies, strict=True))


def test_result_keeps_no_memory_of_the_inputs(attend):
    q, k, v = inputs()
    out = attend(q, k, v, HeadPlan(windows=(1,) * 6)).out  # a window of one gives v itself
    torch.testing.assert_close(out, v)
    assert out.data_ptr() != v.data_ptr()


def test_statistics_do_not_change_the_result(attend, plan):
    q, k, v = inputs()
    both, largest, without = (attend(q, k, v, plan, stats=stats) for stats in (True, "max", False))
    for measured in (both, largest):
        assert torch.equal(measured.out, without.out) and torch.equal(measured.lse, without.lse)
    assert without.stats is None and largest.stats.min is None
    assert torch.equal(largest.stats.max, both.stats.max)


def test_statistics_are_taken_before_decay_softcap_and_slope(attend):
    q, k, v = inputs()
    windows = PLANS["windows"].windows
    plain = attend(q, k, v, PLANS["windows"], stats=True).stats
    for plan in PLANS.values():
        bent = attend(q, k, v, plan, softcap=0.5, stats=True).stats
        torch.testing.assert_close(bent, plain)
    sees = within_window(PLANS["windows"], LENGTH, True)
    scores = (q @ k.mT / 8**0.5).transpose(0, 1)
    for head in range(len(windows)):
        mine = scores[head][:, sees[head]]
        torch.testing.assert_close(plain.max[head], mine.max())
        torch.testing.assert_close(plain.min[head], mine.min())
