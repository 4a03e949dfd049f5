"""Results in one small archive: thinned and rounded metrics and configurations, without weights."""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engine.measures import AFTER, COMMANDS, STEP_TIMES
from longshort.data.tokenizer import TOKENIZER_FILE
from longshort.files import alone_in, write_atomically
from longshort.report.thinning import thin
from longshort.runs import difference
from longshort.runs.log import METRICS, largest_logit, read_log
from longshort.train.sweeps.processes import CONFIG, OUTPUT

TRAIN_RECORDS, LOGIT_READINGS = 1500, 200
"""The most that is kept of one run: about 300 KB, a fifth of that when packed."""
LEFT_OUT = ("mfu", "entropy", "layer_gradients")
_DIGITS = 5
MERGED = {COMMANDS, STEP_TIMES}
"""Files of the folder that grow from call to call."""
_NAME = re.compile(rf"(\w[\w.+-]*/)?([\w+-][\w.+-]*\.json|{re.escape(METRICS)}|{re.escape(OUTPUT)})")


def compact(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records with losses thinned but extremes kept, and with logits at evenly spread steps."""
    records = list(records)
    steps = [record for record in records if record["kind"] == "train"]
    losses = np.array([math.nan if record["loss"] is None else record["loss"] for record in steps])
    with_logits = [i for i, record in enumerate(steps) if "logit_max" in record]
    spread = np.linspace(0, len(with_logits) - 1, min(LOGIT_READINGS, len(with_logits))).round().astype(int)
    read = {with_logits[i] for i in spread} | _extremes(steps)
    kept = read | set(thin(losses, TRAIN_RECORDS).tolist())
    thinned = {id(record): _shortened(record, logits=i in read) for i, record in enumerate(steps) if i in kept}
    return [thinned.get(id(record), record) for record in records if record["kind"] != "train" or id(record) in thinned]


def _extremes(steps: list[dict[str, Any]]) -> set[int]:
    """The steps with the largest |logit| and with the first one that is not finite."""
    peaks = {i: largest_logit(record) for i, record in enumerate(steps) if "logit_max" in record}
    finite = {i: peak for i, peak in peaks.items() if peak is not None}
    lost = [i for i, peak in peaks.items() if peak is None]
    return {*lost[:1], *([max(finite, key=lambda i: finite[i])] if finite else [])}


def pack(folder: Path, archive: Path) -> Path:
    """Write a .tar.gz of the folder's results, which `collect` reads once unpacked."""
    files = [path for path in sorted(folder.glob("*")) + sorted(folder.glob("*/*")) if path.is_file()]
    files = [path for path in files if _NAME.fullmatch(path.relative_to(folder).as_posix())]  # what `unpack` takes
    logs = [path for path in files if path.name == METRICS]
    runs = {path.parent for path in files if path.name in (METRICS, CONFIG)}  # also those that failed before their log
    plain = [path for path in files if path.suffix == ".json" and path.parent in (folder, *runs)]
    plain = [path for path in plain if path.name != TOKENIZER_FILE]
    plain += [path for path in files if path.name == OUTPUT and path.stat().st_size < 1 << 16]
    if not logs and not plain:
        raise ValueError(f"{folder}: holds no results to pack; --out must name a folder of runs with a {METRICS}")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path in plain:
            _add(tar, path.relative_to(folder).as_posix(), path.read_bytes())
        for log in logs:
            lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in compact(read_log(log.parent)))
            _add(tar, log.relative_to(folder).as_posix(), lines.encode())
    return write_atomically(archive, buffer.getvalue())


def unpack(archive: Path, folder: Path) -> list[str]:
    """Add a pack's results to the folder; return the names of runs and measurements that were kept as they are.

    Of one that is in both, that which came farther stays, or the pack's if they are equal. A damaged pack changes
    nothing, and neither does one that has a run or a measurement of the same name with other settings: their results
    would be mixed on one page.
    """
    files = _read(archive)
    runs = {name.partition("/")[0] for name in files if "/" in name}
    for run in sorted(runs):
        if (folder / run / METRICS).is_file():
            read_log(folder / run)  # names the line of a damaged log
        if other := difference(_settings(_files_in(folder / run)), _settings(_files_of(run, files))):
            key, there, here = other
            raise ValueError(
                f"{archive}: its run {run} has {key} {there!r}, and the one in {folder} has {here!r}; unpack into "
                "another folder, or remove that run first"
            )
    kept = sorted(run for run in runs if _progress(_files_in(folder / run)) > _progress(_files_of(run, files)))
    kept += sorted(
        name
        for name in files
        if "/" not in name and name not in MERGED and _has_more(archive, folder, name, files[name])
    )
    with ExitStack() as held:
        for run in sorted(runs - set(kept)):
            if (folder / run).is_dir():
                held.enter_context(alone_in(folder / run))  # a run under way would go on writing to a file that is gone
        for name, content in files.items():
            if name.partition("/")[0] in kept:
                continue
            write_atomically(folder / name, _merged(folder / name, content) if name in MERGED else content)
        for run in runs - set(kept):  # the replaced run's file does not belong to this one
            if f"{run}/{AFTER}" not in files:
                (folder / run / AFTER).unlink(missing_ok=True)
    return kept


def packed_commands(archive: Path) -> list[dict[str, str]]:
    """How the results in a pack were made, call by call."""
    found: list[dict[str, str]] = json.loads(_read(archive).get(COMMANDS, b"[]"))
    return found


def _read(archive: Path) -> dict[str, bytes]:
    """The files of a pack by name: in the folder itself or that of a run, of the kinds that `pack` writes."""
    files: dict[str, bytes] = {}
    try:
        whole = gzip.decompress(archive.read_bytes())  # this checks the checksum; tarfile stops before it
        with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
            for member in tar:
                if not _NAME.fullmatch(member.name) or not member.isreg():  # no links, nothing outside the folder
                    raise ValueError(f"{archive}: not a pack; {member.name!r} is not a file of results")
                content = tar.extractfile(member)
                files[member.name] = b"" if content is None else content.read()
    except (gzip.BadGzipFile, zlib.error, EOFError, tarfile.TarError) as error:
        raise ValueError(f"{archive}: damaged, or not a pack: {error}") from None
    for name in files:
        _check_content(archive, name, files[name])
    return files


def _check_content(source: Path, name: str, content: bytes) -> None:
    """Raise if a file of results is not JSON, or a log not lines of JSON objects."""
    kind = {COMMANDS: list, STEP_TIMES: dict}.get(name, dict | list)
    try:
        if name.endswith(".json") and not isinstance(json.loads(content), kind):
            raise ValueError("it has the wrong kind of JSON")
        if name.endswith(METRICS) and not all(isinstance(record, dict) for record in _records({METRICS: content})):
            raise ValueError("a line is not an object")
    except ValueError as error:
        raise ValueError(f"{source}: damaged, or not a pack: {name}: {error}") from None


def _files_in(run: Path) -> dict[str, bytes]:
    """The files of a run's folder that a pack of it would have, by name."""
    paths = (run / METRICS, *(path for path in run.glob("*.json") if path.name != TOKENIZER_FILE))
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def _files_of(run: str, files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of one run of a pack, by name."""
    return {name.removeprefix(f"{run}/"): content for name, content in files.items() if name.startswith(f"{run}/")}


def _has_more(archive: Path, folder: Path, name: str, content: bytes) -> bool:
    """Does the folder's file of a measurement tell more than the pack's? An error if each has what the other lacks."""
    if not (folder / name).is_file():
        return False
    (here, mine), (there, theirs) = _parts((folder / name).read_bytes()), _parts(content)
    if here != there or not (mine <= theirs or theirs <= mine):
        lacking = "other settings" if here != there else f"not {', '.join(sorted(mine - theirs))}"
        raise ValueError(
            f"{archive}: its {name} has {lacking}, and would replace the one in {folder}; unpack into another folder"
        )
    return theirs < mine


def _parts(content: bytes) -> tuple[dict[str, Any], set[str]]:
    """The settings of a measurement, and what is there with them: its seeds, and the names of rows without failures."""
    found = json.loads(content)
    if not isinstance(found, dict):
        return {}, set()
    settings = dict(found.get("settings", {}))
    seeds = found.get("seeds", settings.pop("seeds", []))
    rows = [row for row in found.get("rows", []) if isinstance(row, dict)]
    names = [row["name"] for row in rows if "name" in row and "failed" not in row]
    about = {key: found[key] for key in ("sizes", "quick", "pictures") if key in found}
    return settings | about, {*(f"seed {seed}" for seed in seeds), *names}


def _records(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """The whole lines of a run's log."""
    log = files.get(METRICS, b"")
    return [json.loads(line) for line in log[: log.rfind(b"\n") + 1].splitlines() if line.strip()]


def _settings(files: dict[str, bytes]) -> dict[str, Any]:
    """The configuration in a run's log; that beside it may be of a later call, which was refused."""
    found: dict[str, Any] = next((record.get("config", {}) for record in _records(files)), {})
    return found


def _progress(files: dict[str, bytes]) -> tuple[int, bool, int]:
    """How far a run came: its last step, whether it ended there by itself, and how many files tell of it since."""
    records = _records(files)
    steps = [int(record["step"]) for record in records if record.get("step") is not None]
    over = bool(records) and records[-1].get("status") in ("finished", "diverged")
    return (steps[-1] if steps else 0, over, sum(name.endswith(".json") for name in files))


def _merged(path: Path, content: bytes) -> str:
    """The commands of both, or the step times of both; where both have one, the pack's is taken."""
    new = json.loads(content)
    old = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else type(new)()
    merged = old | new if isinstance(new, dict) else [*old, *(entry for entry in new if entry not in old)]
    return json.dumps(merged, indent=2) + "\n"


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
