"""Pages of docs/results, each built from the JSON of one benchmark and nothing else.

A page quotes the command that made its data; if that is an older spelling, today's is shown with it.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longshort.files import write_atomically

ROOT = Path(__file__).parents[1]
RESULTS, PAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "results"
PROGRAM = "python -m benchmarks"

_HOLDS: dict[str, Callable[[float, float], bool]] = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}
_SAYS = {True: "yes", False: "no", None: "not measured"}

Results = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Page:
    """How one kind of results is written up."""

    name: str
    """Name of the files: benchmarks/results/NAME.json, docs/results/NAME.md."""
    title: str
    command: str
    """Today's spelling of the command that made the committed data."""
    about: Callable[[Results], str]
    """What was measured and how, in sentences."""
    tables: Callable[[Results], str]

    def text(self, results: Results, data: str) -> str:
        """The page; `data` is the link to its numbers."""
        command = results["command"]
        head = f"# {self.title}\n\n    {command}\n\n"
        if not command.startswith(PROGRAM):
            head += f"That is how it was run. Today's command is\n\n    {self.command}\n\n"
        elif "\n" in command:
            head += f"Those measured its parts. All of them at once:\n\n    {self.command}\n\n"
        machine = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
        return (
            f"{head}{machine}. {self.about(results)} {_age(results.get('commit'))}"
            f"Data: [{Path(data).name}]({data}).\n\n{self.tables(results)}\n"
        )

    def write(self, results: Results, path: Path) -> Path:
        """Write the page of the results at `path`: in docs/results for those of this repository, else beside them."""
        folder = PAGES if path.resolve().parent == RESULTS else path.parent
        data = Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
        return write_atomically(folder / f"{path.stem}.md", self.text(results, data))

    def build(self) -> Path | None:
        """Write the page of the committed results; None if there are none yet."""
        path = RESULTS / f"{self.name}.json"
        if not path.is_file():
            return None
        return self.write(json.loads(path.read_text(encoding="utf-8")), path)


def _age(commit: str | None) -> str:
    """How a reader finds what has changed in the kernels since; nothing for data that name no commit."""
    if commit is None:
        return ""
    return (
        f"Measured at commit {commit} or before: `git log {commit}.. -- src/longshort/ops` lists what changed since. "
    )


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(markdown(("n", "ms"), [("512", "1.2")]))
    | n | ms |
    |---|---|
    | 512 | 1.2 |
    """
    lines = [f"| {' | '.join(line)} |" for line in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def goal(text: str, value: float | None, sign: str, target: float) -> dict[str, Any]:
    """A goal and whether it was reached; a value of None was not measured."""
    reached = None if value is None else _HOLDS[sign](value, target)
    return {"goal": text, "target": f"{sign} {target:g}", "value": value, "reached": reached}


def goals_table(goals: Iterable[dict[str, Any]]) -> str:
    """Each goal, the number that decides it, and whether it was reached; `reached` is None if not measured, or
    not wholly.

    If one of them names the `source` of its number, there is a column for it.
    """
    goals = list(goals)
    header, sources = ["goal", "target", "value", "reached"], any("source" in goal for goal in goals)
    rows = [
        [
            goal["goal"],
            goal["target"] if isinstance(goal["target"], str) else f">= {goal['target']:g}",
            "" if goal["value"] is None else f"{goal['value']:.3g}",
            "open" if goal["reached"] is None and goal["value"] is not None else _SAYS[goal["reached"]],
            *([goal.get("source", "")] if sources else []),
        ]
        for goal in goals
    ]
    return markdown([*header, "from"] if sources else header, rows)
