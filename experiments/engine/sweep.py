"""Running the variants of an experiment: planning the runs, estimating their time, and running them, resumably."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from experiments.engine import timing
from experiments.engine.base import base_config, on_cuda, token_folder
from experiments.engine.measures import AFTER, COMMANDS, STEP_TIMES, read_json
from experiments.engine.records import Experiment, Message, Options
from longshort.files import alone_in, write_json
from longshort.planning.job import Settings
from longshort.planning.machines import Machines
from longshort.planning.plan import job_of
from longshort.planning.times import IDLE, times
from longshort.runs import Reader, read_log
from longshort.train import ConfigError, TrainConfig
from longshort.train.evaluation.answers import draw_tasks
from longshort.train.machine.flops import flops_per_token
from longshort.train.models import build_model
from longshort.train.sweeps.processes import RunFailed, run_all
from longshort.train.sweeps.trials import Trial, trials_of

TIMING = "experiments.engine.timing"
_SHARED = 1.2
"""What sweeps of language models took on an H200 that runs share, by the step times of `longshort plan` without the
gaps between kernels: 1.0 to 1.3, with start and evaluation."""
_SLOWER = {("fp32", "high"): 3.0, ("fp32", "highest"): 15.0}
"""Than bf16, by precision and `run.matmul`; plain attention in fp32 took 14.8 times as long (`stabilizers`)."""
_FLOPS = {True: 1.4e14, False: 3e10}
"""Training FLOPs per second of what is not planned so, by whether it is on CUDA: six small runs that shared one H200;
one core of a Xeon in the demo's setting."""
_REPORT_SECONDS = 30.0
EXAMINED_SECONDS = 90.0
"""How long after the minutes of a call are over models that were trained in time may still be examined: they would be
trained again elsewhere, since packs hold no weights."""


def plan_sweep(experiment: Experiment, options: Options, *, data: Path | None) -> list[Trial]:
    """The runs of a call: the chosen variants with every seed."""
    assert experiment.variants is not None
    base = base_config(experiment, options, data=data)
    named = experiment.variants(base)
    names = chosen(named, options.variants or ("*",), experiment.on_request)
    trials = trials_of({name: named[name] for name in names}, options.seeds, options.out)
    _check_overrides(base, trials, options.overrides)
    return trials


def chosen(names: Iterable[str], patterns: Iterable[str], on_request: Container[str] = ()) -> list[str]:
    """The names that match the patterns, in their own order; those on request only where a pattern matches no others.

    >>> chosen(["text-ls", "text-dear"], ["text-*"], ["text-dear"])
    ['text-ls']
    >>> chosen(["text-ls", "text-dear"], ["*-dear"], ["text-dear"])
    ['text-dear']
    """
    names, taken = list(names), set()
    for pattern in patterns:
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise ConfigError(f"--variants must be among {', '.join(names)}, or patterns of them; got {pattern!r}")
        taken.update([name for name in found if name not in on_request] or found)
    return [name for name in names if name in taken]


def _check_overrides(base: TrainConfig, trials: Sequence[Trial], overrides: Sequence[str]) -> None:
    """Raise where all variants set the key themselves, so that an override would have no effect."""
    for override in overrides:
        section, _, key = override.partition("=")[0].partition(".")
        wanted = base.to_dict().get(section, {})
        if key in wanted:  # not model.preset, which stands for other keys
            found = [trial.config.to_dict()[section][key] for trial in trials]
            if wanted[key] not in found:
                values = ", ".join(dict.fromkeys(repr(value) for value in found))
                raise ConfigError(
                    f"{override} has no effect: the variants of this experiment set {section}.{key}={values}"
                )


def is_left(trial: Trial) -> bool:
    """Is there anything left to do for this run? Results written after fewer steps do not count."""
    if not trial.is_finished or not (trial.out / AFTER).is_file():
        return True
    steps = trial.config.run.steps
    return bool(read_json(trial.out / AFTER).get("step", steps) < steps)


def describe(experiment: Experiment, options: Options) -> list[str]:
    """The plan of a call, one line per run; without --data, runs with a vocabulary other than the preset's look new."""
    trials = plan_sweep(experiment, options, data=None if options.data is None else token_folder(experiment, options))
    lines = [
        f"{trial.out}: {config.run.steps} steps of {config.data.batch_size} x {config.length} tokens, "
        f"lr {config.optimizer.lr:g}{'' if is_left(trial) else ', done'}"
        for trial, config in ((trial, trial.config) for trial in trials)
    ]
    left = [trial for trial in trials if is_left(trial)]
    minutes = estimate(left, options) / 60
    time_left = f"{minutes:.1f} minutes" if minutes < 120 else f"{minutes / 60:.0f} hours"
    return [*lines, f"{len(left)} of {len(trials)} runs to do, about {time_left} in all on this kind of device"]


def estimate(trials: Sequence[Trial], options: Options) -> float:
    """A rough estimate of the seconds for all runs together, from the speed of earlier runs."""
    cuda = on_cuda(options.device)
    return sum(trial.config.run.steps * _step_seconds(trial.config, cuda) for trial in trials)


def _step_seconds(config: TrainConfig, cuda: bool) -> float:
    if cuda and config.task.name is None:
        slower = _SLOWER.get((config.run.precision, config.run.matmul), 1.0)
        job = job_of(replace(config, run=replace(config.run, precision="bf16")))
        parts = times(job, Settings(accumulate=config.run.accumulate), Machines())
        return _SHARED * slower * sum(part.value for part in parts if part.name != IDLE)
    with torch.device("meta"):
        model = build_model(config)
    return config.data.batch_size * config.length * flops_per_token(model, config.length) / _FLOPS[cuda]


def run_sweep(experiment: Experiment, options: Options, message: Message) -> bool:
    """Train what is left; True if all is done, False if time or the user stopped it. A failed run stops no other."""
    until = math.inf if options.minutes is None else time.monotonic() + 60 * options.minutes  # including preparation
    trials = plan_sweep(experiment, options, data=token_folder(experiment, options))
    left = [trial for trial in trials if is_left(trial)]
    message(f"{len(trials)} runs, {len(left)} to do, {options.parallel} at a time, in {options.out}")
    if not left:
        return True
    if on_cuda(options.device) and min(options.parallel, len(left)) > 1 and not _side_by_side():
        message("the runs take turns on the GPU; with NVIDIA's MPS (nvidia-cuda-mps-control -d) they share it better")
    remember_command(options.out)
    draw_tasks([trial.config for trial in left], message)
    failures: list[RunFailed] = []

    def failed(failure: RunFailed) -> None:
        failures.append(failure)
        message(str(failure))

    done = run_all(
        [trial.config for trial in left],
        jobs=min(options.parallel, len(left)),
        # Beside runs that busy-wait for a GPU, threads that wait for each other take minutes for a second's work.
        threads=1 if on_cuda(options.device) else None,
        watch=_Lines(left, message),
        module=experiment.process,
        until=until,
        grace=EXAMINED_SECONDS,
        failed=failed,
    )
    if failures:
        raise RunFailed(f"{len(failures)} of {len(left)} runs failed; the first: {failures[0]}")
    return done and not any(is_left(trial) for trial in left)


def _side_by_side() -> bool:
    """Is NVIDIA's MPS running, under which processes use the GPU at the same time?"""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()


def time_steps(experiment: Experiment, options: Options, message: Message) -> Path:
    """Add the seconds per step of each variant, without telemetry, to step_times.json; see `timing`.

    Nothing else may run on the device meanwhile. QK-clip reads logits at every step even so: that is its cost.
    """
    trials = plan_sweep(experiment, replace(options, seeds=(0,)), data=token_folder(experiment, options))
    path = options.out / STEP_TIMES
    times: dict[str, Any] = read_json(path) if path.is_file() else {}
    remember_command(options.out)
    draw_tasks([trial.config for trial in trials], message)
    folder = options.out / "timing" / str(time.time_ns())
    folder.mkdir(parents=True)
    configs = {trial.variant: timing.for_timing(trial.config, folder / trial.variant) for trial in trials}

    def collect(readers: dict[str, Reader]) -> None:
        for name, config in list(configs.items()):
            found = Path(config.run.out) / timing.RESULT
            if found.is_file():
                del configs[name]
                times[name] = read_json(found) | {"device": read_log(found.parent)[0]["device"]}
                write_json(path, times)
                message(f"{name}: {1e3 * times[name]['seconds']:.1f} ms per step")

    failures: list[RunFailed] = []
    run_all(
        list(configs.values()),
        jobs=min(options.parallel, len(configs)),
        watch=collect,
        poll_seconds=0.1,
        module=TIMING,
        failed=failures.append,
    )
    collect({})
    if failures:
        raise RunFailed(f"{len(failures)} of {len(trials)} variants failed; the first: {failures[0]}")
    shutil.rmtree(folder)
    return path


def remember_command(out: Path) -> None:
    """Record how the results in this folder were made; calls side by side wait for each other."""
    path = out / COMMANDS
    entry = {
        "command": shlex.join(["python", "-m", "experiments", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with alone_in(out, wait=True):
        write_json(path, [*(read_json(path) if path.is_file() else []), entry])


class _Lines:
    """Reports from time to time how far the runs are, in one line for each that is under way."""

    def __init__(self, trials: Sequence[Trial], message: Message) -> None:
        self._trials, self._message, self._last = trials, message, time.monotonic()

    def __call__(self, readers: dict[str, Reader]) -> None:
        if time.monotonic() - self._last < _REPORT_SECONDS:
            return
        self._last = time.monotonic()
        ended = 0
        for trial in self._trials:
            reader = readers[str(trial.out)]
            step = 0 if reader.step is None else reader.step.step
            over = reader.end is not None and reader.end.step >= step  # an earlier call's end may still be there
            ended += over
            if step and not over:
                self._message(_line(trial, reader))
        self._message(f"{ended} of {len(self._trials)} runs ended")


def _line(trial: Trial, reader: Reader) -> str:
    step, logits, evaluation = reader.step, reader.logits_LH, reader.evaluation
    assert step is not None
    peak, validation = math.nan if logits is None else logits.max(), math.nan if evaluation is None else evaluation.loss
    parts = [f"{trial.out.name}: step {step.step}/{trial.config.run.steps}, loss {step.loss:.3f}"]
    parts.append(f"validation {validation:.3f}, max |logit| {peak:.4g}, {step.tokens_per_second:,.0f} tokens/s")
    return ", ".join(parts)
