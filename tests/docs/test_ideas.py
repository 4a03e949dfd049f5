"""The worked examples of the pages print what the pages say, and their pictures are those of the code."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    "ideas/las.md",
    "ideas/soft-thinking.md",
    "ideas/robust-loss.md",
    "ideas/method.md",
    "howto/reinforcement-learning.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_worked_example_of_a_page_prints_the_comments_at_its_end(page, capsys):
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    (example,) = (block for block in blocks if block.splitlines()[-1].startswith("# "))
    told = re.findall(r"^# (.*)$", example, re.M)
    exec(compile(example, page, "exec"), {"__name__": "example"})
    assert told and capsys.readouterr().out.splitlines() == told


def test_the_page_on_the_method_runs_from_top_to_bottom():
    scope = {"__name__": "example"}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "ideas/method.md").read_text(encoding="utf-8"), re.S):
        exec(compile(block, "ideas/method.md", "exec"), scope)


@pytest.mark.parametrize("picture", ["las.svg", "soft-thinking.svg"])
def test_a_drawing_of_bars_is_that_of_the_code(picture, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    import bars

    assert bars.PICTURES[picture]() == (bars.IDEAS / picture).read_text(encoding="utf-8")
