"""Running the arms of a recipe: which runs there are, how long they take, all of them at once, and steps alone."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from experiments.engine import step_clock
from experiments.engine.base import base_config, on_cuda, token_folder
from experiments.engine.measures import AFTER, STEP_TIMES, read_json
from experiments.engine.recipe import Options, Recipe
from longshort.files import write_json
from longshort.report.compare import Trial, trials_of
from longshort.runs import Reader
from longshort.runs.log import read_log
from longshort.train import ConfigError, TrainConfig
from longshort.train.answers import draw_tasks
from longshort.train.flops import flops_per_token
from longshort.train.models import build_model
from longshort.train.processes import RunFailed, run_all

CHILD = "experiments.engine.child"
COMMANDS = "commands.json"
Message = Callable[[str], None]
_FLOPS = {True: 1.4e14, False: 3e10}
"""Of training a second. CUDA: six runs of our pilot sharing one H200, 7,250 steps of 32,768 tokens in 430 s. CPU: one
core of a Xeon in the demo's setting."""
_REPORT_SECONDS = 30.0


def plan_sweep(recipe: Recipe, options: Options, *, data: Path | None) -> list[Trial]:
    """The runs that a call is about: the arms that were asked for, with every seed."""
    assert recipe.arms is not None
    base = base_config(recipe, options, data=data)
    named = recipe.arms(base)
    chosen = _chosen(named, options.arms or ("*",), recipe.on_request)
    arms = trials_of({name: named[name] for name in chosen}, options.seeds, options.out)
    _check_overrides(base, arms, options.overrides)
    return arms


def _chosen(names: Iterable[str], patterns: Iterable[str], on_request: Container[str]) -> list[str]:
    """The arms that the patterns name, in the recipe's order; those on request where a pattern names no others.

    >>> _chosen(["text-ls", "text-dear"], ["text-*"], ["text-dear"])
    ['text-ls']
    >>> _chosen(["text-ls", "text-dear"], ["*-dear"], ["text-dear"])
    ['text-dear']
    """
    names, chosen = list(names), set()
    for pattern in patterns:
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise ConfigError(f"--arms must be among {', '.join(names)}, or patterns of them; got {pattern!r}")
        chosen.update([name for name in found if name not in on_request] or found)
    return [name for name in names if name in chosen]


def _check_overrides(base: TrainConfig, arms: Sequence[Trial], overrides: Sequence[str]) -> None:
    """Raise where all arms set the key themselves, so that nothing would come of an override, and of a sweep that
    never reads a logit: its runs would pass for mere timings.
    """
    for override in overrides:
        section, _, key = override.partition("=")[0].partition(".")
        wanted = base.to_dict().get(section, {})
        if key in wanted:  # not model.preset, which stands for other keys
            found = [arm.config.to_dict()[section][key] for arm in arms]
            if wanted[key] not in found:
                values = ", ".join(dict.fromkeys(repr(value) for value in found))
                raise ConfigError(f"{override} has no effect: the arms of this experiment set {section}.{key}={values}")
    if any(not arm.config.telemetry.logits_every for arm in arms):
        raise ConfigError("telemetry.logits_every must be at least 1 here: every experiment reads logits; got 0")


def estimate(arms: Sequence[Trial], options: Options) -> float:
    """Seconds that the runs would take together, from their arithmetic and the speed of earlier runs; a rough guess."""
    flops = 0.0
    for arm in arms:
        with torch.device("meta"):
            model = build_model(arm.config)
        tokens = arm.config.run.steps * arm.config.data.batch_size * arm.config.length
        flops += tokens * flops_per_token(model, arm.config.length)
    return flops / _FLOPS[on_cuda(options.device)]


def describe(recipe: Recipe, options: Options) -> list[str]:
    """The plan of a call, one line a run; without --data, runs on another vocabulary than the preset's look undone."""
    arms = plan_sweep(recipe, options, data=None if options.data is None else token_folder(recipe, options))
    lines = [
        f"{arm.out}: {arm.config.run.steps} steps of {arm.config.data.batch_size} x {arm.config.length} tokens, "
        f"lr {arm.config.optimizer.lr:g}{'' if is_left(arm) else ', done'}"
        for arm in arms
    ]
    left = [arm for arm in arms if is_left(arm)]
    minutes = estimate(left, options) / 60
    time_left = f"{minutes:.1f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"
    return [*lines, f"{len(left)} of {len(arms)} runs to do, about {time_left} in all on this kind of device"]


def is_left(arm: Trial) -> bool:
    """Is there anything left to do for this run? What was written after fewer steps does not count."""
    if not arm.is_finished or not (arm.out / AFTER).is_file():
        return True
    steps = arm.config.run.steps
    return bool(read_json(arm.out / AFTER).get("step", steps) < steps)


def run_sweep(recipe: Recipe, options: Options, message: Message) -> bool:
    """Train what is left; True if all is done, False if time or the user stopped it. A failed run stops no other."""
    until = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes  # preparation counts
    arms = plan_sweep(recipe, options, data=token_folder(recipe, options))
    left = [arm for arm in arms if is_left(arm)]
    message(f"{len(arms)} runs, {len(left)} to do, {options.parallel} at a time, in {options.out}")
    if not left:
        return True
    if on_cuda(options.device) and min(options.parallel, len(left)) > 1 and not _side_by_side():
        message("the runs take turns on the GPU; with NVIDIA's MPS (nvidia-cuda-mps-control -d) they share it better")
    remember_command(options.out)
    draw_tasks([arm.config for arm in left], message)
    failures: list[RunFailed] = []

    def failed(failure: RunFailed) -> None:
        failures.append(failure)
        message(str(failure))

    done = run_all(
        [arm.config for arm in left],
        jobs=min(options.parallel, len(left)),
        # Beside runs that wait for a GPU in busy loops, threads that wait for each other take minutes over a second.
        threads=1 if on_cuda(options.device) else None,
        watch=_Lines(left, message),
        module=CHILD,
        until=until,
        failed=failed,
    )
    if failures:
        raise RunFailed(f"{len(failures)} of {len(left)} runs failed; the first: {failures[0]}")
    return done and not any(is_left(arm) for arm in left)


def _side_by_side() -> bool:
    """Does NVIDIA's MPS run, under which processes use the GPU at the same time?"""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()


def time_steps(recipe: Recipe, options: Options, message: Message) -> Path:
    """Seconds of a step of each arm, without telemetry, into step_times.json, beside earlier ones: see `step_clock`.

    Nothing else may run on the device meanwhile. QK-clip reads logits at every step all the same: that is its cost.
    """
    arms = plan_sweep(recipe, replace(options, seeds=(0,)), data=token_folder(recipe, options))
    path = options.out / STEP_TIMES
    times: dict[str, Any] = read_json(path) if path.is_file() else {}
    remember_command(options.out)
    draw_tasks([arm.config for arm in arms], message)
    folder = options.out / "timing" / str(time.time_ns())
    folder.mkdir(parents=True)
    configs = {arm.variant: _for_timing(arm, folder) for arm in arms}

    def collect(readers: dict[str, Reader]) -> None:
        for name, config in list(configs.items()):
            found = Path(config.run.out) / step_clock.RESULT
            if found.is_file():
                del configs[name]
                times[name] = read_json(found) | {"device": read_log(found.parent)[0]["device"]}
                write_json(path, times)
                message(f"{name}: {1e3 * times[name]['seconds']:.1f} ms a step")

    failures: list[RunFailed] = []
    run_all(
        list(configs.values()),
        jobs=min(options.parallel, len(configs)),
        watch=collect,
        poll_seconds=0.1,
        module=CHILD,
        failed=failures.append,
    )
    collect({})
    if failures:
        raise RunFailed(f"{len(failures)} of {len(arms)} arms failed; the first: {failures[0]}")
    shutil.rmtree(folder)
    return path


def _for_timing(arm: Trial, folder: Path) -> TrainConfig:
    run = replace(
        arm.config.run,
        out=str(folder / arm.variant),
        steps=step_clock.WARMUP_STEPS + step_clock.TIMED_STEPS,
        compile_scope="model",
        eval_every=0,
        eval_batches=1,
    )
    return replace(arm.config, run=run, telemetry=replace(arm.config.telemetry, logits_every=0))


def remember_command(out: Path) -> None:
    """Note how the results in this folder were made."""
    path = out / COMMANDS
    entry = {
        "command": shlex.join(["longshort", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_json(path, [*(read_json(path) if path.is_file() else []), entry])


class _Lines:
    """Says every now and then how far the runs are, in one line for each that is under way."""

    def __init__(self, arms: Sequence[Trial], message: Message) -> None:
        self._arms, self._message, self._last = arms, message, time.monotonic()

    def __call__(self, readers: dict[str, Reader]) -> None:
        if time.monotonic() - self._last < _REPORT_SECONDS:
            return
        self._last = time.monotonic()
        ended = 0
        for arm in self._arms:
            reader = readers[str(arm.out)]
            step = 0 if reader.step is None else reader.step.step
            over = reader.end is not None and reader.end.step >= step  # an earlier call's end may still stand there
            ended += over
            if step and not over:
                self._message(_line(arm, reader))
        self._message(f"{ended} of {len(self._arms)} runs ended")


def _line(arm: Trial, reader: Reader) -> str:
    step, logits, evaluation = reader.step, reader.logits_LH, reader.evaluation
    assert step is not None
    peak, validation = math.nan if logits is None else logits.max(), math.nan if evaluation is None else evaluation.loss
    parts = [f"{arm.out.name}: step {step.step}/{arm.config.run.steps}, loss {step.loss:.3f}"]
    parts.append(f"validation {validation:.3f}, max |logit| {peak:.4g}, {step.tokens_per_second:,.0f} tokens/s")
    return ", ".join(parts)
