"""Decides whether a run is compiled and replayed as CUDA graphs, where the configuration leaves it open."""

from __future__ import annotations

from typing import NamedTuple

from longshort.train.config import TrainConfig
from longshort.train.distributed import World
from longshort.train.flops import flops_per_token, peak_flops
from longshort.train.models import Model

HOST_SECONDS = 0.02
"""Time that Python takes to launch a step of a small model; a GPU that is faster waits for it."""
PAYS_FROM = 120.0
"""Seconds of training from which compiling pays: it takes about half a minute and saves a quarter or more."""
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
    run, on_gpu = config.run, world.device.type == "cuda" and config.rl.task is None
    seconds = _gpu_seconds(config, world, model) if on_gpu else 0.0
    total = run.steps * max(seconds, HOST_SECONDS)
    reasons = []
    compiles = run.compile
    if compiles == "auto":
        compiles = run.cuda_graphs is True or (on_gpu and total >= PAYS_FROM)
        reasons.append(f"{run.steps:,} steps will take roughly {total:,.0f} s; compiling pays from {PAYS_FROM:.0f} s")
    graphs = run.cuda_graphs
    if graphs == "auto":
        against = _against_graphs(config, world)
        graphs = bool(compiles) and on_gpu and against is None and seconds < HOST_SECONDS
        small = f"a step keeps the GPU busy for roughly {1e3 * seconds:.2g} ms"
        if compiles:
            reasons.append(f"CUDA graphs are for less than {1e3 * HOST_SECONDS:.0f} ms" if against is None else against)
            reasons.append(small)
    return Compilation(bool(compiles), run.compile_scope, bool(graphs), "; ".join(reasons) if on_gpu else "")


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
        return "CUDA graphs need a single process"
    if config.run.accumulate > 1:
        return "CUDA graphs need run.accumulate=1"
    if config.model.dropout or config.data.segments or config.run.checkpoint_activations:
        return "CUDA graphs are not used with dropout, segments or recomputed activations"
    return None
