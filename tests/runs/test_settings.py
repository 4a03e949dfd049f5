"""Which settings a run may change when it is resumed."""

import pytest

from longshort.runs import difference
from longshort.train import TrainConfig

from ..small import small_config

KEPT = {
    "run": ("seed", "precision", "deterministic", "accumulate"),
    "data": ("batch_size", "segments", "corruption", "share"),
    "model": ("n_layers", "width", "n_global", "window", "dropout", "qk_norm"),
    "loss": ("exponent", "logit_softcap", "z_loss"),
    "optimizer": ("kind", "lr", "betas", "eps", "weight_decay"),
    "schedule": ("kind", "warmup", "floor", "decay"),
    "stability": ("clip", "clip_norm", "qk_clip", "guard", "guard_threshold", "guard_cooldown"),
    "task": ("name",),
    "rl": ("task", "supervised_steps"),
}
"""Settings on which the weights of a run depend."""


@pytest.mark.parametrize(("section", "name"), [(section, name) for section in KEPT for name in KEPT[section]])
def test_what_the_weights_depend_on_makes_another_run(section, name):
    assert name in TrainConfig(model=small_config()).to_dict()[section]
    assert difference({section: {name: 1}}, {section: {name: 2}}) == (f"{section}.{name}", 2, 1)


def test_of_layers_the_first_that_differs_is_named():
    rotated, still = {"plan": 1}, {"plan": 1, "global_share": 0.0}
    found = difference({"model": {"reach": [still, rotated]}}, {"model": {"reach": [still, still]}})
    assert found == ("model.reach[1]", still, rotated)
    found = difference({"model": {"reach": [still]}}, {"model": {"reach": [still, still]}})
    assert found == ("model.reach", [still, still], [still])
