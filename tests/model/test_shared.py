"""A model whose sequences several processes share has the loss, gradients and statistics of one process."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from longshort import GPT, GPTConfig, HeadPlan
from longshort.nn.norms import SequenceBatchNorm

BASE = {"vocab_size": 19, "context": 32, "n_layers": 2, "width": 16, "n_heads": 4, "init_std": 0.3}
LONG_SHORT = {"n_global": 1, "window": 5}
LENGTH = 8
"""Positions per rank."""
CASES = {
    "learned positions": LONG_SHORT,
    "rotary, QK-norm and grouped queries": {"positions": "rotary", "qk_norm": "head", "n_kv_heads": 2}
    | {"plan": HeadPlan(windows=(None, None, 4, 3))},
    "positions that restart": LONG_SHORT | {"positions": "rotary", "restart_positions": True},
    "learned positions that restart": LONG_SHORT | {"restart_positions": True},
    "alibi and softcap": LONG_SHORT | {"positions": "alibi", "softcap": 3.0},
    "sinusoidal, smoothing and z-loss": LONG_SHORT | {"positions": "sinusoidal", "smoothing": 3, "z_loss": 0.1},
    "learned sinks and query temperature": {"positions": "rotary", "tie_embeddings": True}
    | {"reach": {"pattern": "long_short", "n_global": 1, "window": 4, "sinks": True, "temperature": {"every": 4}}},
    "global heads not rotated, grouped queries": {"positions": "rotary", "qk_norm": "head", "n_kv_heads": 2}
    | {"reach": {"pattern": "ladder", "largest": 12, "smallest": 3, "nope": True}, "restart_positions": True},
}


def batch(size, sequences=2):
    """Tokens, targets and segments of whole sequences; targets are ignored unevenly, on rank 0 all of them."""
    torch.manual_seed(size)
    total = size * LENGTH
    tokens, targets = torch.randint(19, (2, sequences, total))
    targets[:, :LENGTH] = targets[0, LENGTH:11] = -100
    segments = torch.randint(0, 2, (sequences, total)).cumsum(1) // 3
    segments[-1, -3:] = -1
    return tokens, targets, segments


def built(changes):
    torch.manual_seed(1)
    return GPT(GPTConfig(**BASE | changes)).double()


def relative(x, y):
    return float((x - y).abs().max() / y.abs().max().clamp(min=1e-9))


def against_one_process(group, changes, checkpointing):
    model = built(changes)
    model.gradient_checkpointing = checkpointing
    tokens, targets, segments = batch(group.size())
    expected = model(tokens, targets, segments=segments, stats=True, return_logits=True)
    expected.loss.backward()
    wanted = {name: x.grad.clone() for name, x in model.named_parameters()}
    model.zero_grad()
    model.share_sequences(group)
    own = slice(group.rank() * LENGTH, (group.rank() + 1) * LENGTH)
    inputs = tokens[:, own], targets[:, own]
    found = model(*inputs, segments=segments[:, own], stats=True, return_logits=True)
    found.loss.backward()
    errors = {"loss": relative(found.loss, expected.loss), "logits": relative(found.logits, expected.logits[:, own])}
    for name, x in model.named_parameters():
        dist.all_reduce(x.grad, group=group)
        errors[name] = relative(x.grad / group.size(), wanted[name])
    return errors, float(found.loss), relative(found.stats, expected.stats)


@pytest.mark.every(2)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_loss_gradients_and_statistics_are_those_of_one_process(ranks, name, size):
    results = ranks.run(against_one_process, CASES[name], size == 4, size=size)  # with four, recomputed in backward
    for errors, _, statistics in results:
        assert max(errors.values()) <= 1e-12, errors
        assert statistics <= 1e-7  # fp32 of hidden states that differ in the last digits
    assert len({loss for _, loss, _ in results}) == 1


def sharded_parameters_against_one_process(group, changes):
    """Two sequences, each shared by two ranks; parameters sharded over all four."""
    model = built(changes)
    tokens, targets, _ = batch(2, sequences=2)
    targets[1, LENGTH:11] = -100  # the mean of the sequences' means is that of all targets
    loss = model(tokens, targets).loss
    loss.backward()
    wanted = {name: x.grad.clone() for name, x in model.named_parameters()}
    model.zero_grad()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    model.share_sequences(mesh.get_group("cp"))
    everyone = mesh._flatten("dp_cp")
    for block in model.blocks:
        fully_shard(block, mesh=everyone)
    fully_shard(model, mesh=everyone)
    row, part = (mesh.get_local_rank(name) for name in ("dp", "cp"))
    own = slice(part * LENGTH, (part + 1) * LENGTH)
    found = model(tokens[row : row + 1, own], targets[row : row + 1, own]).loss
    found.backward()
    errors = {name: relative(x.grad.full_tensor(), wanted[name]) for name, x in model.named_parameters()}
    dist.all_reduce(found := found.detach().clone(), group=group)
    return errors | {"loss": relative(found / 4, loss)}


def test_data_parallelism_and_sharded_parameters_go_with_it(ranks):
    for errors in ranks.run(sharded_parameters_against_one_process, CASES["learned positions"], size=4):
        assert max(errors.values()) <= 1e-12, errors


def compiled_losses(group):
    model = built(CASES["rotary, QK-norm and grouped queries"])
    model.share_sequences(group)
    tokens, targets, _ = batch(group.size())
    own = slice(group.rank() * LENGTH, (group.rank() + 1) * LENGTH)
    step = torch.compile(model, fullgraph=True, backend="aot_eager")
    losses = [run(tokens[:, own], targets[:, own]).loss for run in (model, step)]
    losses[1].backward()
    return relative(losses[1], losses[0])


@pytest.mark.slow
def test_it_compiles_to_one_graph(ranks):
    assert max(ranks.run(compiled_losses, size=2)) <= 1e-12


def too_long(group):
    model = built(LONG_SHORT)
    model.share_sequences(group)
    model(torch.zeros(1, 12, dtype=torch.long))


def test_learned_positions_are_counted_over_all_ranks(ranks):
    with pytest.raises(ValueError, match="no longer than the 32 learned positions, got length 36"):
        ranks.run(too_long, size=3)


def test_batch_norm_is_refused():
    model = built(LONG_SHORT)
    model.norm = SequenceBatchNorm(16)
    with pytest.raises(ValueError, match="norm must be layer or rms"):
        model.share_sequences(None)
