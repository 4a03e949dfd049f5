"""`longshort plan` on the command line."""

import json
import re

import pytest
from typer.testing import CliRunner

from longshort.cli import app

ORIGINS = ("measured", "assumed", "computed")


def run(*arguments):
    return CliRunner().invoke(app, ["plan", *map(str, arguments)], prog_name="longshort")


def test_every_number_says_where_it_comes_from(tmp_path):
    shown = run("gpt2-small", "--gpus", 4, "--out", tmp_path / "plan.json")
    assert shown.exit_code == 0, shown.output
    lines = [line for line in shown.output.splitlines() if re.match(r"  \S", line)]
    assert len(lines) > 30
    assert [line for line in lines if not any(f" {origin}" in line for origin in ORIGINS)] == []
    written = json.loads((tmp_path / "plan.json").read_text())
    for section in ("memory", "sent", "times", "rates", "machines"):
        assert {figure["origin"] for figure in written[section]} <= set(ORIGINS)
    assert written["gpus"] == 4 and written["fits"]
    assert all(word in shown.output for word in written["settings"])


def test_without_a_number_of_gpus_the_cheapest_is_shown(tmp_path):
    shown = run("tiny", "data.batch_size=1024", "--out", tmp_path / "plan.json")
    assert shown.exit_code == 0, shown.output
    assert "The cheapest, in GPU hours per token:" in shown.output
    written = json.loads((tmp_path / "plan.json").read_text())
    assert list(written["by_gpus"]) == [str(2**power) for power in range(11)]
    costs = [found["gpu_hours_per_billion_tokens"] for found in written["by_gpus"].values() if found]
    assert written["gpu_hours_per_billion_tokens"] <= 1.01 * min(costs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny", "--gpus", "1", "--memory", "2"], "error: nothing fits 1 x h200: the least is "),
        (["tiny", "--gpus", "7"], "error: 7 GPUs cannot share data.batch_size=8 sequences of 512 tokens; "),
        (
            ["tiny", "--gpus", "8", "--fix", "cp=3"],
            "error: 8 GPUs cannot share data.batch_size=8 sequences of 512 tokens as fixed: 512 tokens are not a "
            "multiple of cp=3\n",
        ),
        (["tiny", "--memory", "-1"], "error: --memory must be a number above 0, got -1\n"),
        (["tiny", "--link", "nan"], "error: --link must be a number above 0, got nan\n"),
        (["tiny", "--gpu", "tpu"], "error: gpu must be one of h200, h100, b200, a100, l40s, 4090, got 'tpu'"),
        (
            ["tiny", "parallel.cp=4"],
            "error: parallel.cp must not be set, since a plan chooses it, got 4; use --fix cp=4",
        ),
        (
            ["tiny", "run.accumulate=4"],
            "error: run.accumulate must not be set, since a plan chooses it, got 4; use --fix accumulate=4\n",
        ),
        (
            ["tiny", "run.checkpoint_activations=true"],
            "error: run.checkpoint_activations must not be set, since a plan",
        ),
        (
            ["tiny", "run.checkpoint_activations=attention"],
            "error: run.checkpoint_activations must not be set, since a plan chooses it, got attention; leave it out\n",
        ),
        (["listops"], "error: a plan must be of a language model, got the classifier of task=listops"),
        (["rl-tiny"], "error: a plan must be of training on text, got rl.task=chains"),
        (["tiny", "run.precision=fp32"], "error: a plan must be of a run in bf16, got run.precision=fp32"),
    ],
)
def test_what_cannot_be_planned_ends_in_one_line(arguments, message):
    shown = run(*arguments)
    assert shown.exit_code == 1
    assert shown.stderr.startswith(message) and shown.stderr.count("\n") == 1


def test_a_plan_chooses_the_micro_batches_whatever_the_file_has():
    shown = run("gpt2-small", "data.batch_size=1", "--gpus", 1)  # the file has run.accumulate=4
    assert shown.exit_code == 0, shown.output
    assert "run.accumulate=1" in shown.output


def test_a_file_that_is_not_ours_is_not_overwritten(tmp_path):
    (tmp_path / "mine.json").write_text("{}")
    assert run("tiny", "--gpus", 1, "--out", tmp_path / "mine.json").exit_code == 1
    assert (tmp_path / "mine.json").read_text() == "{}"
