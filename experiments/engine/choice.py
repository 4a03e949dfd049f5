"""The tables to choose a plan by: loss and retrieval of each, and its cost, where they were measured."""

from __future__ import annotations

import statistics
from pathlib import Path

from experiments.engine import comparison, costs, tables
from experiments.engine.measures import Row, read_json
from experiments.engine.records import Data

TITLE = "Each plan at a glance"
RETRIEVAL = {"reach": "retrieval", "reach-modern": "retrieval-modern", "reach-30m": "retrieval-30m"}
"""The experiment that fine-tunes the models of another and asks them."""
AGAIN = {"reach": ", of models of the same plans and seeds that were trained again"}
"""What is to be said where the models that were asked are not those whose losses are shown."""
KINDS = {"needles-books": "four needles in books", "variables": "variables", "recall": "recall"}


def published(experiment: str, results: Path) -> Data:
    """What other experiments have published of this one's variants."""
    asked = results / f"{RETRIEVAL.get(experiment, experiment)}.json"
    found = {
        "costs": costs.published(experiment, results),
        "retrieval": read_json(asked)["rows"] if experiment in RETRIEVAL and asked.is_file() else [],
    }
    return {key: rows for key, rows in found.items() if rows}


def is_there(data: Data) -> bool:
    return "costs" in data or "retrieval" in data


def table(data: Data) -> str:
    """A line for each variant of which more than the loss is known, the lowest loss first, and what columns mean; the
    costs in a table below it, in the same order.
    """
    spent, asked = (data.get(key, []) for key in ("costs", "retrieval"))
    by_cost, by_share = ({row["variant"]: row for row in rows} for rows in (spent, asked))
    lines = []
    for row in sorted(data["rows"], key=lambda row: float("inf") if row["final_loss"] is None else row["final_loss"]):
        name = row["variant"]
        if name not in by_cost and name not in by_share:
            continue
        found = None if name == "full" else comparison.against(data, name, ("full",)).get("full")
        lines.append(
            (
                name,
                len(row["seeds"]),
                "not finite" if row["final_loss"] is None else f"{row['final_loss']:.4f}",
                *(("", "") if found is None else (f"{found.mean:+.4f}", comparison.interval_of(found))),
                *(_mean(row, key) for key in ("first_positions", "second_half")),
                *(_shares(by_share.get(name)) if asked else ()),
                tables.shown(row["max_logit"], 3),
            )
        )
    header = (
        *("plan", "seeds", "loss", "minus full's", "95 % interval", "first positions", "second half"),
        *(("seeds asked", *(f"{words}, %" for words in KINDS.values())) if asked else ()),
        "max abs logit",
    )
    parts = [tables.markdown(header, lines), f"{about(data)}\n"]
    if spent:
        rows_of = [(name, *costs.cells(by_cost[name], spent)) for name, *_ in lines if name in by_cost]
        parts += [tables.markdown(("plan", *costs.header(spent)), rows_of), f"{costs.about(spent)}\n"]
    return "\n".join(parts)


def about(data: Data) -> str:
    """What the columns of losses and of retrieval mean, in sentences."""
    text = "First positions and second half are the losses in those parts of the sequences."
    if "retrieval" not in data:
        return text
    one = data["retrieval"][0]
    name = RETRIEVAL[data["name"]]
    return (
        f"{text} Right answers are those at {one['length']:,} tokens after a fine-tuning that all plans share"
        f"{AGAIN.get(data['name'], '')}: means over the seeds of [{name}]({name}.md), which shows them one by one "
        "where they differ widely."
    )


def _mean(row: Row, key: str) -> str:
    """Empty where it was not measured."""
    losses = row.get(key)
    if not losses:
        return ""
    return "not finite" if None in losses else f"{statistics.fmean(losses):.3f}"


def _shares(row: Row | None) -> tuple[str, ...]:
    """How many seeds were asked, and the means of their right answers."""
    if row is None:
        return ("",) * (1 + len(KINDS))
    found = [row["shares"].get(kind, {}).get(str(row["length"]), []) for kind in KINDS]
    return str(len(row["seeds"])), *(f"{100 * statistics.fmean(shares):.0f}" if shares else "" for shares in found)
