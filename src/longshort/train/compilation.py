"""Decides whether a run is compiled and replayed as CUDA graphs, where the configuration leaves it open."""

from __future__ import annotations

from typing import NamedTuple

from longshort.train.machine.distributed import World
from longshort.train.machine.flops import flops_per_token, peak_flops
from longshort.train.models import Model
from longshort.train.settings.config import TrainConfig

HOST_SECONDS = 0.02
"""Time that Python takes to launch a step of a small model; a GPU that is faster waits for it."""
PAYS_FROM = 120.0
"""Seconds of training from which compiling pays: it takes about half a minute and saves a sixth or more."""
WHOLE_PAYS_FROM = 200.0
"""Seconds of training, per layer that could use another one's code, from which it pays to compile the whole model: that
takes about 2 s longer for each of them and saves up to 1.2 % (docs/results/training.md).
"""
_REACHED = 0.4
"""Share of the peak that a step reaches, roughly."""
_USUAL_PEAK = 150e12
"""FLOP/s of a GPU that is not in the table."""


class Compilation(NamedTuple):
    """How a run is compiled."""

    compile: bool
    scope: str
    """model or block."""
    cuda_graphs: bool
    reason: str
    """Why, in words; empty where nothing was left open."""


def choose_compilation(config: TrainConfig, world: World, model: Model) -> Compilation:
    """What the configuration says and, for auto, what is fastest.

    The choice depends on the whole length of the run, so that a resumed run makes it again.
    """
    run, given = config.run, _given_scope(config, world)
    scope = given or "model"
    if world.device.type != "cuda" or config.rl.task is not None:
        compiles = run.compile is True
        return Compilation(compiles, scope, compiles and run.cuda_graphs is True, "")
    seconds, reasons = _gpu_seconds(config, world, model), []
    total = run.steps * max(seconds, HOST_SECONDS)
    compiles = run.compile is True
    if run.compile == "auto":
        compiles = total >= PAYS_FROM or run.cuda_graphs is True
        reasons.append(f"{run.steps:,} steps take roughly {total:,.0f} s, and compiling pays from {PAYS_FROM:.0f} s")
    graphs = run.cuda_graphs is True
    if compiles and run.cuda_graphs == "auto":
        against = _against_graphs(config, world)
        graphs = against is None and seconds < HOST_SECONDS
        busy = f"{1e3 * seconds:.2g} ms of computing per step, and graphs are for less than {1e3 * HOST_SECONDS:.0f} ms"
        reasons.append(against or f"roughly {busy}")
    if compiles and given is None and not graphs and not run.checkpoint_activations:
        plans = config.model.layer_plans
        pays = WHOLE_PAYS_FROM * (len(plans) - len(set(plans)))
        scope = "model" if total >= pays else "block"
        reasons.append(f"compiling the whole model pays from {pays:,.0f} s")
    return Compilation(compiles, scope, graphs, "; ".join(reasons))


def _given_scope(config: TrainConfig, world: World) -> str | None:
    """What is compiled at a time, or None where the length of the run decides it."""
    scope = config.run.compile_scope
    if config.parallel.sizes(world.size).shards > 1:  # each block is gathered by itself
        return "block"
    if scope == "auto":
        return None if config.rl.task is None else "block"
    return scope


def announce_compilation(chosen: Compilation) -> str:
    """The choice in words.

    >>> announce_compilation(Compilation(True, "model", False, "it pays"))
    'compiling the model, without CUDA graphs (it pays)'
    """
    if not chosen.compile:
        return f"not compiling ({chosen.reason})"
    what = "the model" if chosen.scope == "model" else "block by block"
    return f"compiling {what}, {'with' if chosen.cuda_graphs else 'without'} CUDA graphs ({chosen.reason})"


def _gpu_seconds(config: TrainConfig, world: World, model: Model) -> float:
    """Roughly how long a GPU computes for a step."""
    tokens = config.data.batch_size * config.length / world.size
    return flops_per_token(model, config.length) * tokens / (_REACHED * (peak_flops(world.device) or _USUAL_PEAK))


def _against_graphs(config: TrainConfig, world: World) -> str | None:
    """What keeps a step from being replayed, if anything; what is not tested on a GPU counts."""
    if world.size > 1:
        return "graphs need a single process"
    if config.run.accumulate > 1:
        return "graphs need run.accumulate=1"
    if config.model.dropout or config.data.segments or config.run.checkpoint_activations:
        return "no graphs with dropout, segments or recomputed activations"
    return None
