"""The picture of the cache's memory shows what was measured."""

import json
from pathlib import Path

import pytest

from benchmarks.cache_figure import draw, figure

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "decoding-cpu.json"


def test_bars_are_the_measured_bytes():
    pytest.importorskip("altair")
    rows = [{"length": 4096, "bytes": {"ls": 2**20, "plain": 2**31}, "smaller": 2048.0}, {"failed": "x"}]
    spec = figure({"cache": rows}).to_dict()
    bars = spec["data"]["values"]
    assert [(bar["gib"], bar["label"]) for bar in bars] == [
        (2.0, "2.00 GiB"),
        (2**-10, "1 MiB  (2048.0x smaller)"),
    ]


def test_results_without_the_cache_are_refused():
    with pytest.raises(ValueError, match="rows of the part cache, got none"):
        figure({"cache": [{"failed": "x"}]})


def test_the_committed_results_give_a_picture(tmp_path):
    pytest.importorskip("vl_convert")
    assert json.loads(RESULTS.read_text())["cache"]
    assert draw(RESULTS, tmp_path / "cache.png").read_bytes().startswith(b"\x89PNG")
