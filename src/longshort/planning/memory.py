"""Bytes per GPU, by part, at the moment of a step when the most of them are needed.

That is one of three: in the loss, when all activations are kept and a chunk of logits exists; in the first block of the
backward pass; or in the optimizer step. Kept activations are counted as autograd keeps them of compiled blocks in bf16,
with the residual stream in fp32, or in bf16 where the weights are sharded (`Settings.stream_bytes`); a measured 124M
step is within 1 % of it (docs/howto/plan.md).
"""

from __future__ import annotations

from longshort.heads import HeadPlan
from longshort.losses.head import TILE
from longshort.nn.block import GATED
from longshort.ops.shares import Roles
from longshort.planning.figures import COMPUTED, Figure, total
from longshort.planning.job import Job, Settings

CHUNK_BYTES = 2**30
"""Budget for a chunk of logits on a GPU; see `losses.linear`."""
WEIGHTS, MOMENTS, GRADIENTS = "weights, fp32", "moments of the optimizer", "gradients, fp32"
GATHERED, KEPT, LOSS = "weights gathered, bf16", "activations", "loss"
BLOCK, REDUCED = "block at work", "gradients on their way"


def memory(job: Job, settings: Settings) -> list[Figure]:
    """The parts, in bytes, at the peak."""
    return max(_moments(job, settings), key=total)


def _moments(job: Job, settings: Settings) -> list[list[Figure]]:
    shards, root, block = settings.shards, job.root_parameters, job.block_parameters
    rows = micro_tokens(job, settings)
    blocks = job.parameters - root
    state = 4 * job.parameters / shards
    moments = 2 * state - (4 * job.model.n_layers * job.block_matrices / shards if job.optimizer == "muon" else 0)
    always = [
        _part(WEIGHTS, state, f"4 x {job.parameters / 1e9:,.2f} G / {shards}"),
        _part(MOMENTS, moments, "fp32"),
    ]
    if settings.shards > 1:
        gathered = 2 * (root + (min(2, job.model.n_layers) * block if settings.reshard else blocks))
        note = "root and two blocks" if settings.reshard else "all blocks"
        waiting, waiting_note = (2 + 2 * (4 if settings.reduce == "fp32" else 2)) * block, "two blocks"
    else:
        again = settings.checkpoint_activations  # a block that is computed again casts its matrices again
        gathered = 2 * (1 if again else job.model.n_layers) * job.block_matrices
        note = "autocast's copies of " + ("a block's matrices" if again else "the matrices")
        waiting, waiting_note = (4 * job.parameters, "DDP's buckets") if settings.gpus > 1 else (0, "")
    buckets = waiting if settings.shards == 1 else 0
    gradients = _part(GRADIENTS, state, "as the weights")
    earlier = [gradients] if settings.accumulate > 1 else []
    copies = _part(GATHERED, gathered, note)
    blocks_keep = kept_bytes(job, settings) * rows
    kept = _part(KEPT, blocks_keep + last_bytes(job, settings) * rows, f"{rows:,.0f} tokens")
    still_kept = _part(KEPT, blocks_keep, f"{rows:,.0f} tokens")
    head = job.model.vocab_size * job.model.width
    in_loss = _part(LOSS, loss_bytes(job, settings, rows), "a chunk of logits, gradients of head and hidden")
    of_loss = _part(LOSS, (2 if shards > 1 else 4) * head, "gradient of the head")
    at_work = _part(BLOCK, block_bytes(job, settings) * rows, "one block's backward pass")
    return [
        [*always, *earlier, copies, kept, in_loss, *_some(REDUCED, buckets, waiting_note)],
        [*always, *earlier, copies, still_kept, of_loss, at_work, *_some(REDUCED, waiting, waiting_note)],
        [*always, gradients, *_some(REDUCED, buckets, waiting_note)],
    ]


def micro_tokens(job: Job, settings: Settings) -> float:
    """Tokens that a GPU has in the model at a time."""
    return job.tokens / (settings.copies * settings.cp * settings.accumulate)


def kept_bytes(job: Job, settings: Settings) -> float:
    """Bytes per token that the blocks keep for the backward pass."""
    if settings.checkpoint_activations:
        return job.model.n_layers * settings.stream_bytes * job.model.width
    return sum(count * (layer_bytes(job, settings) + exchanged_bytes(job, plan, settings)) for plan, count in job.plans)


def last_bytes(job: Job, settings: Settings) -> float:
    """Bytes per token of the last norm's input and output, which are free before the first block of the backward
    pass. The input is kept in fp32 even of a bf16 stream, since the last norm is then not compiled.
    """
    return (4 + hidden_bytes(job, settings)) * job.model.width + 8


def hidden_bytes(job: Job, settings: Settings) -> int:
    """Bytes of a number of the last norm's output, and of its gradient: under autocast LayerNorm returns fp32."""
    return settings.stream_bytes if job.model.norm == "rms" else 4


def layer_bytes(job: Job, settings: Settings) -> float:
    """Bytes per token that one block keeps.

    As the residual stream: the inputs of norms that read it. Bf16: those of norms of what is added to it, the inputs of
    the four matrix products, q, k and v, the hidden layer before its activation.

    >>> from longshort.model import GPTConfig
    >>> job = Job(model=GPTConfig.preset("gpt2-small"), length=1024, batch=1)
    >>> layer_bytes(job, Settings()) == 36 * 768 + 4 * 12 + 2 * 8
    True
    """
    model, heads, hidden = job.model, job.model.n_heads * job.head_dim, job.model.mlp_width
    qkv = heads + 2 * job.kv_heads * job.head_dim
    turned = heads + job.kv_heads * job.head_dim if model.positions == "rotary" or model.qk_norm else 0
    before = 2 * hidden if model.mlp in GATED else hidden
    bf16 = 2 * model.width + qkv + turned + heads + before + hidden
    dropped = 2 * model.width if model.dropout else 0
    of_stream = 0 if model.norm_placement == "post" else 2
    return (
        (settings.stream_bytes * of_stream + 2 * (job.norms - of_stream)) * model.width
        + 2 * bf16
        + dropped
        + 4 * model.n_heads
        + job.norms * (8 if model.norm == "layer" else 4)
    )


def exchanged_bytes(job: Job, plan: HeadPlan, settings: Settings) -> float:
    """Bytes per token that a layer keeps for what ranks exchange: K and V of global heads from all ranks, their queries
    and outputs dealt anew, K and V of local heads with the halo, which is as long for all of them.
    """
    if settings.cp == 1:
        return 0
    roles = Roles.of(plan, job.kv_heads, job.length)
    halo = (roles.back + roles.first) * settings.cp / job.length
    return 2 * 2 * job.head_dim * (settings.cp * len(roles.far_kv) + len(roles.far) + (1 + halo) * len(roles.near_kv))


def block_bytes(job: Job, settings: Settings) -> float:
    """Bytes per token that a block's backward pass needs at its peak: gradients in the MLP and of the residual stream,
    and with checkpoints what the block computes again.
    """
    model = job.model
    gradients = 2 * model.mlp_width * (3 if model.mlp in GATED else 2) + 2 * settings.stream_bytes * model.width
    if not settings.checkpoint_activations:
        return gradients
    return gradients + layer_bytes(job, settings) + max(exchanged_bytes(job, plan, settings) for plan, _ in job.plans)


def loss_bytes(job: Job, settings: Settings, rows: float) -> float:
    """Bytes of the loss at its peak: a chunk of logits, the head in bf16, its gradient and that of the hidden states.

    >>> from longshort.model import GPTConfig
    >>> model = GPTConfig.preset("gpt2-small", vocab_size=50_304)
    >>> job = Job(model=model, length=1024, batch=32)
    >>> round(loss_bytes(job, Settings(), 32_768))  # with hidden states in bf16: 1,118,896,128
    1169227776
    """
    width, classes = job.model.width, padded(job.model.vocab_size)
    chunk = chunk_rows(job, rows)
    return 2 * chunk * (classes + width) + 6 * classes * width + hidden_bytes(job, settings) * rows * width


def padded(classes: int) -> int:
    """Classes as they are multiplied; see `losses.head`."""
    return classes if classes % 16 == 0 else -(-classes // TILE) * TILE


def chunk_rows(job: Job, rows: float) -> float:
    """Tokens whose logits exist at a time."""
    if job.model.loss.chunk is not None:
        return min(rows, job.model.loss.chunk)
    most = max(1, CHUNK_BYTES // (TILE * padded(job.model.vocab_size) * 2))
    tiles = max(1, -(-rows // TILE))
    return -(-tiles // -(-tiles // most)) * TILE


def _part(name: str, value: float, note: str) -> Figure:
    return Figure(name=name, value=value, unit="bytes", origin=COMPUTED, note=note)


def _some(name: str, value: float, note: str) -> list[Figure]:
    return [_part(name, value, note)] if value else []
