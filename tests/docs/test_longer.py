"""The page on longer sequences: its table is what was measured, and its code runs."""

import json
import re
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "longer.md").read_text(encoding="utf-8")
PLACES = {"1 to 256": (0, 1), "257 to 512": (1, 2), "513 to 1,024": (2, 4), "1,025 to 2,048": (4, 8)}
"""Columns, in buckets of 256 positions."""


def test_the_table_is_what_was_measured():
    found = json.loads((ROOT / "docs" / "results" / "longer.json").read_text())
    assert f"| plan | {' | '.join(PLACES)} |" in PAGE
    for words, plan, yarn in (
        ("full attention", "full", False),
        ("full attention, YaRN", "full", True),
        ("ladder, global heads not rotated", "ladder-nope", False),
    ):
        runs = [row["losses"] for row in found["rows"] if (row["plan"], row["yarn"]) == (plan, yarn)]
        assert [row["seed"] for row in found["rows"] if (row["plan"], row["yarn"]) == (plan, yarn)] == [0, 1, 2]
        cells = []
        for first, last in PLACES.values():
            means = [statistics.fmean(losses[first:last]) for losses in runs]
            cells.append(f"{statistics.fmean(means):.2f} ± {statistics.stdev(means):.2f}")
        assert f"| {words} | {' | '.join(cells)} |" in PAGE


def test_the_code_runs():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(code, names)
    assert names["longer"].config.rope_scaling.factor == 8 and len(names["tokens"]) == 5
