"""The results of a recipe for readers: numbers, page and figure, and the table of all claims."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.engine.catalogue import RECIPES
from experiments.engine.figures import picture
from experiments.engine.recipe import NOT_RUN, Recipe, Summary
from longshort.files import write_atomically, write_json
from longshort.runs import RunError

START, END = "<!-- claims: written by longshort reproduce -->", "<!-- end of claims -->"
INDEX = "README.md"


def publish(recipe: Recipe, out: Path, folder: Path) -> list[Path]:
    """Write NAME.json, NAME.md and NAME.png from the results in `out`, and bring the table of claims up to date."""
    summary = recipe.summarise(out)
    if summary.is_quick:
        raise RunError(f"{out} holds results of --quick, which decide nothing: they are not published")
    chart = recipe.figure(summary.data)  # first: it fails where Altair is missing
    written = [write_json(folder / f"{recipe.name}.json", _document(recipe, summary))]
    written.append(write_atomically(folder / f"{recipe.name}.md", page(recipe, summary)))
    written.append(picture(chart, folder / f"{recipe.name}.png", title=recipe.question))
    return [*written, write_index(folder)]


def _document(recipe: Recipe, summary: Summary) -> dict[str, Any]:
    findings = {
        key: {"claim": recipe.claims[key].text, "ours": found.ours, "verdict": found.verdict}
        for key, found in summary.findings.items()
    }
    return {"name": recipe.name, "findings": findings, "sentences": list(summary.sentences), **summary.data}


def page(recipe: Recipe, summary: Summary) -> str:
    """Markdown: the question, the figure, what it shows, the claims, the table, how it was made."""
    claims = [_cells(claim.text, claim.paper, _ours(summary, key), claim.rule) for key, claim in recipe.claims.items()]
    made = summary.data["provenance"]
    given = dict.fromkeys(entry["command"] for entry in made.get("commands", []))  # a call that went on is told once
    commands = "\n".join(f"    {command}" for command in given) or "    not recorded"
    facts = [f"- {key.replace('_', ' ')}: {_fact(value)}" for key, value in made.items() if key != "commands"]
    return "\n".join(
        [
            f"# {recipe.name}: {recipe.question}",
            "",
            f"![{recipe.question}]({recipe.name}.png)",
            "",
            " ".join(summary.sentences),
            "",
            "| claim | paper | ours | rule |",
            "|---|---|---|---|",
            *claims,
            "",
            summary.table,
            "## How it was made",
            "",
            recipe.method,
            "",
            commands,
            "",
            *facts,
            "",
            f"Data: [{recipe.name}.json]({recipe.name}.json).",
            "",
        ]
    )


def _cells(*texts: str) -> str:
    """A row of a table; the bars of |logit| would end a cell."""
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


def _ours(summary: Summary, key: str) -> str:
    found = summary.findings.get(key)
    return NOT_RUN if found is None else f"{found.ours}: **{found.verdict}**"


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_fact(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(_fact(inner) for inner in value) or "none"
    return str(value)


def claims_table(folder: Path) -> str:
    """One row a claim: the paper's number, ours, the verdict; from the JSON files that lie in the folder."""
    lines = ["| claim | paper | ours | verdict | figure | command |", "|---|---|---|---|---|---|"]
    for recipe in RECIPES.values():
        path = folder / f"{recipe.name}.json"
        findings = json.loads(path.read_text(encoding="utf-8"))["findings"] if path.is_file() else {}
        link = f"[{recipe.name}]({recipe.name}.md)" if path.is_file() else ""
        for key, claim in recipe.claims.items():
            found = findings.get(key, {"ours": "", "verdict": NOT_RUN})
            command = f"`python -m experiments {recipe.name}`"
            cells = (claim.text, claim.paper, found["ours"], found["verdict"], link, command)
            lines.append(_cells(*cells))
    return "\n".join(lines)


def write_index(folder: Path) -> Path:
    """Replace the table of claims in the folder's README.md, between its two marks; a page without them is refused."""
    path = folder / INDEX
    text = path.read_text(encoding="utf-8") if path.is_file() else f"# Results\n\n{START}\n{END}\n"
    before, found, rest = text.partition(START)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise RunError(f"{path} has no place for the claims: put the lines {START} and {END} where they belong")
    return write_atomically(path, f"{before}{START}\n\n{claims_table(folder)}\n\n{END}{after}")
