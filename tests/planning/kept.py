"""What autograd keeps in bf16, for tests that run it in processes of their own."""

import torch
from torch import _dynamo

from longshort import GPT, GPTConfig, HeadPlan
from longshort.ops.sharded import sharded_attention
from longshort.parallel.mesh import Sizes, build_mesh
from longshort.parallel.sharding import shard

TOKENS = 2 * 64


def bytes_per_layer(group, model, sharded, again):
    """Bytes per token and layer, in a model that is compiled as training on a GPU compiles it."""
    few, many = (_bytes(GPTConfig(**model | {"n_layers": layers}), sharded, again) for layers in (1, 2))
    return (many - few) / TOKENS


def bytes_of_shared_attention(group, windows, length):
    """Bytes per token of one sequence that the ranks of the group share."""
    shape = (1, len(windows), length // group.size(), 16)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = sharded_attention(q, k, v, HeadPlan(windows=windows), group=group).out
    out.float().sum().backward()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) / shape[2]


def _bytes(config, sharded, again):
    _dynamo.reset()
    model = step = GPT(config)
    model.gradient_checkpointing = again
    backend = "aot_eager_decomp_partition"  # divides forward from backward as inductor does, and compiles nothing
    if sharded:
        mesh = build_mesh(Sizes(1, 1, 1), "cpu")
        shard(model, mesh, parameters=torch.bfloat16, reduce=torch.float32, reshard=True)
        for block in model.blocks:
            block.compile(backend=backend)
    elif not again:
        step = torch.compile(model, backend=backend)
    tokens, kept = torch.randint(config.vocab_size, (2, 64)), {}

    def keep(tensor):
        if tensor.shape[:1] in ((2,), (TOKENS,)):  # else they are weights
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", dtype=torch.bfloat16):
        loss = step(tokens, tokens).loss
    sizes = [tensor.untyped_storage().nbytes() for tensor in kept.values()]
    loss.backward()
    return sum(sizes)
