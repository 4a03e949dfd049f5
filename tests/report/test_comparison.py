"""The numbers and the sentences of a report."""

import math

import pytest

from longshort.report import comparison
from longshort.report.comparison import Spread
from longshort.runs import load_run, load_runs

from .synthetic import eval_record, logits_of, run_record, spike_record, train_record, write_lines

END = {"kind": "end", "step": 4, "seconds": 4.0, "status": "finished"}


def variants_of(tmp_path, runs):
    """`runs`: {variant: [records of each seed]}"""
    folders = []
    for variant, seeds in runs.items():
        for seed, records in enumerate(seeds):
            head = run_record(f"{variant}-{seed}", variant=variant, seed=seed)
            folders.append(write_lines(tmp_path / f"{variant}-{seed}", [head, *records]))
    return comparison.group(load_runs(folders))


def seed(*losses, steps=4, logit=5.0, spikes=0):
    records = [train_record(step, 3.0, **logits_of(logit)) for step in range(1, steps + 1)]
    records += [eval_record(step, loss) for step, loss in enumerate(losses, start=1)]
    return [*records, *(spike_record(step, 9.0) for step in range(1, spikes + 1)), END]


def test_spread_over_seeds_is_mean_lowest_and_highest(tmp_path):
    (variant,) = variants_of(tmp_path, {"ls": [seed(2.0, 1.5), seed(1.0, 2.5)]})
    assert variant.spread("final_loss") == Spread(2.0, 1.5, 2.5, 2, 0)
    assert variant.spread("best_loss") == Spread(1.25, 1.0, 1.5, 2, 0)
    perplexity = variant.spread("final_perplexity")
    assert perplexity.mean == pytest.approx((math.exp(1.5) + math.exp(2.5)) / 2)


def test_largest_logit_speed_and_spikes(tmp_path):
    (variant,) = variants_of(tmp_path, {"ls": [seed(2.0, logit=4.0, spikes=1), seed(2.0, logit=8.0, spikes=2)]})
    assert variant.spread("largest_logit") == Spread(6.0, 4.0, 8.0, 2, 0)
    assert variant.spread("speed").mean == 4096
    assert variant.spikes == 3


def test_what_was_not_finite_is_counted_and_not_averaged(tmp_path):
    (variant,) = variants_of(tmp_path, {"plain": [seed(2.0), seed(None)]})
    assert variant.spread("final_loss") == Spread(2.0, 2.0, 2.0, 1, 1)


def test_a_note_says_which_runs_had_logits_that_were_not_finite(tmp_path):
    overflowed = logits_of(9.0)
    overflowed["logit_max"][0][0] = None
    (variant,) = variants_of(tmp_path, {"ls": [seed(2.0), [*seed(2.0)[:-1], train_record(5, 3.0, **overflowed)]]})
    assert variant.spread("largest_logit") == Spread(7.0, 5.0, 9.0, 2, 0)
    (note,) = comparison.notes(variant.runs)
    assert note == "ls-1: some logits were not finite; its max |logit| is the largest finite one"


def test_what_was_not_measured_is_none(tmp_path):
    (variant,) = variants_of(tmp_path, {"plain": [[]]})
    measures = ("final_loss", "best_loss", "training_loss", "largest_logit", "speed")
    assert {name: variant.spread(name) for name in measures} == dict.fromkeys(measures)


def test_summary_names_the_lowest_loss_and_the_separation(tmp_path):
    runs = {"plain": [seed(2.4), seed(2.5)], "ls": [seed(2.0), seed(2.1)]}
    said = comparison.summary(variants_of(tmp_path, runs))
    assert "2 variants, 2 seeds each, trained for 4 steps." in said
    assert "ls has the lowest final validation loss, 2.050 (2.000 to 2.100)" in said
    assert "plain has 2.450 (2.400 to 2.500)." in said
    assert "the range of ls overlaps with no other" in said


@pytest.mark.parametrize(
    ("runs", "caveat"),
    [
        ({"a": [seed(2.0), seed(2.3)], "b": [seed(2.2), seed(2.4)]}, "the range of a overlaps with that of b."),
        ({"a": [seed(2.0)], "b": [seed(2.2)]}, "With one seed, a difference may be chance"),
        ({"a": [seed(2.0)], "b": [seed(2.2, steps=9)]}, "did not reach the same step"),
        ({"a": [seed(2.0)], "b": [seed(None)]}, "b has no finite one."),
        ({"a": [seed(2.0)], "b": [seed()]}, "a has the lowest final validation loss, 2.000, perplexity 7.389. None"),
        ({"a": [seed(None)], "b": [seed(None)]}, "No final validation loss is finite."),
        ({"a": [seed()], "b": [seed()]}, "a has the lowest training loss at the end"),
        ({"a": [[]]}, "No loss was recorded."),
        ({"a": [seed(2.0, spikes=2)]}, "Loss spikes recorded: 2."),
        ({"a": [seed(2.0)[:-1]]}, "Not finished: a-0 (in progress)."),
    ],
)
def test_summary_says_what_limits_it(tmp_path, runs, caveat):
    assert caveat in comparison.summary(variants_of(tmp_path, runs))


def test_summary_of_many_variants_gives_the_ends_only(tmp_path):
    runs = {f"v{i}": [seed(2.0 + i / 10, logit=3.0 + i)] for i in range(7)}
    said = comparison.summary(variants_of(tmp_path, runs))
    assert "The 6 others range from 2.100 (v1) to 2.600 (v6)." in said
    assert "The largest |logit| seen: from 3.00 for v0 to 9.00 for v6." in said


def test_a_run_that_diverged_is_said_with_its_step_and_its_story(tmp_path):
    records = [run_record(), train_record(1, 5.0), train_record(2, None), train_record(3, None)]
    end = {"kind": "end", "step": 3, "seconds": 3.0, "status": "diverged", "since": 2, "reason": "the run diverged ..."}
    told, silent = (
        load_run(write_lines(tmp_path / name, [*records, last]))
        for name, last in (("told", end), ("silent", {"kind": "end", "step": 3, "seconds": 3.0, "status": "finished"}))
    )
    for run in (told, silent):  # files of earlier versions end in "finished"
        assert run.status == "diverged" and run.diverged_at == 2
        text = comparison.summary(comparison.group([run]))
        assert "Diverged: ls at step 2." in text and "No loss spike" not in text and "Not finished" not in text
        assert comparison.group([run])[0].status == "diverged at step 2"
    assert comparison.notes([told]) == ("ls: the run diverged ...",) and comparison.notes([silent]) == ()
