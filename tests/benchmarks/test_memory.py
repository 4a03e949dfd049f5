"""Peaks are measured above the inputs, and the bytes of a cache against their formula."""

import subprocess
import sys

import pytest
import torch

from benchmarks import memory
from benchmarks.harness import Recorder, WrongResult

MEASURE = """
import torch
from benchmarks import memory
print(memory.peak(lambda: lambda: None), memory.peak(lambda: lambda: torch.ones(96 << 18).sum()))  # 4 bytes each
"""


@pytest.mark.slow
def test_a_step_that_allocates_more_shows_a_higher_peak():
    # In a process of its own: a peak is that of the whole life of a process, other tests included.
    answer = subprocess.run([sys.executable, "-c", MEASURE], check=True, capture_output=True, text=True)
    nothing, much = map(float, answer.stdout.split())
    assert nothing < 24 and much > 48


def test_a_case_that_dies_is_named(monkeypatch):
    monkeypatch.setitem(memory.CASES, "unknown to the child", ("what", lambda: lambda: None))
    with pytest.raises(ValueError, match="the process that measures unknown to the child ended with 1: "):
        memory.run(Recorder(), ["unknown to the child"])


def test_cache_bytes_are_those_of_the_issue_and_a_wrong_formula_is_noticed(monkeypatch):
    rows = memory.cache_rows()
    assert [round(row["smaller"], 2) for row in rows] == [8.39, 11.39, 11.84]
    monkeypatch.setattr(memory, "cache_bytes", lambda *_, **__: 1)
    with pytest.raises(WrongResult, match="bytes, not 1"):
        memory.cache_rows((64,))


NARROW = {"n_layers": 1, "n_heads": 4, "width": 32, "vocab_size": 16}
SCARCE = {"length": 64, "window": 8, "sizes": NARROW, "memory": 1_000_000}


def test_the_largest_batch_is_what_the_memory_holds():
    row = memory.largest_batches(device="cpu", dtype=torch.float32, **SCARCE)
    assert row["plain"] == {"bytes_a_row": 2 * 4 * 8 * 4 * 64, "free": 1_000_000, "computed": 61, "fits": 61}
    assert row["ls"]["bytes_a_row"] == 2 * 4 * 8 * (64 + 3 * 8) and row["ls"]["fits"] == 177
    assert row["ratio"] == pytest.approx(177 / 61)


def test_a_batch_that_does_not_fit_after_all_is_lowered(monkeypatch):
    real = memory.GPT.new_cache

    def scarce(self, batch, **options):
        if batch > 50:
            raise torch.OutOfMemoryError("out of memory")
        return real(self, batch, **options)

    monkeypatch.setattr(memory.GPT, "new_cache", scarce)
    row = memory.largest_batches(device="cpu", dtype=torch.float32, **SCARCE)
    assert row["plain"]["computed"] == 61 and 48 <= row["plain"]["fits"] <= 50
