"""Builds the model of a configuration, and loads that of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from longshort.data.tasks import classes_of
from longshort.model import GPT, SequenceClassifier
from longshort.nn.attention import attention_layers
from longshort.ops.shares import check_firsts, largest_group
from longshort.parallel.drawing import draw_weights
from longshort.parallel.mesh import build_mesh, sequence_group
from longshort.parallel.sharding import shard
from longshort.train.checkpoints.checkpoint import Checkpoint, CheckpointError, load_checkpoint
from longshort.train.divergence import nonfinite_weight
from longshort.train.machine.distributed import World
from longshort.train.machine.precision import in_bf16
from longshort.train.settings.config import ConfigError, TrainConfig

Model = GPT | SequenceClassifier
"""What the trainer trains. Both take (tokens, targets, segments=, stats=) and return logits, loss and stats."""
_VERSIONS = 8
"""Compiled versions of a block that torch allows before it gives up: with gradients, statistics, other lengths ..."""


def build_model(config: TrainConfig) -> Model:
    """A classifier if the task has classes; else a language model, for text and for tasks with marked positions."""
    task = config.task
    n_classes = None if task.name is None else classes_of(task.name)
    if n_classes is None:
        return GPT(config.model)
    return SequenceClassifier(config.model, n_classes=n_classes, causal=task.causal, norm=task.norm)


def compiled(model: Model, scope: str, *, cuda_graphs: bool) -> nn.Module:
    """The model compiled as a whole or, with the scope "block", block by block."""
    options = {"mode": "reduce-overhead"} if cuda_graphs else {}
    if scope == "block":
        from torch._dynamo import config as dynamo

        # Blocks are one function to torch, and those that differ are versions of it.
        dynamo.recompile_limit = max(dynamo.recompile_limit, _VERSIONS * len(model.blocks))
        for block in model.blocks:
            block.compile(**options)
        return model
    return torch.compile(model, **options)  # type: ignore[call-overload]


def share_sequences(model: Model, config: TrainConfig, world: World) -> None:
    """Let processes share sequences as the section `parallel` says, if all layers can."""
    assert isinstance(model, GPT)
    cp, length = config.parallel.cp, config.length
    layers = attention_layers(model)
    most = min(largest_group(layer.plan, layer.n_kv_heads, length, layer.smoothing) for layer in layers)
    if cp > most:
        raise ConfigError(
            f"parallel.cp must be at most {most} for sequences of {length:,} tokens, got {cp}: a window must not reach "
            "past the process before; longer sequences (data.length) or smaller windows would fit too"
        )
    for number, layer in enumerate(layers):
        try:
            check_firsts(layer.plan, layer.n_kv_heads, length, layer.smoothing, segments=config.data.segments)
        except ValueError as error:
            raise ConfigError(f"parallel.cp must be 1, got {cp}: layer {number}: {error}") from None
    model.share_sequences(sequence_group(config.parallel.sizes(world.size), world.device.type))


def shard_model(model: Model, config: TrainConfig, world: World) -> None:
    """Shard a model in place as the section `parallel` says. It was built on the meta device; here it gets its weights,
    those that one process would draw.
    """
    parallel, in_half = config.parallel, in_bf16(config.run.precision, world.device)
    mesh = build_mesh(parallel.sizes(world.size), world.device.type)
    reduce = torch.bfloat16 if parallel.reduce == "bf16" else torch.float32
    shard(model, mesh, parameters=torch.bfloat16 if in_half else None, reduce=reduce, reshard=parallel.reshard)
    torch.manual_seed(config.run.seed)
    draw_weights(model, lambda: build_model(config), world.device)


def load_model(path: Path | str | Checkpoint, device: torch.device | str = "cpu") -> tuple[GPT, Checkpoint]:
    """The language model of a checkpoint, or of a run's newest one, ready to evaluate."""
    model, checkpoint = load_trained(path, device)
    if not isinstance(model, GPT):
        task = checkpoint.state["config"]["task"]["name"]
        raise CheckpointError(
            f"{checkpoint.path}: a classifier of the task {task}, which writes no text; name a language model's "
            "checkpoint (`longshort evaluate` gives a classifier's accuracy)"
        )
    return model, checkpoint


def load_trained(path: Path | str | Checkpoint, device: torch.device | str = "cpu") -> tuple[Model, Checkpoint]:
    """The model of a checkpoint, or of a run's newest one, of either kind, ready to evaluate."""
    checkpoint = path if isinstance(path, Checkpoint) else load_checkpoint(Path(path))
    lost = nonfinite_weight(checkpoint.model)
    if lost is not None:
        raise CheckpointError(
            f"{checkpoint.path}: weights are not finite ({lost}), since its run diverged; name an earlier checkpoint"
        )
    model = build_model(TrainConfig.from_dict(checkpoint.state.get("config", {})))
    try:
        model.load_state_dict(checkpoint.model)
    except RuntimeError as error:  # about the names and shapes of the tensors
        raise CheckpointError(f"{checkpoint.path}: its weights do not match its configuration: {error}") from None
    return model.to(device).eval(), checkpoint
