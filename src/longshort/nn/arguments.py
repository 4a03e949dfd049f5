"""What `LSAttention` is built and called with: each wrong value is an error that names the argument."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from longshort.heads import HeadPlan
from longshort.nn.positions import RopeScaling
from longshort.numeric import is_real
from longshort.ranges import AT_LEAST_1, SWITCH, Range, optional
from longshort.reach import LayerReach

ENCODINGS = ("rotary", "alibi", "none")
_POSITIVE = Range("a finite number > 0", lambda value: is_real(value) and 0 < value < math.inf)
_FINITE = Range("a finite number", lambda value: is_real(value) and math.isfinite(value))
_RIGHT: dict[str, Range] = {
    "width": AT_LEAST_1,
    "n_kv_heads": optional(AT_LEAST_1),
    "head_dim": optional(AT_LEAST_1),
    "chunk": optional(AT_LEAST_1),
    "qk_norm_eps": _POSITIVE,
    "rope_theta": _POSITIVE,
    "softcap": optional(_POSITIVE),
    "scale": optional(_FINITE),
    "rope_scaling": optional(Range("a RopeScaling", lambda value: isinstance(value, RopeScaling))),
    "bias": SWITCH,
    "causal": SWITCH,
}


def check_values(**values: Any) -> None:
    """Raise if one of these arguments of `LSAttention` cannot be, whatever the others are."""
    for name, value in values.items():
        _RIGHT[name].check(name, value)


def check_input(x: Tensor, width: int, positions: Tensor | None) -> None:
    """Raise unless x is (B, T, width), and the positions, if any, are integers (T,), (1, T) or (B, T)."""
    if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[2] != width:
        found: object = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x must be a tensor of shape (batch, positions, {width}), got {found}")
    if positions is None:
        return
    if not isinstance(positions, Tensor) or positions.is_floating_point() or positions.is_complex():
        found = positions.dtype if isinstance(positions, Tensor) else type(positions).__name__
        raise ValueError(f"positions must be a tensor of integers, got {found}")
    batch, length = x.shape[:2]
    if positions.ndim not in (1, 2) or positions.shape[-1] != length or positions.shape[:-1].numel() not in (1, batch):
        raise ValueError(f"positions must have shape {(length,)} or {(batch, length)}, got {tuple(positions.shape)}")


def head_dim_of(width: int, plan: HeadPlan, head_dim: int | None) -> int:
    """Features per head."""
    if head_dim is not None:
        return head_dim
    if width % plan.n_heads:
        raise ValueError(f"width must be a multiple of the plan's {plan.n_heads} heads, or give head_dim; got {width}")
    return width // plan.n_heads


def projected_sizes(plan: HeadPlan | LayerReach, qkv: list[nn.Linear], out: nn.Linear) -> tuple[int, int]:
    """Head dim and KV heads of an attention that has these projections."""
    if not isinstance(plan, HeadPlan | LayerReach):
        raise ValueError(f"plan must be a HeadPlan or a LayerReach, got {type(plan).__name__}")
    for name, part in (*(("qkv", part) for part in qkv), ("out", out)):
        if not isinstance(part, nn.Linear):
            raise ValueError(f"{name} must be made of nn.Linear, got {type(part).__name__}")
    if len(qkv) not in (1, 3):
        raise ValueError(f"qkv must be one layer, or one each for queries, keys and values, got {len(qkv)}")
    heads = plan.n_heads
    if out.in_features % heads:
        raise ValueError(f"plan must have a number of heads that divides out's {out.in_features} inputs, got {heads}")
    head_dim = out.in_features // heads
    rows = [part.out_features for part in qkv]
    expected = [out.in_features, (sum(rows) - out.in_features) // 2, (sum(rows) - out.in_features) // 2]
    n_kv_heads = expected[1] // head_dim
    if n_kv_heads < 1 or sum(rows) != (heads + 2 * n_kv_heads) * head_dim or (len(rows) == 3 and rows != expected):
        raise ValueError(
            f"qkv must have {out.in_features} outputs for the {heads} query heads of {head_dim} and equally many for "
            f"keys and values, got {' + '.join(map(str, rows))}"
        )
    if any(part.in_features != out.out_features for part in qkv):
        raise ValueError(
            f"qkv must have as many inputs as out has outputs, got {qkv[0].in_features} and {out.out_features}"
        )
    return head_dim, n_kv_heads


def check_positions(positions: str, head_dim: int, scaling: RopeScaling | None) -> None:
    """Raise if the layer has no such positions."""
    if positions in ("learned", "sinusoidal"):
        raise ValueError(f"positions must be 'none' where the model adds them to the input, got {positions!r}")
    if positions not in ENCODINGS:
        raise ValueError(f"positions must be one of {', '.join(ENCODINGS)}, got {positions!r}")
    if positions == "rotary" and head_dim % 2:
        raise ValueError(f"head_dim must be even with rotary positions, got {head_dim}")
    if positions != "rotary" and scaling is not None:
        raise ValueError(f"rope_scaling must be None unless positions are 'rotary', got {scaling!r}")
