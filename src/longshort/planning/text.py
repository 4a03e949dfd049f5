"""A plan in words and columns. Every line with a number ends in where the number comes from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from longshort.planning import beside, rates
from longshort.planning.figures import COMPUTED, Figure
from longshort.planning.job import Job
from longshort.planning.machines import Machines
from longshort.planning.search import Estimate

GB, MS = 1e9, 1e3


def plan_text(found: Estimate) -> str:
    """One estimate in full."""
    room = found.machines.room
    lines = [_title(found.job), "", f"{_machines(found.machines)}, the fastest settings that fit:"]
    lines += [f"    {' '.join(words)}" for words in _by_section(found.settings.overrides())] + [""]
    lines += _section("memory per GPU at the peak, GB", _scaled(found.memory, 1 / GB))
    lines += [_line("all", found.bytes / GB, COMPUTED, f"of {room / GB:,.1f} that are free for tensors"), ""]
    lines += _section("sent per GPU and step, GB", _scaled(_sent(found), 1 / GB))
    lines += [""] if found.sent else ["  nothing", ""]
    lines += _section("a step, ms", _scaled(found.times, MS))
    lines += [_line("all", MS * found.seconds, COMPUTED, _speed(found)), ""]
    lines += [_line("tokens per day, G", found.tokens_per_day / 1e9, COMPUTED, "86,400 s of such steps")]
    lines += [_line("GPU hours per G tokens", found.gpu_hours, COMPUTED, ""), ""]
    lines += _beside(found)
    lines += _section("rates", rates.figures(found.machines, found.job.head_dim), units=True)
    lines += ["", *_section("machines", found.machines.figures(), units=True)]
    return "\n".join(line.rstrip() for line in lines)


def sweep_text(found: dict[int, Estimate | None], job: Job) -> str:
    """The fastest settings for each number of GPUs; all numbers are computed."""
    names = (
        "GPUs",
        "replicate",
        "shard",
        "cp",
        "reshard",
        "recompute",
        "accumulate",
        "GB",
        "ms",
        "G tokens/day",
        "GPU h/G",
    )
    widths = (6, 11, 7, 6, 9, 11, 12, 8, 10, 14, 9)
    lines = [_title(job), "", "The fastest settings that fit, by number of GPUs; every number is computed.", ""]
    lines += ["".join(name.rjust(width) for name, width in zip(names, widths, strict=True))]
    for gpus, one in found.items():
        if one is None:
            lines.append(f"{gpus:>6,}  nothing fits")
            continue
        s = one.settings
        cells = [f"{gpus:,}", s.dp_replicate, s.dp_shard, s.cp, _yes(s.reshard) if s.shards > 1 else "-"]
        cells += [_yes(s.checkpoint_activations), s.accumulate, f"{one.bytes / GB:,.1f}", f"{MS * one.seconds:,.1f}"]
        cells += [f"{one.tokens_per_day / 1e9:,.2f}", f"{one.gpu_hours:,.1f}"]
        lines.append("".join(str(cell).rjust(width) for cell, width in zip(cells, widths, strict=True)))
    return "\n".join(lines)


def record(found: Estimate) -> dict[str, Any]:
    """The estimate as plain values, ready for JSON."""

    def listed(figures: Iterable[Figure]) -> list[dict[str, Any]]:
        return [vars(figure) for figure in figures]

    summary = {"gpus": found.machines.gpus, "settings": found.settings.overrides(), "fits": found.fits}
    summary |= {"bytes": found.bytes, "seconds": found.seconds, "tokens_per_day": found.tokens_per_day}
    return summary | {
        "gpu_hours_per_billion_tokens": found.gpu_hours,
        "memory": listed(found.memory),
        "sent": listed(_sent(found)),
        "times": listed(found.times),
        "beside": [way._asdict() for way in beside.ways(found)],
        "rates": listed(rates.figures(found.machines, found.job.head_dim)),
        "machines": listed(found.machines.figures()),
    }


def _title(job: Job) -> str:
    sizes = f"{job.parameters / 1e9:,.2f} G parameters, {job.batch:,} x {job.length:,} tokens per step"
    return f"{sizes}, {job.optimizer}, bf16, compiled"


def _machines(machines: Machines) -> str:
    return f"{machines.gpus:,} x {machines.gpu.upper()}"


def _by_section(words: list[str]) -> list[list[str]]:
    return [[word for word in words if word.startswith(section)] for section in ("parallel.", "run.")]


def _speed(found: Estimate) -> str:
    job, layers = found.job, found.job.model.n_layers
    weights = layers * job.block_matrices + job.model.vocab_size * job.model.width
    share = 6 * weights * job.tokens / (found.seconds * found.machines.gpus * found.machines.flops)
    return f"{share:.0%} of peak FLOP/s in weights alone"


def _sent(found: Estimate) -> list[Figure]:
    return [
        Figure(name=each.name, value=each.bytes, unit="bytes", origin=COMPUTED, note=_rate(each.bandwidth, each.note))
        for each in found.sent
    ]


def _rate(bandwidth: float, note: str) -> str:
    return f"{note}; at {bandwidth / GB:,.0f} GB/s (assumed)"


def _beside(found: Estimate) -> list[str]:
    lines = ["beside full attention            attention, ms   sent for it, GB    step, ms"]
    ways = beside.ways(found)
    for way in ways:
        lines.append(
            f"  {way.name:30}{MS * way.attention:>14,.1f}{way.sent / GB:>18,.3f}{MS * way.seconds:>12,.1f}   {COMPUTED}"
        )
    return [*lines, ""] if len(ways) > 1 else []


def _section(title: str, figures: Iterable[Figure], *, units: bool = False) -> list[str]:
    return [title, *(_line(f.name, f.value, f.origin, f.note, f.unit if units else "") for f in figures)]


def _scaled(figures: Iterable[Figure], factor: float) -> list[Figure]:
    return [Figure(name=f.name, value=factor * f.value, unit=f.unit, origin=f.origin, note=f.note) for f in figures]


def _line(name: str, value: float, origin: str, note: str, unit: str = "") -> str:
    digits = 3 if abs(value) < 10 else 1
    shown = f"{value:,.{digits}f} {unit:8}" if unit else f"{value:,.{digits}f} "
    return f"  {name:32}{shown:>{20 if unit else 12}}{origin:10}{note}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
