"""Checks that a run fits in memory before anything is allocated, and says what to change if it does not.

Only what a run certainly needs is counted, so that no run that would fit is refused: weights, gradients and the
optimizer's moments, one batch of tokens, and the activations that every backend keeps for the backward pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from longshort.model import GPTConfig
from longshort.train.checkpoints.checkpoint import CHECKPOINTS, checkpoint_names
from longshort.train.machine.distributed import World
from longshort.train.machine.memory import available_memory, shortage
from longshort.train.machine.precision import in_bf16
from longshort.train.settings.config import ConfigError, TrainConfig

REMEDY = (
    "a smaller data.batch_size, a larger run.accumulate, run.checkpoint_activations=true, a smaller data.length or "
    "loss.chunk, or a smaller model needs less"
)
REMEDY_OF_A_RESUMED_RUN = (
    "run.checkpoint_activations=true or a smaller loss.chunk needs less; a resumed run may change no other setting "
    "that would help"
)
REMEDY_OF_RL = (
    "a larger run.accumulate, run.checkpoint_activations=true, a smaller rl.prompts, rl.group or rl.max_new_tokens, or "
    "a smaller model needs less"
)
_OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon"}
_PROBLEM = 256
"""Bytes that a problem needs at least, as Python objects."""
_OVER_THE_LEAST = 3
"""A run's activations are about this many times those that are counted; used for suggestions only."""


@dataclass(frozen=True)
class Need:
    """The least number of bytes that a run needs."""

    state: int
    """Weights, gradients and moments: two of each weight, or one where Muon trains it."""
    gradients: int
    """The gradients' part of it."""
    tokens: int
    """Inputs and targets of one sequence."""
    activations: int
    """Activations of one sequence while its micro-batch is in the model."""
    rows: int
    """Sequences of a batch in this process."""
    micro_rows: int
    """Sequences of a micro-batch."""

    @property
    def total(self) -> int:
        """The gradients are allocated as the activations are freed."""
        most = max(self.state, self.state - self.gradients + self.micro_rows * self.activations)
        return most + self.rows * self.tokens


def need_of(config: TrainConfig, world: World) -> Need:
    """The least that a run needs on the device of each of its processes."""
    weights = 4 * least_parameters(config.model)
    matrices = weights - 4 * _table_parameters(config.model)
    state = 4 * weights - (matrices if config.optimizer.kind == "muon" else 0)
    if config.rl.task is not None:  # what a rollout needs depends on what is drawn
        problems = max(config.data.batch_size, config.rl.prompts)
        state += weights if config.rl.kl else 0
        return Need(state=state, gradients=weights, tokens=_PROBLEM, activations=0, rows=problems, micro_rows=0)
    sizes = config.parallel.sizes(world.size)
    weights, state = weights // sizes.shards, state // sizes.shards
    rows, length = config.data.batch_size // sizes.readers, config.length // sizes.cp
    return Need(
        state=state,
        gradients=weights,
        tokens=8 * length * (2 if config.task.name is None else 1),
        activations=length * _kept_per_token(config) * (2 if in_bf16(config.run.precision, world.device) else 4),
        rows=rows,
        micro_rows=max(1, rows // config.run.accumulate),
    )


def least_parameters(model: GPTConfig) -> int:
    """Number of weights of a model, gains and biases left out, computed without building it.

    >>> least_parameters(GPTConfig.preset("paper-6m"))
    6887424
    """
    attention = 2 * (model.n_heads + (model.n_kv_heads or model.n_heads)) * model.head_features
    blocks = model.n_layers * model.width * (attention + model.mlp_matrices * model.mlp_width)
    return _table_parameters(model) + blocks


def _table_parameters(model: GPTConfig) -> int:
    """Number of weights of the embeddings and the head."""
    tables = model.vocab_size * (1 if model.tie_embeddings else 2) + model.context * (model.positions == "learned")
    return model.width * tables


def _kept_per_token(config: TrainConfig) -> int:
    """Numbers kept: each block's input, queries, keys, values, attention output and the MLP's hidden layer, or both of
    a gated one."""
    model = config.model
    heads = (2 * model.n_heads + 2 * (model.n_kv_heads or model.n_heads)) * model.head_features
    block = model.width + heads + (model.mlp_matrices - 1) * model.mlp_width
    if config.run.checkpoint_activations:
        return model.n_layers * model.width + block
    return model.n_layers * block


@contextmanager
def within_memory(config: TrainConfig, world: World) -> Iterator[None]:
    """Refuse a run that cannot fit; if an allocation fails within the block, say what would help."""
    check_memory(config, world)
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if (reason := shortage(error)) is None:
            raise
        remedy = REMEDY if config.rl.task is None else REMEDY_OF_RL
        raise ConfigError(f"{reason}; {REMEDY_OF_A_RESUMED_RUN if _resumes(config) else remedy}") from None


def _resumes(config: TrainConfig) -> bool:
    return bool(checkpoint_names(Path(config.run.out) / CHECKPOINTS))


def check_memory(config: TrainConfig, world: World) -> None:
    """Raise if the run needs more memory than is free, saying how much that is and what would fit."""
    need, cpu = need_of(config, world), torch.device("cpu")
    needs, optimizer = {world.device: need}, _OPTIMIZERS[config.optimizer.kind]
    if world.device != cpu:
        needs[cpu] = dataclasses.replace(need, state=0, gradients=0, activations=0)  # batches are made there
    for device, part in needs.items():
        left = available_memory(device)
        if left is not None and part.total > left and config.rl.task is not None:
            raise ConfigError(
                f"this run needs at least {_size(part.total)} of memory on {device} for the weights, their gradients, "
                f"{optimizer}, the reference and problems, but {_size(left)} is free; a smaller model, data.batch_size "
                "or rl.prompts would fit"
            )
        if left is not None and part.total > left:
            raise ConfigError(
                f"this run needs at least {_size(part.total)} of memory on {device}, of which {_size(part.state)} for "
                f"the weights, their gradients and {optimizer}, and {_size(part.total - part.state)} for "
                f"data.batch_size={config.data.batch_size} sequences of {config.length:,} tokens, but "
                f"{_size(left)} is free; {_what_fits(part, left, config, world)}"
            )


def _what_fits(need: Need, left: int, config: TrainConfig, world: World) -> str:
    if _resumes(config):
        recomputed = dataclasses.replace(config, run=dataclasses.replace(config.run, checkpoint_activations=True))
        if config.run.checkpoint_activations or need_of(recomputed, world).total > left:
            return "no setting that a resumed run may change would make it fit"
        return "run.checkpoint_activations=true would need less"
    accumulate = config.run.accumulate
    activations = _OVER_THE_LEAST * need.activations
    room = left - need.state
    steps = room // (accumulate * need.tokens + activations)
    ways = []
    if steps > 0:
        ways.append(f"data.batch_size={steps * accumulate * config.parallel.sizes(world.size).readers}")
    if activations and (micro := (room - need.rows * need.tokens) // activations) > 0:
        least = -(-need.rows // micro)
        pieces = next((n for n in range(least, min(need.rows, least + 10_000) + 1) if need.rows % n == 0), None)
        ways += [] if pieces is None else [f"run.accumulate={pieces}"]
    if not ways:
        return "a smaller model (model.width, model.n_layers, model.vocab_size) or a smaller data.length would fit"
    return f"{' or '.join(ways)} would fit"


def _size(count: int) -> str:
    """A number of bytes in readable units.

    >>> _size(3 * 2**30), _size(1000)
    ('3.0 GiB', '1.0 KiB')
    """
    amount, units = count / 1024, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:,.1f} {units[0]}"
