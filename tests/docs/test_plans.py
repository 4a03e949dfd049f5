"""The page on plans: its code runs, and what it shows of the command line is what the command line shows."""

import json
import re
import statistics
from pathlib import Path

import pytest

from experiments import reach_modern
from experiments.engine import comparison
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
    "ladder: 1 global head, not rotated, and windows 512, 256 ... 8 in every layer": "ladder-nope",
    "one full layer, the last of eight, not rotated": "one-full-8-nope",
    "one global head per layer, not rotated, windows of 64": "ls1-w64-nope",
    "one full layer in four, not rotated": "interleave-3-1-nope",
    "one full layer in six, and the last": "interleave-5-1",
    "one full layer, the sixth": "one-full-6",
    "every second layer full": "interleave-1-1",
    "one full layer in four": "interleave-3-1",
    "ladder": "ladder",
    "one full layer, the last": "one-full-8",
    "two global heads per layer, windows of 64": "ls2-w64",
    "one global head per layer, windows of 64": "ls1-w64",
    "full attention": "full",
    "full attention, not rotated": "full-nope",
}
"""Rows of the page's table, as the experiments call them."""
LARGER = {
    "ladder: 1 global head, not rotated, in every layer": "ladder-nope",
    "one global head per layer, not rotated": "ls1-w128-nope",
    "one full layer in six, not rotated": "interleave-5-1-nope",
    "full attention": "full",
    "one global head per layer": "ls1-w128",
}
"""Rows of the second table."""
LOSSES, ANSWERS, LARGER_LOSSES, LARGER_ANSWERS = (
    {row["variant"]: row for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]}
    for name in ("reach-modern", "retrieval-modern", "reach-30m", "retrieval-30m")
)


def right(shares):
    return f"{100 * statistics.fmean(shares):.0f} %" if shares else ""


def test_table_of_the_page_is_what_was_measured():
    full = LOSSES["full"]
    lines = []
    for words, name in ROWS.items():
        row, asked = LOSSES[name], ANSWERS.get(name, {})
        against = comparison.difference(row, full)
        loss = f"{against.mean:+.3f} ({against.low:+.3f} to {against.high:+.3f})" if row is not full else "0"
        first, *_, last = (statistics.fmean(losses) for losses in row["beyond"]["losses"].values())
        cells = [str(row["n_global"]), f"{100 * row['cache_bytes'] / full['cache_bytes']:.0f} %", loss]
        cells += [f"{last - first:+.2f}", ", ".join(map(str, asked.get("seeds", ())))]
        for key, length in (("shares", "2048"), ("shares", "16384"), ("shares_yarn", "16384")):
            cells.append(right(asked.get(key, {}).get("variables", {}).get(length, [])))
        lines.append(re.sub(" +", " ", f"| {words} | {' | '.join(cells)} |"))
    assert [line for line in lines if line not in PAGE] == []
    means = [statistics.fmean(LOSSES[name]["final_losses"]) for name in ROWS.values()]
    assert means == sorted(means)
    assert {len(LOSSES[name]["seeds"]) for name in ROWS.values()} == {3, 4}


def training_losses(row):
    return dict(zip(row["seeds"], row["training_losses"], strict=True))


def each(values, mark="+.3f"):
    """Seed by seed."""
    return ", ".join(f"{value:{mark}}" for value in values)


def test_second_table_is_what_was_measured():
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
