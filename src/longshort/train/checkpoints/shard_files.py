"""The files of shards in a checkpoint, by torch.distributed.checkpoint: one per process, as safetensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

_MODEL, _TRAINER = "model/", "trainer/"
Tensors = tuple[dict[str, Tensor], dict[str, Tensor]]
"""The weights by name, and the other tensors of a trainer."""


def write_shards(
    folder: Path, model: Mapping[str, Tensor], trainer: Mapping[str, Tensor], group: dist.ProcessGroup
) -> None:
    """Write what this process holds, together with all others, which are those of the group."""
    tensors = {key: tensor.detach() for key, tensor in joined_names(model, trainer).items()}
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    dcp.save(tensors, storage_writer=writer, process_group=group)


def read_shards(folder: Path, parameter_of: Callable[[str, torch.Size], Tensor | None], **options: Any) -> Tensors:
    """Read, together with all others, each tensor as a copy of its `parameter_of` (name, shape) is sharded; whole where
    that is None. `options` are those of `dcp.load`.
    """
    reader = HuggingFaceStorageReader(str(folder))
    tensors: dict[str, Tensor] = {}
    for key, found in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(found, TensorStorageMetadata), "safetensors holds nothing but tensors"
        like, dtype = parameter_of(key, found.size), found.properties.dtype
        if like is None:
            tensors[key] = torch.empty(found.size, dtype=dtype)
        else:
            tensors[key] = torch.empty_like(like, dtype=dtype, requires_grad=False)
    dcp.load(tensors, storage_reader=reader, **options)
    return parted_names(tensors)


def read_whole(folder: Path) -> Tensors:
    """Read all tensors whole, on the host, in one process alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as asked
        return read_shards(folder, lambda key, shape: None, no_dist=True)


def joined_names(model: Mapping[str, Tensor], trainer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Both under names that tell them apart."""
    return {_MODEL + key: x for key, x in model.items()} | {_TRAINER + key: x for key, x in trainer.items()}


def parted_names(tensors: Mapping[str, Tensor]) -> Tensors:
    """The inverse of `joined_names`."""
    model, trainer = (
        {key.removeprefix(part): x for key, x in tensors.items() if key.startswith(part)} for part in (_MODEL, _TRAINER)
    )
    return model, trainer


def parameter_name(key: str) -> str:
    """The name of the parameter that a tensor belongs to, if it does: moments are called NAME/exp_avg and so on."""
    return key.removeprefix(_MODEL) if key.startswith(_MODEL) else key.removeprefix(_TRAINER).rpartition("/")[0]
