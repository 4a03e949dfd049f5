"""Markdown tables: those that most experiments show, and the parts of all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from experiments.engine import measures
from experiments.engine.measures import Row
from experiments.engine.records import Data


def shown(value: float | None, digits: int = 4) -> str:
    """A number for a table; None stands for one that is not finite.

    >>> shown(52.4711), shown(1234567.0, 3), shown(None)
    ('52.47', '1.23e+06', 'not finite')
    """
    return "not finite" if value is None else f"{value:,.{digits}g}" if abs(value) < 1e5 else f"{value:.2e}"


def percent(share: float | None) -> str:
    """
    >>> percent(0.4567), percent(None)
    ('45.7 %', 'not measured')
    """
    return "not measured" if share is None else f"{100 * share:.1f} %"


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; the first column is text, and so are others in which no cell begins with a number.

    >>> print(markdown(("plan", "of", "loss"), [("ls", "reach", 2.5), ("full", "reach", "not finite")]))
    | plan | of | loss |
    |---|---|---:|
    | ls | reach | 2.5 |
    | full | reach | not finite |
    <BLANKLINE>
    """
    lines = [[str(cell) for cell in cells] for cells in rows]
    columns = [[line[place] for line in lines] for place in range(1, len(header))]
    sides = ["---", *("---" if _is_text(column) else "---:" for column in columns)]
    texts = (f"| {' | '.join(line)} |" for line in (header, *lines))
    return "\n".join([next(texts), f"|{'|'.join(sides)}|", *texts]) + "\n"


def _is_text(column: Sequence[str]) -> bool:
    return any(column) and not any(re.match(r"[-+]?\d", cell) for cell in column)


def cells(*texts: str) -> str:
    """One row of texts, with the bars of |logit| escaped, since they would end a cell."""
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


def losses(data: Data) -> str:
    """Perplexities, logits, divergences and spikes, one line per variant; the last logits where there are curves."""
    last = measures.last_logits(data)
    header = ("variant", "seeds", "steps", "final perplexity", "spread (loss)", "best perplexity")
    logit = ("max abs logit, whole run", "at the last step") if last else ("max abs logit, whole run",)
    return markdown(
        (*header, *logit, "diverged", "spikes"),
        [
            (
                r["variant"],
                len(r["seeds"]),
                span(r["steps"]),
                shown(r["final_perplexity"]),
                shown(r["spread"], 2) if len(r["seeds"]) > 1 else "",
                shown(r["best_perplexity"]),
                _logit(r),
                *((shown(max(last[r["variant"]]), 3) if last.get(r["variant"]) else "not measured",) if last else ()),
                r["diverged"],
                r["spikes"],
            )
            for r in data["rows"]
        ],
    )


def _logit(row: Row) -> str:
    if row["max_logit"] is None and not row["logits_lost"]:
        return "not measured"
    return shown(row["max_logit"], 3) + (" and not finite" if row["logits_lost"] else "")


def span(numbers: Sequence[int]) -> str:
    """
    >>> span([1500, 1500]), span([3, 1])
    ('1500', '1 to 3')
    """
    return str(max(numbers)) if len(set(numbers)) == 1 else f"{min(numbers)} to {max(numbers)}"


def gaps(data: Data, pairs: Mapping[str, tuple[str, str]]) -> str:
    """How far the first variant of each pair is ahead of the second, at its widest and at the end."""
    rows, lines = measures.by_name(data), []
    for name, (mine, theirs) in pairs.items():
        if found := measures.gaps(data, mine, theirs):
            widest, last = max(found, key=lambda step: found[step]), max(found)
            seeds = len({*rows[mine]["seeds"]} & {*rows[theirs]["seeds"]})
            lines.append((name, seeds, f"{found[widest]:.3f}", widest, f"{found[last]:.3f}", last))
    header = ("LS ahead of plain by (nats)", "seeds", "at its widest", "at step", "at the end", "at step")
    return markdown(header, lines)


def accuracies(rows: Iterable[Row]) -> str:
    """Accuracies on the test split, one line per variant."""
    header = (
        "variant",
        "seeds",
        "steps",
        "test accuracy",
        "lowest and highest",
        "validation loss",
        "max abs logit, whole run",
    )
    return markdown(
        header,
        [
            (
                r["variant"],
                len(r["seeds"]),
                max(r["steps"]),
                percent(r["accuracy"]),
                f"{percent(min(r['accuracies']))} to {percent(max(r['accuracies']))}"
                if len(r["accuracies"]) > 1
                else "",
                shown(r["validation_loss"]),
                shown(r["max_logit"], 3),
            )
            for r in rows
        ],
    )
