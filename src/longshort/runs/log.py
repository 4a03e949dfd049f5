"""Writes the log of a run: `metrics.jsonl`, one JSON object per line, with copies to TensorBoard and W&B.

The first line describes the run (kind "run"); then come "train", "eval", "spike", "resume", "sample" and "end". JSON
has no NaN or infinity, so non-finite numbers are written as null.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from longshort.files import sealed, write_atomically
from longshort.runs.records import FORMAT, Line, RunError

METRICS = "metrics.jsonl"
WANDB = ".wandb-id"
"""File with the id of the run at Weights & Biases."""
_BEGINNING = b'{"kind": "run"'
_LOOKED_AT = 16
"""How many lines are searched for the first that is not empty."""


class Sink(Protocol):
    """Another destination for the numbers."""

    def write(self, record: dict[str, Any]) -> None: ...

    def rewind(self, step: int) -> None:
        """Forget what came after `step`: those steps are repeated."""

    def close(self) -> None: ...


class RunLog:
    """Appends records to the run's file, flushed line by line, and passes them to the other sinks."""

    def __init__(self, folder: Path, sinks: list[Sink] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file = (folder / METRICS).open("a", encoding="utf-8")
        self._sinks = sinks or []

    @property
    def is_empty(self) -> bool:
        """Whether the file holds nothing, from this process or an earlier one."""
        return self._file.tell() == 0

    def write(self, kind: str, **values: Any) -> dict[str, Any]:
        """Append one record; returns it as written."""
        record = {"kind": kind, **_plain(values)}
        self._file.write(sealed(record) + "\n")
        self._file.flush()
        for sink in self._sinks:
            sink.write(record)
        return record

    def rewind(self, step: int, *, dropped: Sequence[int] = ()) -> None:
        """See `rewind_log`."""
        self._file.close()
        rewind_log(self._folder, step, dropped=dropped)
        self._file = (self._folder / METRICS).open("a", encoding="utf-8")
        for sink in self._sinks:
            sink.rewind(step)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        for sink in self._sinks:
            sink.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """All complete records of a run; an incomplete last line, left by a crash, is dropped."""
    file = folder / METRICS
    *whole, torn = file.read_text(encoding="utf-8", errors="replace").split("\n")
    lines = [Line.parse(file, number, text).data for number, text in enumerate(whole, 1) if text.strip()]
    try:
        return [*lines, Line.parse(file, len(whole) + 1, torn).data]
    except RunError:
        return lines


def begins_with_a_run(folder: Path) -> bool:
    """True if the log begins with the run's description, False if it has no record yet; anything else is an error.

    A log without a record is empty, or a crash cut its first line short.
    """
    with (folder / METRICS).open("rb") as file:
        lines = [line for line in islice(file, _LOOKED_AT) if line.strip(b"\0\n ")]
    try:
        record = Line.parse(folder / METRICS, 1, lines[0].decode("utf-8", errors="replace")).data if lines else None
    except RunError:
        if lines[0].endswith(b"\n"):
            raise
        record = None
    if record is None:
        beginning = lines[0].strip(b"\0\n ") if lines else b""
        if not (beginning.startswith(_BEGINNING) or _BEGINNING.startswith(beginning)):
            raise RunError(f"{folder / METRICS}, line 1: not JSON: {beginning[:40].decode(errors='replace')!r}")
        return False
    if record["kind"] != "run" or record.get("format") != FORMAT:
        found = {key: record.get(key) for key in ("kind", "format")}
        raise RunError(f"{folder / METRICS}, line 1: must have the kind 'run' and format {FORMAT}, got {found}")
    return True


def rewind_log(
    folder: Path, step: int, *, dropped: Sequence[int] = (), records: Sequence[dict[str, Any]] | None = None
) -> None:
    """Drop everything recorded after `step`, before those steps are repeated.

    Spikes of the `dropped` batches stay, since those batches will not come again. `records` are those of the log, if
    the caller has already read them.
    """
    if not (folder / METRICS).exists():
        return

    def stays(record: dict[str, Any]) -> bool:
        if record["kind"] == "spike" and record.get("batch") in dropped:
            return True
        return record.get("step", 0) <= step and record["kind"] != "end"

    kept = [record for record in (read_log(folder) if records is None else records) if stays(record)]
    text = "".join(sealed(record) + "\n" for record in kept)
    write_atomically(folder / METRICS, text)


class TensorBoardSink:
    """Scalars as TensorBoard events; those of steps after `step`, from an earlier process, are no longer shown."""

    def __init__(self, folder: Path, step: int = -1) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError("run.tensorboard needs TensorBoard: pip install 'longshort[tensorboard]'") from None
        self._open = partial(SummaryWriter, str(folder / "tensorboard"))
        self._writer = self._open(purge_step=step + 1)

    def write(self, record: dict[str, Any]) -> None:
        for name, value in _scalars(record).items():
            self._writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def rewind(self, step: int) -> None:
        self._writer.close()
        self._writer = self._open(purge_step=step + 1)

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """Scalars to a run of a Weights & Biases project; with `resumed` to the one that the folder already has there.

    W&B takes numbers for later steps only: repeated ones keep their first.
    """

    def __init__(self, folder: Path, project: str, config: dict[str, Any], *, resumed: bool = False) -> None:
        try:
            import wandb  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise ValueError("run.wandb needs the package wandb: pip install 'longshort[wandb]'") from None
        file = folder / WANDB
        run_id = file.read_text(encoding="utf-8").strip() if resumed and file.is_file() else ""
        if not run_id:
            run_id = secrets.token_hex(8)
            write_atomically(file, run_id + "\n")
        self._run = wandb.init(project=project, name=folder.name, config=config, id=run_id, resume="allow")

    def write(self, record: dict[str, Any]) -> None:
        scalars = {f"{record['kind']}/{name}": value for name, value in _scalars(record).items()}
        if scalars:
            self._run.log(scalars, step=record["step"])

    def rewind(self, step: int) -> None:
        """W&B has no way back."""

    def close(self) -> None:
        self._run.finish()


def _scalars(record: dict[str, Any]) -> dict[str, float]:
    """The plain numbers of a train or eval record, and the largest |logit| over all heads."""
    if record["kind"] not in ("train", "eval"):
        return {}
    scalars = {k: v for k, v in record.items() if isinstance(v, int | float) and k != "step"}
    if record.get("logit_max"):
        largest = largest_logit(record)
        scalars["logit_abs_max"] = math.nan if largest is None else largest
    return scalars


def largest_logit(record: dict[str, Any]) -> float | None:
    """Largest |logit| over all heads of a train record; None if it has none or one is not finite."""
    if not record.get("logit_max"):
        return None
    values = [v for name in ("logit_max", "logit_min") for row in record[name] for v in row]
    return None if None in values else max(map(abs, values))


def _plain(value: Any) -> Any:
    """Tensors to lists, paths to text, non-finite numbers to None."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
