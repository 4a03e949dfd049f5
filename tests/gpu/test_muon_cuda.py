"""Muon on a GPU: in bf16, as PyTorch's own, with which it agrees, and with close to the fp32 updates of a CPU."""

import pytest
import torch
from torch import nn

from longshort.train.muon import Muon, orthogonalised


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).cuda()


@pytest.mark.parametrize("shape", [(3, 256, 256), (3, 256, 1024), (3, 1024, 256)])
def test_the_singular_values_become_about_1(shape):
    found = orthogonalised(drawn(*shape))
    assert found.dtype == torch.bfloat16
    values = torch.linalg.svdvals(found.float())
    assert values.max() < 1.3 and (values > 0.6).float().mean() > 0.95


@pytest.mark.parametrize("shape", [(256, 256), (256, 1024), (1024, 256)])
def test_it_agrees_with_the_one_of_torch(shape):
    ours, theirs = (nn.Parameter(drawn(*shape)) for _ in range(2))
    options = {"lr": 0.02, "weight_decay": 0.3, "momentum": 0.9}
    mine = Muon([{"params": [ours], "rows": [(shape[0],)]}], **options)
    other = torch.optim.Muon([theirs], adjust_lr_fn="match_rms_adamw", **options)
    before = ours.detach().clone()
    for step in range(4):
        for parameter, optimizer in ((ours, mine), (theirs, other)):
            parameter.grad = drawn(*shape, seed=step + 1)
            optimizer.step()
    assert (ours - theirs).norm() < 0.02 * (theirs - before).norm()
