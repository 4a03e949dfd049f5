"""Bytes that a GPU sends per step, by kind, and how long they take.

FSDP gathers weights in bf16 and sums gradients by reduce-scatter; the copies of HSDP and DDP sum them by all-reduce. Of
a sequence that several ranks share, local heads send a halo of window - 1 keys and values to the next rank, global
heads gather theirs, and half of the queries of global heads change places: `ops.shares.bytes_sent` has the formulas.
"""

from __future__ import annotations

from typing import NamedTuple

from longshort.heads import HeadPlan
from longshort.ops.shares import bytes_sent
from longshort.planning.job import Job, Settings
from longshort.planning.machines import LATENCY, LATENCY_PER_RANK, Machines

HALO, KEYS, QUERIES = "halo of local heads", "keys and values of global heads", "queries of global heads"
GATHER, SCATTER, REPLICAS = "weights gathered", "gradients scattered", "gradients of the copies"


class Sent(NamedTuple):
    """One kind of traffic."""

    name: str
    forward: float
    """Bytes per GPU and step in forward passes."""
    backward: float
    """Bytes per GPU and step in backward passes."""
    bandwidth: float
    """Bytes per second."""
    calls: float
    """Collectives per step."""
    ranks: int
    """Ranks that take part in each."""
    note: str

    @property
    def bytes(self) -> float:
        return self.forward + self.backward

    @property
    def waiting(self) -> float:
        """Seconds of latency in all calls."""
        return self.calls * (LATENCY + LATENCY_PER_RANK * (self.ranks - 1))

    @property
    def seconds(self) -> float:
        return self.bytes / self.bandwidth + self.waiting


def exchange_bytes(plan: HeadPlan, job: Job, cp: int) -> dict[str, float]:
    """Bytes that a rank sends for one sequence in one layer, forward.

    >>> from longshort.model import GPTConfig
    >>> model = GPTConfig(vocab_size=8, context=131072, n_layers=1, width=4096, n_heads=32, n_global=1, window=128)
    >>> sent = exchange_bytes(model.layer_plans[0], Job(model=model, length=131072, batch=1), 8)
    >>> {name: round(count / 1e6, 1) for name, count in sent.items()}
    {'halo of local heads': 2.0, 'keys and values of global heads': 58.7, 'queries of global heads': 4.2}
    """
    sizes = {"length": job.length, "size": cp, "head_dim": job.head_dim, "itemsize": 2}
    sent = bytes_sent(plan, job.kv_heads, smoothing=job.smoothing, **sizes)
    return {HALO: sent["halo"] + sent["first"] + sent["smoothing"], KEYS: sent["gather"], QUERIES: sent["queries"]}


def exchange(job: Job, settings: Settings, machines: Machines) -> list[Sent]:
    """What sharing sequences sends."""
    cp = settings.cp
    if cp == 1:
        return []
    sequences = job.batch / settings.copies
    forward = dict.fromkeys((HALO, KEYS, QUERIES), 0.0)
    for plan, count in job.plans:
        for name, size in exchange_bytes(plan, job, cp).items():
            forward[name] += count * size * sequences
    again = 2 if settings.checkpoint_activations else 1
    rates = {name: machines.crossing_bandwidth(cp, stride=1) for name in (HALO, QUERIES)}
    rates[KEYS] = machines.group_bandwidth(cp, stride=1)
    calls = job.model.n_layers * settings.accumulate * (again + 1)
    ways = {HALO: 1, KEYS: 1, QUERIES: 2}
    return [
        Sent(name, size, again * size, rates[name], ways[name] * calls, 2 if name == HALO else cp, f"cp {cp}")
        for name, size in forward.items()
        if size
    ]


def sharding(job: Job, settings: Settings, machines: Machines) -> list[Sent]:
    """What dividing and copying the weights sends."""
    found, shards, copies = [], settings.shards, settings.dp_replicate
    micro, layers = settings.accumulate, job.model.n_layers
    reduced = 4 if settings.reduce == "fp32" else 2
    if shards > 1:
        rate, others = machines.group_bandwidth(shards, stride=1), (shards - 1) / shards
        blocks = 2 * (job.parameters - job.root_parameters) * others * micro
        root = 2 * job.root_parameters * others * micro
        twice = settings.reshard
        calls, note = micro * (layers + 1), f"bf16, {'twice' if twice else 'once'} per micro-batch"
        found += [
            Sent(GATHER, blocks + root, blocks * twice, rate, calls + micro * layers * twice, shards, note),
            Sent(SCATTER, 0, reduced * job.parameters * others * micro, rate, calls, shards, settings.reduce),
        ]
    if copies > 1:
        rate, others = machines.group_bandwidth(copies, stride=shards), (copies - 1) / copies
        passes, of = (micro, "micro-batch") if shards > 1 else (1, "step")
        size = 2 * (reduced if shards > 1 else 4) * job.parameters / shards * others
        buckets = layers + 1 if shards > 1 else max(1, 4 * job.parameters / 25e6)  # DDP's have 25 MB
        found += [Sent(REPLICAS, 0, passes * size, rate, passes * buckets, copies, f"all-reduce, once per {of}")]
    return found


def ring_bytes(job: Job, cp: int) -> float:
    """Bytes that ring attention sends for one sequence in one layer, forward; twice as many backward."""
    return 2 * 2 * job.length / cp * (cp - 1) * job.head_dim * job.kv_heads


def ulysses_bytes(job: Job, cp: int) -> float:
    """Bytes that Ulysses sends for one sequence in one layer, forward; as many backward."""
    heads = 2 * job.model.n_heads + 2 * job.kv_heads
    return 2 * job.length / cp * (cp - 1) / cp * job.head_dim * heads
