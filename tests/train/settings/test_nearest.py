"""What was meant by a key that does not exist."""

import pytest

from longshort.train import ConfigError, TrainConfig
from longshort.train.settings.keys import config_keys
from longshort.train.settings.nearest import FOREIGN

KEYS = [key.name for key in config_keys()]
TINY = TrainConfig.from_dict({"model": {"preset": "tiny"}})


def answer(override):
    with pytest.raises(ConfigError) as caught:
        TINY.with_overrides([override])
    return str(caught.value)


def test_foreign_names_lead_to_keys_that_exist_and_are_none_themselves():
    assert set(FOREIGN.values()) <= set(KEYS)
    assert not {key.partition(".")[2] for key in KEYS} & set(FOREIGN)


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("run.dtype=bf16", "run.precision"),
        ("run.amp=true", "run.precision"),
        ("run.mixed_precision=bf16", "run.precision"),
        ("optimizer.learning_rate=1", "optimizer.lr"),
        ("run.learning_rate=1", "optimizer.lr"),
        ("optimizer.wd=1", "optimizer.weight_decay"),
        ("model.n_layer=1", "model.n_layers"),
        ("model.n_embd=1", "model.width"),
        ("model.block_size=1", "model.context"),
        ("data.block_size=1", "model.context"),
        ("run.max_iters=1", "run.steps"),
        ("optimizer.grad_clip=1", "stability.clip_norm"),
    ],
)
def test_a_name_of_another_library_leads_to_ours(override, meant):
    assert f"; did you mean {meant}? `longshort config" in answer(override)


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("run.lr=1", "optimizer.lr"),
        ("optimizer.steps=1", "run.steps"),
        ("model.batch_size=1", "data.batch_size"),
        ("model.length=1", "data.length"),
        ("optimizer.seed=1", "run.seed"),
        ("run.weigth_decay=1", "optimizer.weight_decay"),
    ],
)
def test_a_key_of_another_section_is_found(override, meant):
    assert f"did you mean {meant}?" in answer(override)


@pytest.mark.parametrize("override", ["run.zzz=1", "model.colour=red", "data.x=1"])
def test_nothing_is_suggested_where_nothing_is_close(override):
    section = override.partition(".")[0]
    assert "did you mean" not in answer(override)
    assert answer(override).endswith(f"; `longshort config {section}` lists its keys")


def test_sections_have_foreign_names_too():
    assert "did you mean run?" in answer("trainer.max_steps=1")
    assert "did you mean schedule?" in answer("lr_scheduler.kind=cosine")
    assert answer("zzz.a=1") == "no section 'zzz'; `longshort config` lists all of them"


def test_a_key_without_its_section_is_found():
    assert answer("lr=3e-3").endswith("did you mean optimizer.lr=3e-3?")
    assert answer("dtype=bf16").endswith("did you mean run.precision=bf16?")
