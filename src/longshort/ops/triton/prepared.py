"""Launches of which everything but the tensors is known, so that a repeated call costs the host little."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from longshort.ops.triton.device import width_of

_thread = threading.local()

Layout = tuple[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], torch.dtype, torch.device, bool]
"""Shapes and strides of tensors, dtype and device of the first, and whether all addresses are multiples of 16 bytes."""


def layout_of(*tensors: Tensor) -> Layout:
    """All of the tensors that a launch depends on, besides the dtypes of the others."""
    addresses = 0
    for x in tensors:
        addresses |= x.data_ptr()
    return (
        tuple([(x.shape, x.stride()) for x in tensors]),
        tensors[0].dtype,
        tensors[0].device,
        addresses % 16 == 0,
    )


class Launch:
    """A kernel with its grid and the arguments after the tensors.

    At the first call Triton binds the arguments, which takes it longer than the launch, and compiles. Later calls go
    straight to the compiled kernel: their tensors must have the layout of the first call's, and aligned addresses.
    Where `again` is false, as for other addresses, every call is a first one.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        scalars: Sequence[float],
        constants: dict[str, Any],
        *,
        rows: Sequence[int] = (),
        again: bool = True,
    ) -> None:
        """With `rows`, the first tensors are read by Hopper's copy engine in tiles of so many positions."""
        self._kernel, self._grid, self._scalars, self._constants = kernel, grid, tuple(scalars), constants
        self._rows, self._again = tuple(rows), again
        self._tiles: list[tuple[list[int], list[int], list[int]]] = []
        self._run: Any = None
        self._rest: tuple[Any, ...] = ()

    def __call__(self, *tensors: Tensor) -> None:
        _enter_context(tensors[0])
        if self._run is not None:
            tiled = [_Descriptor(x, *tile) for x, tile in zip(tensors, self._tiles, strict=False)]
            # Of an address alone, Triton does not ask the driver where it is.
            self._run(*tiled, *[x.data_ptr() for x in tensors[len(tiled) :]], *self._rest)
            return
        tiles = [_tile(x, rows) for x, rows in zip(tensors, self._rows, strict=False)]
        given = [TensorDescriptor(x, *tile) for x, tile in zip(tensors, tiles, strict=False)]
        compiled = self._kernel[self._grid](*given, *tensors[len(given) :], *self._scalars, **self._constants)
        if compiled is not None and self._again:  # Triton's interpreter compiles nothing
            names = [name for name in self._kernel.arg_names if name in self._constants]
            self._rest, self._tiles = (*self._scalars, *(self._constants[name] for name in names)), tiles
            self._run = compiled[self._grid]


def _enter_context(x: Tensor) -> None:
    """Descriptors can be made only in a thread that has used CUDA before, which autograd's may not have."""
    if x.is_cuda and not hasattr(_thread, "entered"):
        torch.zeros(1, device=x.device)
        _thread.entered = True


def _tile(x: Tensor, rows: int) -> tuple[list[int], list[int], list[int]]:
    """Shape, strides and block of a descriptor; numbers of rows are read as one long row."""
    if x.ndim == 4:
        return list(x.shape), list(x.stride()), [1, 1, rows, width_of(x.shape[3])]
    return [x.numel()], [1], [rows]


class _Descriptor(TensorDescriptor):
    """A descriptor that is not checked again, which takes as long as a launch."""

    def __init__(self, base: Tensor, shape: list[int], strides: list[int], block: list[int]) -> None:
        self.base, self.shape, self.strides, self.block_shape = base, shape, strides, block
