"""The page on which plan to choose: its code runs, and its numbers are what was measured."""

import json
import re
import statistics

import pytest

from experiments.engine import comparison
from experiments.engine.evidence import paired
from longshort.train import TrainConfig

from .measured import ANSWERS, LARGER_ANSWERS, LARGER_LOSSES, LOSSES, RESULTS, ROOT, chains

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
    full = chains(LARGER_ANSWERS, "full")
    words = [f"full attention answered {100 * statistics.fmean(full.values()):.0f} % of them"]
    for plan, name in (("the unrotated ladder", "ladder-nope"), ("unrotated LS", "ls1-w128-nope")):
        share, found = chains(LARGER_ANSWERS, name), paired(chains(LARGER_ANSWERS, name), full)
        points = " points" * (len(words) == 1)
        interval = f"{100 * found.mean:+.1f}{points}, {100 * found.low:.1f} to {100 * found.high:+.1f}"
        words.append(f"{plan} {100 * statistics.fmean(share.values()):.0f} % ({interval})")
        assert found.sign() == 0 and found.seeds == 3
    assert f"{', '.join(words)}: neither difference is decided." in TEXT
    found = paired(chains(ANSWERS, "ladder-nope"), chains(ANSWERS, "full"))
    assert f"either ({100 * found.mean:+.1f}, {100 * found.low:.1f} to {100 * found.high:+.1f}, three seeds)" in TEXT
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
    ]
    level, *fewer = sorted(behind)
    assert len(behind) == 12 and -0.5 < level < 0.5
    words = f"answered fewer at 2,048 tokens, by {fewer[0]:.0f} to {fewer[-1]:.0f} points"
    assert f"eleven of twelve mixed models {words}, than full attention" in TEXT


def test_chains_past_the_training_length_are_what_was_measured():
    whole, ladder = (chains(LARGER_ANSWERS, name, "16384") for name in ("interleave-5-1-nope", "ladder-nope"))
    first, second = (
        " and ".join(f"{100 * share:.0f}" for share in found.values()).replace(" and ", ", ", 1)
        for found in (whole, ladder)
    )
    ls = chains(LARGER_ANSWERS, "ls1-w128-nope", "16384").values()
    words = (
        f"the ladder answered {second} % of the chains, unrotated LS {', '.join(f'{100 * share:.0f}' for share in ls)}"
    )
    words = f"{' and '.join(words.rsplit(', ', 1))} %, and one full layer in six, unrotated, [{first} %]"
    assert words in TEXT and paired(whole, ladder).sign() == 0


def test_runs_in_which_ls_answers_fewer_chains_than_the_ladder_are_counted():
    fewer = [
        chains(answers, ls)[seed] < share
        for answers, ls in ((LARGER_ANSWERS, "ls1-w128-nope"), (ANSWERS, "ls1-w64-nope"))
        for seed, share in chains(answers, "ladder-nope").items()
        if seed in chains(answers, ls)
    ]
    assert sum(fewer) == 3 and len(fewer) == 4 and "in three runs of four, undecided" in TEXT


COSTS = [row for row in json.loads((RESULTS / "reach-costs.json").read_text())["rows"] if row["experiment"] != "reach"]
CHEAPER = {"reach-modern": (32, 16, 8), "reach-30m": (12,)}
PLANS = {"reach-modern": LOSSES, "reach-30m": LARGER_LOSSES}


def speed(row, what):
    return row["decoding"] if what == "decoding" else row["training"][what]


def span(values, form=".1f"):
    return " to ".join(dict.fromkeys(f"{end:{form}}" for end in (min(values), max(values))))


@pytest.mark.parametrize("name, count", [(name, count) for name, counts in CHEAPER.items() for count in counts])
def test_costs_of_the_page_are_what_was_measured(name, count):
    own = {row["variant"]: row for row in COSTS if row["experiment"] == name}
    full, heads = own["full"], PLANS[name]["full"]["n_heads"]
    plans = [own[plan] for plan, row in PLANS[name].items() if row["n_global"] == count]
    faster = [span([speed(row, what) / speed(full, what) for row in plans]) for what in ("32768", "decoding")]
    shares = {f"{100 * row['cache_bytes'] / full['cache_bytes']:.0f}" for row in plans}
    larger = ", 27.5M parameters" * (name == "reach-30m")
    assert f"| {count} of {heads}{larger} | {' | '.join(faster)} | {shares.pop()} % |" in PAGE and not shares


def test_what_rotation_costs_is_what_was_measured():
    own = {(row["experiment"], row["variant"]): row for row in COSTS}
    pairs = [
        (row, own[key[0], key[1].removesuffix("-nope")])
        for key, row in own.items()
        if key[1].endswith("-nope") and (key[0], key[1].removesuffix("-nope")) in own and key[1] != "full-nope"
    ]
    whole = [pair for pair in pairs if pair[0]["variant"].startswith(("one-full", "interleave"))]
    mixed = [pair for pair in pairs if pair not in whole]

    def changes(pairs, what):
        return [100 * (speed(row, what) / speed(turned, what) - 1) for row, turned in pairs]

    training = [abs(change) for what in ("4096", "32768") for change in changes(pairs, what)]
    assert f"a mixed plan unrotated changes training by at most {max(training):.0f} %." in TEXT
    slower = [-change for change in changes(mixed, "decoding")]
    words = f"made the ladder and LS {span(slower, '.0f')} % slower, and plans with full layers"
    assert f"{words} {span(changes(whole, 'decoding'), '.0f')} % faster" in TEXT
    assert len(mixed) == 3 and len(whole) == 2


def test_time_of_a_step_at_the_training_length_is_what_was_measured():
    times = [row["gpu_time"] for row in COSTS if row.get("gpu_time", 1) != 1]
    assert (
        f"a step of a mixed plan takes {100 * min(times):.0f} to {100 * max(times):.0f} % of full attention's time"
        in TEXT
    )


def test_what_rotation_costs_in_larger_models_is_what_was_measured():
    turned = comparison.difference(LARGER_LOSSES["ls1-w128-nope"], LARGER_LOSSES["ls1-w128"])
    assert f"undecided ({turned.mean:+.3f}, {turned.low:+.3f} to {turned.high:+.3f})" in TEXT
    assert turned.sign() == 0 and turned.seeds == 3 and all(value < 0 for value in turned.values)
