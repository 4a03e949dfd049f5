"""Seconds of a step: work that is counted, divided by rates that were measured, and links that are assumed.

Collectives of the weights and gradients run beside the computation and cost only what they take longer; what ranks
exchange within a sequence is waited for.
"""

from __future__ import annotations

from typing import NamedTuple

from longshort.nn.block import GATED
from longshort.planning import rates
from longshort.planning.figures import COMPUTED, Figure
from longshort.planning.job import Job, Settings
from longshort.planning.machines import Machines
from longshort.planning.memory import micro_tokens, padded
from longshort.planning.rates import Passes, by_head_dim, carried
from longshort.planning.reaches import reaches
from longshort.planning.traffic import Sent, exchange, sharding
from longshort.reach.costs import mean_visible

MATRICES, ATTENTION, REST = "matrix products of the blocks", "attention", "norms, activations, sums"
HEAD, OPTIMIZER, AGAIN, IDLE = "head and loss", "optimizer, clipping", "blocks computed again", "between kernels"
EXCHANGE, WAITING = "exchange within sequences", "weights and gradients, not hidden"


class Pair(NamedTuple):
    """Seconds of a forward and of a backward pass."""

    forward: float
    backward: float


def times(
    job: Job, settings: Settings, machines: Machines, *, full_by: dict[int, Passes] | None = None
) -> list[Figure]:
    """Seconds per step by part. `full_by` gives the rates of global heads in place of our kernels'."""
    passes, rows = settings.accumulate, micro_tokens(job, settings)
    layers = job.model.n_layers
    matrices = _scaled(matrix_seconds(job, rows, machines), passes * layers)
    attention = _scaled(attention_seconds(job, settings, machines, full_by or rates.GLOBAL), 1)
    rest = _scaled(stream_seconds(job, settings, rows, machines), passes * layers)
    parts = [
        _part(MATRICES, sum(matrices), "6 FLOPs per weight and token"),
        _part(ATTENTION, sum(attention), "visible pairs of global heads, tiles of local ones"),
        _part(REST, sum(rest), "bytes read and written"),
        _part(HEAD, passes * head_seconds(job, rows, machines), ""),
        _part(
            OPTIMIZER, optimizer_seconds(job, settings, machines), f"{job.parameters / settings.shards:,.0f} weights"
        ),
    ]
    again = matrices.forward + attention.forward + rest.forward if settings.checkpoint_activations else 0.0
    parts += [_part(AGAIN, again, "checkpoint_activations")] if again else []
    gaps = passes * layers * rates.GAP * (4 / 3 if settings.checkpoint_activations else 1)
    parts += [_part(IDLE, gaps, "per block and micro-batch")]
    forward = matrices.forward + attention.forward + rest.forward + parts[3].value / 3
    backward = matrices.backward + attention.backward + rest.backward + 2 * parts[3].value / 3 + again
    exposed = exposed_seconds(sharding(job, settings, machines), forward, backward)
    parts += [_part(WAITING, exposed, "beyond what computing hides")] if exposed else []
    waited = sum(sent.seconds for sent in exchange(job, settings, machines))
    return [*parts, *([_part(EXCHANGE, waited, "waited for")] if waited else [])]


def matrix_seconds(job: Job, rows: float, machines: Machines) -> Pair:
    """The matrix products of one block: as fast as measured, but no faster than their bytes are moved."""
    forward = sum(_product(rows, inputs, outputs, machines) for inputs, outputs in job.products)
    return Pair(forward, 2 * forward)


def _product(rows: float, inputs: int, outputs: int, machines: Machines) -> float:
    moved = 2 * (rows * inputs + inputs * outputs + rows * outputs)
    multiplied = 2 * rows * inputs * outputs / (rates.MATMUL * carried(machines))
    return max(multiplied, moved / (rates.STREAM * carried(machines, bandwidth=True)))


def attention_seconds(job: Job, settings: Settings, machines: Machines, table: dict[int, Passes]) -> Pair:
    """Attention of all layers and micro-batches; ranks that share a sequence share its work evenly."""
    tokens, dim = job.tokens / settings.gpus, job.head_dim
    far, scale, wide = by_head_dim(table, dim), carried(machines), carried(machines, bandwidth=True)
    seconds = [0.0, 0.0]
    for plan, count in job.plans:
        seen = reaches(plan, job.span)
        pairs = seen.far * mean_visible(None, job.span) * tokens
        tiles = sum(keys + rates.TILE for keys in seen.near) * tokens
        features = len(seen.near) * dim * tokens
        for way, (flops, moved) in enumerate(((4, 8), (10, 16))):
            local = max(
                flops * dim * tiles / (rates.LOCAL[way] * scale), moved * features / (rates.LOCAL_STREAM[way] * wide)
            )
            seconds[way] += count * (flops * dim * pairs / (far[way] * scale) + local)
    return Pair(*seconds)


def stream_seconds(job: Job, settings: Settings, rows: float, machines: Machines) -> Pair:
    """What one block reads and writes outside matrix products and attention, fused as torch.compile does it.

    Per token: 12 bytes per feature forward and 16 backward for each norm with its sum, or 8 and 8 if the residual
    stream is bf16; 2 bytes per number in and out of the activation, and of rotary positions and QK-norm.
    """
    model, hidden = job.model, job.model.mlp_width
    ins = 2 if model.mlp in GATED else 1
    turned = 0
    if model.positions == "rotary" or model.qk_norm:
        turned = (model.n_heads + job.kv_heads) * job.head_dim
    stream = settings.stream_bytes
    forward = job.norms * (2 * stream + 4) * model.width + 2 * (ins + 1) * hidden + 4 * turned
    backward = job.norms * 4 * stream * model.width + 2 * (2 * ins + 1) * hidden + 6 * turned
    rate = rates.STREAM * carried(machines, bandwidth=True)
    return Pair(rows * forward / rate, rows * backward / rate)


def head_seconds(job: Job, rows: float, machines: Machines) -> float:
    """Logits, their gradient, and both products of it."""
    classes = padded(job.model.vocab_size)
    moved = 4 * rows * classes / (rates.CROSS_ENTROPY * carried(machines, bandwidth=True))
    return 3 * _product(rows, job.model.width, classes, machines) + moved


def optimizer_seconds(job: Job, settings: Settings, machines: Machines) -> float:
    """Fused AdamW and the global norm; with Muon, five Newton-Schulz steps of each matrix on one of the ranks."""
    wide = carried(machines, bandwidth=True)
    share = job.parameters / settings.shards
    seconds = 28 * share / (rates.ADAMW * wide) + 12 * share / (rates.STREAM * wide)
    if job.optimizer == "muon":
        flops = sum(5 * (4 * n * m * min(n, m) + 2 * min(n, m) ** 3) for n, m in job.matrices)
        seconds += job.model.n_layers * flops / settings.shards / (rates.MATMUL * carried(machines))
    return seconds


def exposed_seconds(sent: list[Sent], forward: float, backward: float) -> float:
    """What the collectives of a step take longer than the passes beside which they run."""
    first = sum(each.forward / each.bandwidth for each in sent)
    second = sum(each.backward / each.bandwidth for each in sent)
    calls = sum(each.waiting for each in sent)
    return max(0.0, first + calls / 2 - forward) + max(0.0, second + calls / 2 - backward)


def _scaled(pair: Pair, factor: float) -> Pair:
    return Pair(factor * pair.forward, factor * pair.backward)


def _part(name: str, value: float, note: str) -> Figure:
    return Figure(name=name, value=value, unit="s", origin=COMPUTED, note=note)
