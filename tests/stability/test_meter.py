"""The logit meter: extremes over micro-batches and ranks, with NaN in plain sight."""

import math

import pytest
import torch
import torch.multiprocessing as mp

from longshort.stability import LogitMeter


def stats(*heads):
    """One layer with a (largest, smallest) pair for each head."""
    return torch.tensor([heads], dtype=torch.float32)


def test_it_keeps_the_extremes_of_all_updates():
    meter = LogitMeter()
    meter.update(stats((1, -2), (3, 0)))
    meter.update(stats((2, -1), (1, -5)))
    largest, smallest = meter.read()
    assert largest.tolist() == [[2, 3]]
    assert smallest.tolist() == [[-2, -5]]


def test_it_keeps_the_largest_alone_where_only_they_are_measured():
    meter = LogitMeter()
    meter.update(stats((1,), (math.nan,)))
    meter.update(stats((2,), (3,)))
    largest, smallest = meter.read()
    assert largest[0, 0] == 2 and largest[0, 1].isnan() and smallest is None


def test_passes_that_measured_different_extremes_are_not_mixed():
    meter = LogitMeter()
    meter.update(stats((1, -2), (3, 0)))
    with pytest.raises(ValueError, match=r"stats must have the shape of those before .* \(1, 2, 2\), got \(1, 2, 1\)"):
        meter.update(stats((1,), (3,)))


def test_taking_in_the_same_pass_twice_changes_nothing():
    once, twice = LogitMeter(), LogitMeter()
    seen = torch.randn(3, 4, 2)
    once.update(seen)
    twice.update(seen)
    twice.update(seen)
    assert all(torch.equal(a, b) for a, b in zip(once.read(), twice.read(), strict=True))


def test_reading_starts_anew():
    meter = LogitMeter()
    meter.update(stats((9, -9)))
    meter.read()
    meter.update(stats((1, -1)))
    assert meter.read()[0].tolist() == [[1]]


def test_reading_without_an_update_is_an_error():
    meter = LogitMeter()
    meter.update(stats((1, -1)))
    meter.read()
    with pytest.raises(RuntimeError, match="no forward pass with stats=True"):
        meter.read()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_nan_stays_whatever_comes_before_or_after_it(order):
    passes = [stats((math.nan, -1), (1, math.nan)), stats((5, -5), (5, -5))]
    meter = LogitMeter()
    for index in order:
        meter.update(passes[index])
    largest, smallest = meter.read()
    assert largest.isnan().tolist() == [[True, False]]
    assert smallest.isnan().tolist() == [[False, True]]


def test_a_head_that_saw_nothing_is_told_apart_from_one_that_did():
    meter = LogitMeter()
    meter.update(stats((-math.inf, math.inf)))
    largest, smallest = meter.read()
    assert (largest.item(), smallest.item()) == (-math.inf, math.inf)


def test_it_holds_on_to_no_graph():
    meter = LogitMeter()
    meter.update(torch.ones(1, 1, 2, requires_grad=True) * 2)
    assert not meter.read()[0].requires_grad


def read_on_rank(rank, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    meter = LogitMeter()
    mine = [
        stats((1, -4), (math.nan, -1), (7, -1), (-math.inf, math.inf)),
        stats((3, -2), (7, -1), (math.nan, -1), (-2, -3)),
    ]
    meter.update(mine[rank])
    both = meter.read(across_ranks=True)
    meter.update(mine[rank][..., :1])
    largest, smallest = meter.read(across_ranks=True)
    assert smallest is None and torch.equal(largest.nan_to_num(nan=99), both[0].nan_to_num(nan=99))
    torch.save(torch.stack(both), folder / f"rank{rank}.pt")
    torch.distributed.destroy_process_group()


def test_ranks_agree_on_the_extremes_and_on_a_nan_that_one_of_them_met(tmp_path):
    other = mp.get_context("spawn").Process(target=read_on_rank, args=(1, tmp_path))
    other.start()
    read_on_rank(0, tmp_path)
    other.join(120)
    assert other.exitcode == 0
    for rank in (0, 1):
        largest, smallest = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert largest.nan_to_num(nan=99).tolist() == [[3, 99, 99, -2]]
        assert smallest.tolist() == [[-4, -1, -1, -3]]
