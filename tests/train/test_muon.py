"""Muon by itself: what it orthogonalises, what it leaves to AdamW, and what a skipped step leaves."""

import copy

import pytest
import torch
from torch import nn

from longshort.train import muon as muon_module
from longshort.train.muon import COEFFICIENTS, SCALES, Muon, orthogonalised, update_scale


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def parameters(*shapes):
    return [nn.Parameter(drawn(*shape, seed=seed)) for seed, shape in enumerate(shapes)]


def give_gradients(given, seed):
    for number, parameter in enumerate(given):
        parameter.grad = drawn(*parameter.shape, seed=100 * seed + number)


def alone(parameter, **options):
    """Muon for one matrix that is not fused."""
    return Muon([{"params": [parameter], "rows": [(len(parameter),)]}], **options)


@pytest.mark.parametrize("shape", [(1, 24, 24), (5, 16, 64), (5, 64, 16), (3, 1, 8)])
def test_the_singular_values_become_about_1_and_the_singular_vectors_stay(shape):
    matrices = drawn(*shape).double()
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    a, b, c = COEFFICIENTS
    found = values / values.norm(dim=-1, keepdim=True)
    for _ in range(5):
        found = a * found + b * found**3 + c * found**5
    torch.testing.assert_close(orthogonalised(matrices), left @ torch.diag_embed(found) @ right)
    large = values > 0.02 * values.norm(dim=-1, keepdim=True)
    assert large.float().mean() > 0.9
    assert found[large].min() > 0.65 and found.max() < 1.25


def test_what_is_zero_stays_zero():
    assert torch.equal(orthogonalised(torch.zeros(2, 4, 8)), torch.zeros(2, 4, 8))


def test_the_entries_of_an_update_are_as_large_as_those_of_adamw():
    for shape in ((64, 64), (256, 64), (64, 256)):
        update = update_scale(shape, "match_rms") * orthogonalised(drawn(1, *shape))
        assert update.square().mean().sqrt() == pytest.approx(0.2, rel=0.2)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
def test_it_agrees_with_the_one_of_torch(shape, scale):
    (ours,), (theirs,) = parameters(shape), parameters(shape)
    options = {"lr": 0.02, "weight_decay": 0.3, "momentum": 0.9}
    mine = alone(ours, scale=scale, **options)
    names = {"match_rms": "match_rms_adamw", "spectral": "original"}
    other = torch.optim.Muon([theirs], adjust_lr_fn=names[scale], **options)
    before = ours.detach().clone()
    for step in range(4):
        for parameter, optimizer in ((ours, mine), (theirs, other)):
            give_gradients([parameter], step)
            optimizer.step()
    moved = (theirs - before).norm()
    assert (ours - theirs).norm() < 0.02 * moved  # torch computes in bf16
    torch.testing.assert_close(mine.state[ours]["momentum"], other.state[theirs]["momentum_buffer"])


@pytest.mark.parametrize("rows", [(16, 16, 16), (32, 8, 8), (48,)])
def test_fused_matrices_are_stepped_as_if_they_were_apart(rows):
    (fused,) = parameters((48, 20))
    apart = [nn.Parameter(part.clone()) for part in fused.detach().split(rows)]
    whole = Muon([{"params": [fused], "rows": [rows]}], lr=0.1)
    parts = Muon([{"params": apart, "rows": [(height,) for height in rows]}], lr=0.1)
    for step in range(3):
        give_gradients([fused], step)
        for part, gradient in zip(apart, fused.grad.split(rows), strict=True):
            part.grad = gradient.clone()
        whole.step()
        parts.step()
    assert torch.equal(fused, torch.cat(apart))
    if len(rows) > 1:
        (one,) = parameters((48, 20))
        as_one = alone(one, lr=0.1)
        for step in range(3):
            give_gradients([one], step)
            as_one.step()
        assert (one - fused).abs().max() > 0.01


def test_matrices_taken_together_are_stepped_as_one_by_one(monkeypatch):
    shapes = [(16, 16), (16, 16), (16, 24), (16, 16)]
    results = []
    for most in (2**25, 2 * 16 * 16, 1):
        monkeypatch.setattr(muon_module, "_LARGEST_BATCH", most)
        given = parameters(*shapes)
        optimizer = Muon([{"params": given, "rows": [(len(p),) for p in given]}], lr=0.1)
        for step in range(3):
            give_gradients(given, step)
            optimizer.step()
        results.append(given)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])


def test_groups_without_rows_are_those_of_adamw():
    ours, theirs = parameters((8, 6), (6,)), parameters((8, 6), (6,))
    options = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-4, "fused": True}
    both = [
        kind([{"params": [p], "weight_decay": decay} for p, decay in zip(given, (0.3, 0.0), strict=True)], **options)
        for kind, given in ((Muon, ours), (torch.optim.AdamW, theirs))
    ]
    for step in range(4):
        for optimizer, given in zip(both, (ours, theirs), strict=True):
            give_gradients(given, step)
            optimizer.step()
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)
        for name, value in both[1].state[other].items():
            assert torch.equal(both[0].state[mine][name], value)


def mixed():
    matrix, bias = parameters((24, 16), (24,))
    return [matrix, bias], Muon([{"params": [matrix], "rows": [(8, 16)]}, {"params": [bias]}], lr=0.1)


@pytest.mark.parametrize("gradient", [1.0, torch.nan, torch.inf])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_found_inf_leaves_weights_and_state_as_they_were(gradient, steps_before):
    given, optimizer = mixed()
    for step in range(steps_before):
        give_gradients(given, step)
        optimizer.step()
    before = copy.deepcopy(([p.data for p in given], optimizer.state_dict()["state"]))
    for parameter in given:
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    for parameter, kept in zip(given, before[0], strict=True):
        assert torch.equal(parameter.view(torch.int32), kept.view(torch.int32))
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(value, before[1].get(number, {}).get(name, torch.zeros_like(value))), name


def test_found_inf_of_0_changes_nothing():
    (plain, one), (told, other) = mixed(), mixed()
    other.found_inf = torch.tensor(0.0)
    for step in range(3):
        for given, optimizer in ((plain, one), (told, other)):
            give_gradients(given, step)
            optimizer.step()
    assert all(map(torch.equal, plain, told))


def test_a_parameter_without_a_gradient_stays_as_it_is():
    given, optimizer = mixed()
    before = [p.detach().clone() for p in given]
    assert optimizer.step(lambda: 3.0) == 3.0
    assert all(map(torch.equal, given, before)) and not optimizer.state


def test_its_state_is_saved_and_loaded_as_that_of_any_optimizer():
    (given, optimizer), (others, restored) = mixed(), mixed()
    give_gradients(given, 0)
    optimizer.step()
    for mine, theirs in zip(given, others, strict=True):
        theirs.data.copy_(mine.data)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for parameters_, stepped in ((given, optimizer), (others, restored)):
        give_gradients(parameters_, 1)
        stepped.step()
    assert all(map(torch.equal, given, others))


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((8,), {"rows": [(8,)]}, r"two dimensions, got \(8,\) for the shape \(8,\)"),
        ((8, 4), {"rows": [(3, 4)]}, r"got \(3, 4\) for the shape \(8, 4\)"),
        ((8, 4), {"rows": []}, "rows must have an entry per parameter, 1, got 0"),
        ((8, 4), {"rows": [(8,)], "scale": "rms"}, "scale must be one of match_rms, spectral, got 'rms'"),
    ],
)
def test_what_cannot_be_is_refused(shape, options, message):
    with pytest.raises(ValueError, match=message):
        Muon([{"params": parameters(shape), **options}])
