"""Figures for documents: a chart with its data inside, in the report's colours, and its picture.

The pages of experiments and benchmarks use these; a report's own charts are in `charts`. A picture records what it was
drawn from, so that it is left alone while its chart does not change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from longshort.files import write_atomically
from longshort.report.charts import drawing
from longshort.report.pictures import drawn, with_text
from longshort.report.theme import picture_config

_KEY = "Chart SHA-256"


def frame(rows: Iterable[dict[str, Any]]) -> Any:
    """Rows as a chart's own data."""
    return drawing().Chart(drawing().Data(values=list(rows)))


def specification(chart: Any, *, title: str | None = None) -> dict[str, Any]:
    """The chart as Vega-Lite with its title, if it has none, and the light theme: all that its picture depends on."""
    if title is not None:
        chart = chart.properties(title=drawing().TitleParams(title, anchor="start", offset=14))
    spec: dict[str, Any] = chart.to_dict()
    spec["config"] = picture_config()
    return spec


def fingerprint(spec: dict[str, Any]) -> str:
    """The SHA-256 of a specification, whichever version of the schema it names."""
    content = json.dumps({key: value for key, value in spec.items() if key != "$schema"}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def drawn_from(path: Path) -> str | None:
    """The fingerprint of the chart that a picture shows; None where it has none."""
    _, found, rest = (path.read_bytes() if path.is_file() else b"").partition(f"tEXt{_KEY}\0".encode())
    return rest[:64].decode() if found else None


def picture(chart: Any, path: Path, *, title: str | None = None) -> Path:
    """Write the chart as a light PNG at twice its size, unless the file already shows it."""
    spec = specification(chart, title=title)
    mark = fingerprint(spec)
    if drawn_from(path) == mark:
        return path
    return write_atomically(path, with_text(drawn(spec), _KEY, mark))
