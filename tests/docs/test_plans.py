"""The page on plans: its code runs, and what it shows of the command line is what the command line shows."""

import json
import re
import statistics
from pathlib import Path

import pytest

from experiments import load, reach_modern
from experiments import reach as experiment
from experiments.engine import comparison, measures, pages
from experiments.engine.evidence import paired
from longshort import reach
from longshort.report.plan import plan_text
from longshort.train import TrainConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ideas" / "plans.md").read_text(encoding="utf-8")
RESULTS = ROOT / "experiments" / "results"


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.S))
def test_code_of_the_page_runs(block):
    exec(block, {})


ROWS = {
    "ladder, unrotated": "ladder-nope",
    "the last layer full, unrotated": "one-full-8-nope",
    "LS, unrotated": "ls1-w64-nope",
    "one full layer in four, unrotated": "interleave-3-1-nope",
    "one full layer in six, and the last": "interleave-5-1",
    "the sixth layer full": "one-full-6",
    "every second layer full": "interleave-1-1",
    "one full layer in four": "interleave-3-1",
    "ladder": "ladder",
    "the last layer full": "one-full-8",
    "LS with two global heads": "ls2-w64",
    "LS": "ls1-w64",
    "full attention": "full",
    "full attention, unrotated": "full-nope",
}
"""Rows of the page's tables, as the experiments call them."""
LARGER = {
    "ladder, unrotated": "ladder-nope",
    "LS, unrotated": "ls1-w128-nope",
    "one full layer in six, unrotated": "interleave-5-1-nope",
    "full attention": "full",
    "LS": "ls1-w128",
}
"""Rows of the table of a larger model."""
LOSSES, ANSWERS, LARGER_LOSSES, LARGER_ANSWERS = (
    {row["variant"]: row for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]}
    for name in ("reach-modern", "retrieval-modern", "reach-30m", "retrieval-30m")
)


def right(shares):
    return f"{100 * statistics.fmean(shares):.0f} %" if shares else ""


def line_of(cells):
    """A line of a table, without cells of spaces."""
    return re.sub(" +", " ", f"| {' | '.join(cells)} |")


def test_losses_of_the_page_are_what_was_measured():
    full = LOSSES["full"]
    lines = []
    for words, name in ROWS.items():
        row = LOSSES[name]
        against = comparison.difference(row, full)
        loss = f"{against.mean:+.3f} ({against.low:+.3f} to {against.high:+.3f})" if row is not full else "0"
        first, *_, last = (statistics.fmean(losses) for losses in row["beyond"]["losses"].values())
        cache = f"{100 * row['cache_bytes'] / full['cache_bytes']:.0f} %"
        lines.append(line_of([words, str(row["n_global"]), cache, loss, f"{last - first:+.2f}"]))
    assert [line for line in lines if line not in PAGE] == []
    means = [statistics.fmean(LOSSES[name]["final_losses"]) for name in ROWS.values()]
    assert means == sorted(means)
    assert {len(LOSSES[name]["seeds"]) for name in ROWS.values()} == {3, 4}


def test_answers_of_the_page_are_what_was_measured():
    lines = []
    for words, name in ROWS.items():
        if (asked := ANSWERS.get(name)) is None:
            continue
        cells = [words, ", ".join(map(str, asked["seeds"]))]
        for key, length in (("shares", "2048"), ("shares", "16384"), ("shares_yarn", "16384")):
            cells.append(right(asked.get(key, {}).get("variables", {}).get(length, [])))
        lines.append(line_of(cells))
    assert len(lines) == 10 and [line for line in lines if line not in PAGE] == []


def test_leads_in_the_course_of_the_training_are_what_was_measured():
    data = pages.load(load("reach-modern"))
    for words, name in (
        ("ladder, unrotated", "ladder-nope"),
        ("ladder", "ladder"),
        ("LS, unrotated", "ls1-w64-nope"),
        ("LS", "ls1-w64"),
    ):
        gaps = measures.gaps(data, "full", name)
        assert line_of([words, *(f"{gaps[step]:+.3f}" for step in (760, 1520, 3050))]) in PAGE
        assert len(LOSSES[name]["seeds"]) == 4


def test_leads_in_the_first_positions_are_what_was_measured():
    def leads(rows, names):
        full = rows["full"]
        pairs = [zip(rows[name]["first_positions"], full["first_positions"], strict=True) for name in names]
        return [[mine - theirs for mine, theirs in pair] for pair in pairs]

    found = [-statistics.fmean(lead) for lead in leads(LOSSES, ("ls1-w64", "ls1-w64-nope", "ladder", "ladder-nope"))]
    text = " ".join(PAGE.split())
    assert f"{min(found):.3f} to {max(found):.3f} nats above LS and the ladder, rotated or not" in text
    mixed = [name for name in LARGER_LOSSES if name != "full"]
    assert f"that part is {-min(map(min, leads(LARGER_LOSSES, mixed))):.3f} nats at most" in text


def test_larger_models_answer_fewer_chains_than_full_attention():
    asked = LARGER_ANSWERS["full"]
    full = dict(zip(asked["seeds"], asked["shares"]["variables"]["2048"], strict=True))
    behind = [
        100 * (full[seed] - share)
        for name, row in LARGER_ANSWERS.items()
        if name != "full"
        for seed, share in zip(row["seeds"], row["shares"]["variables"]["2048"], strict=True)
    ]
    words = f"all seven mixed models that were asked answered fewer, by {min(behind):.0f} to {max(behind):.0f} points"
    assert len(behind) == 7 and words in " ".join(PAGE.split())


COSTS = {64: "1", 16: "2.8 times as fast", 8: "3.9 to 4.0 times as fast"}


def test_costs_of_the_page_are_what_was_measured():
    rows = json.loads((RESULTS / "reach-costs.json").read_text())["rows"]
    rows = {row["variant"]: row for row in rows if row["experiment"] == "reach"}
    full, by_count = rows["full"], {}
    for name, row in rows.items():
        by_count.setdefault(sum(layer.count(None) for layer in experiment.PLANS[name]), []).append(row)
    for count, words in COSTS.items():
        faster = [f"{row['training']['32768'] / full['training']['32768']:.1f}" for row in by_count[count]]
        ends = dict.fromkeys([min(faster), max(faster)])
        assert words.startswith(" to ".join(ends).replace("1.0", "1")) and f"| {words} |" in PAGE


def training_losses(row):
    return dict(zip(row["seeds"], row["training_losses"], strict=True))


def each(values, mark="+.3f"):
    """Seed by seed."""
    return ", ".join(f"{value:{mark}}" for value in values)


def test_table_of_a_larger_model_is_what_was_measured():
    full = LARGER_LOSSES["full"]
    lines = []
    for words, name in LARGER.items():
        row, asked = LARGER_LOSSES[name], LARGER_ANSWERS[name]
        assert row["seeds"] == [0, 1] and asked["seeds"] == ([0] if name == "interleave-5-1-nope" else [0, 1])
        pairs = [zip(row[key], full[key], strict=True) for key in ("final_losses", "training_losses")]
        losses = [each(mine - theirs for mine, theirs in pair) if row is not full else "0" for pair in pairs]
        near, far = (row["beyond"]["losses"][place] for place in ("1 to 2,048", "8,193 to 16,384"))
        slowed = row.get("beyond_yarn", {}).get("losses", {}).get("8,193 to 16,384", ())
        past = [each((last - first for last, first in zip(end, near, strict=False)), "+.2f") for end in (far, slowed)]
        shares = [
            each((100 * share for share in asked.get(key, {}).get("variables", {}).get(length, ())), ".0f")
            for key, length in (("shares", "2048"), ("shares", "16384"), ("shares_yarn", "16384"))
        ]
        cells = [f"{100 * row['cache_bytes'] / full['cache_bytes']:.0f} %", *losses, *past, *shares]
        lines.append(re.sub(" +", " ", f"| {words} | {' | '.join(cells)} |"))
    assert [line for line in lines if line not in PAGE] == []
    means = [LARGER_LOSSES[name]["final_loss"] for name in LARGER.values()]
    assert means == sorted(means)


def test_what_the_page_says_of_text_that_is_read_again_is_what_was_measured():
    found = {
        name: paired(training_losses(LOSSES[name]), training_losses(LOSSES["full"])) for name in reach_modern.MIXED
    }
    assert len(found) == 9 and all(pair.sign() < 0 for pair in found.values())
    assert sum(comparison.difference(LOSSES[name], LOSSES["full"]).sign() < 0 for name in found) == 4
    ls = found["ls1-w64"]
    text = " ".join(PAGE.split())
    assert f"LS by {-ls.mean:.3f} ({-ls.high:.3f} to {-ls.low:.3f}); on other books four of nine are." in text


def test_seeds_of_the_answers_are_those_that_the_page_names():
    for row in ANSWERS.values():
        far = row["seeds_of_shares"].get("16384", [])
        assert far == [seed for seed in row["seeds"] if seed in (2, 3)]
        assert "shares_yarn" not in row or row["seeds_of_shares_yarn"]["16384"] == [3]
    chains = ANSWERS["full"]["shares"]["variables"]["2048"]
    said = f"full attention has {right(chains[:3])} with seeds 0 to 2 and {right(chains[3:])} with seed 3."
    assert said in " ".join(PAGE.split())


def test_what_the_page_says_of_yarn_is_what_was_measured():
    plans = ("full", "ls1-w64", "ladder")
    kinds = [shares for name in plans for shares in ANSWERS[name]["shares_yarn"].items()]
    found = [share for kind, lengths in kinds if kind.startswith("needle") for share in lengths["16384"]]
    text = " ".join(PAGE.split())
    assert f"found {100 * min(found):.0f} to {100 * max(found):.0f} % of the needles at 16,384 tokens" in text
    full, ls = (
        LOSSES[name]["beyond_yarn"]["losses"]["1 to 2,048"][-1] - LOSSES[name]["beyond"]["losses"]["1 to 2,048"][-1]
        for name in plans[:2]
    )
    assert f"at the first 2,048 positions rose by {full:.2f}, that of LS by {ls:.2f} (one seed)" in text


def test_drawing_is_that_of_the_command():
    drawn = plan_text(TrainConfig.load("paper-6m", ["model.reach=ladder"]).model)
    indented = "\n".join(f"    {line}".rstrip() for line in drawn.splitlines())
    assert f"    $ longshort show paper-6m model.reach=ladder\n{indented}\n" in PAGE


def test_every_pattern_and_model_is_on_the_page():
    assert [name for name in reach.PATTERNS if f"`{name}(" not in PAGE] == []
    assert [name for name in reach.MODELS if f"`{name}`" not in PAGE] == []
