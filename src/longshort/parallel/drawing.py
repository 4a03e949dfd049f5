"""The first weights of a model that is sharded from the start: drawn like those of a whole one, bit for bit, without
any process ever holding more than its rows of them and one whole tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from longshort.nn import SigmaLinear
from longshort.parallel.shards import local, rows_of, shard_group

_aten = torch.ops.aten
_SETS = (_aten.normal_.default, _aten.uniform_.default, _aten.fill_.Scalar, _aten.zero_.default)
"""What initialisation does to parameters: each sets all of one, whatever it held."""


@torch.no_grad()
def draw_weights(model: nn.Module, build: Callable[[], nn.Module], device: torch.device) -> None:
    """Give a model that was built on the meta device and sharded the weights that `build` would give it in one process.

    All processes call it, with the same seed set.
    """
    shards = dict(model.named_parameters())
    _, place, places = shard_group(next(iter(shards.values())))
    with torch.device("meta"), _Rows(place, places) as drawn:
        whole = build()
    rows = {name: drawn.rows.pop(parameter) for name, parameter in whole.named_parameters()}
    model.to_empty(device=device)
    for name, parameter in model.named_parameters():
        local(parameter).copy_(rows.pop(name))
    for layer in model.modules():
        if isinstance(layer, SigmaLinear):
            layer.reset_sigma()


class _Rows(TorchDispatchMode):
    """Within it, what is drawn for a parameter on the meta device is drawn on the host, where the rows of one of
    `places` processes are kept.
    """

    def __init__(self, place: int, places: int) -> None:
        super().__init__()
        self._place, self._places = place, places
        self.rows: dict[Tensor, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable and isinstance(args[0], nn.Parameter):
            if func not in _SETS:
                raise NotImplementedError(f"a parameter must be initialised by {_SETS}, got {func}")
            drawn = func(torch.empty_like(args[0], device="cpu"), *args[1:], **kwargs)
            first, count = rows_of(len(drawn), self._place, self._places)
            self.rows[args[0]] = drawn[first : first + count].clone()
        return func(*args, **kwargs)
