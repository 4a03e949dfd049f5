"""From transformers' masks and position ids to the positions and segments of `GPT`.

Shapes: B batch, T new tokens, S cached and new ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """Positions and segments of the tokens in a batch."""

    positions: Tensor | None
    """(T,) or (B, T); None: consecutive."""
    segments: Tensor | None
    """(B, T), -1 for padding; None: there is no padding and one segment, so the op needs no mask."""


def layout(mask: Tensor | None, position_ids: Tensor | None, *, batch_size: int, past: int, new: int) -> Layout:
    """Layout of the new tokens, given a mask (B, S), position ids (T,), (1, T) or (B, T), both or neither.

    With the mask alone, positions count from the first token of each sequence that is not padding, so that padding does
    not change a sequence's result. With position ids alone, and nothing cached, a position that does not follow the
    previous one begins a new segment, which is how transformers packs sequences without padding.

    >>> layout(torch.tensor([[0, 0, 1, 1]]), None, batch_size=1, past=1, new=3)
    Layout(positions=tensor([[0, 0, 1]]), segments=tensor([[-1,  0,  0]]))
    >>> layout(None, torch.tensor([[0, 1, 0, 1, 2]]), batch_size=1, past=0, new=5)
    Layout(positions=tensor([[0, 1, 0, 1, 2]]), segments=tensor([[0, 0, 1, 1, 1]]))
    """
    positions = position_ids
    if positions is not None and tuple(getattr(positions, "shape", ())) not in ((new,), (1, new), (batch_size, new)):
        came = tuple(positions.shape) if isinstance(positions, Tensor) else type(positions).__name__
        raise ValueError(
            f"position_ids must have shape ({new},) or ({batch_size}, {new}), those of the new tokens, got {came}"
        )
    if positions is not None and positions.ndim == 2 and len(positions) == 1:
        positions = positions.expand(batch_size, -1)
    if mask is None:
        return Layout(positions, None if positions is None or past else _packed_segments(positions, batch_size))
    if not isinstance(mask, Tensor) or mask.shape != (batch_size, past + new):
        came = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            f"attention_mask must have shape ({batch_size}, {past + new}), sequences x cached and new tokens, "
            f"with 0 for padding, got {came}"
        )
    real = mask > 0
    if _known(real.all()):
        return Layout(positions, None)
    if positions is None:
        positions = (real.cumsum(dim=1) - 1).clamp(min=0)[:, past:]
    return Layout(positions, torch.where(real[:, past:], 0, -1))


def check_chunks(chunk: int | None, segments: Tensor | None) -> None:
    """Raise where padding on the left moves the chunks that a model attends within."""
    if chunk is None or segments is None or segments.shape[1] <= chunk:
        return
    if _known((segments[:, 0] < 0).any()):
        raise ValueError(
            f"attention_mask must not begin with padding in a model with attention_chunk={chunk}, whose chunks it "
            "would move: pad on the right, or give sequences of one length in each call"
        )


def _packed_segments(positions: Tensor, batch_size: int) -> Tensor | None:
    starts = torch.zeros_like(positions, dtype=torch.long)
    starts[..., 1:] = positions[..., 1:] != positions[..., :-1] + 1
    return None if _known(~starts.any()) else starts.cumsum(dim=-1).expand(batch_size, -1)


def _known(condition: Tensor) -> bool:
    """Under torch.compile values are unknown, and the general case, which gives the same result, is used."""
    return not torch.compiler.is_compiling() and bool(condition)
