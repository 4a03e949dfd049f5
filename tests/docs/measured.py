"""What the pages on plans take their numbers from: rows of the experiments by variant."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"


def rows_of(experiment):
    found = json.loads((RESULTS / f"{experiment}.json").read_text())["rows"]
    return {row["variant"]: row for row in found}


LOSSES, ANSWERS, LARGER_LOSSES, LARGER_ANSWERS = map(
    rows_of, ("reach-modern", "retrieval-modern", "reach-30m", "retrieval-30m")
)


def chains(rows, name, length="2048"):
    return dict(zip(rows[name]["seeds"], rows[name]["shares"]["variables"][length], strict=True))
