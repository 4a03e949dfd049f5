"""The configurations that come with the package."""

import re
from pathlib import Path

import pytest
import torch

from longshort import GPT, GPTConfig
from longshort.train import ConfigError, TrainConfig
from longshort.train.settings.shipped import find_config, shipped_names, shipped_path


def test_the_preset_and_the_configuration_tiny_are_one_model():
    assert TrainConfig.load("tiny").model == GPTConfig.preset("tiny")


@pytest.mark.parametrize(
    ("name", "size"), [("listops", 16), ("recall", 32), ("paper-6m", 10_000), ("rl-tiny", 17), ("tiny", 257)]
)
def test_shipped_configurations_have_the_vocabulary_of_their_data(name, size):
    assert TrainConfig.load(name).model.vocab_size == size


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_configuration_parses_and_builds_its_model(name):
    config = TrainConfig.load(name)
    with torch.device("meta"):
        model = GPT(config.model)
    assert model.n_parameters() > 0
    assert len({len(plan.windows) for plan in config.model.layer_plans}) == 1
    assert config.run.out == f"runs/{name}"


def test_a_file_wins_over_a_name_and_a_folder_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_config("tiny") == shipped_path("tiny")
    (tmp_path / "tiny").mkdir()
    assert find_config("tiny") == shipped_path("tiny")
    (tmp_path / "recall").write_text("model: {preset: tiny}\nrun: {steps: 3}")
    assert find_config("recall") == Path("recall")
    assert TrainConfig.load("recall").run.steps == 3


def test_what_is_neither_a_file_nor_a_name_gets_the_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"^mine: no such file; .*: gpt2-small, listops, modern-10m, paper-6m, recall, rl-tiny, tiny$"
    ):
        TrainConfig.load("mine")
    for place in ("./tiny", "configs/tiny.yaml"):
        with pytest.raises(ConfigError, match=rf"^{re.escape(place)}: no such file; .* give its name: tiny$"):
            TrainConfig.load(place)
    for odd in ("", "x" * 300, "a\0b"):
        with pytest.raises(ConfigError):
            TrainConfig.load(odd)
