"""The page on which plan to choose: its code runs, and its numbers are what was measured."""

import json
import re

import pytest

from experiments import reach as experiment
from experiments.engine import comparison
from experiments.engine.evidence import paired
from longshort.train import TrainConfig

from .measured import ANSWERS, LARGER_ANSWERS, LARGER_LOSSES, RESULTS, ROOT, chains

PAGE = (ROOT / "docs" / "ideas" / "plans.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.S))
def test_code_of_the_page_runs(block):
    exec(block, {})


def test_the_configuration_that_the_page_begins_with_has_the_plan_that_it_recommends():
    shipped, said = (
        TrainConfig.load("modern-10m", words) for words in ([], ["model.reach={pattern: ladder, nope: true}"])
    )
    assert (
        shipped.model == said.model
        and "This configuration does so:\n\n    longshort train modern-10m data.path=DATA\n" in PAGE
    )
    assert "`model.reach: {pattern: ladder, nope: true}`" in PAGE


def test_chains_that_a_reader_decides_by_are_what_was_measured():
    full, ladder, ls = (
        " and ".join(f"{100 * share:.0f}" for share in chains(LARGER_ANSWERS, name).values())
        for name in ("full", "ladder-nope", "ls1-w128-nope")
    )
    assert f"full attention answered {full} % of them, the unrotated ladder {ladder} %, unrotated LS {ls} %" in TEXT
    found = paired(chains(ANSWERS, "ladder-nope"), chains(ANSWERS, "full"))
    assert f"({100 * found.mean:+.1f} points, {100 * found.low:.1f} to {100 * found.high:+.1f}, three seeds)" in TEXT
    assert found.seeds == 3
    found = paired(chains(ANSWERS, "ls1-w64"), chains(ANSWERS, "full"))
    assert f"full attention ({100 * found.mean:+.1f} points, {100 * found.low:.1f} to {100 * found.high:+.1f};" in TEXT
    assert found.seeds == 4


def test_larger_models_answer_fewer_chains_than_full_attention():
    full = chains(LARGER_ANSWERS, "full")
    behind = [
        100 * (full[seed] - share)
        for name in LARGER_ANSWERS
        if name != "full"
        for seed, share in chains(LARGER_ANSWERS, name).items()
        if seed in full
    ]
    words = f"compared answered fewer at 2,048 tokens, by {min(behind):.0f} to {max(behind):.0f} points"
    assert len(behind) == 7 and f"all seven mixed models that can be {words}" in TEXT


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


def test_what_rotation_costs_in_larger_models_is_what_was_measured():
    turned = comparison.difference(LARGER_LOSSES["ls1-w128-nope"], LARGER_LOSSES["ls1-w128"])
    assert f"undecided ({turned.mean:+.3f}, {turned.low:+.3f} to {turned.high:+.3f})" in TEXT
    assert turned.sign() == 0 and turned.seeds == 3 and all(value < 0 for value in turned.values)
