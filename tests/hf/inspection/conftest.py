"""Folders that many tests read."""

import pytest

from .models import folder_of, model_of


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """A Llama in several files with an index."""
    path = folder_of(model_of("llama"), tmp_path_factory.mktemp("hub") / "llama", max_shard_size="30KB")
    assert (path / "model.safetensors.index.json").is_file()
    return path


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """Words that come again."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(f"Head {i % 7} sees key {i * i % 41}." for i in range(400)))
    return path
