"""The list of every configuration key."""

import dataclasses
import re

import pytest

from longshort import GPTConfig
from longshort.losses import LossSettings
from longshort.model.config import RANGES as MODEL_RANGES
from longshort.train import TrainConfig
from longshort.train.settings.keys import config_keys, field_docs, records
from longshort.train.settings.ranges import CHOICES, RANGES

KEYS = {key.name: key for key in config_keys()}
SHAPE = {"vocab_size": 257, "context": 8, "n_layers": 1, "width": 8, "n_heads": 2}
TINY = TrainConfig.from_dict({"model": {"preset": "tiny"}})


def test_every_field_of_every_section_is_a_key_and_the_preset_besides():
    names = {f"{section}.{name}" for section, values in TINY.to_dict().items() for name in values}
    assert set(KEYS) == names | {"model.preset"}
    assert len(config_keys()) == len(KEYS)


@pytest.mark.parametrize("record", records().values())
def test_every_field_says_what_it_means(record):
    meanings = field_docs(record)
    for field in dataclasses.fields(record):
        assert len(meanings[field.name]) > 10 and meanings[field.name].endswith("."), field.name


def test_a_key_is_shown_as_yaml_has_it_and_not_as_python():
    for key in config_keys():
        assert not re.search(r"\b(None|True|False)\b", " ".join(key)), key
        assert all("\n" not in part and part == part.strip() for part in key)


def test_the_ranges_are_those_that_are_checked():
    assert all(KEYS[name].range == right.words for name, right in RANGES.items())
    assert all(KEYS[name].range == f"one of {', '.join(choices)}" for name, choices in CHOICES.items())
    numbers = {name: key for name, key in KEYS.items() if key.type.startswith(("int", "float", "["))}
    assert all(key.range for key in numbers.values())


@pytest.mark.parametrize(
    ("record", "sample", "section"), [(GPTConfig, TINY.model, "model"), (LossSettings, LossSettings(), "loss")]
)
def test_the_ranges_of_the_model_and_the_loss_are_in_their_errors(record, sample, section):
    for field in dataclasses.fields(record):
        key = KEYS.get(f"{section}.{field.name}")
        if key and field.name not in ("plan", "plans", "reach", "n_global"):
            with pytest.raises(ValueError) as caught:
                dataclasses.replace(sample, **{field.name: "wrong"})
            right = key.range.replace("true or false", "True or False")
            assert (
                re.sub("must be (None or )?", "must be ", str(caught.value))
                == f"{field.name} must be {right}, got 'wrong'"
            )


def test_every_field_of_the_model_is_held_to_a_range_or_is_of_the_reach_or_the_loss():
    names = {field.name for field in dataclasses.fields(GPTConfig)}
    assert names - set(MODEL_RANGES) == {"n_global", "plan", "plans", "reach", "loss"}


def test_the_defaults_are_those_of_a_configuration():
    plain = TrainConfig.from_dict({"model": SHAPE})
    for name, key in KEYS.items():
        if not key.default.startswith("that of"):
            assert plain.with_overrides([f"{name}={key.default}"]) == plain, name


def test_the_type_says_whether_null_may_be_given():
    assert (KEYS["stability.qk_clip"].type, KEYS["optimizer.betas"].type) == ("float or null", "[float, float]")
    assert (KEYS["model.plans"].type, KEYS["run.steps"].type) == ("list of plans or null", "int")


def test_an_inherited_field_keeps_its_meaning():
    assert KEYS["task.pairs"].meaning == field_docs(records()["task"].__mro__[1])["pairs"].replace("None", "null")
