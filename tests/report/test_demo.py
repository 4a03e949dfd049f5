"""What the demo says of its own numbers."""

import pytest

from longshort.report import ReportError
from longshort.report.demo import VARIANTS, demo_config, remark, run_demo
from longshort.report.demo import _sample as sample_of
from longshort.runs import load_run
from longshort.train.sweeps.trials import plan_trials

from .synthetic import eval_record, run_record, train_record, write_lines


def rows(plain, ls, loss=2.3):
    common = {"tokens_per_second": 1000.0}
    return [
        {"variant": "plain", "max_logit": plain, "validation_loss": loss, **common},
        {"variant": "ls", "max_logit": ls, "validation_loss": 2.0, **common},
    ]


def test_remark_says_that_logits_do_not_explode_at_this_size_and_where_they_do():
    said = remark(rows(13.9, 20.1))
    assert "logits do not explode: the largest |logit| is 13.9 for plain and 20.1 for ls" in said
    assert "validation loss (2.000 for ls and 2.300 for plain)" in said
    assert "docs/results/explosion.md" in said


def test_remark_of_logits_that_explode_does_not_say_otherwise():
    assert "do not explode" not in remark(rows(812.0, 20.1))


@pytest.mark.parametrize("given", [(None, 20.1), (13.9, None), (13.9, 20.1, None)])
def test_remark_of_numbers_that_are_not_finite_compares_nothing(given):
    assert remark(rows(*given)).startswith("Some logits or losses are not finite")


def test_a_demo_of_more_steps_shows_what_its_last_weights_write(tmp_path, monkeypatch):
    monkeypatch.setattr("longshort.report.demo.text_stream", lambda *given, **options: iter(["pass"]))
    (trial, _) = plan_trials(demo_config(steps=6), VARIANTS, (0,), tmp_path)
    records = [run_record("plain"), train_record(2, 2.0), {"kind": "sample", "step": 2, "text": "def old"}]
    write_lines(trial.out, [*records, {"kind": "resume", "step": 2}, train_record(6, 1.0)])
    assert [sample_of(trial), sample_of(trial)] == ["def pass"] * 2
    assert [sample.step for sample in load_run(trial.out).samples] == [2, 6]


def test_a_model_that_diverged_before_its_first_checkpoint_writes_no_sample_and_the_rest_is_there(
    tmp_path, monkeypatch
):
    def report(*given, **options):
        raise ReportError("not drawn")

    monkeypatch.setattr("longshort.report.write_report", report)
    monkeypatch.setattr("longshort.report.demo.default_data", lambda: None)
    monkeypatch.setattr("longshort.report.demo.text_stream", lambda *given, **options: iter(["pass"]))
    trials = plan_trials(demo_config(steps=6), VARIANTS, (0,), tmp_path)
    for trial, loss, status in zip(trials, (None, 2.0), ("diverged", "finished"), strict=True):
        end = {"kind": "end", "step": 6, "seconds": 6.0, "status": status}
        header = run_record(trial.out.name, config=trial.config.to_dict())
        write_lines(trial.out, [header, train_record(6, loss), eval_record(6, loss), end])
    result = run_demo(trials, tmp_path, watch=lambda readers: None, message=lambda text: None)
    assert result.samples == {"ls": "def pass"}
    assert [row["validation_loss"] for row in result.rows] == [None, 2.0]
