"""Where an importer's weights come from: a folder or file of safetensors, a state dict, or a model in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from longshort.files import parse_json

Weights = str | Path | Mapping[str, Tensor] | nn.Module
"""What an importer takes: a folder or a safetensors file, a state dict, or a model."""
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


class Source(NamedTuple):
    """A model of transformers, whose weights are read when they are asked for."""

    tensors: Callable[[], Mapping[str, Any]]
    config: Mapping[str, Any]
    """The values of config.json."""
    named: str
    """What errors call it."""


def open_source(source: Weights, config: Mapping[str, Any] | None = None) -> Source:
    """Weights and configuration; `config` stands in for the source's own, and must be given with a state dict."""
    if isinstance(source, nn.Module):
        theirs: Any = source
        return Source(theirs.state_dict, config or theirs.config.to_dict(), type(source).__name__)
    if isinstance(source, Mapping):
        if config is None:
            raise ValueError("config must be given with a state dict (the values of config.json), got None")
        return Source(lambda: source, config, "the state dict")
    path = _existing(source)
    return Source(partial(_tensors_of, path), _config_of(path) if config is None else config, str(path))


def _existing(source: str | Path) -> Path:
    path = Path(source)
    if not path.exists():
        raise ValueError(
            f"source must be a folder or file of safetensors, got {str(source)!r}, which does not exist; load a model "
            "of the hub with transformers, and give the model itself or the folder of its save_pretrained"
        )
    return path


def _config_of(path: Path) -> dict[str, Any]:
    """The values of the config.json in a folder, or beside a file of weights."""
    file = (path if path.is_dir() else path.parent) / "config.json"
    if not file.is_file():
        raise ValueError(f"{file.parent}: no config.json; add it or give config")
    try:
        config = parse_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} must hold JSON, got: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file} must hold an object, got a {type(config).__name__}")
    return config


def _tensors_of(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path.is_dir():
        files = [path / _WEIGHTS]
        if not files[0].is_file() and (path / _INDEX).is_file():  # the index of an earlier save may lie beside it
            try:
                names = set(parse_json((path / _INDEX).read_text(encoding="utf-8"))["weight_map"].values())
                files = [path / name for name in sorted(names)]
            except (ValueError, KeyError, TypeError, AttributeError):
                raise ValueError(f"{path / _INDEX} must hold JSON with a weight_map of files, got none") from None
    else:
        files = [path]
    for file in files:
        if not file.is_file():
            raise ValueError(
                f"{path}: no {file.name}; pickled weights are not read, but you can load them with transformers and "
                "give the model itself"
            )
    try:
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    except SafetensorError as error:
        raise ValueError(f"{path} must hold safetensors, got a file that cannot be read: {error}") from None
