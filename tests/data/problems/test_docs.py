"""The page about problems does what it says."""

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from longshort.cli import app
from longshort.data.problems import PROBLEM_TASKS

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "own-problem.md").read_text(encoding="utf-8")


def test_the_task_of_the_page_opens_from_its_file_and_rewards_its_own_solution(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    task, use = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)
    assert len(task.splitlines()) <= 20
    Path("sorting.py").write_text(task)
    exec(compile(use, "docs/howto/own-problem.md", "exec"), {"__name__": "example"})
    shown = [float(number) for number in re.findall(r"[\d.]+", capsys.readouterr().out)]
    assert shown[3:] == [10, *sorted(shown[:3]), 11, 1.0]


def test_the_command_of_the_page_trains_the_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sorting.py").write_text(re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)[0])
    (command,) = re.findall(r"^    longshort (.*)$", PAGE, re.M)
    small = "run.steps=2 rl.supervised_steps=1 data.batch_size=2 rl.prompts=4 rl.group=2 rl.eval_problems=2"
    shown = CliRunner().invoke(app, [*shlex.split(command), *small.split(), "run.device=cpu"])
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / "runs" / "sorting" / "metrics.jsonl").exists()


def test_the_table_has_every_task():
    assert re.findall(r"^\| `(\w+)`", PAGE, re.M) == list(PROBLEM_TASKS)
