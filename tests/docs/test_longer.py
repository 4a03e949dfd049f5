"""The page on longer sequences: its table is what was measured, and its code runs."""

import json
import math
import re
import statistics

from experiments.engine.evidence import paired

from .measured import ROOT, rows_of

PAGE = (ROOT / "docs" / "howto" / "longer.md").read_text(encoding="utf-8")
PLACES = {"1 to 256": (0, 1), "257 to 512": (1, 2), "513 to 1,024": (2, 4), "1,025 to 2,048": (4, 8)}
"""Columns, in buckets of 256 positions."""


def test_the_table_is_what_was_measured():
    found = json.loads((ROOT / "docs" / "results" / "longer.json").read_text())
    assert f"| plan | {' | '.join(PLACES)} | seeds |" in PAGE
    for words, plan, yarn in (
        ("full attention", "full", False),
        ("full attention, YaRN", "full", True),
        ("full attention, `positions=alibi`", "alibi", False),
        ("full attention, `positions=none`", "none", False),
        ("ladder, `positions=none`", "ladder-none", False),
        ("ladder, all heads rotated", "ladder", False),
        ("one head of four not rotated, the others with windows of 256", "windows-256-nope", False),
        ("ladder, global heads not rotated", "ladder-nope", False),
    ):
        rows = [row for row in found["rows"] if (row["plan"], row["yarn"]) == (plan, yarn)]
        assert [row["seed"] for row in rows] == list(range(len(rows)))
        cells = []
        for first, last in PLACES.values():
            means = [statistics.fmean(row["losses"][first:last]) for row in rows]
            spread = f" ± {statistics.stdev(means):.2f}" if len(means) > 1 else ""
            cells.append(f"{statistics.fmean(means):.2f}{spread}")
        assert f"| {words} | {' | '.join(cells)} | {len(rows)} |" in PAGE


def test_what_the_pages_say_without_the_table_is_what_was_measured():
    losses = {}
    for row in json.loads((ROOT / "docs" / "results" / "longer.json").read_text())["rows"]:
        if not row["yarn"]:
            losses.setdefault(row["plan"], {})[row["seed"]] = row["losses"]

    def rises(plan):
        return [statistics.fmean(found[4:]) - found[0] for found in losses[plan].values()]

    full, ladder = (f"{statistics.fmean(rises(plan)):.2f}" for plan in ("none", "ladder-none"))
    words = f"full attention rises by {full} nats from the first column to the last, that of the ladder by {ladder}."
    assert words in " ".join(PAGE.split())
    assert max(rises("ladder-none")) < 0.02 and "that of a ladder by less than 0.02" in PAGE
    unrotated, rotated = ({s: run[0] for s, run in losses[plan].items()} for plan in ("ladder-nope", "ladder"))
    found = paired(unrotated, rotated)
    compared = " ".join((ROOT / "docs" / "ideas" / "plans-compared.md").read_text(encoding="utf-8").split())
    assert f"undecided too: {found.mean:+.3f}, {found.low:+.3f} to {found.high:+.3f}." in compared
    assert found.seeds == 3 and all(unrotated[seed] < rotated[seed] for seed in rotated)


LARGER = {
    "full attention": ("full", "beyond"),
    "full attention, YaRN": ("full", "beyond_yarn"),
    "LS, YaRN": ("ls1-w64", "beyond_yarn"),
    "ladder, YaRN": ("ladder", "beyond_yarn"),
    "LS, global heads not rotated": ("ls1-w64-nope", "beyond"),
    "ladder, global heads not rotated": ("ladder-nope", "beyond"),
}
"""Rows of the table of larger models, as the experiment calls them."""


def test_the_table_of_larger_models_is_what_was_measured():
    rows = rows_of("reach-modern")
    for words, (plan, name) in LARGER.items():
        places = rows[plan][name]["losses"]
        first, last = (statistics.fmean(places[place]) for place in ("1 to 2,048", "8,193 to 16,384"))
        assert f"| {words} | {first:.2f} | {last:.2f} | {len(rows[plan][name]['seeds'])} |" in PAGE


def test_what_yarn_costs_at_the_first_positions_is_what_was_measured():
    rows = rows_of("reach-modern")
    slowed, plain = ([rows[plan][name] for plan in ("full", "ls1-w64")] for name in ("beyond_yarn", "beyond"))
    first = "1 to 2,048"
    full, ls = (
        mine["losses"][first][0] - theirs["losses"][first][theirs["seeds"].index(*mine["seeds"])]
        for mine, theirs in zip(slowed, plain, strict=True)
    )
    said = f"costs full attention {full:.2f} nats at the first positions and LS, one global head beside windows of 64"
    assert f"{said}, {ls:.2f}." in " ".join(PAGE.split())


def test_the_answers_of_larger_models_are_what_was_measured():
    needles, answered = {}, []
    for name in ("retrieval-modern", "retrieval-30m"):
        for plan, row in rows_of(name).items():
            unrotated = plan.endswith("-nope") and plan != "full-nope"
            shares = row["shares"] if unrotated else row.get("shares_yarn", {})
            answered += shares.get("variables", {}).get("16384", [])
            for kind in (kind for kind in shares if kind.startswith("needle")):
                needles.setdefault(name, []).extend(shares[kind].get("16384", []))
    bounds = [f"{math.floor(100 * min(needles[name]))} %" for name in ("retrieval-modern", "retrieval-30m")]
    text = " ".join(PAGE.split())
    assert f"at least {bounds[0]} of the needles at 16,384 tokens, those of 27.5M at least {bounds[1]}." in text
    assert f"from run to run, between {100 * min(answered):.0f} and {100 * max(answered):.0f} %:" in text


def test_the_code_runs():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(code, names)
    assert names["longer"].config.rope_scaling.factor == 8 and len(names["tokens"]) == 5


def test_what_is_said_of_the_largest_models_is_what_was_measured():
    rows = rows_of("reach-30m")
    text = " ".join(PAGE.split())

    def costs(plan):
        """Of YaRN at the first positions, seed by seed."""
        slowed, plain = (rows[plan][name]["losses"]["1 to 2,048"] for name in ("beyond_yarn", "beyond"))
        return [mine - theirs for mine, theirs in zip(slowed, plain, strict=True)]

    full, turned = costs("full"), costs("ls1-w128")
    assert len(full) == len(turned) == 3 and f"{min(turned):.2f}" == f"{max(turned):.2f}"
    words = f"YaRN costs full attention {min(full):.2f} to {max(full):.2f} nats there and LS {min(turned):.2f};"
    assert words in text
    full, turned, ladder = (
        statistics.fmean(rows[plan][name]["losses"]["8,193 to 16,384"])
        for plan, name in (("full", "beyond_yarn"), ("ls1-w128", "beyond_yarn"), ("ladder-nope", "beyond"))
    )
    assert f"has {full:.2f}, LS {turned:.2f}, the unrotated ladder {ladder:.2f} (three seeds)." in text
