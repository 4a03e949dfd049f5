"""Whether settings fit, how long their step takes, and which of them is the fastest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from math import isqrt
from typing import Any

from longshort.planning.figures import Figure, total
from longshort.planning.job import Job, Settings, check
from longshort.planning.machines import Machines
from longshort.planning.memory import memory
from longshort.planning.times import times
from longshort.planning.traffic import Sent, exchange, sharding

DAY = 86_400
COUNTS = tuple(2**power for power in range(11))
"""Numbers of GPUs that a sweep tries: 1 to 1,024."""
CHECKPOINT = "checkpoint_activations"
_LARGEST_DIVISOR = 10_000
"""Divisors are looked for up to this one, and their counterparts above it."""
_SWITCHES = {"true": True, "false": False}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What settings would take on machines."""

    job: Job
    settings: Settings
    machines: Machines
    memory: list[Figure]
    """Bytes per GPU by part, at the peak."""
    sent: list[Sent]
    """Bytes per GPU and step by kind."""
    times: list[Figure]
    """Seconds per step by part."""

    @property
    def fits(self) -> bool:
        return self.bytes <= self.machines.room

    @property
    def bytes(self) -> float:
        return total(self.memory)

    @property
    def seconds(self) -> float:
        return total(self.times)

    @property
    def tokens_per_day(self) -> float:
        return DAY * self.job.tokens / self.seconds

    @property
    def gpu_hours(self) -> float:
        """GPU hours per billion tokens."""
        return self.machines.gpus * self.seconds / 3600 / self.job.tokens * 1e9


def estimate(job: Job, settings: Settings, machines: Machines) -> Estimate:
    """What a job takes with settings whose sizes multiply to the number of GPUs."""
    if settings.gpus != machines.gpus:
        sizes = f"{settings.dp_replicate} x {settings.dp_shard} x {settings.cp} = {settings.gpus}"
        raise ValueError(f"dp_replicate x dp_shard x cp must be the {machines.gpus} GPUs, got {sizes}")
    if reason := check(job, settings):
        raise ValueError(reason)
    return Estimate(
        job=job,
        settings=settings,
        machines=machines,
        memory=memory(job, settings),
        sent=[*sharding(job, settings, machines), *exchange(job, settings, machines)],
        times=times(job, settings, machines),
    )


def fastest(job: Job, machines: Machines, fixed: Mapping[str, Any] | None = None) -> Estimate | None:
    """The fastest settings that fit; None if none do. `fixed` holds values of settings that are not to be changed."""
    fixed = dict(fixed or {})
    fitting = [found for found in _candidates(job, machines, fixed) if found.fits]
    return min(fitting, key=lambda found: (found.seconds, _effort(found.settings)), default=None)


def smallest(job: Job, machines: Machines, fixed: Mapping[str, Any] | None = None) -> Estimate | None:
    """The settings that need the least memory, whether or not they fit; None if the GPUs cannot be put to use."""
    return min(_candidates(job, machines, dict(fixed or {})), key=lambda found: found.bytes, default=None)


def sweep(job: Job, machines: Machines, fixed: Mapping[str, Any] | None = None) -> dict[int, Estimate | None]:
    """The fastest settings that fit for each number of GPUs from 1 to 1,024."""
    return {gpus: fastest(job, machines.of(gpus), fixed) for gpus in COUNTS}


def fixed_settings(words: list[str]) -> dict[str, Any]:
    """Settings from `name=value`.

    >>> fixed_settings(["cp=4", "reshard=false"])
    {'cp': 4, 'reshard': False}
    """
    kinds = {field.name: type(field.default) for field in fields(Settings)}
    found: dict[str, Any] = {}
    for word in words:
        name, _, text = word.partition("=")
        kind = kinds.get(name)
        if kind is None:
            raise ValueError(f"--fix must be name=value with a name of {', '.join(kinds)}, got {word!r}")
        if name in found:
            raise ValueError(f"--fix {name} must be given once, got it again with {text!r}")
        if kind is int and text.isascii() and text.isdigit() and 0 < len(text) < 7 and int(text):
            found[name] = int(text)
        elif kind is bool and text in _SWITCHES:
            found[name] = _SWITCHES[text]
        elif kind is str and text in ("fp32", "bf16"):
            found[name] = text
        else:
            right = {int: "an integer from 1 to 999,999", bool: "true or false", str: "fp32 or bf16"}[kind]
            raise ValueError(f"--fix {name} must be {right}, got {text!r}")
    return found


def check_not_set(overrides: Sequence[str]) -> None:
    """Raise if an override sets what a plan chooses by itself."""
    chosen = {word.split("=")[0] for word in Settings(cp=2, reduce="bf16").overrides()}
    for override in overrides:
        name, _, value = override.partition("=")
        if name in chosen:
            short = name.partition(".")[2]
            try:
                fixed_settings([f"{short}={value}"])
            except ValueError:
                advice = "leave it out"
            else:
                advice = f"use --fix {short}={value}"
            raise ValueError(f"{name} must not be set, since a plan chooses it, got {value}; {advice}")


def _candidates(job: Job, machines: Machines, fixed: dict[str, Any]) -> Iterator[Estimate]:
    """Every way to use all GPUs, with the fewest micro-batches that fit; where none fit, with those of `_fewest`."""
    gpus = machines.gpus
    for cp in _divisors(gpus):
        for dp_shard in _divisors(gpus // cp):
            sizes: dict[str, Any] = {"cp": cp, "dp_shard": dp_shard, "dp_replicate": gpus // cp // dp_shard}
            if any(fixed.get(name, value) != value for name, value in sizes.items()):
                continue
            if check(job, Settings(**sizes)):
                continue
            for switches in _switches(sizes, fixed):
                yield from _fewest(job, machines, sizes | switches, fixed.get("accumulate"))


def _switches(sizes: dict[str, Any], fixed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    either = [True, False] if sizes["cp"] * sizes["dp_shard"] > 1 else [True]
    for reshard in [fixed["reshard"]] if "reshard" in fixed else either:
        for again in [fixed[CHECKPOINT]] if CHECKPOINT in fixed else [False, True]:
            yield {"reshard": reshard, CHECKPOINT: again, "reduce": fixed.get("reduce", "fp32")}


def _fewest(job: Job, machines: Machines, values: dict[str, Any], fixed: int | None) -> Iterator[Estimate]:
    """With the fewest micro-batches that fit; from two on, more of them need less memory. Where none fit, with one and
    with the most, of which one needs the least: a single one keeps no sums of gradients.
    """
    share = job.batch // (values["dp_shard"] * values["dp_replicate"])
    counts = _divisors(share) if fixed is None else [fixed] if share % fixed == 0 else []
    options = [Settings(accumulate=count, **values) for count in counts]
    chosen = options[:1]
    if len(options) > 1 and not _fits(job, options[0], machines):
        first = bisect_left(options, True, lo=1, key=lambda settings: _fits(job, settings, machines))
        chosen = options[first : first + 1] or [options[0], options[-1]]
    for settings in chosen:
        yield estimate(job, settings, machines)


def _fits(job: Job, settings: Settings, machines: Machines) -> bool:
    return total(memory(job, settings)) <= machines.room


def _effort(settings: Settings) -> tuple[bool, ...]:
    """Of equally fast settings the simplest come first."""
    return settings.shards > 1, settings.cp > 1, settings.checkpoint_activations, not settings.reshard


@cache
def _divisors(number: int) -> list[int]:
    low = [n for n in range(1, min(isqrt(number), _LARGEST_DIVISOR) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})
