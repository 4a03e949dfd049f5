"""Configuration keys as text."""

import re

import pytest

from longshort.train import ConfigError, TrainConfig
from longshort.train.settings.key_text import describe, starting_file
from longshort.train.settings.keys import config_keys, records
from longshort.train.settings.shipped import shipped_names


def written(tmp_path, text):
    (tmp_path / "mine.yaml").write_text(text)
    return TrainConfig.load(tmp_path / "mine.yaml")


def test_the_list_has_every_key_with_its_default_and_meaning():
    text = " ".join(describe().split())
    for key in config_keys():
        assert f"{key.name} = {key.default} ({key.type}" in text
        assert key.meaning in text
    assert "run.steps = 1000 (int, at least 1)" in text
    assert "optimizer.lr = 0.0006 (float, above 0)" in text
    assert "run.precision = auto (str, one of auto, fp32, bf16)" in text


def test_a_section_is_the_part_of_the_list_that_is_its_own():
    assert "\n\n".join(describe(section) for section in records()) == describe()


def test_a_key_in_full_has_the_exact_range():
    assert describe("run.steps").split("\n") == [
        "run.steps",
        "  Number of optimizer steps.",
        "  type:    int",
        "  default: 1000",
        "  range:   an integer from 1 to 2^63 - 1",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("run.dtype", "run has no key 'dtype'; did you mean run.precision?"),
        ("optimiser", "no section 'optimiser'; did you mean optimizer?"),
        ("model.loss", "model has no key 'loss'"),
        ("", "no section ''"),
    ],
)
def test_what_is_no_section_or_key_is_an_error(name, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        describe(name)


@pytest.mark.parametrize("name", shipped_names())
def test_a_starting_file_is_the_configuration_it_was_made_from(name, tmp_path):
    assert written(tmp_path, starting_file(name)) == TrainConfig.load(name)


@pytest.mark.parametrize("name", shipped_names())
def test_the_commented_values_of_a_starting_file_are_those_in_force(name, tmp_path):
    every = re.sub(r"^  #(?=\w+: )", "  ", starting_file(name), flags=re.MULTILINE)
    assert written(tmp_path, every) == TrainConfig.load(name)
    assert len(re.findall(r"^  \w+: ", every, flags=re.MULTILINE)) == len(config_keys())


def test_a_starting_file_keeps_the_vocabulary_open():
    assert "\n  #vocab_size: 257\n" in starting_file("tiny")


def test_nothing_is_wider_than_a_terminal_of_80_columns():
    texts = [describe(), *(describe(key.name) for key in config_keys()), *map(starting_file, shipped_names())]
    assert max(len(line) for text in texts for line in text.splitlines()) <= 80


def test_another_name_is_answered_with_those_there_are():
    with pytest.raises(ConfigError, match=f"--preset must be one of {', '.join(shipped_names())}, got 'mine'"):
        starting_file("mine")
