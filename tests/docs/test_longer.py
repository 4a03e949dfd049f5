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


LARGER = {
    "full attention": ("full", "beyond"),
    "full attention, YaRN": ("full", "beyond_yarn"),
    "LS, YaRN": ("ls1-w64", "beyond_yarn"),
    "LS, global heads not rotated": ("ls1-w64-nope", "beyond"),
    "ladder, global heads not rotated": ("ladder-nope", "beyond"),
}
"""Rows of the table of larger models, as the experiment calls them."""


def rows_of(experiment):
    found = json.loads((ROOT / "experiments" / "results" / f"{experiment}.json").read_text())["rows"]
    return {row["variant"]: row for row in found}


def test_the_table_of_larger_models_is_what_was_measured():
    rows = rows_of("reach-modern")
    for words, (plan, name) in LARGER.items():
        places = rows[plan][name]["losses"]
        first, last = (statistics.fmean(places[place]) for place in ("1 to 2,048", "8,193 to 16,384"))
        assert f"| {words} | {first:.2f} | {last:.2f} | {len(rows[plan][name]['seeds'])} |" in PAGE


def test_the_chains_of_larger_models_are_what_was_measured():
    rows = rows_of("retrieval-modern")

    def right(plan, shares="shares"):
        return f"{100 * statistics.fmean(rows[plan][shares]['variables']['16384']):.0f} %"

    slowed = [right(plan, "shares_yarn") for plan in ("full", "ls1-w64")]
    text = " ".join(PAGE.split())
    assert f"it answers {slowed[0]} at 16,384 tokens, the ladder {right('ladder-nope')} and LS" in text
    assert f"{right('ls1-w64-nope')}, or {slowed[1]} rotated and with YaRN" in text


def test_the_code_runs():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(code, names)
    assert names["longer"].config.rope_scaling.factor == 8 and len(names["tokens"]) == 5
