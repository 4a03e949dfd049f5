"""Benchmarks of decoding: bytes of the cache, tokens per second of whole models, the largest batch, and prefill.

Every row is checked first: bytes equal their formula, decoders give the logits of an uncached pass. `decoding_page`
draws the conclusions; `decode_step` measures the attention of one step alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks import prefill
from benchmarks.decoders import DYNAMIC, LS, PLAIN, STATIC, DecoderKind, Expectation, Models, Setting, greedy_step
from benchmarks.decoding_page import PAGES, goals
from benchmarks.harness import DTYPES, Entrant, Recorder, median_ratio, require, take_turns
from benchmarks.memory import cache_rows, largest_batches
from benchmarks.pages import Results
from benchmarks.timing import clocked, free, warmed

SETTINGS = {
    "cpu": (Setting(batch=1, context=4096),),
    "cuda": (Setting(batch=32, context=32768), Setting(batch=1, context=32768)),
}
KINDS = {"cpu": (LS, PLAIN, DYNAMIC), "cuda": (LS, PLAIN, STATIC)}
PARTS = {"cpu": ("cache", "speed"), "cuda": ("cache", "speed", "batch", "prefill", "compiled")}
_PREFILL_MODEL = "paper-12l-768"
_COMPILED, _COMPILED_LENGTHS = ("ls", "plain-flash", "plain-cudnn"), 3
_WARM_UP = 4
"""Steps of a decoder before it is timed, in which compilation and capture take place."""

Measure = Callable[[], list[dict[str, Any]]]


def run(
    record: Recorder,
    *,
    device: str = "cpu",
    parts: Iterable[str] | None = None,
    settings: Sequence[Setting] | None = None,
    rounds: int = 7,
    note: str = "",
    **options: Any,
) -> Results:
    """Measure the parts; `options` go to the batch and prefill."""
    require(device)
    chosen = tuple(PARTS[device] if parts is None else parts)
    unknown = [part for part in chosen if part not in PARTS["cuda"]]
    if unknown:
        raise ValueError(f"parts must be some of {', '.join(PARTS['cuda'])}, got {', '.join(unknown)}")

    record.begin(PAGES[device], device, conclude=lambda results: {"goals": goals(results)}, note=note)
    for part in chosen:
        for name, measure in _pieces(part, device, settings or SETTINGS[device], rounds, record.deadline, options):
            record.piece(part, name, measure, lenient=True)  # the other rows are still worth having
    return record.end()


def _pieces(
    part: str, device: str, settings: Sequence[Setting], rounds: int, deadline: float, options: dict[str, Any]
) -> list[tuple[str, Measure]]:
    """The pieces that a part measures."""
    if part == "cache":
        # Allocated in the host's memory, where untouched pages cost nothing: the full cache takes 4.8 GB at 128k.
        return [("bytes", cache_rows)]
    if part == "speed":
        timing: dict[str, Any] = {"device": device, "dtype": DTYPES[device], "rounds": rounds, "deadline": deadline}
        return [(str(s), partial(decode_speed, s, KINDS[device], **timing)) for s in settings]
    if part == "batch":
        chosen = {key: options[key] for key in ("length", "sizes", "memory", "window") if key in options}
        return [("largest", lambda: [largest_batches(device=device, dtype=DTYPES[device], **chosen)])]
    model, tokens = options.get("preset", _PREFILL_MODEL), options.get("tokens", prefill.TOKENS)
    at = partial(prefill.measure, model, device=device, tokens=tokens, loss=False)
    lengths = options.get("lengths", prefill.LENGTHS)
    if part == "compiled":  # compiling takes seconds per variant and length: only those with a goal
        at, lengths = partial(at, compiled=True, variants=_COMPILED), lengths[-_COMPILED_LENGTHS:]
    return [(f"{model}, n {n}", partial(at, n)) for n in lengths]


def decode_speed(
    setting: Setting,
    kinds: Sequence[DecoderKind],
    *,
    device: str,
    dtype: torch.dtype,
    rounds: int = 7,
    steps: int = 8,
    deadline: float = math.inf,
) -> list[dict[str, Any]]:
    """Rows of one setting, ready for JSON: greedy decoding, `steps` tokens per round."""
    room = _WARM_UP + rounds * steps + 1
    models = Models(setting, room=room, device=device, dtype=dtype)
    expectation = Expectation(models, setting.sizes["vocab_size"])
    models.place()
    generator = torch.Generator().manual_seed(2)
    size = (setting.batch, setting.context)
    prompt = torch.randint(setting.sizes["vocab_size"], size, generator=generator).to(device)

    def begin(kind: DecoderKind, entrant: Entrant) -> None:
        decoder = kind.build(models)
        entrant.facts["error"] = expectation.check(kind, decoder, models)
        free(device)
        entrant.sample = clocked(warmed(greedy_step(decoder, prompt, room), _WARM_UP), device, calls=steps)
        entrant.facts["mode"] = decoder.mode

    entrants = [Entrant(kind.name, kind.heads, required=kind.required) for kind in kinds]
    for kind, entrant in zip(kinds, entrants, strict=True):
        entrant.attempt(partial(begin, kind, entrant))
        free(device)
    take_turns(entrants, rounds, deadline=deadline)
    return [_row(setting, entrant, entrants[0]) for entrant in entrants]


def _row(setting: Setting, entrant: Entrant, ours: Entrant) -> dict[str, Any]:
    row: dict[str, Any] = {"batch": setting.batch, "context": setting.context, "window": setting.window}
    row |= {"variant": entrant.name, "heads": entrant.work, **entrant.row()}
    if entrant.failed is None:
        row["tokens_per_second"] = 1e3 * setting.batch / entrant.median
        if ours.failed is None:
            row["ls_speedup"] = median_ratio(entrant.milliseconds, ours.milliseconds)
    return row
