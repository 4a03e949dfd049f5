"""`python -m tests.soak`, which `make soak` runs. `--only kill:3` repeats one case; `--tiny` runs a few of each."""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from . import faults

KILLS, CORRUPTIONS = 100, 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--only", help="kill, restart, corruption, full, or one case: kill:3, full:train:25")
    parser.add_argument("--tiny", action="store_true", help="a few cases of each kind, and no page")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--keep", type=Path, help="work in this folder and keep it")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="longshort-soak-"))
    faults.load(folder)
    shutil.rmtree(folder)  # made above; the folder with the library is named in the environment
    work = options.keep or faults.folder()
    started = time.monotonic()
    try:
        return soak(options, work.resolve(), started)
    finally:
        shutil.rmtree(faults.folder(), ignore_errors=True)


def soak(options: argparse.Namespace, work: Path, started: float) -> int:
    """Run the chosen parts; returns 1 if there was a problem."""
    kind, _, case = (options.only or "").partition(":")
    parts = {"full": full_part, "kill": kills_part, "restart": restarts_part, "corruption": corruptions_part}
    if kind and kind not in parts:
        sys.exit(f"error: --only must be one of {', '.join(parts)}, or a case of them as in kill:3, got {options.only}")
    preload(hf=not options.tiny and kind in ("", "full"))
    from longshort.files import write_json

    from . import page, subject

    say("preparing")
    base = subject.prepare(work / "base")
    results: dict[str, Any] = {
        name: part(options, base, work, case) if kind in ("", name) else [] for name, part in parts.items()
    }
    rows = [row for part in results.values() for row in part]
    problems = [row for row in rows if row["problem"]]
    for row in problems:
        print(f"PROBLEM {row['case']} (--seed {options.seed}): {row['problem']}")
    if not case and not options.tiny:
        about = page.circumstances(options.seed, time.monotonic() - started)
        written = []
        if not kind:
            named = {"kills": results["kill"], "corruptions": results["corruption"], "full": results["full"]}
            written.append(write_json(page.DATA, {"about": about, **named}))
        if results["restart"]:
            about["command"] = f"python -m tests.soak --only restart --seed {options.seed}"
            written.append(write_json(page.RESTARTS, {"about": about, "restarts": results["restart"]}))
        print("\n".join(f"wrote {path}" for path in [*written, page.write()]))
    print(f"{len(rows)} cases, {len(problems)} problems, {time.monotonic() - started:.0f} s")
    return bool(problems)


def preload(*, hf: bool) -> None:
    """Load what the commands need once, before any is forked; nothing may be computed here."""
    import altair  # noqa: F401
    import jinja2  # noqa: F401
    import torch._dynamo
    import torch.distributed.checkpoint.hf_storage
    import torch.distributed.run

    import longshort.data.show
    import longshort.generation.sample
    import longshort.report.live
    import longshort.train.checkpoints.sharded
    import longshort.train.evaluation.checkpoint_scores
    import longshort.train.progress
    import longshort.train.sweeps.processes

    if hf:
        import longshort.hf.export
        import longshort.hf.importers.run  # noqa: F401
    for name in ("pydantic", "tokenizers", "typer._adapters"):  # loaded by the commands, if installed
        with suppress(ImportError):
            importlib.import_module(name)
    torch.set_num_threads(1)


def kills_part(options: argparse.Namespace, base: Path, work: Path, case: str) -> list[dict[str, Any]]:
    from . import kills

    runs = [int(case)] if case else range(1 if options.tiny else KILLS // kills.KILLS_PER_RUN)
    say("the undisturbed runs")
    references = kills.references(base, work, runs)
    count = 2 if options.tiny else kills.KILLS_PER_RUN
    settings = {"base": base, "references": references, "work": work, "seed": options.seed, "count": count}
    return spread("killed runs", runs, partial(kills.one_run, **settings), options)


def restarts_part(options: argparse.Namespace, base: Path, work: Path, case: str) -> list[dict[str, Any]]:
    from . import restarts

    runs = [int(case)] if case else range(1 if options.tiny else KILLS // restarts.KILLS_PER_RUN)
    say("the undisturbed runs of two processes")
    references = restarts.references(base, work, runs)
    count = 2 if options.tiny else restarts.KILLS_PER_RUN
    settings = {"base": base, "references": references, "work": work, "seed": options.seed, "count": count}
    return spread("runs with lost processes", runs, partial(restarts.one_run, **settings), options)


def corruptions_part(options: argparse.Namespace, base: Path, work: Path, case: str) -> list[dict[str, Any]]:
    from . import corruptions

    say("the run to be damaged, and the results on undamaged files")
    built = corruptions.build(base, work / "stopped")
    cases = corruptions.plan(CORRUPTIONS, built, options.seed)
    if options.tiny:
        cases = corruptions.plan(5, built, options.seed, ("trainer.safetensors", "*.tokens"))
    if case:
        cases = [corruptions.plan(int(case) + 1, built, options.seed)[-1]]
    answers = corruptions.expected(built, work, {row["kind"] for row in cases})
    settings = {"built": built, "answers": answers, "work": work, "seed": options.seed}
    return spread("damaged files", cases, partial(corruptions.one, **settings), options)


def full_part(options: argparse.Namespace, base: Path, work: Path, case: str) -> list[dict[str, Any]]:
    from . import full_disk

    say("the input of every command, before the disk is full")
    verb, _, number = case.partition(":")
    verbs = [verb] if verb else ["train"] if options.tiny else list(full_disk.VERBS)
    built = full_disk.build(base, work / "with-room", verbs)
    writes = {verb: full_disk.undisturbed(verb, built, work)[1] for verb in verbs}
    cases = [(verb, at) for verb in verbs for at in range(1, writes[verb] + 1)]
    if options.tiny or number:
        cases = [(verbs[0], int(number))] if number else [("train", at) for at in (4, 15, 27)]
    return spread("full disks", cases, partial(full_disk.one, built=built, work=work), options)


def spread(what: str, cases: Sequence[Any], run: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all cases on `--jobs` processes and show progress; results in the order of their names."""
    from .children import spread as over_processes

    rows: list[dict[str, Any]] = []
    for row in over_processes(cases, run, options.jobs):
        rows.append(row)
        problem = f"PROBLEM {row['case']}: {row['problem']}" if row["problem"] else ""
        say(f"{what}: {len(rows)} of {len(cases)}", problem)
    return sorted(rows, key=lambda row: [int(part) if part.isdigit() else part for part in row["case"].split(":")])


def say(text: str, more: str = "") -> None:
    """Show progress: one updating line in a terminal, plain lines elsewhere."""
    end = "\n" if more or not sys.stdout.isatty() else "\r"
    print(f"\x1b[K{text}" if sys.stdout.isatty() else text, more, end=end, flush=True)


if __name__ == "__main__":
    sys.exit(main())
