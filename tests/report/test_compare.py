"""Comparisons: what is finished, the summary, and the verb from end to end."""

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from longshort.cli import app
from longshort.files import write_atomically
from longshort.report import ReportError, live, page
from longshort.report.live import live_table, result_table, running_table
from longshort.report.summary import summarize
from longshort.runs import METRICS, Reader
from longshort.train import ConfigError, TrainConfig
from longshort.train.sweeps import processes as runner
from longshort.train.sweeps.trials import Trial, check_steps, plan_trials

from .synthetic import eval_record, run_record, spike_record, train_record, write_lines


def made_up_trial(config, folder, variant, seed, validation, *, logit=2.0, spikes=0, measured=True):
    (trial,) = plan_trials(config, [variant], [seed], folder)
    speed = {"tokens_per_second": 100.0 * (seed + 1)}
    logits = {"logit_max": [[logit]], "logit_min": [[-1]]} if measured else {}
    lines = [run_record(layers=1, heads=1, parameters=10, config=trial.config.to_dict(), seed=seed)]
    lines += [train_record(1, 3.0, **speed), train_record(4, 3.0, **speed, **logits)]
    lines += [spike_record(step, 9.0) for step in range(2, 2 + spikes)]
    lines += [eval_record(step, loss) for step, loss in enumerate(validation, 1)]
    lines += [{"kind": "end", "step": 4, "status": "finished"}]
    write_atomically(trial.out / METRICS, "".join(json.dumps(line) + "\n" for line in lines))
    return trial


def test_a_row_has_means_over_seeds_and_the_spread_of_the_last_loss(config, tmp_path):
    trials = [
        made_up_trial(config, tmp_path, "ls", 0, [2.0, 1.0, 1.5], logit=7.0, spikes=1),
        made_up_trial(config, tmp_path, "ls", 1, [2.5], logit=3.0, spikes=2),
    ]
    (row,) = summarize(trials)
    assert (row["variant"], row["seeds"], row["parameters"], row["spikes"]) == ("ls", 2, 10, 3)
    assert row["validation_loss"] == pytest.approx(2.0) and row["spread"] == pytest.approx(1.0)
    assert row["best_loss"] == pytest.approx(1.75)
    assert row["perplexity"] == pytest.approx(8.332, abs=1e-3)  # as on the page
    assert row["max_logit"] == 7.0
    assert row["tokens_per_second"] == pytest.approx(150.0)


def test_a_diverged_seed_leaves_no_mean_and_is_shown_as_not_finite(config, tmp_path):
    trials = [
        made_up_trial(config, tmp_path, "ls", 0, [2.0]),
        made_up_trial(config, tmp_path, "ls", 1, [2.0, None], logit=None),
    ]
    (row,) = summarize(trials)
    assert row["validation_loss"] is row["spread"] is row["max_logit"] is None
    assert row["best_loss"] == pytest.approx(2.0)
    table = result_table([row])
    assert "nan" in list(table.columns[3].cells) and list(table.columns[5].cells) == ["nan"]


def test_logits_that_were_not_recorded_are_not_shown_as_not_finite(config, tmp_path):
    (row,) = summarize([made_up_trial(config, tmp_path, "ls", 0, [2.0], measured=False)])
    assert row["max_logit"] is None and list(result_table([row]).columns[5].cells) == ["-"]


def test_a_trial_is_finished_when_its_log_ends_at_its_last_step_with_its_configuration(config, tmp_path):
    trial = made_up_trial(config, tmp_path, "ls", 0, [2.0])
    assert trial.is_finished
    longer, other = (trial.config.with_overrides([change]) for change in ("run.steps=5", "optimizer.lr=1"))
    assert not Trial("ls", 0, longer).is_finished
    assert not Trial("ls", 0, other).is_finished
    (trial.out / METRICS).write_text("")
    assert not trial.is_finished
    (trial.out / METRICS).unlink()
    assert not trial.is_finished


def test_runs_of_more_steps_than_the_others_are_not_compared(config, tmp_path):
    trial = made_up_trial(config, tmp_path, "ls", 0, [2.0])
    check_steps([trial])
    check_steps([Trial("ls", 0, trial.config.with_overrides(["run.steps=5"]))])  # it is resumed
    fewer = Trial("ls", 0, trial.config.with_overrides(["run.steps=3"]))
    words = "ls-seed0: has taken 4 steps, more than run.steps=3; set run.steps=4 for all"
    with pytest.raises(ConfigError, match=words):
        check_steps([trial, fewer])


def test_the_verb_compares_runs_of_as_many_steps(yaml_file, tmp_path):
    made_up_trial(TrainConfig.load(yaml_file), tmp_path / "out", "ls", 0, [2.0])
    arguments = ["compare", str(yaml_file), "run.steps=3", "--variants", "ls", "--out", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 1 and "has taken 4 steps, more than run.steps=3" in shown.stderr


def test_without_a_terminal_a_run_has_a_line_when_it_has_moved_on(config, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "_PLAIN_SECONDS", 0.0)
    trials, shown = plan_trials(config, ["plain", "ls"], [0], tmp_path), io.StringIO()
    logs = {str(trial.out): Reader(trial.out) for trial in trials}
    with live_table(trials, Console(file=shown)) as watch:
        watch(logs)
        watch(logs)
        write_lines(trials[1].out, [run_record(), train_record(1, 3.25, tokens_per_second=99.0)])
        logs[str(trials[1].out)].update()
        watch(logs)
    steps = config.run.steps
    waiting = [f"{name} seed 0: step 0/{steps}, waiting" for name in ("plain", "ls")]
    *first, last = shown.getvalue().splitlines()
    assert first == waiting and last.startswith(f"ls seed 0: step 1/{steps}, loss 3.25, 99 tokens/s, ")


def test_the_running_table_has_a_row_for_every_trial_from_the_start(config, tmp_path):
    trials = plan_trials(config, ["plain", "ls"], [0], tmp_path)
    assert list(running_table(trials, {}).columns[-1].cells) == ["waiting", "waiting"]
    trial = made_up_trial(config, tmp_path, "ls", 1, [2.0])
    write_lines(trial.out, [run_record(), train_record(2, 3.25, seconds=180, tokens_per_second=1234.5)])
    reader = Reader(trial.out)
    reader.update()
    cells = [next(iter(column.cells)) for column in running_table([trial], {str(trial.out): reader}).columns]
    assert cells == ["ls", "1", "2/4", "3.25", "", "", "1,234", "3:00"]


def test_the_verb_shows_its_table_where_the_packages_for_the_report_are_missing(yaml_file, tmp_path, monkeypatch):
    def drawing():
        raise ReportError("a report needs the package altair")

    made_up_trial(TrainConfig.load(yaml_file), tmp_path, "ls", 0, [2.0])
    monkeypatch.setattr(page, "drawing", drawing)
    arguments = ["compare", str(yaml_file), "run.steps=4", "--variants", "ls", "--out", str(tmp_path)]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 1 and "error: a report needs the package altair" in shown.output
    assert "validation after training" in shown.output and f"wrote {tmp_path / 'comparison.json'}" in shown.output


@pytest.mark.slow
def test_the_verb_trains_every_trial_ends_in_a_table_and_a_report_and_trains_nothing_twice(
    yaml_file, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    arguments = ["compare", str(yaml_file), "--variants", "plain,ls", "--jobs", "2", "--out", str(out)]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    rows = json.loads((out / "comparison.json").read_text())
    assert [row["variant"] for row in rows] == ["plain", "ls"]
    assert all(row["validation_loss"] < 6 for row in rows)
    assert f"wrote {out / 'comparison.json'}" in shown.output
    assert (out / "report.html").stat().st_size > 10_000

    logs = {path: path.read_bytes() for path in out.glob(f"*/{METRICS}")}
    assert len(logs) == 2
    monkeypatch.setattr(runner.subprocess, "Popen", None)
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert {path: path.read_bytes() for path in out.glob(f"*/{METRICS}")} == logs
