"""The page that compares plans: its tables and sentences are what was measured."""

import json
import re
import statistics

from experiments import load, reach_modern
from experiments.engine import comparison, measures, pages
from experiments.engine.evidence import paired

from .measured import ANSWERS, LARGER_ANSWERS, LARGER_LOSSES, LOSSES, RESULTS, ROOT, chains

PAGE = (ROOT / "docs" / "ideas" / "plans-compared.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
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
    "one full layer in six, unrotated": "interleave-5-1-nope",
    "LS, unrotated": "ls1-w128-nope",
    "full attention": "full",
    "LS": "ls1-w128",
}
"""Rows of the tables of a larger model."""


def right(shares):
    return f"{100 * statistics.fmean(shares):.0f} %" if shares else ""


def with_interval(pair):
    return f"{pair.mean:+.3f} ({pair.low:+.3f} to {pair.high:+.3f})"


def line_of(cells):
    """A line of a table, without cells of spaces."""
    return re.sub(" +", " ", f"| {' | '.join(cells)} |")


def training_losses(row):
    return dict(zip(row["seeds"], row["training_losses"], strict=True))


def test_losses_of_the_page_are_what_was_measured():
    full = LOSSES["full"]
    lines = []
    for words, name in ROWS.items():
        row = LOSSES[name]
        against = comparison.difference(row, full)
        loss = with_interval(against) if row is not full else "0"
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


def test_plans_that_keep_their_lead_in_the_second_pass_are_counted():
    data = pages.load(load("reach-modern"))
    rotated = [name for name in LOSSES if not name.startswith("full") and not name.endswith(("-nope", "-sinks"))]
    gaps = {name: measures.gaps(data, "full", name) for name in rotated}
    kept = [name for name, gap in gaps.items() if gap[1520] < gap[760] / 2]
    assert len(rotated) == 9 and len(kept) == 4
    assert "of the nine rotated ones, four lose less than half of their lead in the second pass" in TEXT
    gain = -measures.gaps(data, "interleave-3-1", "interleave-3-1-nope")[760]
    assert f"one full layer in four is lower by {gain:.3f} nats unrotated after the first pass already" in TEXT
    curves = {(curve["variant"], curve["seed"]): dict(curve["validation"]) for curve in data["curves"]}
    turned, unturned = (
        {seed: losses[760] for (name, seed), losses in curves.items() if name == wanted}
        for wanted in ("interleave-3-1", "interleave-3-1-nope")
    )
    found = paired(unturned, turned)
    assert found.sign() == 0 and found.seeds == 3


def test_leads_in_the_first_positions_are_what_was_measured():
    def lead(rows, name):
        mine, theirs = (
            dict(zip(row["seeds"], row["first_positions"], strict=True)) for row in (rows["full"], rows[name])
        )
        return paired(mine, theirs)

    rotated, *others = (lead(LOSSES, name).mean for name in ("ls1-w64", "ls1-w64-nope", "ladder", "ladder-nope"))
    words = f"attention is {rotated:.3f} nats above rotated LS there, and {min(others):.3f} to {max(others):.3f} above"
    assert words in TEXT
    larger = lead(LARGER_LOSSES, "ladder-nope")
    words = f"is {larger.mean:.3f} nats for the unrotated ladder ({larger.low:.3f} to {larger.high:.3f})"
    assert f"{words} and undecided for LS" in TEXT and {
        lead(LARGER_LOSSES, name).sign() for name in ("ls1-w128", "ls1-w128-nope")
    } == {0}


def points(found):
    return f"{100 * found.mean:+.1f} points, {100 * found.low:.1f} to {100 * found.high:+.1f}"


def test_chains_of_a_larger_model_beside_full_attentions_are_what_was_measured():
    full, told = chains(LARGER_ANSWERS, "full"), []
    for name in ("ladder-nope", "ls1-w128", "interleave-5-1-nope", "ls1-w128-nope"):
        found = paired(chains(LARGER_ANSWERS, name), full)
        assert found.sign() == 0 and found.seeds == 3
        told.append(f"{100 * found.mean:.1f} ({100 * found.low:.1f} to {100 * found.high:+.1f})")
    ladder, ls, whole, unrotated = told
    ladder = ladder.replace(" (", " points (", 1)
    assert f"ladder {ladder}, LS {ls}, one full layer in six {whole}, unrotated LS {unrotated}." in TEXT


def test_chains_far_past_the_training_are_what_was_measured():
    ladder, whole = (chains(LARGER_ANSWERS, name, "16384") for name in ("ladder-nope", "interleave-5-1-nope"))
    found, kept = paired(whole, ladder), paired(whole, chains(LARGER_ANSWERS, "interleave-5-1-nope"))
    assert f"about as many are answered at 16,384 tokens as at 2,048 ({points(kept)})" in TEXT and kept.sign() == 0
    assert f"with each seed more than by the ladder ({points(found)}, undecided)" in TEXT and min(found.values) > 0
    slowed = LARGER_ANSWERS["full"]["shares_yarn"]["variables"]
    for length, shares in slowed.items():
        full = dict(zip(LARGER_ANSWERS["full"]["seeds_of_shares_yarn"][length], shares, strict=True))
        beside = paired(chains(LARGER_ANSWERS, "ladder-nope", length), full)
        assert max(beside.values) < 0 and beside.sign() == 0
        assert length != "16384" or f"with each seed (at 16,384: {points(beside)}, undecided)" in TEXT
    ls = chains(LARGER_ANSWERS, "ls1-w128-nope", "16384")
    assert f"unrotated LS with seed 2 ({100 * full[2]:.0f} against {100 * ls[2]:.0f} %)" in TEXT and full[2] < ls[2]


def test_losses_of_a_larger_model_are_what_was_measured():
    full, lines = LARGER_LOSSES["full"], []
    for words, name in LARGER.items():
        row = LARGER_LOSSES[name]
        pairs = [comparison.difference(row, full), paired(training_losses(row), training_losses(full))]
        assert all(pair.seeds == 3 for pair in pairs)
        near, far = (statistics.fmean(row["beyond"]["losses"][place]) for place in ("1 to 2,048", "8,193 to 16,384"))
        slowed = row.get("beyond_yarn", {}).get("losses", {}).get("8,193 to 16,384")
        past = [f"{far - near:+.2f}", f"{statistics.fmean(slowed) - near:+.2f}" if slowed else ""]
        losses = ["0", "0"] if row is full else map(with_interval, pairs)
        lines.append(line_of([words, f"{100 * row['cache_bytes'] / full['cache_bytes']:.0f} %", *losses, *past]))
    assert [line for line in lines if line not in PAGE] == []
    means = [LARGER_LOSSES[name]["final_loss"] for name in LARGER.values()]
    assert means == sorted(means)


def test_a_second_training_with_the_same_seed_ended_as_the_reading_says():
    first, second = (
        {(curve["variant"], curve["seed"]): curve["validation"][-1][1] for curve in rows["curves"]}
        for rows in (json.loads((RESULTS / f"reach-30m{name}.json").read_text()) for name in ("", "-again"))
    )
    text = " ".join((RESULTS / "reach-30m.reading.md").read_text().split())
    changed = {name: (loss, first[name, seed]) for (name, seed), loss in second.items() if loss != first[name, seed]}
    words = [f"{loss:.4f} instead of {before:.4f}" for loss, before in (changed["full"], changed["ls1-w128"])]
    assert f"Full attention ends at {words[0]} and rotated LS at {words[1]}" in text
    assert len(second) == 5 and len(changed) == 2
    own = first | second
    leads = [
        paired({seed: own["full", seed] for seed in range(3)}, {seed: own[name, seed] for seed in range(3)})
        for name in ("ladder-nope", "interleave-5-1-nope", "ls1-w128-nope")
    ]
    plans = ("the ladder", "one full layer in six", "unrotated LS")
    told = [
        f"{lead.mean:.3f} for {plan} ({lead.low:.3f} to {lead.high:.3f})"
        for lead, plan in zip(leads, plans, strict=True)
    ]
    assert f"are {told[0]}, {told[1]} and {told[2]}" in text and all(lead.sign() > 0 for lead in leads)


def test_answers_of_a_larger_model_are_what_was_measured():
    lines = []
    for words, name in LARGER.items():
        asked = LARGER_ANSWERS[name]
        shares = (
            asked.get(key, {}).get("variables", {}).get(length, ())
            for key, length in (("shares", "2048"), ("shares", "16384"), ("shares_yarn", "16384"))
        )
        answers = (", ".join(f"{100 * share:.0f}" for share in found) for found in shares)
        assert asked["seeds"] == [0, 1, 2]
        lines.append(line_of([words, *answers]))
    assert [line for line in lines if line not in PAGE] == []


def test_what_the_page_says_of_text_that_is_read_again_is_what_was_measured():
    found = {
        name: paired(training_losses(LOSSES[name]), training_losses(LOSSES["full"])) for name in reach_modern.MIXED
    }
    assert len(found) == 9 and all(pair.sign() < 0 for pair in found.values())
    assert sum(comparison.difference(LOSSES[name], LOSSES["full"]).sign() < 0 for name in found) == 4
    ls = found["ls1-w64"]
    words = f"LS by {-ls.mean:.3f} ({-ls.high:.3f} to {-ls.low:.3f}); on other books four of nine are, and the rest are"
    assert f"{words} undecided." in TEXT


def test_what_unrotated_plans_gain_more_on_their_own_text_is_what_was_measured():
    def more(rows, name):
        """Of the lead over full attention on the training text, what there is not on the other."""
        row, full = rows[name], rows["full"]
        pairs = [(training_losses(of), dict(zip(of["seeds"], of["final_losses"], strict=True))) for of in (full, row)]
        theirs, mine = ({seed: own[seed] - other[seed] for seed in own} for own, other in pairs)
        return paired(theirs, mine)

    for rows, words in ((LOSSES, "by {:.3f} nats, with"), (LARGER_LOSSES, "with 27.5M parameters by {:.3f}.")):
        found = {name: more(rows, name) for name in rows if name.endswith("-nope") and name != "full-nope"}
        assert [name for name, pair in found.items() if pair.sign() > 0] == ["ladder-nope"]
        assert words.format(found["ladder-nope"].mean) in TEXT


def test_leads_of_a_larger_model_in_the_course_of_its_training_are_what_was_measured():
    data = pages.load(load("reach-30m"))
    for name, words in (("ladder-nope", "for the ladder"), ("ls1-w128-nope", "for LS.")):
        gaps = measures.gaps(data, "full", name)
        assert f"from {-gaps[572]:.3f} to {-gaps[2290]:.3f}" in TEXT.replace("falls from", "from") and words in TEXT


def test_seeds_of_the_answers_are_those_that_the_page_names():
    for row in ANSWERS.values():
        far = row["seeds_of_shares"].get("16384", [])
        assert far == [seed for seed in row["seeds"] if seed in (2, 3)]
        assert "shares_yarn" not in row or row["seeds_of_shares_yarn"]["16384"] == [3]
    chains = ANSWERS["full"]["shares"]["variables"]["2048"]
    said = f"full attention has {right(chains[:3])} with seeds 0 to 2 and {right(chains[3:])} with seed 3."
    assert said in TEXT


def test_what_the_page_says_of_yarn_is_what_was_measured():
    plans = ("full", "ls1-w64", "ladder")
    kinds = [shares for name in plans for shares in ANSWERS[name]["shares_yarn"].items()]
    found = [share for kind, lengths in kinds if kind.startswith("needle") for share in lengths["16384"]]
    assert f"found {100 * min(found):.0f} to {100 * max(found):.0f} % of the needles at 16,384 tokens" in TEXT
    full, ls = (
        LOSSES[name]["beyond_yarn"]["losses"]["1 to 2,048"][-1] - LOSSES[name]["beyond"]["losses"]["1 to 2,048"][-1]
        for name in plans[:2]
    )
    assert f"at the first 2,048 positions rose by {full:.2f}, that of LS by {ls:.2f} (one seed)" in TEXT


def test_what_small_models_do_at_other_rates_is_what_was_measured():
    found = {}
    for row in json.loads((ROOT / "docs" / "results" / "small-rates.json").read_text())["rows"]:
        found.setdefault((row["plan"], row["rate"]), {})[row["seed"]] = row["loss"]
    assert {rate: len(losses) for (_, rate), losses in found.items()} == {3e-3: 3, 6e-3: 3, 1.2e-2: 1}
    means = {case: statistics.fmean(losses.values()) for case, losses in found.items()}
    for plan, (best, second) in {"full": (6e-3, 3e-3), "ladder-nope": (3e-3, 6e-3)}.items():
        assert means[plan, best] < means[plan, second] < means[plan, 1.2e-2]
        assert found[plan, 1.2e-2][0] > max(found[plan, rate][0] for rate in (best, second))

    def beside_full(rate, of_full):
        return paired(found["ladder-nope", rate], found["full", of_full])

    best, low, high = beside_full(3e-3, 6e-3), beside_full(3e-3, 3e-3), beside_full(6e-3, 6e-3)
    assert all(value < 0 for value in low.values) and sum(value < 0 for value in high.values) == 1
    assert best.sign() < 0
    assert f"lower by {-best.mean:.3f} nats per byte ({-best.high:.3f} to {-best.low:.3f}, three seeds)" in TEXT
    both = f"({low.mean:+.3f}, {low.low:+.3f} to {low.high:+.3f})"
    assert f"With 3e-3 for both it is ahead with each seed {both}" in TEXT
    assert f"with one of three ({high.mean:+.3f}, {high.low:+.3f} to {high.high:+.3f})" in TEXT
