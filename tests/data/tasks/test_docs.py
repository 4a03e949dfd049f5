"""The page about tasks does what it says."""

import re
from pathlib import Path

from longshort.data.tasks import TASKS, TaskSettings

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "tasks.md").read_text(encoding="utf-8")


def test_python_of_the_page_runs():
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(compile(example, "docs/howto/tasks.md", "exec"), {"__name__": "example"})


def test_the_table_has_every_task_and_every_setting_is_explained():
    assert re.findall(r"^\| `(\w+)`", PAGE, re.M) == list(TASKS)
    assert all(f"`task.{name}" in PAGE for name in TaskSettings.__dataclass_fields__)


def test_published_numbers_of_examples_are_those_of_the_code():
    rows = {name: line for line in PAGE.splitlines() for name in TASKS if line.startswith(f"| `{name}`")}
    for name, kind in TASKS.items():
        if "train" in kind.defaults:
            counts = " / ".join(f"{kind.defaults[split]:,}" for split in ("train", "validation", "test"))
            assert counts in rows[name], name
