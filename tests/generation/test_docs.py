"""The guide to generation does what it says, and its table holds the measured numbers."""

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longshort import GPT, GPTConfig
from longshort.cli import app
from longshort.data.tokenizer import ByteTokenizer
from longshort.hf import write_folder

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "howto" / "generate.md").read_text(encoding="utf-8")


def test_python_of_the_guide_runs(tmp_path, monkeypatch):
    write_folder(GPT(GPTConfig.preset("tiny", vocab_size=257)), ByteTokenizer(), tmp_path / "exported")
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": "example"}
    examples = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    assert len(examples) == 3
    for example in examples:
        exec(compile(example, "docs/howto/generate.md", "exec"), scope)
    assert scope["cache"].length == 102


def test_the_table_holds_the_measured_numbers():
    data = DOCS.parent / "benchmarks" / "results" / "decoding-cpu.json"
    rows = json.loads(data.read_text(encoding="utf-8"))["cache"]
    for row in rows:
        (line,) = re.findall(rf"^\| {row['length']:,} \|.*$", GUIDE, re.M)
        full, ours, times = [cell.strip() for cell in line.split("|")[2:5]]
        for shown, heads in ((full, "plain"), (ours, "ls")):
            number, unit = shown.split()
            scale = {"MiB": 2**20, "GiB": 2**30}[unit]
            assert float(number) == pytest.approx(row["bytes"][heads] / scale, rel=0.02)
        assert float(times) == pytest.approx(row["smaller"], abs=0.05)


@pytest.mark.parametrize("command", re.findall(r"^    longshort (.*)$", GUIDE, re.M))
def test_commands_of_the_guide_are_understood(command):
    # What they read does not exist here: that, and not a bad option, is what is wrong with them.
    shown = CliRunner().invoke(app, shlex.split(command))
    assert shown.exit_code == 1
    assert "no such folder" in shown.output or "which does not exist" in shown.output
