"""The benchmark of shared sequences: every rank is checked, timed, and compared with the others."""

import pytest
import torch

from benchmarks import sharded
from benchmarks.harness import Recorder, WrongResult
from longshort import HeadPlan, attention
from longshort.ops.shares import Roles, Shard


def test_a_small_one_has_a_row_for_each_way_and_direction():
    sizes = {"length": 32, "size": 2, "heads": 5, "head_dim": 8, "window": 4}
    results = sharded.run(Recorder(), device="cpu", rounds=1, **sizes)
    assert len(results["rows"]) == 8 and all(len(row["milliseconds"]) == 2 for row in results["rows"])
    assert results["goals"][0]["value"] == max(r["balance"] for r in results["rows"] if r["way"] == "shared out")
    assert "| 4 | own queries | forward+backward |" in sharded.tables(results)


def test_a_wrong_rank_ends_it(monkeypatch):
    def wrong(*arguments, **options):
        return [(heads, result._replace(out=result.out + 1)) for heads, result in right(*arguments, **options)]

    right = sharded.rank_work
    monkeypatch.setattr(sharded, "rank_work", wrong)
    plan = HeadPlan.long_short(n_heads=3, n_global=1, window=4)
    with pytest.raises(WrongResult, match="rank 0 of 2 is wrong"):
        sharded.measured(plan, 32, 2, 8, device="cpu", rounds=1, backend="auto")


def test_the_work_of_all_ranks_is_the_whole():
    plan, size, length = HeadPlan.long_short(n_heads=3, n_global=1, window=4), 3, 7
    whole = list(torch.randn(3, 1, 3, size * length, 8).unbind())
    expected = attention(*whole, plan).out
    roles = Roles.of(plan, 3, size * length)
    for rank in range(size):
        shard = Shard(rank, size, length)
        q = whole[0][:, :, shard.start : shard.start + length]
        results = sharded.rank_work(q, sharded.arrived(whole, roles, shard), plan, roles, shard)
        for (heads, result), end in zip(results, (shard.start + length, *shard.ends), strict=True):
            rows = result.out.shape[2]
            torch.testing.assert_close(result.out, expected[:, heads, end - rows : end], atol=1e-6, rtol=1e-5)
