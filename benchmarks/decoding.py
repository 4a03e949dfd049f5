"""Benchmarks of decoding: bytes of the cache, tokens per second of whole models, the largest batch, the prefill.

Every row is behind a check: bytes equal their formula, decoders give the logits of an uncached pass. Parts end at their
share of the time, and results are written as they come.

Run `python -m benchmarks.decoding --device cpu --out docs/results/decoding-cpu.json`.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import decode_report, prefill
from benchmarks.attention import machine, median_ratio
from benchmarks.cache_memory import bytes_rows, largest_batches
from benchmarks.decode_arms import DYNAMIC, LS, PLAIN, STATIC, Arm, Decoder, Expectation, Models, Setting
from benchmarks.gpu import require
from benchmarks.gpu_check import WrongResult, failure

SETTINGS = {
    "cpu": (Setting(batch=1, context=4096),),
    "cuda": (Setting(batch=32, context=32768), Setting(batch=1, context=32768)),
}
ARMS = {"cpu": (LS, PLAIN, DYNAMIC), "cuda": (LS, PLAIN, STATIC)}
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
PARTS = {"cpu": ("cache", "speed"), "cuda": ("cache", "speed", "batch", "prefill", "compiled")}
_PREFILL_MODEL = "paper-12l-768"
_COMPILED_ARMS, _COMPILED_LENGTHS = ("ls", "plain-flash", "plain-cudnn"), 3
_WARM_UP = 4
"""Steps of an arm before it is timed: what is compiled or captured is done in them."""


@dataclass
class _Entrant:
    """An arm on its way through one setting."""

    arm: Arm
    decoder: Decoder | None = None
    error: float | None = None
    token: Any = None
    milliseconds: list[float] = field(default_factory=list)
    failed: str | None = None

    def attempt(self, step: Callable[[], object]) -> None:
        """Take a step, unless an earlier one failed."""
        if self.failed is None:
            self.failed = failure(step, required=self.arm.required)
        if self.failed is not None:
            self.decoder = None  # and its memory

    def begin(self, models: Models, expectation: Expectation, setting: Setting, room: int) -> None:
        """Check the arm, then let it read a prompt."""
        decoder = self.arm.build(models)
        self.error = expectation.check(self.arm, decoder, models)
        _tidy(models.device)
        generator = torch.Generator().manual_seed(2)
        size = (setting.batch, setting.context)
        prompt = torch.randint(setting.sizes["vocab_size"], size, generator=generator).to(models.device)
        self.token = decoder.begin(prompt, room).argmax(-1)
        self.decoder = decoder
        self.run(_WARM_UP, models.device)
        self.milliseconds.clear()

    def run(self, steps: int, device: str) -> None:
        """Greedy decoding of so many tokens; notes the milliseconds of one."""
        assert self.decoder is not None
        _wait(device)
        start = time.perf_counter()
        for _ in range(steps):
            self.token = self.decoder.feed(self.token).argmax(-1)
        _wait(device)
        self.milliseconds.append(1e3 * (time.perf_counter() - start) / steps)


def decode_speed(
    setting: Setting,
    arms: Sequence[Arm],
    *,
    device: str,
    dtype: torch.dtype,
    rounds: int = 7,
    steps: int = 8,
    deadline: float = float("inf"),
) -> list[dict[str, Any]]:
    """Rows of one setting, ready for JSON; arms take turns, and rounds end at the deadline, two at least."""
    room = _WARM_UP + rounds * steps + 1
    models = Models(setting, room=room, device=device, dtype=dtype)
    expectation = Expectation(models, setting.sizes["vocab_size"])
    models.place()
    entrants = [_Entrant(arm) for arm in arms]
    for entrant in entrants:
        entrant.attempt(partial(entrant.begin, models, expectation, setting, room))
        _tidy(device)
    for turn in range(rounds):
        if turn >= 2 and time.monotonic() > deadline:
            break
        for entrant in entrants:
            entrant.attempt(partial(entrant.run, steps, device))
    return [_row(setting, entrant, entrants[0]) for entrant in entrants]


def _row(setting: Setting, entrant: _Entrant, ours: _Entrant) -> dict[str, Any]:
    row: dict[str, Any] = {"batch": setting.batch, "context": setting.context, "window": setting.window}
    row |= {"arm": entrant.arm.name, "heads": entrant.arm.heads}
    if entrant.failed is not None or entrant.decoder is None:
        return row | {"failed": entrant.failed}
    row |= {"mode": entrant.decoder.mode, "error": entrant.error, "milliseconds": entrant.milliseconds}
    row["tokens_per_second"] = 1e3 * setting.batch / statistics.median(entrant.milliseconds)
    if ours.failed is None:
        row["ls_speedup"] = median_ratio(entrant.milliseconds, ours.milliseconds)
    return row


def run(
    *,
    device: str = "cpu",
    parts: Iterable[str] | None = None,
    settings: Sequence[Setting] | None = None,
    minutes: float = 9.0,
    rounds: int = 7,
    note: str = "",
    command: str = "",
    progress: Callable[[str], None] = lambda line: None,
    keep: Callable[[dict[str, Any]], object] = lambda results: None,
    **options: Any,
) -> dict[str, Any]:
    """Measure the parts; `keep` is given the results so far after each row. `options` go to the batch and prefill."""
    require(device)
    chosen = tuple(PARTS[device] if parts is None else parts)
    unknown = [part for part in chosen if part not in PARTS["cuda"]]
    if unknown:
        raise ValueError(f"parts must be among {', '.join(PARTS['cuda'])}, got {', '.join(unknown)}")
    results: dict[str, Any] = {"machine": machine(device), "device": device, "command": command, "note": note}
    results["dtype"] = str(DTYPES[device]).removeprefix("torch.")
    clock = _Clock(results, minutes, progress, keep)
    for part in chosen:
        results[part] = []
        for name, measure in _rows_of(part, device, settings or SETTINGS[device], rounds, clock.deadline, options):
            clock.measure(part, name, measure)
    results["goals"] = decode_report.goals(results)
    keep(results)
    return results


class _Clock:
    """Takes rows while there is time, and hands on what there is after each."""

    def __init__(
        self,
        results: dict[str, Any],
        minutes: float,
        progress: Callable[[str], None],
        keep: Callable[[dict[str, Any]], object],
    ) -> None:
        self.results, self.progress, self.keep = results, progress, keep
        self.start = time.monotonic()
        self.deadline = self.start + 60 * minutes

    def measure(self, part: str, name: str, measure: Callable[[], list[dict[str, Any]]]) -> None:
        if time.monotonic() > self.deadline:
            self.results[part].append({"name": name, "failed": "left out: the time was up"})
            return
        self.progress(f"{part}: {name} ...")
        try:
            self.results[part] += measure()
        except WrongResult:
            raise
        except Exception as problem:  # the other rows are worth having all the same
            self.progress(traceback.format_exc())
            reason = f"{type(problem).__name__}: {problem}".strip().splitlines()[0][:300]
            self.results[part].append({"name": name, "failed": reason})
        seconds = time.monotonic() - self.start
        self.progress(f"{part}: {name} ended, {seconds:.0f} s in all")
        self.results["seconds"] = round(seconds, 1)
        self.results["goals"] = decode_report.goals(self.results)
        self.keep(self.results)
        _tidy(self.results["device"])


def _rows_of(
    part: str, device: str, settings: Sequence[Setting], rounds: int, deadline: float, options: dict[str, Any]
) -> list[tuple[str, Callable[[], list[dict[str, Any]]]]]:
    """What a part measures, piece by piece."""
    if part == "cache":
        # Allocated in the host's memory, where untouched pages cost nothing: the full one takes 4.8 GB at 128k.
        return [("bytes", bytes_rows)]
    if part == "speed":
        timing: dict[str, Any] = {"device": device, "dtype": DTYPES[device], "rounds": rounds, "deadline": deadline}
        return [(str(s), partial(decode_speed, s, ARMS[device], **timing)) for s in settings]
    if part == "batch":
        chosen = {key: options[key] for key in ("length", "sizes", "memory", "window") if key in options}
        return [("largest", lambda: [largest_batches(device=device, dtype=DTYPES[device], **chosen)])]
    model, tokens = options.get("preset", _PREFILL_MODEL), options.get("tokens", prefill.TOKENS)
    at = partial(prefill.measure, model, device=device, tokens=tokens, loss=False)
    lengths = options.get("lengths", prefill.LENGTHS)
    if part == "compiled":  # each arm and length takes seconds to compile: where something is asked of them
        at, lengths = partial(at, compiled=True, arms=_COMPILED_ARMS), lengths[-_COMPILED_LENGTHS:]
    return [(f"{model}, n {n}", partial(at, n)) for n in lengths]


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _tidy(device: str) -> None:
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--parts", help=f"as in {','.join(PARTS['cuda'])} (cpu: {','.join(PARTS['cpu'])})")
    parser.add_argument("--rounds", type=int, default=7, help="of the decoders, which take turns")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no new row is begun")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own choice)")
    parser.add_argument("--note", default="", help="what a reader should know of this run")
    parser.add_argument("--out", type=Path, help="JSON file for the result; a .md page goes beside it")
    a = parser.parse_args()
    if a.threads is not None:
        torch.set_num_threads(a.threads)
    given = {"--parts": a.parts, "--rounds": a.rounds, "--minutes": f"{a.minutes:g}", "--threads": a.threads}
    said = "".join(f" {name} {value}" for name, value in (given | {"--out": a.out}).items() if value is not None)
    try:
        results = run(
            device=a.device,
            parts=None if a.parts is None else a.parts.split(","),
            rounds=a.rounds,
            minutes=a.minutes,
            note=a.note,
            command=f"python -m benchmarks.decoding --device {a.device}{said}",
            progress=partial(print, flush=True),
            keep=lambda results: a.out and decode_report.save(results, a.out),
        )
    except (ValueError, WrongResult) as error:
        parser.exit(1, f"error: {error}\n")
    print(decode_report.table(results))


if __name__ == "__main__":
    main()
