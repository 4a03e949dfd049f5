"""Results small enough to travel: metrics thinned and rounded, configurations, no weights, in one archive."""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from longshort.files import write_atomically
from longshort.lab.report.thinning import thin
from longshort.lab.runner import OUTPUT
from longshort.train.log import METRICS, read_log

TRAIN_RECORDS, LOGIT_READINGS = 1500, 200
"""Kept of one run at most: about 300 KB, a fifth of that packed."""
LEFT_OUT = ("mfu", "entropy", "layer_gradients")
_DIGITS = 5


def compact(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records with losses thinned, extremes kept, and logits at evenly spread steps."""
    records = list(records)
    steps = [record for record in records if record["kind"] == "train"]
    losses = np.array([math.nan if record["loss"] is None else record["loss"] for record in steps])
    with_logits = [i for i, record in enumerate(steps) if "logit_max" in record]
    spread = np.linspace(0, len(with_logits) - 1, min(LOGIT_READINGS, len(with_logits))).round().astype(int)
    read = {with_logits[i] for i in spread}
    kept = read | set(thin(losses, TRAIN_RECORDS).tolist())
    thinned = {id(record): _shortened(record, logits=i in read) for i, record in enumerate(steps) if i in kept}
    return [thinned.get(id(record), record) for record in records if record["kind"] != "train" or id(record) in thinned]


def pack(folder: Path, archive: Path) -> Path:
    """Write a .tar.gz of the folder's results, which `summarise` reads once unpacked."""
    logs = sorted(folder.glob(f"*/{METRICS}"))
    plain = sorted(path for path in folder.glob("*.json"))
    plain += [path for log in logs for path in sorted(log.parent.glob("*.json")) if path.name != "tokenizer.json"]
    plain += [path for path in sorted(folder.glob(f"*/{OUTPUT}")) if path.stat().st_size < 1 << 16]
    if not logs and not plain:
        raise ValueError(f"{folder} holds no results to pack; expected folders of runs with a {METRICS}")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path in plain:
            _add(tar, str(path.relative_to(folder)), path.read_bytes())
        for log in logs:
            lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in compact(read_log(log.parent)))
            _add(tar, str(log.relative_to(folder)), lines.encode())
    return write_atomically(archive, buffer.getvalue())


def unpack(archive: Path, folder: Path) -> None:
    """Put a pack's results beside those that the folder has; a run that is in both is the pack's."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        for name in ("commands.json", "step_times.json"):
            _merge(tar, folder, name)
        members = [m for m in tar.getmembers() if m.name not in ("commands.json", "step_times.json")]
        tar.extractall(folder, members=members, filter="data")


def _merge(tar: tarfile.TarFile, folder: Path, name: str) -> None:
    """The commands of both, and the step times of both; the pack's count where they meet."""
    if name not in tar.getnames():
        return
    member = tar.extractfile(name)
    assert member is not None
    new, path = json.loads(member.read()), folder / name
    old = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else type(new)()
    merged = old | new if isinstance(new, dict) else [*old, *(entry for entry in new if entry not in old)]
    write_atomically(path, json.dumps(merged, indent=2) + "\n")


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _shortened(record: dict[str, Any], *, logits: bool) -> dict[str, Any]:
    dropped = LEFT_OUT if logits else (*LEFT_OUT, "logit_max", "logit_min")
    return {key: _rounded(value) for key, value in record.items() if key not in dropped}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
