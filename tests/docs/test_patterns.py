"""The page of patterns: its code runs, it names every pattern, and its drawing is the command's."""

import re
from pathlib import Path

import pytest

from longshort import reach
from longshort.report.plan import plan_text
from longshort.train import TrainConfig

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "patterns.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.S))
def test_code_of_the_page_runs(block):
    exec(block, {})


def test_drawing_is_that_of_the_command():
    drawn = plan_text(TrainConfig.load("paper-6m", ["model.reach=ladder"]).model)
    indented = "\n".join(f"    {line}".rstrip() for line in drawn.splitlines())
    assert f"    $ longshort show paper-6m model.reach=ladder\n{indented}\n" in PAGE


def test_every_pattern_and_model_is_on_the_page():
    assert [name for name in reach.PATTERNS if f"`{name}(" not in PAGE] == []
    assert [name for name in reach.MODELS if f"`{name}`" not in PAGE] == []
