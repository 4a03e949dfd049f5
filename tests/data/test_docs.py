"""The guide to the data does what it says."""

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from longshort.cli import app

GUIDE = (Path(__file__).parents[2] / "docs" / "howto" / "data.md").read_text(encoding="utf-8")


def test_python_of_the_guide_runs():
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    exec(compile(example, "docs/howto/data.md", "exec"), {"__name__": "example"})


def test_commands_of_the_guide_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("books", "letters", "web"):
        Path(name).mkdir()
        for number in range(60):
            Path(name, f"{number}.txt").write_text(f"Number {number} of the {name}, for the guide.")
    for name in ("held-out.txt", "test.txt"):
        Path(name).write_text("held out")
    commands = re.findall(r"^    longshort (data .*)$", GUIDE, re.M)
    assert len(commands) == 7
    part = "--part 3/8"
    assert any(part in command for command in commands)
    for command in (each for c in commands for each in _every_part(c, part)):
        shown = CliRunner().invoke(app, [*shlex.split(command, comments=True), "--workers", "1", "--force"])
        assert shown.exit_code == 0, f"{command}: {shown.output}"


def _every_part(command, part):
    return [command.replace(part, f"--part {n}/8") for n in range(1, 9)] if part in command else [command]
