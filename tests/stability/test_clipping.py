"""Gradient clipping by one norm and by each tensor's own past."""

import math

import pytest
import torch
from torch import nn

from longshort.stability import TensorClip
from longshort.stability.clipping import clip_by_global_norm, gradient_norm


def parameters(*gradients):
    made = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(len(gradient)))
        parameter.grad = torch.tensor(gradient)
        made.append(parameter)
    return made


def set_gradients(params, *gradients):
    for parameter, gradient in zip(params, gradients, strict=True):
        parameter.grad = torch.tensor(gradient)


def norms(params):
    return [parameter.grad.norm().item() for parameter in params]


def test_the_joint_norm_is_that_of_all_gradients_in_one_vector():
    params = [*parameters([3.0, 0.0], [4.0]), nn.Parameter(torch.zeros(2))]
    assert gradient_norm(params).item() == pytest.approx(5.0)


def test_global_clipping_scales_all_gradients_alike():
    params = parameters([3.0, 0.0], [4.0])
    clip_by_global_norm(params, gradient_norm(params), 1.0)
    assert norms(params) == pytest.approx([0.6, 0.8], rel=1e-5)


def test_global_clipping_leaves_small_gradients_bit_for_bit():
    params = parameters([0.3, 0.1], [0.4])
    before = [parameter.grad.clone() for parameter in params]
    clip_by_global_norm(params, gradient_norm(params), 1.0)
    assert all(torch.equal(p.grad, old) for p, old in zip(params, before, strict=True))


def test_in_the_warm_up_the_joint_norm_is_clipped_and_the_smallest_norms_are_kept():
    params = parameters([3.0], [4.0])
    clip = TensorClip(params, limit=1.0, warmup=2)
    clip.clip()
    assert norms(params) == pytest.approx([0.6, 0.8], rel=1e-5)
    set_gradients(params, [0.1], [0.9])
    clip.clip()
    assert norms(params) == pytest.approx([0.1, 0.9])
    assert clip.means.tolist() == pytest.approx([0.1, 0.8], rel=1e-5)


def test_after_the_warm_up_each_tensor_is_held_to_a_ratio_of_its_own_running_mean():
    params = parameters([0.2], [0.4])
    clip = TensorClip(params, ratio=1.5, momentum=0.9, warmup=1)
    clip.clip()
    set_gradients(params, [10.0], [0.1])
    clip.clip()
    assert norms(params) == pytest.approx([0.3, 0.1])  # 1.5 * 0.2, and left alone
    assert clip.means.tolist() == pytest.approx([0.9 * 0.2 + 0.1 * 0.3, 0.9 * 0.4 + 0.1 * 0.1])


def test_means_are_fp32_whatever_the_default_dtype(bf16_by_default):
    clip = TensorClip(parameters([3.0, 4.0]))
    clip.clip()
    assert clip.means.dtype == torch.float32


def test_a_clipped_gradient_keeps_its_direction():
    params = parameters([0.3, 0.4])
    clip = TensorClip(params, ratio=1.0, warmup=1)
    clip.clip()
    set_gradients(params, [-8.0, 6.0])
    clip.clip()
    assert params[0].grad.tolist() == pytest.approx([-0.4, 0.3])


@pytest.mark.parametrize("warmed_up", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_never_enters_a_mean(warmed_up, bad):
    params = parameters([0.2], [0.4])
    clip = TensorClip(params, warmup=1 if warmed_up else 10)
    clip.clip()
    before = clip.means.clone()
    set_gradients(params, [bad], [bad])
    clip.clip()
    assert torch.equal(clip.means, before)


def test_a_restored_clip_goes_on_as_the_one_that_was_saved():
    first, second = parameters([0.2], [0.4]), parameters([0.2], [0.4])
    clip, restored = TensorClip(first, warmup=2), TensorClip(second, warmup=2)
    clip.clip()
    restored.load_state_dict(clip.state_dict())
    for gradients in (([5.0], [0.1]), ([7.0], [0.2]), ([0.01], [9.0])):
        set_gradients(first, *gradients)
        set_gradients(second, *gradients)
        clip.clip()
        restored.clip()
        assert norms(first) == norms(second)
        assert torch.equal(clip.means, restored.means)


@pytest.mark.parametrize("settings", [{"ratio": 0.0}, {"momentum": 1.0}, {"momentum": -0.1}, {"warmup": 0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match="ratio must be > 0, momentum at least 0"):
        TensorClip(parameters([1.0]), **settings)


def test_a_tensor_without_gradient_in_warm_up_is_held_to_its_first_norm():
    params = parameters([1.0], [0.0])
    clip = TensorClip(params, ratio=2.0, warmup=1)
    for gradients in (([1.0], [0.0]), ([1.0], [3.0]), ([1.0], [30.0])):
        set_gradients(params, *gradients)
        clip.clip()
    assert norms(params)[1] == pytest.approx(6.0)


def test_a_tensor_without_gradient_in_warm_up_is_not_frozen():
    params = parameters_with_zero_first_gradient()
    clip = TensorClip(params, warmup=1)
    clip.clip()
    for _ in range(2):
        params[0].grad = torch.ones_like(params[0])
        clip.clip()
    assert params[0].grad.norm() > 0


def test_steps_without_gradient_after_the_warm_up_leave_the_means():
    params = parameters([0.2], [0.0])
    clip = TensorClip(params, ratio=1.5, warmup=1)
    clip.clip()
    for _ in range(5):
        set_gradients(params, [0.0], [0.0])
        clip.clip()
    set_gradients(params, [10.0], [3.0])
    clip.clip()
    assert norms(params) == pytest.approx([0.3, 3.0])


def parameters_with_zero_first_gradient():
    params = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    params[0].grad, params[1].grad = torch.zeros(3), torch.ones(2)
    return params
