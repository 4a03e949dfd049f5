"""Where a token stands: rotary and sinusoidal encodings, and positions that restart at each segment.

Everything is computed from explicit positions at run time, and no module holds a table: a table in a non-persistent
buffer is garbage after building on the meta device, and cached decoding starts at an offset. Learned positions are a
parameter of the model; ALiBi is the slopes of a `HeadPlan`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rotary(x: Tensor, positions: Tensor, *, theta: float = 10000.0) -> Tensor:
    """Rotate pairs of features by angles that grow with position (RoFormer, arXiv 2104.09864).

    Feature i is paired with i + D/2, as Llama and its checkpoints do. Angles are fp32 (float64 for float64 x): in half
    precision, positions past a few hundred would collide.

    Args:
        x: (B, T, heads, D), D even.
        positions: (T,) or (B, T) integers.

    >>> x = torch.randn(2, 5, 3, 8)
    >>> bool((rotary(x, torch.zeros(5, dtype=torch.long)) == x).all())
    True
    """
    angles = _angles(positions, x.shape[-1], theta, torch.promote_types(x.dtype, torch.float32)).unsqueeze(-2)
    cos, sin = angles.cos(), angles.sin()
    first, second = x.to(angles.dtype).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def sinusoidal(positions: Tensor, width: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The fixed encoding of Vaswani et al. (arXiv 1706.03762): sine in the even features, cosine in the odd ones.

    >>> sinusoidal(torch.arange(7), 16).shape
    torch.Size([7, 16])
    """
    angles = _angles(positions, width, 10000.0, torch.promote_types(dtype, torch.float32))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)


def segment_positions(segments: Tensor) -> Tensor:
    """Positions (B, T) that restart at 0 wherever the segment id (B, T) differs from the one before.

    >>> segment_positions(torch.tensor([[4, 4, 4, 1, 1, -1]]))
    tensor([[0, 1, 2, 0, 1, 0]])
    """
    index = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return index - torch.where(starts, index, 0).cummax(dim=1).values


def _angles(positions: Tensor, features: int, theta: float, dtype: torch.dtype) -> Tensor:
    """(..., features / 2): position times theta^(-2i / features)."""
    if features % 2:
        raise ValueError(f"sine and cosine need an even number of features, got {features}")
    exponents = torch.arange(0, features, 2, device=positions.device, dtype=dtype) / features
    return positions.unsqueeze(-1).to(dtype) * torch.exp(-math.log(theta) * exponents)
