"""What each of several processes checks of a sharded model against the whole one."""

import copy
import weakref
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longshort import GPT, GPTConfig
from longshort.parallel.mesh import build_mesh
from longshort.parallel.owners import batches_of_equal_shards, gather_to_owners, place_of, scatter_from_owners
from longshort.parallel.sharding import gathered_only_within, shard
from longshort.parallel.shards import as_shard, is_sharded, local, tensor_norms, whole
from longshort.stability import TensorClip, attention_entropy, qk_clip
from longshort.stability.clipping import clip_by_global_norm, gradient_norm
from longshort.train.machine.distributed import World
from longshort.train.models import build_model, shard_model
from longshort.train.optimizer import build_optimizer, optimizer_tensors
from longshort.train.settings.config import OptimizerConfig, TrainConfig

CHECKS = []
CONFIG = GPTConfig.preset("tiny", n_kv_heads=2, n_global=2, bias=True, mlp="swiglu")


def check(function):
    CHECKS.append(function)
    return function


def run(group, number, sizes):
    CHECKS[number](sizes)


def models(sizes):
    """The same model twice: whole, and sharded."""
    torch.manual_seed(0)
    mine = GPT(CONFIG)
    theirs = copy.deepcopy(mine)
    shard(theirs, build_mesh(sizes, "cpu"), parameters=None, reduce=torch.float32, reshard=True)
    return mine, theirs


def with_gradients(sizes):
    """Both models, after a backward pass over the same tokens, which each rank sees all of."""
    mine, theirs = models(sizes)
    tokens = torch.randint(257, (2, 33), generator=torch.Generator().manual_seed(1))
    for model in (mine, theirs):
        model(tokens[:, :-1], tokens[:, 1:]).loss.backward()
    return mine, theirs


def pairs(mine, theirs):
    return zip(mine.parameters(), theirs.parameters(), strict=True)


def close(mine, theirs, **options):
    for one, other in pairs(mine, theirs):
        torch.testing.assert_close(whole(other).detach(), one.detach(), **options)


@check
def a_slice_is_a_copy_and_the_local_part_is_not(sizes):
    _, theirs = models(sizes)
    parameter = theirs.blocks[0].attention.qkv.weight
    before = whole(parameter).detach().clone()
    with torch.no_grad():
        parameter[:4].mul_(2)
    assert whole(parameter).equal(before), "a slice of a DTensor is no copy any more: the rule may go"
    local(parameter).mul_(2)
    assert whole(parameter).equal(2 * before)


@check
def blocks_compute_in_the_precision_and_are_freed_after_it_as_asked(sizes):
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    for precision, reshard in ((torch.bfloat16, True), (None, False)):
        model, seen = GPT(CONFIG), []
        shard(model, build_mesh(sizes, "cpu"), parameters=precision, reduce=torch.float32, reshard=reshard)
        hook = partial(lambda to, layer, *inputs: to.append(layer.weight.dtype), seen)
        model.blocks[0].mlp.down.register_forward_hook(hook)
        model(tokens)
        assert seen == [precision or torch.float32]
        assert {is_sharded(p) for p in model.blocks[0].parameters()} == {reshard}


def drawn(sizes, **changes):
    """A whole model, and what makes the same one sharded."""
    config = TrainConfig.from_dict({"model": {"preset": "tiny", **changes}, "parallel": sizes._asdict()})
    torch.manual_seed(config.run.seed)
    mine = build_model(config)
    with torch.device("meta"):
        theirs = build_model(config)
    world = World(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    return mine, theirs, lambda: shard_model(theirs, config, world)


@check
def weights_are_drawn_like_those_of_one_process(sizes):
    mine, theirs, draw = drawn(sizes, mlp="swiglu", sigma_reparam=True, bias=True, tie_embeddings=False)
    draw()
    found = theirs.state_dict()
    for name, tensor in mine.state_dict().items():
        assert whole(found[name]).equal(tensor), name


@check
def drawing_holds_no_whole_copy(sizes):
    """Twice the rows of one process, and one whole tensor."""
    if sizes.dp_shard < 4:
        return
    mine, _, draw = drawn(sizes, n_layers=6, width=32)
    with Held() as held:
        draw()
    total, largest = (summary(p.nbytes for p in mine.parameters()) for summary in (sum, max))
    assert held.most <= 2 * total / 4 + 1.01 * largest < 0.7 * total, (held.most, total, largest)


class Held(TorchDispatchMode):
    """Counts the bytes of all tensors on the host at once that were made within it."""

    def __init__(self):
        super().__init__()
        self.made, self.most = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        made = [local(x) for x in tree_leaves(found) if isinstance(x, torch.Tensor) and x.device.type == "cpu"]
        self.made = [x for x in (*self.made, *map(weakref.ref, made)) if x() is not None]
        storages = [x.untyped_storage() for x in (reference() for reference in self.made) if x is not None]
        self.most = max(self.most, sum({x.data_ptr(): x.nbytes() for x in storages}.values()))
        return found


@check
def each_process_holds_its_share_of_the_state(sizes):
    mine, theirs = with_gradients(sizes)
    optimizers = [build_optimizer(model, OptimizerConfig(), torch.device("cpu")) for model in (mine, theirs)]
    for optimizer in optimizers:
        optimizer.step()
    held = [
        sum(local(x).numel() for x in (*model.parameters(), *optimizer_tensors(optimizer, model).values()))
        for model, optimizer in zip((mine, theirs), optimizers, strict=True)
    ]
    assert held[1] <= 1.05 / sizes.dp_shard * held[0], held


@check
def norms_and_clips_are_those_of_the_whole(sizes):
    mine, theirs = with_gradients(sizes)
    norms = [gradient_norm(model.parameters()) for model in (mine, theirs)]
    torch.testing.assert_close(norms[1], norms[0], rtol=1e-6, atol=0)
    gradients = [p.grad for p in theirs.parameters()]
    expected = torch.stack([p.grad.norm() for p in mine.parameters()])
    torch.testing.assert_close(tensor_norms(gradients), expected, rtol=1e-5, atol=1e-8)
    with pytest.raises(ValueError, match="must all be sharded alike, or none of them, got copies of"):
        tensor_norms([gradients[0], expected])
    clips = [TensorClip(model.parameters(), limit=1e-3, warmup=1) for model in (mine, theirs)]
    for _ in range(3):  # the first by the global norm, the others each by its own
        for clip in clips:
            clip.clip()
        for one, other in pairs(mine, theirs):
            one.grad *= 3
            local(other.grad).mul_(3)
    torch.testing.assert_close(clips[1].means, clips[0].means, rtol=1e-5, atol=0)
    for model, norm in zip((mine, theirs), norms, strict=True):
        clip_by_global_norm(model.parameters(), norm, 0.1)
    for one, other in pairs(mine, theirs):
        torch.testing.assert_close(whole(other.grad), one.grad, rtol=1e-5, atol=1e-8)


@check
def qk_clip_scales_the_rows_of_each_head(sizes):
    mine, theirs = models(sizes)
    largest = torch.linspace(50, 300, CONFIG.n_layers * CONFIG.n_heads).view(CONFIG.n_layers, CONFIG.n_heads)
    for model in (mine, theirs):
        qk_clip(model, largest, threshold=100.0)
    close(mine, theirs, rtol=0, atol=0)


@check
def muon_steps_whole_matrices_and_adamw_the_rest(sizes):
    mine, theirs = with_gradients(sizes)
    for model in (mine, theirs):
        optimizer = build_optimizer(model, OptimizerConfig(kind="muon", lr=1e-2), torch.device("cpu"))
        optimizer.step()
        optimizer.found_inf = torch.ones(())
        optimizer.step()  # changes nothing
        optimizer.found_inf = torch.zeros(())
        optimizer.step()
    close(mine, theirs, rtol=1e-4, atol=1e-6)


@check
def fused_adamw_leaves_all_as_it_is_where_found_inf_is_1(sizes):
    mine, theirs = with_gradients(sizes)
    for model in (mine, theirs):
        optimizer = build_optimizer(model, OptimizerConfig(lr=1e-2), torch.device("cpu"))
        for found in (1.0, 0.0):
            optimizer.found_inf = torch.tensor(found)
            optimizer.step()
    close(mine, theirs, rtol=1e-4, atol=1e-5)


@check
def owners_get_whole_matrices_and_give_them_back(sizes):
    _, theirs = models(sizes)
    matrices = [p for p in theirs.parameters() if p.ndim == 2]
    for batch in batches_of_equal_shards([(p, i) for i, p in enumerate(matrices)]):
        shards = [local(p) for p, _ in batch]
        expected = [whole(p).detach() for p, _ in batch]
        mine, place = gather_to_owners(shards, like=batch[0][0]), place_of(batch[0][0])
        assert (mine is None) == (place >= len(batch))
        assert mine is None or mine.equal(expected[place])
        for part, held in zip(scatter_from_owners(mine, shards, like=batch[0][0]), shards, strict=True):
            assert part.equal(held)


@check
def a_whole_tensor_is_sharded_like_a_parameter(sizes):
    mine, theirs = models(sizes)
    for one, other in pairs(mine, theirs):
        part = as_shard(one.detach(), other)
        assert local(part).equal(local(other)) and part.shape == one.shape and part.placements == other.placements
        assert local(part).untyped_storage().data_ptr() != one.untyped_storage().data_ptr(), "not a copy"


@check
def entropy_is_that_of_the_whole_and_leaves_it_sharded(sizes):
    mine, theirs = models(sizes)
    tokens = torch.randint(257, (1, 40), generator=torch.Generator().manual_seed(2))
    with gathered_only_within(theirs):
        found = attention_entropy(theirs, tokens)
        hidden = theirs.hidden(tokens)[0]
    with gathered_only_within(theirs):
        scores = theirs.scores(hidden)
    torch.testing.assert_close(found, attention_entropy(mine, tokens))
    torch.testing.assert_close(scores, mine.scores(mine.hidden(tokens)[0]))
    assert all(hasattr(p, "to_local") for p in theirs.parameters())
