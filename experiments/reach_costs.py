"""What does each plan of `reach` and its successors cost in training, in decoding and in cache?

A loss is one half of a choice. This measures the other half on the models of those experiments, whose pages show it
beside the losses: `--variants 'reach/*'` takes the plans of one of them. Each measurement is written when it is done,
with all plans of an experiment taking turns; run the same command again for those that are left or had failures.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import plans
from benchmarks.harness import median_ratio, reason
from benchmarks.steps import BLOCKS, EAGER
from experiments import load
from experiments.engine import costs, measures, tables
from experiments.engine.base import base_config
from experiments.engine.measurement import machine
from experiments.engine.measures import Row, read_json
from experiments.engine.records import Data, Experiment, Message, Options
from experiments.engine.sweep import chosen, remember_command
from longshort.files import write_json
from longshort.model import GPTConfig
from longshort.runs import RunError
from longshort.train.identity import git_revision
from longshort.train.machine.distributed import choose_device

EXPERIMENTS = ("reach", "reach-modern", "reach-30m", "reach-125m")
FULL = "full"
"""The plan that others are compared with."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured."""

    tokens: int
    """Of a training step."""
    contexts: tuple[int, ...]
    """Of training, beside that of the experiment's runs."""
    length: int
    """Tokens that a sequence has read before decoding is timed, and positions in the cache."""
    batch: int
    """Sequences that decode together."""
    rounds: int
    steps: tuple[int, int]
    """Of training and of decoding that are timed in a row."""
    how: str = BLOCKS
    """How training steps are run."""


SIZES = Sizes(tokens=65_536, contexts=(4096, 32_768), length=32_768, batch=32, rounds=5, steps=(4, 8))
QUICK = Sizes(tokens=384, contexts=(320, 384), length=96, batch=2, rounds=1, steps=(1, 1), how=EAGER)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One measurement of the plans of one experiment."""

    experiment: str
    part: str
    """training or decoding."""
    at: int
    """Context, or tokens read."""
    models: dict[str, GPTConfig]
    """Every plan of the experiment."""
    wanted: frozenset[str]
    """The plans that were asked for."""
    measure: Callable[[plans.Models], plans.Rows]

    @property
    def file(self) -> str:
        return f"{self.experiment}-{self.part}-{self.at}.json"


def measure(options: Options, message: Message) -> None:
    """Measure what is left of the chosen plans; a failure becomes a row, and is tried again by the next call."""
    device = choose_device(options.device).type
    if device != "cuda" and not options.quick:
        raise ValueError(
            f"{costs.NAME} needs a CUDA GPU, and --device is {device}; --quick runs a small version on a CPU"
        )
    until = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes
    sizes = QUICK if options.quick else SIZES
    pieces = list(_pieces(options, sizes, device))
    remember_command(options.out)
    for piece in pieces:
        path = options.out / piece.file
        earlier = _earlier(path, sizes)
        if piece.wanted <= {name for name, row in earlier.items() if "failed" not in row}:
            continue
        if time.monotonic() > until:
            message("stopped; run the same command again to resume")
            return
        # Plans are compared within a round, so those that are there already are measured again with the new ones.
        models = {name: model for name, model in piece.models.items() if name in piece.wanted or name in earlier}
        found = _measured(piece, models, sizes)
        write_json(path, found | {"commit": git_revision(), "machine": machine(device)})
        failed = [f"{row['name']}: {row['failed']}" for row in found["rows"] if "failed" in row]
        message("; ".join([f"wrote {path}, {found['seconds']:.0f} s", *failed]))


def _earlier(path: Path, sizes: Sizes) -> dict[str, Row]:
    """The rows of an earlier call with the same sizes, by name."""
    found = read_json(path) if path.is_file() else {}
    return {row["name"]: row for row in found["rows"]} if found.get("sizes") == _as_json(sizes) else {}


def _as_json(sizes: Sizes) -> Data:
    """
    >>> _as_json(QUICK)["steps"]
    [1, 1]
    """
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(sizes).items()}


def _measured(piece: Piece, models: dict[str, GPTConfig], sizes: Sizes) -> Data:
    begun = time.perf_counter()
    try:
        rows = piece.measure(models)
    except Exception as problem:  # the other measurements are still worth having
        rows = [{"name": name, "failed": reason(problem)} for name in models]
    return {
        "experiment": piece.experiment,
        "part": piece.part,
        "at": piece.at,
        "context": models[FULL].context,
        **{"tokens": sizes.tokens, "batch": sizes.batch, "length": sizes.length, "sizes": _as_json(sizes)},
        "seconds": round(time.perf_counter() - begun, 1),
        "rows": [row | {"cache_bytes": plans.cache_bytes(models[row["name"]], sizes.length)} for row in rows],
    }


def _pieces(options: Options, sizes: Sizes, device: str) -> Iterator[Piece]:
    """The measurements of the chosen plans, and of full attention with them; the columns of speed come first."""
    timing: dict[str, Any] = {"device": device, "rounds": sizes.rounds}
    models: dict[str, dict[str, GPTConfig]] = {}
    for name in EXPERIMENTS:
        experiment = load(name)
        assert experiment.variants is not None
        configs = experiment.variants(base_config(experiment, options, data=None))
        models[name] = {plan: config.model for plan, config in configs.items()}
    taken = chosen([f"{name}/{plan}" for name in models for plan in models[name]], options.variants or ("*",))
    train = partial(plans.training, tokens=sizes.tokens, how=sizes.how, steps=sizes.steps[0], **timing)
    decode = partial(plans.decoding, length=sizes.length, batch=sizes.batch, steps=sizes.steps[1], **timing)
    for name, own in models.items():
        wanted = {plan for plan in own if f"{name}/{plan}" in taken}
        if not wanted:
            continue
        piece = partial(Piece, experiment=name, models=own, wanted=frozenset({FULL, *wanted}))
        training = [
            piece(part="training", at=context, measure=partial(train, context=context))
            for context in (*sizes.contexts, own[FULL].context)
        ]
        yield from (*training[:-1], piece(part="decoding", at=sizes.length, measure=decode), training[-1])


def collect(folder: Path) -> Data:
    """A row per plan with medians over rounds, from the measurements in the folder."""
    found = [read_json(path) for path in sorted(folder.glob("reach*.json"))]
    if not found:
        raise RunError(f"{folder}: holds no costs; run `python -m experiments {costs.NAME}` first")
    return _data(found, measures.commands(folder))


def join(published: Data, new: Data) -> Data:
    """The measurements of both; of one that is in both, the one with more plans, or else the new one."""
    found = {(piece["experiment"], piece["part"], piece["at"]): piece for piece in published["measured"]}
    for piece in new["measured"]:
        key = (piece["experiment"], piece["part"], piece["at"])
        there, here = (_measured_plans(one) for one in (found.get(key, piece), piece))
        if not (there <= here or here <= there):
            raise RunError(
                f"{key[0]}, {key[1]} at {key[2]:,}: {', '.join(sorted(there - here))} are published and not measured "
                "beside the new plans, so they cannot be compared; measure them together"
            )
        if there <= here:
            found[key] = piece
    commands = [*published["provenance"]["commands"], *new["provenance"]["commands"]]
    return _data(list(found.values()), commands)


def _measured_plans(piece: Data) -> set[str]:
    return {row["name"] for row in piece["rows"] if "failed" not in row}


def _data(found: list[Data], commands: list[dict[str, str]]) -> Data:
    """A row per plan from all measurements."""
    found.sort(key=lambda piece: (EXPERIMENTS.index(piece["experiment"]), piece["at"]))
    for piece in found:
        # Plans are compared within an experiment, so another experiment may come from another machine.
        first = next(one for one in found if one["experiment"] == piece["experiment"])
        if piece["sizes"] != found[0]["sizes"]:
            raise RunError("measurements of different sizes cannot be published together")
        if _without_threads(piece["machine"]) != _without_threads(first["machine"]):
            raise RunError(f"the plans of {piece['experiment']} must be measured on machines of one kind")
    rows: dict[tuple[str, str], Row] = {}
    for piece in found:
        times = {row["name"]: row["milliseconds"] for row in piece["rows"] if "failed" not in row}
        for measured in piece["rows"]:
            name = measured["name"]
            row = rows.setdefault((piece["experiment"], name), _row(piece, measured))
            speed = statistics.median(measured["tokens_per_second"]) if name in times else None
            if piece["part"] == "decoding":
                row["decoding"] = speed
                continue
            row["training"][str(piece["at"])] = speed
            if piece["at"] == piece["context"] and {name, FULL} <= times.keys():
                row["gpu_time"] = median_ratio(times[name], times[FULL])
    machines = {f"machine of {piece['experiment']}": piece["machine"] for piece in found}
    made = {
        "commands": commands,
        "commit": sorted({piece["commit"] for piece in found} - {None}) or None,  # git may not have answered
        **({"machine": found[0]["machine"]} if len(machines) == 1 else machines),
        "seconds": round(sum(piece["seconds"] for piece in found), 1),
    }
    return {"provenance": made, "rows": _in_order(rows, found), "measured": found}


def _in_order(rows: dict[tuple[str, str], Row], found: list[Data]) -> list[Row]:
    """Each experiment's plans in its own order, which measurements of some of its plans keep but cannot show whole."""
    longest = {piece["experiment"]: piece for piece in sorted(found, key=lambda piece: len(piece["rows"]))}
    order = [(name, row["name"]) for name in EXPERIMENTS if name in longest for row in longest[name]["rows"]]
    return [rows[plan] for plan in dict.fromkeys((*order, *rows))]


def _without_threads(found: dict[str, Any]) -> dict[str, Any]:
    """What times on a GPU depend on, of a machine."""
    return {key: value for key, value in found.items() if key != "threads"}


def _row(piece: Data, measured: Row) -> Row:
    row = {"experiment": piece["experiment"], "variant": measured["name"], "cache_bytes": measured["cache_bytes"]}
    return row | {key: piece[key] for key in ("context", "tokens", "batch", "length")} | {"training": {}}


def table(data: Data) -> str:
    lines = [(f"`{row['experiment']}`", row["variant"], *costs.cells(row, data["rows"])) for row in data["rows"]]
    failed = [
        f"- {piece['experiment']}/{row['name']}, {piece['part']} at {piece['at']:,} failed: {row['failed']}\n"
        for piece in data["measured"]
        for row in piece["rows"]
        if "failed" in row
    ]
    return "\n".join([tables.markdown(("experiment", "plan", *costs.header(data["rows"])), lines), *failed])


def figure(data: Data) -> Any:
    from longshort.report.charts import drawing
    from longshort.report.figures import frame

    alt = drawing()
    columns: tuple[list[Any], list[Any]] = ([], [])
    heights = [0, 0]
    for full in (row for row in data["rows"] if row["variant"] == FULL):
        own = [row for row in data["rows"] if row["experiment"] == full["experiment"]]
        points = [
            {"plan": row["variant"], "what": what, "times": speed / base}
            for row in own
            for what, speed, base in _beside(row, full)
        ]
        x = alt.X("times:Q", title="tokens per second, times full's", scale=alt.Scale(type="log", nice=False))
        y = alt.Y("plan:N", title=None, sort=[row["variant"] for row in own], axis=alt.Axis(labelOverlap=False))
        kinds = list(dict.fromkeys(point["what"] for point in points))
        color = alt.Color("what:N", sort=kinds, legend=alt.Legend(title=None, orient="bottom"))
        marks = frame(points).mark_point(filled=True, size=45).encode(x=x, y=y, color=color)
        shorter = heights.index(min(heights))
        columns[shorter].append(marks.properties(width=330, height=22 * len(own), title=full["experiment"]))
        heights[shorter] += len(own)
    return alt.hconcat(*(alt.vconcat(*column) for column in columns if column))


def _beside(row: Row, full: Row) -> Iterator[tuple[str, float, float]]:
    """What was measured of a plan and of full attention, and the tokens per second of both."""
    mine, theirs = (one["training"] | {"": one.get("decoding")} for one in (row, full))
    for context, base in theirs.items():
        what = f"training at {int(context):,}" if context else f"decoding at {full['length']:,}"
        if base is not None and mine.get(context) is not None:
            yield what, mine[context], base


EXPERIMENT = Experiment(
    name=costs.NAME,
    question="What does each plan of reaches cost in training, in decoding and in cache?",
    method=(
        "The models of `reach`, `reach-modern`, `reach-30m` and `reach-125m`, with random weights and tokens. Training "
        "is a whole step (forward, loss, backward, fused AdamW) under bf16 autocast, compiled block by block as in "
        "those experiments, without statistics of the logits; every step has 65,536 tokens, at each context. The GPU's "
        "own time counts and not the host's, as with CUDA graphs, by which small models train. Decoding is greedy, in "
        "bf16, 32 sequences together after each has read 32,768 tokens; a step is the replay of a CUDA graph. Its "
        "logits are compared with those of the reference first, in fp32. The plans of an experiment take turns in five "
        "rounds of 4 training or 8 decoding steps; numbers are medians over rounds. Bytes of cache are computed: what "
        "one sequence of 32,768 tokens needs in bf16."
    ),
    cost="H200: about 4 minutes each for `reach` and `reach-modern`, 2 each for the others; CPU --quick: minutes",
    caption="Tokens per second of each plan as a multiple of full attention's in the same model: medians of five "
    "rounds, on a logarithmic axis.",
    claims={},
    collect=collect,
    table=table,
    figure=figure,
    measure=measure,
    join=join,
)
