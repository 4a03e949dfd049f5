"""The same job with full attention in every head, its sequences shared by ring attention or by Ulysses.

Full attention gets the fastest kernel that was measured, and a ring hides what it sends behind the attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from longshort.planning import rates
from longshort.planning.figures import Figure, total
from longshort.planning.job import Job
from longshort.planning.search import Estimate
from longshort.planning.times import AGAIN, ATTENTION, EXCHANGE, attention_seconds, times
from longshort.planning.traffic import Sent, exchange, ring_bytes, ulysses_bytes

OURS, PLAIN, RING, ULYSSES = "as configured", "full attention", "full attention, ring", "full attention, Ulysses"


class Way(NamedTuple):
    """One way to attend."""

    name: str
    attention: float
    """Seconds of attention per step, recomputation included."""
    sent: float
    """Bytes per GPU and step that sharing sequences sends."""
    seconds: float
    """Seconds per step."""


def ways(found: Estimate) -> list[Way]:
    """The settings as they are and with full attention; the first alone if attention is full already."""
    sent = exchange(found.job, found.settings, found.machines)
    ours = Way(OURS, _attention(found, found.times), sum(each.bytes for each in sent), found.seconds)
    plain = found.job.as_plain()
    if found.job.span == found.job.length and all(set(plan.windows) == {None} for plan, _ in found.job.plans):
        return [ours]
    parts = [part for part in times(plain, found.settings, found.machines, full_by=rates.FULL) if part.name != EXCHANGE]
    attention, rest = _attention(found, parts, plain), total(parts)
    if found.settings.cp == 1:
        return [ours, Way(PLAIN, attention, 0, rest)]
    ring = _sent(found, plain, RING, ring_bytes, 2, found.settings.cp - 1)
    ringed = Way(RING, attention, ring.bytes, rest + max(0.0, ring.seconds - attention))
    if plain.kv_heads % found.settings.cp:
        return [ours, ringed]
    dealt = _sent(found, plain, ULYSSES, ulysses_bytes, 1, 2)
    return [ours, ringed, Way(ULYSSES, attention, dealt.bytes, rest + dealt.seconds)]


def _sent(found: Estimate, job: Job, name: str, count: Callable[[Job, int], float], backward: int, calls: int) -> Sent:
    settings, machines = found.settings, found.machines
    again = settings.checkpoint_activations
    forward = job.model.n_layers * job.batch / settings.copies * count(job, settings.cp)
    passes = job.model.n_layers * settings.accumulate * calls * (2 + again)
    rate = machines.crossing_bandwidth(settings.cp, stride=1)
    if name == RING:  # only the last rank of a node sends out of it, through all adapters
        rate = machines.group_bandwidth(settings.cp, stride=1)
    return Sent(name, forward, (backward + again) * forward, rate, passes, 2, "")


def _attention(found: Estimate, parts: list[Figure], plain: Job | None = None) -> float:
    seconds = total(part for part in parts if part.name == ATTENTION)
    if not any(part.name == AGAIN for part in parts):
        return seconds
    table = rates.GLOBAL if plain is None else rates.FULL
    return seconds + attention_seconds(plain or found.job, found.settings, found.machines, table).forward
