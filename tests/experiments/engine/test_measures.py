"""What a run and the runs of a variant are said to have reached."""

import json
import math

import pytest

from experiments import load
from experiments.engine.measures import AFTER, accuracy_row, loss_row, outcomes
from longshort.runs import RunError

from ...report.synthetic import eval_record, logits_of, run_record, train_record, write_lines
from ..made_up import made_up_sweep, rewrite


def found(folder, *losses, seed=0, steps=2, after=None, logit=6.0, status="finished"):
    """A run of variant ls that was evaluated after each step, with these losses."""
    logits = logits_of(logit) if logit else {name: [[None] * 4] * 2 for name in ("logit_max", "logit_min")}
    run = write_lines(
        folder / f"ls-{seed}",
        [
            run_record(f"ls-{seed}", variant="ls", seed=seed),
            *(train_record(step, 2.0, **logits) for step in range(1, steps + 1)),
            *(eval_record(step, loss) for step, loss in enumerate(losses, 1)),
            {"kind": "end", "step": steps, "status": status},
        ],
    )
    if after is not None:
        (run / AFTER).write_text(json.dumps(after))
    return outcomes(folder)[-1]


@pytest.mark.parametrize(
    ("losses", "diverged"), [((2.0, 2.5), False), ((2.0, 2.51), True), ((2.0, None), True), ((None, 2.0), False)]
)
def test_run_diverged_if_its_last_loss_is_far_above_its_best_or_not_finite(tmp_path, losses, diverged):
    assert found(tmp_path, *losses).diverged is diverged


def test_run_diverged_if_its_record_says_so(tmp_path):
    assert found(tmp_path, 2.0, status="diverged").diverged


def test_what_was_written_after_a_run_that_was_resumed_since_does_not_count(tmp_path):
    after = {"largest_logit": 40.0, "test": {"accuracy": 0.75}}
    assert found(tmp_path, 2.0, after=after | {"step": 2}).largest_logit == 40.0
    resumed = found(tmp_path, 2.0, after=after | {"step": 2}, steps=3)
    assert resumed.largest_logit == 6.0 and resumed.accuracy is None


def test_run_that_is_there_twice_is_refused(tmp_path):
    found(tmp_path, 2.0)
    write_lines(tmp_path / "copy", [run_record("copy", variant="ls"), train_record(1, 2.0), eval_record(1, 2.0)])
    with pytest.raises(RunError, match="both are ls with seed 0"):
        outcomes(tmp_path)


def test_a_seed_does_not_stand_for_two_texts_in_one_folder(tmp_path):
    experiment = load("reach-30m")
    folder = made_up_sweep(experiment, tmp_path, seeds=(0, 1), variants=("full", "ls1-w128"), steps=20)

    def read(run, text):
        path = folder / run / "after.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"vocabulary": text}))

    read("full-seed0", "a")
    read("full-seed1", "b")
    read("ls1-w128-seed1", "b")
    assert experiment.collect(folder)["provenance"]["vocabularies_by_seed"] == {"0": "a", "1": "b"}
    read("ls1-w128-seed0", "b")
    with pytest.raises(RunError, match=r"ls1-w128-seed0: seed 0 has another text here .*\(vocabulary b, got a too\)"):
        experiment.collect(folder)
    read("ls1-w128-seed0", "a")
    rewrite(folder / "full-seed0", lambda record: record | {"texts": {"train": "sha256:1"}})
    rewrite(folder / "ls1-w128-seed0", lambda record: record | {"texts": {"train": "sha256:2"}})
    with pytest.raises(RunError, match=r"\(text sha256:2, got sha256:1 too\)"):
        experiment.collect(folder)


def test_loss_of_a_variant_is_a_mean_over_all_its_seeds_or_none(tmp_path):
    found(tmp_path, 2.0, 1.0)
    found(tmp_path, 4.0, 3.0, seed=1, logit=8.0)
    row = loss_row("ls", outcomes(tmp_path))
    assert (row["final_loss"], row["spread"], row["max_logit"], row["max_logits"]) == (2.0, 2.0, 8.0, [6.0, 8.0])
    assert row["best_perplexity"] == pytest.approx(math.exp(2.0))
    found(tmp_path, 4.0, None, seed=2, logit=None)
    row = loss_row("ls", outcomes(tmp_path))
    assert row["final_loss"] is row["spread"] is row["final_perplexity"] is None
    assert row["final_losses"] == [1.0, 3.0, None]
    assert (row["max_logit"], row["max_logits"], row["logits_lost"]) == (8.0, [6.0, 8.0, None], 1)


def test_accuracy_of_a_variant_is_a_mean_over_the_seeds_that_have_one(tmp_path):
    for seed, share in enumerate((0.5, 0.75)):
        found(tmp_path, 2.0, seed=seed, after={"step": 2, "test": {"accuracy": share}})
    found(tmp_path, 2.0, seed=2)
    row = accuracy_row("ls", outcomes(tmp_path))
    assert (row["accuracy"], row["accuracies"], row["seeds"]) == (0.625, [0.5, 0.75], [0, 1, 2])
