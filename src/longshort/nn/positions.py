"""Where a token stands: rotary and sinusoidal encodings, and positions that restart at each segment.

Everything is computed from explicit positions at run time, and no module holds a table: a table in a non-persistent
buffer is garbage after building on the meta device, and cached decoding starts at an offset. Learned positions are a
parameter of the model; ALiBi is the slopes of a `HeadPlan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from longshort.numeric import is_real
from longshort.ranges import SWITCH
from longshort.reach import LayerReach, QueryTemperature
from longshort.spelling import check_fields

SCALINGS = ("linear", "llama3", "yarn")
SCALED_HEADS = ("all", "global")
_FEW = 1024
"""Tokens, at most, whose queries and keys are rotated in one go: what takes time is then the number of calls."""
_NUMBERS = ("factor", "low_freq_factor", "high_freq_factor", "original_context", "beta_slow", "beta_fast")


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary angles are slowed for sequences longer than those of training.

    "linear" divides every frequency by `factor` (arXiv 2306.15595; the global layers of Gemma 3). "llama3" divides
    those that turn less than `low_freq_factor` times in `original_context` positions, keeps those that turn more than
    `high_freq_factor` times, and interpolates between (Llama 3.1). "yarn" (arXiv 2309.00071; Olmo 3, Qwen3) does the
    same with `beta_slow` and `beta_fast` turns, interpolates along the features, and multiplies the rotated queries and
    keys by `attention_factor`.

    >>> RopeScaling(kind="linear", factor=4.0).scaled(torch.tensor([1.0, 0.1]))
    tensor([0.2500, 0.0250])
    """

    kind: str
    """linear, llama3 or yarn."""
    factor: float
    """How many times longer the sequences are to be."""
    low_freq_factor: float = 1.0
    """llama3: turns below which a frequency is divided by the factor."""
    high_freq_factor: float = 4.0
    """llama3: turns above which a frequency stays."""
    original_context: int = 8192
    """llama3 and yarn: positions in which turns are counted, the context of training."""
    beta_slow: float = 1.0
    """yarn: turns below which a frequency is divided by the factor."""
    beta_fast: float = 32.0
    """yarn: turns above which a frequency stays."""
    truncate: bool = True
    """yarn: let the interpolation begin and end at whole features."""
    attention_factor: float | None = None
    """yarn: factor of the rotated queries and keys; 0.1 log(factor) + 1 if None, and 1 for a factor below 1."""
    heads: str = "all"
    """all, or global: the angles of local heads are not slowed (Gemma 3, Olmo 3)."""

    def __post_init__(self) -> None:
        if self.kind not in SCALINGS:
            raise ValueError(f"rope_scaling.kind must be one of {', '.join(SCALINGS)}, got {self.kind!r}")
        if self.heads not in SCALED_HEADS:
            raise ValueError(f"rope_scaling.heads must be one of {', '.join(SCALED_HEADS)}, got {self.heads!r}")
        SWITCH.check("rope_scaling.truncate", self.truncate)
        for name in _NUMBERS if self.attention_factor is None else (*_NUMBERS, "attention_factor"):
            value = getattr(self, name)
            if not is_real(value) or not 1e-30 <= value <= 1e30:
                raise ValueError(f"rope_scaling.{name} must be a number from 1e-30 to 1e+30, got {value!r}")
        if not isinstance(self.original_context, int):
            raise ValueError(f"rope_scaling.original_context must be an integer, got {self.original_context!r}")
        for slow, fast in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
            if not getattr(self, slow) < getattr(self, fast):
                raise ValueError(
                    f"rope_scaling.{fast} must be above {slow}={getattr(self, slow)}, got {getattr(self, fast)}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON or YAML."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RopeScaling:
        """The inverse of `to_dict`."""
        check_fields("rope_scaling", data, [field.name for field in fields(cls)])
        missing = [name for name in ("kind", "factor") if name not in data]
        if missing:
            raise ValueError(f"rope_scaling must have {' and '.join(missing)}, got {dict(data)!r}")
        return cls(**data)

    @property
    def amplitude(self) -> float:
        """Factor of the rotated queries and keys; 1 but for yarn."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0

    def scaled(self, frequencies: Tensor, *, theta: float = 10000.0) -> Tensor:
        """The frequencies, in radians per position and of base `theta`, after scaling."""
        slowed = frequencies / self.factor
        if self.kind == "linear":
            return slowed
        if self.kind == "yarn":
            return slowed + self._kept_by_yarn(frequencies, theta) * (frequencies - slowed)
        turns = frequencies * (self.original_context / (2 * math.pi))
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return slowed + kept.clamp(0, 1) * (frequencies - slowed)

    def _kept_by_yarn(self, frequencies: Tensor, theta: float) -> Tensor:
        """How much of each frequency stays: 1 up to the one that turns `beta_fast` times, then falling to 0."""
        n = len(frequencies)
        first, last = (
            n * math.log(self.original_context / (2 * math.pi * turns)) / math.log(theta)
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * n - 1)  # twice n as in the author's code
        index = torch.arange(n, device=frequencies.device, dtype=frequencies.dtype)
        return 1 - ((index - first) / (last - first or 1e-3)).clamp(0, 1)


def rotary(x: Tensor, positions: Tensor, *, theta: float = 10000.0, scaling: RopeScaling | None = None) -> Tensor:
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
    return _turned(x, _table(positions, x.shape[-1], theta, x.dtype, scaling))


class PlacedHeads(NamedTuple):
    """Neighbouring KV heads, and the query heads that share them, which tell positions apart in one way."""

    kv_heads: int
    theta: float | None
    """Base of their rotary angles; None without rotation."""
    features: int
    """Features of each head that are rotated, the first ones."""
    scaling: RopeScaling | None
    """How their angles are slowed."""
    temperature: QueryTemperature | None
    """Growth of their queries with position."""


def placed_heads(
    reach: LayerReach, n_kv_heads: int, head_dim: int, theta: float | None, scaling: RopeScaling | None = None
) -> tuple[PlacedHeads, ...]:
    """How the heads of a layer tell positions apart; `theta` is the model's rotary base, None without rotation."""
    kinds = []
    for (base, share), window in zip(reach.rotations(n_kv_heads), reach.plan.kv_windows(n_kv_heads), strict=True):
        turned = theta is not None and share > 0
        features = head_dim if share == 1 else max(2, 2 * round(share * head_dim / 2))
        slowed = scaling if scaling is None or scaling.heads == "all" or window is None else None
        own = (base or theta, features, slowed) if turned else (None, 0, None)
        kinds.append((*own, reach.temperature if window is None else None))
    return tuple(PlacedHeads(len(list(alike)), *kind) for kind, alike in groupby(kinds))


def place(q: Tensor, k: Tensor, positions: Tensor, heads: tuple[PlacedHeads, ...]) -> tuple[Tensor, Tensor]:
    """Give queries (B, T, H, D) and keys (B, T, H_kv, D) their positions (T,) or (B, T).

    Heads with the same base and scaling share one table of angles, as layers do within `sharing_tables`.
    """
    if not torch.compiler.is_compiling() and _made.get() is None:
        with sharing_tables():
            return place(q, k, positions, heads)
    if all(alike.theta is None and alike.temperature is None for alike in heads):
        return q, k
    group, several = q.shape[-2] // k.shape[-2], len(heads) > 1
    together = all(alike.temperature is None and alike.features in (0, q.shape[-1]) for alike in heads)
    if together and several and torch.compiler.is_compiling():
        table_q, table_k = (_by_head(heads, (share,), positions, q.dtype) for share in (group, 1))
        return _turned(q, table_q), _turned(k, table_k)
    if together and not torch.compiler.is_compiling() and q.shape[0] * q.shape[1] <= _FEW:
        table = _by_head(heads, (group, 1), positions, q.dtype)
        q, k = _turned(torch.cat((q, k), dim=-2), table).split((q.shape[-2], k.shape[-2]), dim=-2)
        return q, k
    placed_q, placed_k = [], []
    parts_q = q.split([alike.kv_heads * group for alike in heads], dim=-2) if several else (q,)
    parts_k = k.split([alike.kv_heads for alike in heads], dim=-2) if several else (k,)
    for part_q, part_k, alike in zip(parts_q, parts_k, heads, strict=True):
        if alike.theta is not None:
            table = _table(positions, alike.features, alike.theta, q.dtype, alike.scaling)
            part_q, part_k = _turned(part_q, table), _turned(part_k, table)
        if alike.temperature is not None:
            part_q = _warmed(part_q, positions, alike.temperature)
        placed_q.append(part_q)
        placed_k.append(part_k)
    if not several:
        return placed_q[0], placed_k[0]
    return torch.cat(placed_q, dim=-2), torch.cat(placed_k, dim=-2)


_Table = tuple[Tensor, Tensor]
"""Cosines and sines."""
_made: ContextVar[dict[Hashable, tuple[Tensor, _Table]] | None] = ContextVar("_made", default=None)


@contextmanager
def sharing_tables() -> Iterator[None]:
    """Within it, layers that are not compiled make each table of angles once for all of them.

    A tensor of positions must not be changed meanwhile.
    """
    token = _made.set({})
    try:
        yield
    finally:
        _made.reset(token)


def _once(positions: Tensor, kind: Hashable, make: Callable[[], _Table]) -> _Table:
    made = None if torch.compiler.is_compiling() else _made.get()
    if made is None:
        return make()
    key = id(positions), kind
    if key not in made:
        made[key] = positions, make()  # with the positions, so that no other tensor gets their id
    return made[key][1]


def _table(positions: Tensor, features: int, theta: float, dtype: torch.dtype, scaling: RopeScaling | None) -> _Table:
    """Cosines and sines (..., T, 1, features / 2) of the rotary angles, for heads of this dtype."""
    dtype = torch.promote_types(dtype, torch.float32)

    def made() -> _Table:
        angles = _angles(positions, features, theta, dtype, scaling).unsqueeze(-2)
        compiling = torch.compiler.is_compiling()
        cos, sin = torch.ops.longshort.cos_sin(angles) if compiling else (angles.cos(), angles.sin())
        if scaling is None or scaling.amplitude == 1:
            return cos, sin
        return cos * scaling.amplitude, sin * scaling.amplitude

    return _once(positions, (features, theta, dtype, scaling), made)


# An op of its own, so that a compiled model computes the table once, for all layers and the backward pass.
_library = torch.library.Library("longshort", "FRAGMENT")
_library.define("cos_sin(Tensor angles) -> (Tensor, Tensor)")
_library.impl("cos_sin", lambda angles: (angles.cos(), angles.sin()), "CompositeExplicitAutograd")
torch.library.register_fake(
    "longshort::cos_sin", lambda angles: (torch.empty_like(angles), torch.empty_like(angles)), lib=_library
)


def _table_of(heads: PlacedHeads, positions: Tensor, dtype: torch.dtype) -> _Table:
    """The table of these heads; without rotation, of angles of 0."""
    if heads.theta is None:
        one = torch.ones((), device=positions.device, dtype=torch.promote_types(dtype, torch.float32))
        return one, torch.zeros_like(one)
    return _table(positions, heads.features, heads.theta, dtype, heads.scaling)


def _by_head(heads: tuple[PlacedHeads, ...], groups: tuple[int, ...], positions: Tensor, dtype: torch.dtype) -> _Table:
    """One table (..., T, heads, features / 2): for each of the groups so many heads for each KV head, in order.

    All heads are then rotated by one kernel, where parts that are rotated apart and joined take several. Compiled, the
    table is never in memory.
    """
    if len(heads) == 1:
        return _table_of(heads[0], positions, dtype)

    def made() -> _Table:
        tables = [_table_of(alike, positions, dtype) for _ in groups for alike in heads]
        ends = list(accumulate(group * alike.kv_heads for group in groups for alike in heads))
        index = torch.arange(ends[-1], device=positions.device)[:, None]
        cos, sin = tables[-1]
        for (own_cos, own_sin), end in zip(tables[-2::-1], ends[-2::-1], strict=True):
            cos, sin = torch.where(index < end, own_cos, cos), torch.where(index < end, own_sin, sin)
        return cos, sin

    return _once(positions, (heads, groups, dtype), made)


def _turned(x: Tensor, table: _Table) -> Tensor:
    """The first features of x (B, T, heads, D) rotated, as many as the table has angles for; the others as they are."""
    cos, sin = table
    features = 2 * cos.shape[-1]
    first, second = x[..., :features].to(cos.dtype).chunk(2, dim=-1)
    halves = torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)
    turned = torch.cat(halves, dim=-1).to(x.dtype)
    return turned if features == x.shape[-1] else torch.cat((turned, x[..., features:]), dim=-1)


def _warmed(q: Tensor, positions: Tensor, temperature: QueryTemperature) -> Tensor:
    whole = torch.div(positions + 1, temperature.every, rounding_mode="floor")
    factors = 1 + temperature.scale * torch.log1p(whole.to(torch.promote_types(q.dtype, torch.float32)))
    return (q * factors[..., None, None]).to(q.dtype)


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


def _angles(
    positions: Tensor, features: int, theta: float, dtype: torch.dtype, scaling: RopeScaling | None = None
) -> Tensor:
    """(..., features / 2): position times theta^(-2i / features), the frequency, which may be scaled."""
    if features % 2:
        raise ValueError(f"sine and cosine need an even number of features, got {features}")
    exponents = torch.arange(0, features, 2, device=positions.device, dtype=dtype) / features
    frequencies = torch.exp(-math.log(theta) * exponents)
    return positions.unsqueeze(-1).to(dtype) * (
        frequencies if scaling is None else scaling.scaled(frequencies, theta=theta)
    )
