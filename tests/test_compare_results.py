"""The comparison of results pages: blind to style, not to numbers and verdicts."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

differences = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "compare_results.py"))["differences"]

OLD = """
| claim | paper | ours | rule |
|---|---|---|---|
| the largest \\|logit\\| of an arm stays small | < 50 | 43.1: **holds partly** | at most 50 |

| arm | seeds | perplexity |
|---|---:|---:|
| plain | 3 | 77.15 |
| ls | 3 | 62.1 |

| arm | seeds | spikes | data |
|---|---:|---:|---|
| plain | 3 | 4 | [plain](plain.json) |
| ls | 3 | 0 |  |
"""
RESTYLED = """
| claim | ours | verdict | rule | paper |
|:--|--:|---|---|---|
| the largest \\|logit\\| of a variant stays small | 43.1 | holds partly | at most 50 | < 50 |

| variant | spikes | perplexity | data | seeds |
|---|---:|---:|---|---:|
| ls | 0 | 62.1 |  | 3 |
| plain | 4 | 77.15 | `plain` | 3 |
"""
SPEED = """
| shape | direction | ms |
|---|---|---|
| B4 | forward | 1.5 |
| B4 | backward | 3.5 |
"""


def test_another_style_is_no_difference():
    assert differences(OLD, RESTYLED.replace("a variant", "an variant")) == []
    assert differences(RESTYLED, OLD.replace("an arm", "a arm")) == []


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ("77.15", "77.16", "'77.15' vanished"),
        ("**holds partly**", "**holds**", "'holds' appeared"),
        ("< 50", "", "'< 50' vanished"),
        ("| 62.1 |", "| 62.1 | 7 |", "outside of the header"),
        ("| ls | 3 | 62.1 |\n", "", "'62.1' vanished"),
        ("| ls |", "| las |", "row 'ls' vanished"),
        ("at most 50", "at most 60", "'at most 60' appeared"),
    ],
)
def test_a_changed_cell_is_named(was, now, told):
    assert OLD.count(was) >= 1
    assert any(told in line for line in differences(OLD, OLD.replace(was, now)))


def test_cells_that_change_rows_of_one_name_are_found():
    mixed = SPEED.replace("1.5", "x").replace("3.5", "1.5").replace("x", "3.5")
    assert differences(SPEED, SPEED) == []
    assert any("no longer together" in line for line in differences(SPEED, mixed))
