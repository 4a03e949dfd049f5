"""Plans on text that is read once, and on a part of it that is read again."""

from dataclasses import replace

import pytest

from experiments import load, reach, reach_once
from experiments.engine import child
from experiments.engine.evidence import FAILS, HOLDS, ONCE, PARTLY, UNDECIDED
from experiments.engine.records import Options
from experiments.engine.sweep import plan_sweep

from .made_up import planned

EXPERIMENT = load("reach-once")
BOOKS = 48_297_674
"""Tokens of the training text."""


def test_a_plan_is_trained_twice_and_only_the_text_differs(tmp_path):
    configs = planned(EXPERIMENT, tmp_path)
    assert len(configs) == 2 * len(reach_once.PLANS)
    for name in reach_once.PLANS:
        once, again = configs[name], configs[f"{name}-again"]
        assert (once.data.share, again.data.share) == (1.0, 0.25)
        same = replace(again, data=once.data, run=replace(again.run, out=once.run.out, variant=once.run.variant))
        assert same == once
        sequences = once.run.steps * once.data.batch_size
        assert sequences <= BOOKS // once.model.context - 1  # the second pass is not begun
        assert 3.9 < sequences / (BOOKS * again.data.share // again.model.context - 1) < 4


def found(claim, *, seeds=3, **gains):
    """The verdict where plans are so much below the loss of full attention with the same text, nearly alike from seed
    to seed; full attention is 0.5 higher where text is read again."""
    rows = []
    for name in reach_once.PLANS:
        for end in ("", reach_once.AGAIN):
            gain = gains.get(f"{name}{end}".replace("-", "_"), 0.0)
            losses = [4.0 + 0.5 * bool(end) - gain + 0.001 * seed * (len(name) + len(end)) for seed in range(seeds)]
            row = {"variant": f"{name}{end}", "seeds": list(range(seeds)), "steps": [9] * seeds}
            rows.append(row | {"final_losses": losses})
    return EXPERIMENT.findings({"rows": rows})[claim]


def every(gain, end="", names=reach_once.MIXED):
    return dict.fromkeys((f"{name}{end}".replace("-", "_") for name in names), gain)


def test_only_text_that_is_read_once_decides_who_is_ahead_there():
    assert found("mixed", **every(0.1)).verdict == HOLDS
    assert found("mixed", **every(-0.1) | every(0.1, "-again")).verdict == FAILS
    assert found("nope", **every(0.1, names=reach_once.UNTURNED)).verdict == HOLDS
    assert found("nope", **every(0.1, "-again", names=reach_once.UNTURNED)).verdict == UNDECIDED
    assert found("mixed", seeds=1, **every(0.1)).verdict == ONCE[HOLDS]


@pytest.mark.parametrize(
    ("once", "again", "verdict"), [(0.1, 0.05, HOLDS), (0.1, 0.15, FAILS), (0.1, 0.1, UNDECIDED), (-0.1, -0.15, HOLDS)]
)
def test_a_lead_is_smaller_where_text_is_read_again_whatever_full_attention_has_there(once, again, verdict):
    assert found("again", **every(once) | every(again, "-again")).verdict == verdict


def test_plans_are_judged_one_by_one():
    gains = every(0.1) | every(0.05, "-again") | {"ladder_again": 0.2}
    assert found("again", **gains).verdict == PARTLY
    assert "; the other way round: ladder (" in found("again", **gains).ours


def test_unrotated_heads_gain_more_where_their_lead_over_the_rotated_plan_is_larger():
    gains = every(0.05, names=reach_once.UNTURNED) | every(0.1, "-again", names=reach_once.UNTURNED)
    assert found("nope-again", **gains).verdict == HOLDS
    assert found("nope-again", **every(0.1, "-again")).verdict == UNDECIDED  # the rotated plans gain as much
    rows = [{"variant": "full", "seeds": [0], "steps": [9], "final_losses": [4.0]}]
    assert "again" not in EXPERIMENT.findings({"rows": rows})  # not run yet


def test_each_kind_of_run_is_compared_with_its_own_full_attention(corpus, tmp_path):
    names = ("full-again", "ladder-nope", "ladder-nope-again")
    options = Options(out=tmp_path, variants=names, quick=True, steps=1, device="cpu")
    for trial in plan_sweep(EXPERIMENT, options, data=corpus):
        child.train_and_look(trial.config, also=reach.whole_validation)
    data = EXPERIMENT.collect(tmp_path)
    text = EXPERIMENT.table(data)
    once, again = text.split("A quarter of the text, read four times:")
    assert once.startswith("All of the text, read once:") and "| full |" not in once and "| ladder-nope | 1 |" in once
    full, ladder = (row["final_loss"] for row in data["rows"] if row["variant"].endswith("-again"))
    assert "| full | 1 |" in again and f"| {ladder:.4f} | {ladder - full:+.4f} |" in again
    assert "in the course of the training" in EXPERIMENT.more(data)
    EXPERIMENT.figure(data).to_dict()
