"""How far variants are apart in the course of a training, on text that they have seen and on text that is new."""

import pytest

from experiments import load, reach_once
from experiments.engine import course
from experiments.engine.evidence import FAILS, HOLDS, ONCE, PARTLY, UNDECIDED
from experiments.engine.measures import outcomes

from ...report.synthetic import eval_record, run_record, train_record, write_lines


@pytest.mark.parametrize(
    ("losses", "mean"),
    [
        ({1: 9.0, 36: 9.0, 37: 2.0, 39: 3.0, 40: 4.0}, 3.0),
        ({1: 9.0, 20: 8.0}, None),
        ({39: 2.0, 40: None}, None),
    ],
)
def test_training_loss_is_the_mean_over_the_last_tenth_of_the_steps(tmp_path, losses, mean):
    records = [
        run_record("a-0", variant="a"),
        *(train_record(step, loss) for step, loss in losses.items()),
        eval_record(40, 2.5),
        {"kind": "end", "step": 40, "status": "finished"},
    ]
    write_lines(tmp_path / "a-0", records)
    (outcome,) = outcomes(tmp_path)
    assert course.training_loss(outcome) == mean


def made(**plans):
    """Losses of three seeds on the training text and, as much above them as said, on the validation text."""
    rows = [
        {"variant": "full", "seeds": [0, 1, 2], "training_losses": [3.0, 3.1, 3.2], "final_losses": [3.5, 3.6, 3.7]}
    ]
    for name, gaps in plans.items():
        losses = [3.4 + gap for gap in gaps]
        rows.append({"variant": name, "seeds": [0, 1, 2], "training_losses": [2.9] * 3, "final_losses": losses})
    return {"rows": rows}


def test_what_is_gained_is_carried_over_where_the_whole_interval_is_below_the_bound():
    def verdict(**plans):
        return course.carried_over(made(**plans), other="full", names=tuple(plans), bound=0.01).verdict

    exact, less, wide = (0.0, 0.001, 0.0), (0.03, 0.031, 0.03), (-0.05, 0.0, 0.05)
    assert verdict(a=exact) == HOLDS and verdict(a=exact, b=less) == PARTLY
    assert verdict(a=less) == FAILS and verdict(a=wide) == UNDECIDED
    found = course.carried_over(made(a=less), other="full", names=("a",), bound=0.01)
    assert found.ours == "a: +0.030 nats" and found.seeds == (3,)


def test_plans_that_have_not_run_and_losses_that_were_not_logged_leave_it_open():
    data = made(a=(0.0, 0.0, 0.001))
    assert course.carried_over(data, other="full", names=("a", "b"), bound=0.01) is None
    data["rows"][1]["training_losses"] = [None] * 3
    assert course.carried_over(data, other="full", names=("a",), bound=0.01) is None


def test_table_has_the_quarters_of_the_training_and_its_text():
    data = made(a=(0.0, 0.0, 0.0))
    data["curves"] = [
        {"variant": name, "seed": seed, "validation": [[step, loss + less] for step in range(10, 90, 10)]}
        for name, less in (("full", 0.0), ("a", -0.125))
        for seed, loss in enumerate((4.0, 4.5, 5.0))
    ]
    text = course.table(data, "full", ["a", "full"])
    steps = " | ".join(f"validation, step {step}" for step in (20, 40, 60, 80))
    assert f"| plan | {steps} | training text | 95 % interval |" in text
    assert "| a | -0.125 | -0.125 | -0.125 | -0.125 | -0.200 | -0.448 to +0.048 |" in text
    assert "training losses are those of the last 10 % of the steps" in text
    for row in data["rows"]:
        del row["training_losses"]
    assert course.table(data, "full", ["a", "full"]).endswith("| a | -0.125 | -0.125 | -0.125 | -0.125 |\n")
    assert course.table({"rows": data["rows"], "curves": []}, "full", ["a", "full"]) == ""


def test_claims_of_a_single_pass_are_judged_by_all_their_plans():
    experiment = load("reach-once")
    assert experiment.steps * 32 * 2048 < 48_297_674 - 2 * 2048  # tokens of the books; the second pass is not begun
    rows = [
        {"variant": name, "seeds": [0], "training_losses": [3.6 - gain], "final_losses": [3.8 - gain]}
        for name, gain in (("full", 0.0), *((name, 0.05 + 0.02 * ("nope" in name)) for name in reach_once.MIXED))
    ]
    verdicts = {key: finding.verdict for key, finding in experiment.findings({"rows": rows}).items()}
    assert verdicts == dict.fromkeys(("mixed", "nope", "carried"), ONCE[HOLDS])
    rows[1]["final_losses"] = [3.9]
    assert experiment.findings({"rows": rows})["carried"].verdict == ONCE[PARTLY]
