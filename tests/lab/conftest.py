"""One corpus for all tests of a process, and a YAML file of the smallest model on it."""

import pytest
import yaml

from longshort.train import train

from ..train.tiny import make_corpus, tiny_config


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def config(corpus, tmp_path_factory):
    """A run of four steps with an LS plan."""
    return tiny_config(corpus, tmp_path_factory.mktemp("runs") / "run", "run.steps=4", "telemetry.logits_every=1")


@pytest.fixture(scope="session")
def yaml_file(config, tmp_path_factory):
    path = tmp_path_factory.mktemp("yaml") / "tiny.yaml"
    path.write_text(yaml.safe_dump(config.to_dict()))
    return path


@pytest.fixture(scope="session")
def trained(config):
    """The folder of a finished run."""
    return train(config).out
