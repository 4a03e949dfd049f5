"""FSDP2 on CUDA with a single process: the dtypes of a bf16 run, the device's verdict on a step, compiled blocks."""

import copy

import pytest
import torch
import torch.distributed as dist

from longshort import GPT, GPTConfig
from longshort.parallel.mesh import Sizes, build_mesh
from longshort.parallel.sharding import shard
from longshort.parallel.shards import local, whole
from longshort.stability.clipping import clip_by_global_norm, gradient_norm
from longshort.train.models import compiled
from longshort.train.optimizer import build_optimizer
from longshort.train.settings.config import OptimizerConfig

CUDA = torch.device("cuda")


@pytest.fixture(scope="module", autouse=True)
def alone():
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def pair(parameters=None, *, blocks_compiled=False, **options):
    torch.manual_seed(0)
    mine = GPT(
        GPTConfig(vocab_size=512, context=256, n_layers=3, width=128, n_heads=4, n_global=1, window=32, **options)
    )
    theirs = copy.deepcopy(mine)
    if blocks_compiled:
        compiled(theirs, "block", cuda_graphs=False)
    shard(theirs, build_mesh(Sizes(1, 1, 1), "cuda"), parameters=parameters, reduce=torch.float32, reshard=True)
    return mine.to(CUDA), theirs


def losses(model, kind, steps=10, *, bf16=False):
    tokens = torch.randint(512, (4, 257), generator=torch.Generator().manual_seed(1)).to(CUDA)
    optimizer, found = build_optimizer(model, OptimizerConfig(kind=kind, lr=3e-3), CUDA), []
    for step in range(steps):
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            loss = model(tokens[:, :-1], tokens[:, 1:], stats=step % 2 == 0).loss
        loss.backward()
        clip_by_global_norm(model.parameters(), gradient_norm(model.parameters()), 1.0)
        optimizer.found_inf = torch.zeros((), device=CUDA) + (step == 3)  # this step leaves all as it is
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    return torch.stack(found)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_losses_in_fp32_are_those_of_the_whole_model(kind):
    mine, theirs = pair()
    one, other = losses(mine, kind), losses(theirs, kind)
    torch.testing.assert_close(other, one, rtol=2e-3 if kind == "muon" else 1e-4, atol=0)  # Muon iterates in bf16
    torch.testing.assert_close(one[4], one[3])


def test_a_bf16_run_gathers_bf16_weights_and_sums_gradients_in_fp32():
    mine, theirs = pair(torch.bfloat16)
    one, other = losses(mine, "adamw", bf16=True), losses(theirs, "adamw", bf16=True)
    torch.testing.assert_close(other, one, rtol=2e-2, atol=0)
    seen = []
    theirs.blocks[0].mlp.register_forward_pre_hook(
        lambda layer, args: seen.append((layer.up.weight.dtype, args[0].dtype))
    )
    with torch.autocast("cuda", torch.bfloat16):
        theirs(
            torch.zeros(2, 16, dtype=torch.long, device=CUDA), torch.zeros(2, 16, dtype=torch.long, device=CUDA)
        ).loss.backward()
    assert seen[0][0] == torch.bfloat16
    assert all(local(p).dtype == local(p.grad).dtype == torch.float32 for p in theirs.parameters())


@pytest.mark.parametrize("kept", [True, "attention"])
def test_recomputed_blocks_give_the_same_gradients(kept):
    mine, theirs = pair()
    tokens = torch.randint(512, (2, 129), device=CUDA)
    theirs.gradient_checkpointing = kept
    for model in (mine, theirs):
        model(tokens[:, :-1], tokens[:, 1:]).loss.backward()
    for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(whole(other.grad), one.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, while it traces
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # fp32 products are what is compared
def test_compiled_blocks_give_the_same_losses():
    mine, theirs = pair(blocks_compiled=True)
    torch.testing.assert_close(losses(theirs, "adamw"), losses(mine, "adamw"), rtol=1e-3, atol=0)
