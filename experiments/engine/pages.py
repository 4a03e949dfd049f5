"""From data to what a reader gets: the page and the figure of an experiment, and the table of all claims.

The data in `experiments/results` are the single source: everything here can be rebuilt from them at any time. What the
numbers mean is written by a person, in `experiments/results/NAME.reading.md`, and only copied here.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.engine import choice
from experiments.engine.evidence import FAILS, HOLDS, NOT_RUN, ONCE, PARTLY, TWICE, UNDECIDED
from experiments.engine.measures import read_json
from experiments.engine.records import Data, Experiment, Finding
from experiments.engine.tables import cells, span
from longshort.files import write_atomically, write_json
from longshort.report.figures import picture
from longshort.runs import RunError

RESULTS = Path(__file__).parents[1] / "results"
PAGES = Path(__file__).parents[2] / "docs" / "results"
START, END = "<!-- claims: written by python -m experiments --build -->", "<!-- end of claims -->"
INDEX = "README.md"
INDEX_HEADER = "| claim | paper | ours | seeds | verdict | experiment |"
STANDINGS: dict[str, Collection[str]] = {
    **{verdict: (verdict,) for verdict in (HOLDS, PARTLY, FAILS, UNDECIDED)},
    "one or two seeds": (*ONCE.values(), *TWICE.values()),
    NOT_RUN: (NOT_RUN,),
}
"""Columns of the table that counts verdicts."""
_OF_THE_DAY = ("--minutes", "--out", "--pack")
"""Options of a recorded command that say nothing about what was run."""


def is_quick(data: Data) -> bool:
    """Do these include results of --quick, which decide nothing?"""
    return any("--quick" in entry["command"].split() for entry in data["provenance"]["commands"])


def save(experiment: Experiment, data: Data) -> Path:
    """Write the data of an experiment to where its page is built from."""
    if is_quick(data):
        raise RunError("results of --quick decide nothing and are not published; run the experiment without --quick")
    return write_json(_data_file(experiment), {"name": experiment.name, **data})


def load(experiment: Experiment) -> Data | None:
    """The published data of an experiment and what others have published of its variants; None where there are none."""
    path = _data_file(experiment)
    if not path.is_file():
        return None
    found: Data = read_json(path)
    return found | choice.published(experiment.name, RESULTS)


def publication(experiment: Experiment) -> str:
    """Whether it has been published, and with how many seeds of its variants, in words."""
    path = _data_file(experiment)
    if not path.is_file():
        return NOT_RUN
    seeds = [len(row["seeds"]) for row in read_json(path)["rows"] if isinstance(row.get("seeds"), list)]
    return f"published, seeds per variant: {span(seeds)}" if seeds else "published"


def _data_file(experiment: Experiment) -> Path:
    return RESULTS / f"{experiment.name}.json"


def build(experiment: Experiment) -> list[Path]:
    """Write the page and the figure of an experiment from its data."""
    data = load(experiment)
    if data is None:
        raise RunError(f"{RESULTS}: holds no data of {experiment.name}; run it, then call it with --publish")
    reading = RESULTS / f"{experiment.name}.reading.md"
    words = reading.read_text(encoding="utf-8") if reading.is_file() else "Nobody has written about these numbers yet."
    chart = experiment.figure(data)  # first: it fails where Altair is missing
    return [
        write_atomically(PAGES / f"{experiment.name}.md", page(experiment, data, words)),
        picture(chart, PAGES / f"{experiment.name}.png", title=experiment.question),
    ]


def page(experiment: Experiment, data: Data, reading: str) -> str:
    """The page in Markdown: question, figure, table, claims, what a person reads in them, and how they were made."""
    name, made = experiment.name, data["provenance"]
    claims = _claims(experiment, experiment.findings(data))
    recorded = list(dict.fromkeys(entry["command"] for entry in made.get("commands", [])))  # resumed calls: once
    again = list(dict.fromkeys(map(todays, recorded))) or [f"python -m experiments {name}"]
    parts = [
        f"# {name}: {experiment.question}",
        f"![{experiment.question}]({name}.png)",
        experiment.caption,
        experiment.table(data),
        *((f"## {choice.TITLE}", choice.table(data)) if choice.is_there(data) else ()),
        *(("## Claims", "\n".join(claims)) if experiment.claims else ()),
        "## Reading",
        reading.strip(),
        *(() if experiment.more is None else ("## More numbers", experiment.more(data))),
        "## How it was made",
        experiment.method,
        _code(again),
        *(("Recorded when these runs were made:", _code(recorded)) if recorded and recorded != again else ()),
        "\n".join(f"- {key.replace('_', ' ')}: {_fact(value)}" for key, value in made.items() if key != "commands"),
        f"Data: [experiments/results/{name}.json](../../experiments/results/{name}.json). This page is built from them "
        f"by `python -m experiments {name} --build`.",
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def todays(command: str) -> str:
    """A recorded command as it is written today, without options that only that day's machine needed.

    >>> todays("longshort reproduce recall --arms 'recall-*' --steps 9 --minutes 9.00 --pack recall.tar.gz")
    "python -m experiments recall --variants 'recall-*' --steps 9"
    """
    words = shlex.split(command)
    if words[:2] == ["longshort", "reproduce"]:
        words[:2] = ["python", "-m", "experiments"]
    kept = [
        "--variants" if word == "--arms" else word
        for before, word in zip(["", *words], words, strict=False)
        if word not in _OF_THE_DAY and before not in _OF_THE_DAY
    ]
    return shlex.join(kept)


def _code(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def _claims(experiment: Experiment, findings: Mapping[str, Any]) -> list[str]:
    """A list: rules and findings are too long for the cells of a table."""
    lines = []
    for key, claim in experiment.claims.items():
        ours, seeds, verdict = _found(findings.get(key))
        of = f" (seeds: {seeds})" if seeds else ""
        lines += [f"- {claim.text}: **{verdict}**{of}", f"  - paper: {claim.paper}"]
        lines += [f"  - ours: {ours}"] if ours else []
        lines.append(f"  - rule: {claim.rule}")
    return lines


def _found(found: Finding | None) -> tuple[str, str, str]:
    """What came out, the seeds and the verdict, as cells."""
    if found is None:
        return "", "", NOT_RUN
    return found.ours, span(found.seeds) if found.seeds else "none", found.verdict


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_fact(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(_fact(inner) for inner in value) or "none"
    return str(value)


def claims_tables(topics: Mapping[str, Iterable[Experiment]]) -> str:
    """How the claims of each topic stand, then a table per topic: the paper's number, ours and the verdict."""
    counts, tables = [], []
    for topic, experiments in topics.items():
        rows, verdicts = _rows(experiments)
        if not rows:
            continue
        counts.append(cells(f"[{topic}](#{slug(topic)})", *(_count(verdicts, kinds) for kinds in STANDINGS.values())))
        tables += [f"## {topic}", "\n".join([INDEX_HEADER, "|---|---|---|---:|---|---|", *rows])]
    header = f"| topic | {' | '.join(STANDINGS)} |\n|---|{'---:|' * len(STANDINGS)}"
    return "\n\n".join(["\n".join([header, *counts]), *tables])


def slug(heading: str) -> str:
    """The anchor that the site and GitHub give a heading.

    >>> slug("Heads, windows and positions")
    'heads-windows-and-positions'
    """
    return heading.lower().replace(",", "").replace(" ", "-")


def _rows(experiments: Iterable[Experiment]) -> tuple[list[str], list[str]]:
    """One row per claim, and the verdicts, from the data in the folder."""
    rows, verdicts = [], []
    for experiment in experiments:
        data = load(experiment)
        findings = {} if data is None else experiment.findings(data)
        link = f"`{experiment.name}`" if data is None else f"[{experiment.name}]({experiment.name}.md)"
        for key, claim in experiment.claims.items():
            ours, seeds, verdict = _found(found := findings.get(key))
            brief = found.brief if found is not None else ""
            rows.append(cells(claim.text, claim.paper, brief or ours, seeds, verdict, link))
            verdicts.append(verdict)
    return rows, verdicts


def _count(verdicts: Sequence[str], kinds: Collection[str]) -> str:
    count = sum(verdict in kinds for verdict in verdicts)
    return str(count) if count else ""


def write_index(topics: Mapping[str, Iterable[Experiment]]) -> Path:
    """Replace the tables of claims between the two marks in the folder's README.md; refuse a page without them."""
    path = PAGES / INDEX
    text = path.read_text(encoding="utf-8") if path.is_file() else f"# Results\n\n{START}\n{END}\n"
    before, found, rest = text.partition(START)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise RunError(f"{path}: has no place for the claims; put the lines {START} and {END} where they belong")
    return write_atomically(path, f"{before}{START}\n\n{claims_tables(topics)}\n\n{END}{after}")
