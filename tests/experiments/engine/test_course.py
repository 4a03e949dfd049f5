"""How far variants are apart in the course of a training, on text that they have seen and on text that is new."""

import pytest

from experiments.engine import course
from experiments.engine.measures import outcomes

from ...report.synthetic import eval_record, run_record, train_record, write_lines


@pytest.mark.parametrize(("losses", "mean"), [((9.0,) * 38 + (2.0, 4.0), 3.0), ((2.0, None), None), ((), None)])
def test_training_losses_are_those_at_the_end_of_the_runs(tmp_path, losses, mean):
    records = [
        run_record("a-0", variant="a"),
        *(train_record(step, loss) for step, loss in enumerate(losses, 1)),
        eval_record(40, 2.5),
        {"kind": "end", "step": 40, "status": "finished"},
    ]
    write_lines(tmp_path / "a-0", records)
    assert course.parts("a", outcomes(tmp_path)) == {"training_losses": [mean]}


def made(**training):
    """Rows with these training losses of three seeds, and full attention's."""
    losses = {"full": (3.0, 3.25, 3.5)} | training
    curves = [
        {"variant": name, "seed": seed, "validation": [[step, 4.0 + seed - (name != "full") / 8] for step in STEPS]}
        for name in losses
        for seed in range(3)
    ]
    rows = [
        {"variant": name, "seeds": [0, 1, 2], "steps": [80] * 3, "training_losses": list(found)}
        for name, found in losses.items()
    ]
    return {"rows": rows, "curves": curves}


STEPS = range(10, 90, 10)
QUARTERS = " | ".join(f"validation, step {step}" for step in (20, 40, 60, 80))


def test_table_has_the_quarters_of_the_training_and_its_text():
    data = made(a=(2.75, 3.0, 3.25), b=(2.75, 3.25, 3.5))
    text = course.table(data, "full", ["b", "a", "full"])
    assert f"| plan | {QUARTERS} | training text | 95 % interval |" in text
    assert "| a | -0.125 | -0.125 | -0.125 | -0.125 | -0.250 | -0.250 to -0.250 |" in text
    assert "| b | -0.125 | -0.125 | -0.125 | -0.125 | -0.083 | -0.442 to +0.275 |" in text
    assert text.index("| b |") < text.index("| a |") and "last 5 % of the steps" in text


def test_what_was_not_measured_is_left_empty():
    data = made(a=(2.75, None, 3.25), b=(2.75, 3.0, 3.25))
    data["rows"][2]["steps"] = [80, 80, 70]
    data["curves"] = [
        {**curve, "validation": curve["validation"][: 6 if curve["variant"] == "b" else None]}
        for curve in data["curves"]
    ]
    text = course.table(data, "full", ["a", "b"], what="variant")
    assert f"| variant | {QUARTERS} |" in text
    assert "| a | -0.125 | -0.125 | -0.125 | -0.125 |  |  |" in text
    assert "| b | -0.125 | -0.125 | -0.125 |  |  |  |" in text


def test_older_data_have_no_column_of_the_training_text():
    data = made(a=(2.75, 3.0, 3.25))
    for row in data["rows"]:
        del row["training_losses"]
    assert course.table(data, "full", ["a", "full"]).endswith("| a | -0.125 | -0.125 | -0.125 | -0.125 |\n")
    assert (
        course.table(data, "full", ["full"]) == course.table({"rows": data["rows"], "curves": []}, "full", ["a"]) == ""
    )


def test_a_lead_is_over_the_same_seed_at_the_same_step():
    runs = {("full", 0): [[10, 4.0], [20, 3.0]], ("full", 1): [[10, 5.0], [20, None]], ("a", 0): [[10, 3.5], [15, 3.0]]}
    runs |= {("a", 1): [[10, 4.75], [20, 3.0]], ("a", 2): [[10, 9.0]]}
    data = {"curves": [{"variant": name, "seed": seed, "validation": line} for (name, seed), line in runs.items()]}
    found = {
        (lead["seed"], lead["step"]): lead["loss"] for lead in course.leads(data, "full") if lead["variant"] == "a"
    }
    assert found == {(0, 10): -0.5, (1, 10): -0.25}
    assert course.leads(data, "plain") == []
