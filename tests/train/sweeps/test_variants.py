"""The arms of a comparison: each builds, and changes what it says and nothing else."""

from dataclasses import replace

import pytest
import torch

from longshort import GPT, HeadPlan
from longshort.train import TrainConfig
from longshort.train.sweeps.variants import VARIANTS, every, local_window

LOCAL = ("ls", "all-local", "layer-wise", "ls-smooth")


def changes(config, variant):
    """Keys whose value the variant changes, apart from the ways to give the heads' reach."""
    before, after = config.to_dict(), VARIANTS[variant](config).to_dict()
    reach = {"plan", "plans", "n_global", "window"}
    return {
        f"{section}.{key}": after[section][key]
        for section, values in before.items()
        for key, value in values.items()
        if after[section][key] != value and key not in reach
    }


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_builds_a_model_and_goes_to_json_and_back(config, name):
    changed = VARIANTS[name](config)
    with torch.device("meta"):
        GPT(changed.model)
    assert TrainConfig.from_dict(changed.to_dict()) == changed


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", {}),
        ("ls", {}),
        ("all-local", {}),
        ("layer-wise", {}),
        ("qk-norm-head", {"model.qk_norm": "head"}),
        ("qk-norm-width", {"model.qk_norm": "width"}),
        ("qk-norm-plain", {"model.qk_norm": "plain"}),
        ("softcap", {"model.softcap": 50.0}),
        ("sigma-reparam", {"model.sigma_reparam": True}),
        ("z-loss", {"loss.z_loss": 1e-4}),
        ("qk-clip", {"stability.qk_clip": 100.0}),
        ("adagc", {"stability.clip": "tensor"}),
        ("las", {"model.smoothing": 5}),
        ("decay-only", {}),
        ("smoothing-only", {"model.smoothing": 5}),
        ("las-before", {"model.smoothing": 5, "model.smoothing_stage": "before"}),
        ("ls-smooth", {"model.smoothing": 5}),
    ],
)
def test_a_variant_changes_one_thing_besides_the_reach(config, name, expected):
    assert changes(config, name) == expected


def test_pooling_before_the_softmax_is_dense_in_two_sided_classifiers_and_all_leaves_it_out_there(config):
    assert every(config) == list(VARIANTS)
    task = TrainConfig.load("listops")
    assert VARIANTS["las-before"](task).model.backend == "reference"
    assert every(task) == [name for name in VARIANTS if name != "las-before"]
    causal = replace(task, task=replace(task.task, causal=True))
    assert VARIANTS["las-before"](causal).model.backend == "auto" and every(causal) == list(VARIANTS)


def test_the_table_above_names_every_variant():
    (_, cases) = test_a_variant_changes_one_thing_besides_the_reach.pytestmark[0].args
    assert [name for name, _ in cases] == list(VARIANTS)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in LOCAL])
def test_all_other_variants_have_global_heads_only(config, name):
    assert all(window is None for plan in VARIANTS[name](config).model.layer_plans for window in plan.windows)


@pytest.mark.parametrize(
    ("name", "decays"), [("las", True), ("decay-only", True), ("las-before", True), ("plain", False)]
)
def test_the_arms_of_las_alone_decay(config, name, decays):
    plan = HeadPlan.las(config.model.n_heads, max_decay=0.001) if decays else HeadPlan.full(config.model.n_heads)
    assert set(VARIANTS[name](config).model.layer_plans) == {plan}


def test_ls_smooth_keeps_the_plan_of_the_configuration_and_smooths_causally(config):
    smooth = VARIANTS["ls-smooth"](config).model
    assert smooth.layer_plans == config.model.layer_plans
    assert (smooth.smoothing, smooth.smoothing_side, smooth.smoothing_stage) == (5, "causal", "after")


@pytest.mark.parametrize("name", ["las", "smoothing-only", "las-before", "ls-smooth"])
def test_a_smoothed_arm_sees_nothing_of_the_future(config, name):
    torch.manual_seed(0)
    model, tokens = GPT(VARIANTS[name](config).model).eval(), torch.randint(config.model.vocab_size, (1, 20))
    changed = tokens.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % config.model.vocab_size
    with torch.no_grad():
        assert torch.equal(model(tokens).logits[:, :12], model(changed).logits[:, :12])


def test_ls_keeps_the_plan_of_the_configuration(config):
    assert VARIANTS["ls"](config) == config


def test_all_local_has_no_global_head_and_the_same_window(config):
    assert {window for plan in VARIANTS["all-local"](config).model.layer_plans for window in plan.windows} == {8}


def test_layer_wise_mixes_layers_instead_of_heads(config):
    plans = VARIANTS["layer-wise"](config.with_overrides(["model.n_layers=5"])).model.layer_plans
    assert [set(plan.windows) for plan in plans] == [{8}, {8}, {None}, {8}, {None}]


def test_parameters_are_equal_in_number_where_only_the_reach_differs(config):
    sizes = set()
    for name in ("plain", "ls", "all-local", "layer-wise", "softcap", "las", "smoothing-only", "ls-smooth"):
        with torch.device("meta"):
            sizes.add(GPT(VARIANTS[name](config).model).n_parameters())
    assert len(sizes) == 1


def test_a_configuration_without_a_local_head_has_no_window_to_take(config):
    with pytest.raises(ValueError, match="no local head"):
        local_window(VARIANTS["plain"](config))


@pytest.mark.parametrize("side", ["causal", "centred"])
def test_smoothed_arms_keep_the_side_that_is_asked_for(config, side):
    base = config.with_overrides([f"model.smoothing_side={side}"])
    assert {VARIANTS[name](base).model.smoothing_side for name in ("las", "smoothing-only", "ls-smooth")} == {side}
