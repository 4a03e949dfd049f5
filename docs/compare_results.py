"""Holds the results pages of the working tree against those of an older commit, cell by cell: a page may be restyled, a
number or a verdict may not change. Run `python docs/compare_results.py acac168`; it exits with 1 on any difference.

The unit is a cell of a row, which is named by its first column. Headers, the order of rows and columns, links and
alignment are free, and tables may be split or merged: a value that stands in two tables of a page under the same row
and header may stand there once. Where rows share a name, an old row's cells must still stand together. Bold text is a
cell of its own, so that a verdict may move to its own column. Words that were changed on purpose are listed in REWORDED
and printed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

FOLDER = "docs/results"
ROOT = Path(__file__).resolve().parents[1]
REWORDED = [
    (r"\blongshort reproduce\b", "python -m experiments"),
    (r"\barm(s?)\b", r"variant\1"),
    (r"\b(\w+ \w+) of others\b", r"third-party \1"),
    (r"\ba (layer|step|token|byte)\b", r"per \1"),
]
"""What a cell may say in other words, as (pattern, replacement); both sides are read with these."""

Row = dict[str, list[tuple[int, str]]]
"""Of one row's name, each value with where it stands: the number of its table and its header."""


def cells_of(line: str) -> list[str]:
    """The cells of a table's line; `\\|` is a bar within one."""
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inner)]


def tables(text: str) -> Iterator[list[list[str]]]:
    """Every Markdown table of a page: the header and the rows."""
    lines = text.splitlines()
    for at, line in enumerate(lines[1:], 1):
        if not (re.fullmatch(r"\s*\|(\s*:?-+:?\s*\|)+\s*", line) and lines[at - 1].lstrip().startswith("|")):
            continue
        rows = [cells_of(lines[at - 1])]
        for below in lines[at + 1 :]:
            if not below.lstrip().startswith("|"):
                break
            rows.append(cells_of(below))
        yield rows


def plain(text: str) -> str:
    """Without links, code marks and emphasis, in today's words."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("*", "")
    for pattern, words in REWORDED:
        text = re.sub(pattern, words, text)
    return " ".join(text.split()).strip(" :;")


def values(cell: str) -> list[str]:
    """What a cell says: its bold parts, marked as such, and the rest; nothing if it is empty."""
    bold = [plain(part) for part in re.findall(r"\*\*(.+?)\*\*", cell)]
    rest = plain(re.sub(r"\*\*(.+?)\*\*", " ", cell))
    return [*bold, *([rest] if rest else [])]


def page(text: str) -> dict[str, Row]:
    """Row name -> value -> where it stands."""
    found: dict[str, Row] = defaultdict(lambda: defaultdict(list))
    for number, (header, *rows) in enumerate(tables(text)):
        for row in rows:
            name = plain(row[0])
            for title, cell in zip(header[1:], row[1:], strict=False):
                for value in values(cell):
                    found[name][value].append((number, title))
            for cell in row[len(header) :]:
                found[name][f"{plain(cell)} (outside of the header)"].append((number, ""))
    return found


def rows_by_name(text: str) -> dict[str, list[Counter[str]]]:
    """Row name -> what each row of that name says."""
    found = defaultdict(list)
    for _, *rows in tables(text):
        for row in rows:
            found[plain(row[0])].append(Counter(value for cell in row[1:] for value in values(cell)))
    return found


def torn(old: str, new: str) -> Iterator[str]:
    """Old rows of which no row is left that holds their cells, or part of them and nothing else."""
    after = rows_by_name(new)
    for name, rows in rows_by_name(old).items():
        for row in rows:
            if name in after and not any(row <= other or other <= row for other in after[name]):
                yield f"row {name!r}: no longer together: {' | '.join(row.elements())}"


def counts(places: list[tuple[int, str]]) -> tuple[int, int]:
    """The fewest and the most times that a value counts: in several tables under one header it may be one fact."""
    most_in_a_table: dict[str, int] = defaultdict(int)
    for number, title in set(places):
        most_in_a_table[title] = max(most_in_a_table[title], places.count((number, title)))
    return sum(most_in_a_table.values()), len(places)


def differences(old: str, new: str) -> list[str]:
    """One line for each value that vanished or appeared."""
    before, after = page(old), page(new)
    lines = []
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in before or name not in after:
            gone = name in before
            told = " | ".join((before if gone else after)[name])
            lines.append(f"row {name!r} {'vanished' if gone else 'appeared'}: {told}")
            continue
        for value in dict.fromkeys([*before[name], *after[name]]):
            fewest, most = counts(before[name].get(value, []))
            fewest_now, most_now = counts(after[name].get(value, []))
            if fewest > most_now:
                lines.append(f"row {name!r}: {value!r} vanished ({most_now} of {most} left)")
            elif fewest_now > most:
                lines.append(f"row {name!r}: {value!r} appeared ({most_now}, {most} before)")
    return lines or list(torn(old, new))  # a cell that changed is said once


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def pages_of(revision: str | None) -> dict[str, str]:
    """Name and text of every results page: of a commit, or of the working tree."""
    if revision is None:
        return {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / FOLDER).glob("*.md"))}
    names = git("ls-tree", "--name-only", f"{revision}:{FOLDER}").split()
    return {name: git("show", f"{revision}:{FOLDER}/{name}") for name in names if name.endswith(".md")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="the commit whose pages are the measure")
    parser.add_argument("new", nargs="?", help="the commit to hold against it; the working tree if not given")
    given = parser.parse_args()
    old, new = pages_of(given.old), pages_of(given.new)
    found = [f"{name}: the page vanished" for name in old if name not in new]
    for name in sorted(old.keys() & new.keys()):
        found += [f"{name}: {line}" for line in differences(old[name], new[name])]
    for pattern, words in REWORDED:
        print(f"read as the same words: {pattern} -> {words}")
    for name in sorted(new.keys() - old.keys()):
        print(f"{name}: a new page, not compared")
    for line in found:
        print(line)
    rows = [row for text in old.values() for row in page(text).values()]
    held = sum(len(places) for row in rows for places in row.values())
    print(
        f"{len(old)} pages, {sum(map(len, map(page, old.values())))} row names, {held} cells: {len(found)} differences"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
