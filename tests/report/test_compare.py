"""Comparisons: the plan, the summary, and the verb from end to end."""

import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from longshort.cli import app
from longshort.files import write_atomically
from longshort.report import live
from longshort.report.compare import Arm, plan_arms, summarize
from longshort.report.live import live_table, result_table, running_table
from longshort.train import ConfigError
from longshort.train import processes as runner
from longshort.train.log import METRICS


def test_arms_go_seed_by_seed_so_that_an_interruption_leaves_whole_seeds(config, tmp_path):
    arms = plan_arms(config, ["plain", "ls"], (3, 4), tmp_path)
    assert [(arm.variant, arm.seed) for arm in arms] == [("plain", 3), ("ls", 3), ("plain", 4), ("ls", 4)]
    assert [arm.out.name for arm in arms] == ["plain-seed3", "ls-seed3", "plain-seed4", "ls-seed4"]
    assert all(arm.config.run.seed == arm.seed and arm.config.run.variant == arm.variant for arm in arms)


def test_arms_differ_in_nothing_but_the_variant(config, tmp_path):
    plain, ls = (arm.config for arm in plan_arms(config, ["plain", "ls"], [0], tmp_path))
    assert (plain.data, plain.optimizer, plain.schedule) == (ls.data, ls.optimizer, ls.schedule)
    assert plain.run.steps == ls.run.steps


def test_a_variant_named_twice_is_run_once(config, tmp_path):
    assert len(plan_arms(config, ["plain", "ls", "plain"], [0], tmp_path)) == 2


@pytest.mark.parametrize("variants", [["plain", "pain"], []])
def test_unknown_variants_are_an_error_that_lists_the_known_ones(config, tmp_path, variants):
    with pytest.raises(ConfigError, match=r"variants must be among plain, ls, .*, got (pain|none)"):
        plan_arms(config, variants, [0], tmp_path)


def made_up_arm(config, folder, variant, seed, validation, *, logit=2.0, spikes=0):
    (arm,) = plan_arms(config, [variant], [seed], folder)
    lines = [{"kind": "run", "parameters": 10, "config": arm.config.to_dict()}]
    lines += [
        {"kind": "train", "step": 1, "loss": 3.0, "tokens_per_second": 100.0 * (seed + 1)},
        {
            "kind": "train",
            "step": 4,
            "tokens_per_second": 100.0 * (seed + 1),
            "logit_max": [[logit]],
            "logit_min": [[-1]],
        },
    ]
    lines += [{"kind": "spike", "step": 2}] * spikes
    lines += [{"kind": "eval", "step": step, "loss": loss} for step, loss in enumerate(validation, 1)]
    lines += [{"kind": "end", "step": 4, "status": "finished"}]
    write_atomically(arm.out / METRICS, "".join(json.dumps(line) + "\n" for line in lines))
    return arm


def test_a_row_has_means_over_seeds_and_the_spread_of_the_last_loss(config, tmp_path):
    arms = [
        made_up_arm(config, tmp_path, "ls", 0, [2.0, 1.0, 1.5], logit=7.0, spikes=1),
        made_up_arm(config, tmp_path, "ls", 1, [2.5], logit=3.0, spikes=2),
    ]
    (row,) = summarize(arms)
    assert (row["variant"], row["seeds"], row["parameters"], row["spikes"]) == ("ls", 2, 10, 3)
    assert row["validation_loss"] == pytest.approx(2.0) and row["spread"] == pytest.approx(1.0)
    assert row["best_loss"] == pytest.approx(1.75)
    assert row["perplexity"] == pytest.approx(7.389, abs=1e-3)
    assert row["max_logit"] == 7.0
    assert row["tokens_per_second"] == pytest.approx(150.0)


def test_a_diverged_seed_leaves_no_mean_and_is_shown_as_not_finite(config, tmp_path):
    arms = [
        made_up_arm(config, tmp_path, "ls", 0, [2.0]),
        made_up_arm(config, tmp_path, "ls", 1, [2.0, None], logit=None),
    ]
    (row,) = summarize(arms)
    assert row["validation_loss"] is row["spread"] is row["max_logit"] is None
    assert row["best_loss"] == pytest.approx(2.0)
    assert "not finite" in list(result_table([row]).columns[3].cells)


def test_an_arm_is_finished_when_its_log_ends_at_its_last_step_with_its_configuration(config, tmp_path):
    arm = made_up_arm(config, tmp_path, "ls", 0, [2.0])
    assert arm.is_finished
    longer, other = (arm.config.with_overrides([change]) for change in ("run.steps=5", "optimizer.lr=1"))
    assert not Arm("ls", 0, longer).is_finished
    assert not Arm("ls", 0, other).is_finished
    (arm.out / METRICS).write_text("")
    assert not arm.is_finished
    (arm.out / METRICS).unlink()
    assert not arm.is_finished


def test_without_a_terminal_a_run_has_a_line_when_it_has_moved_on(config, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "_PLAIN_SECONDS", 0.0)
    arms, shown = plan_arms(config, ["plain", "ls"], [0], tmp_path), io.StringIO()
    logs = {str(arm.out): runner.Follower(arm.out) for arm in arms}
    with live_table(arms, Console(file=shown)) as watch:
        watch(logs)
        watch(logs)
        logs[str(arms[1].out)].latest["train"] = {"step": 1, "loss": 3.25, "seconds": 1, "tokens_per_second": 99.0}
        watch(logs)
    steps = config.run.steps
    waiting = [f"{name} seed 0: step 0/{steps}, waiting" for name in ("plain", "ls")]
    *first, last = shown.getvalue().splitlines()
    assert first == waiting and last.startswith(f"ls seed 0: step 1/{steps}, loss 3.25, 99 tokens/s, ")


def test_the_running_table_has_a_row_for_every_arm_from_the_start(config, tmp_path):
    arms = plan_arms(config, ["plain", "ls"], [0], tmp_path)
    assert list(running_table(arms, {}).columns[-1].cells) == ["waiting", "waiting"]
    arm = made_up_arm(config, tmp_path, "ls", 1, [2.0])
    write_atomically(
        arm.out / METRICS,
        '{"kind": "train", "step": 2, "loss": 3.25, "seconds": 180, "tokens_per_second": 1234.5}\n',
    )
    follower = runner.Follower(arm.out)
    follower.update()
    cells = [next(iter(column.cells)) for column in running_table([arm], {str(arm.out): follower}).columns]
    assert cells == ["ls", "1", "2/4", "3.25", "", "", "1,234", "3:00"]


def test_the_verb_trains_every_arm_ends_in_a_table_and_a_report_and_trains_nothing_twice(
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
