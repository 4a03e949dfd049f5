"""Runs that are equal to the bit, as a benchmark: on a CPU they are so with and without."""

import pytest

from benchmarks import deterministic
from benchmarks.harness import Recorder


@pytest.mark.slow
def test_runs_are_compared_to_the_bit_and_timed(monkeypatch):
    small = ["model.n_layers=1", "model.width=12", "data.length=32", "data.batch_size=1", "model.backend=blocked"]
    results = deterministic.run(Recorder(), device="cpu", steps=2, overrides=small)
    (row,) = results["rows"]
    assert row["way"] == "eager" and row["free"]["equal"] and row["deterministic"]["equal"]
    assert len(row["deterministic"]["tokens_per_second"]) == 2 and row["ratio"] > 0
    assert "| eager | yes | yes |" in deterministic.table(results)

    saved = deterministic.load_checkpoint
    moved = iter(range(4))

    def shifted(out):
        checkpoint = saved(out)
        checkpoint.model["embedding.weight"][0, 0] += next(moved)
        return checkpoint

    monkeypatch.setattr(deterministic, "load_checkpoint", shifted)
    (row,) = deterministic.run(Recorder(), device="cpu", steps=1, overrides=small)["rows"]
    assert not row["free"]["equal"] and not row["deterministic"]["equal"]
