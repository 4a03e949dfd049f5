"""The record of one layer's reach: a `HeadPlan`, and what depends on whether a head is global or local."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, NamedTuple

from longshort.heads import HeadPlan
from longshort.numeric import is_real
from longshort.ranges import AT_LEAST_1, check

SINKS = ("none", "learned")


@dataclass(frozen=True, kw_only=True)
class QueryTemperature:
    """Queries of global heads grow with the logarithm of their position, as in Llama 4.

    The query at position t is multiplied by 1 + scale * log(1 + floor((t + 1) / every)).
    """

    scale: float = 0.1
    every: int = 8192
    """Positions that share one factor; the first of them are not scaled."""

    def __post_init__(self) -> None:
        check("temperature.scale", self.scale, "a number from 0 to 1e30", _is_real(self.scale) and self.scale >= 0)
        AT_LEAST_1.check("temperature.every", self.every)


class Rotation(NamedTuple):
    """How a head's queries and keys are rotated."""

    base: float | None
    """Base of the rotary angles; None is the model's."""
    share: float
    """Share of the head's features that is rotated; 0 is none."""


@dataclass(frozen=True, kw_only=True)
class LayerReach:
    """What the heads of one layer may see, and how they tell positions apart; frozen and hashable.

    With grouped queries a KV head is global where one of its query heads is, and its query heads are rotated as it is.

    >>> layer = LayerReach(plan=HeadPlan(windows=(None, 16, 16, 16)), local_base=1e4, global_base=1e6)
    >>> layer.rotations(4)[:2]
    (Rotation(base=1000000.0, share=1.0), Rotation(base=10000.0, share=1.0))
    >>> LayerReach.from_dict(layer.to_dict()) == layer
    True
    """

    plan: HeadPlan
    """What each head may see."""
    local_base: float | None = None
    """Rotary base of the local heads; the model's if None."""
    global_base: float | None = None
    """Rotary base of the global heads; the model's if None."""
    local_share: float = 1.0
    """Share of the features of a local head that is rotated, the first ones; 0 is none."""
    global_share: float = 1.0
    """Share of the features of a global head that is rotated; 0 is none (NoPE)."""
    temperature: QueryTemperature | None = None
    """Growth of the global heads' queries with their position; none if None."""
    sink: str = "none"
    """none, or learned: a logit per head that takes probability and gives no value."""

    def __post_init__(self) -> None:
        check("plan", self.plan, "a HeadPlan", isinstance(self.plan, HeadPlan))
        for name in ("local_base", "global_base"):
            base = getattr(self, name)
            check(name, base, "None or a number above 1, up to 1e30", base is None or (_is_real(base) and base > 1))
            object.__setattr__(self, name, None if base is None else float(base))
        for name in ("local_share", "global_share"):
            share = getattr(self, name)
            check(name, share, "a number from 0 to 1", _is_real(share) and 0 <= share <= 1)
            object.__setattr__(self, name, float(share))
        right = self.temperature is None or isinstance(self.temperature, QueryTemperature)
        check("temperature", self.temperature, "None or a QueryTemperature", right)
        check("sink", self.sink, f"one of {', '.join(SINKS)}", self.sink in SINKS)

    @property
    def n_heads(self) -> int:
        """Number of query heads."""
        return self.plan.n_heads

    @property
    def rotates_alike(self) -> bool:
        """Whether every head is rotated as the model says."""
        return {self.local_base, self.global_base} == {None} and {self.local_share, self.global_share} == {1.0}

    def check_backend(self, backend: str) -> None:
        """Raise where a backend of the op is named that cannot serve this layer."""
        if self.sink != "none" and backend in ("sdpa", "flex"):
            raise ValueError(
                f"backend must be auto, reference, blocked or triton for learned sinks, got {backend!r}: it has no "
                "sinks; set sinks=False in the reach"
            )

    def rotations(self, n_kv_heads: int) -> tuple[Rotation, ...]:
        """How each KV head and the query heads that share it are rotated."""
        both = [Rotation(self.global_base, self.global_share), Rotation(self.local_base, self.local_share)]
        of_global, of_local = (rotation if rotation.share else Rotation(None, 0.0) for rotation in both)
        return tuple(of_global if window is None else of_local for window in self.plan.kv_windows(n_kv_heads))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON or YAML; what is at its default is left out."""
        values: dict[str, Any] = {"plan": self.plan.to_dict()}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is not MISSING and value != field.default:
                values[field.name] = value
        if self.temperature is not None:
            values["temperature"] = {"scale": self.temperature.scale, "every": self.temperature.every}
        return values

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LayerReach:
        """The inverse of `to_dict`."""
        names = [field.name for field in fields(cls)]
        unknown = [str(key) for key in data if key not in names]
        if unknown or "plan" not in data:
            right = f"a plan, and of {', '.join(names[1:])} what is not at its default"
            raise ValueError(f"a layer's reach must have {right}, got {', '.join(map(str, data)) or 'nothing'}")
        values = dict(data)
        if isinstance(values["plan"], Mapping):
            values["plan"] = HeadPlan.from_dict(values["plan"])
        if isinstance(values.get("temperature"), Mapping):
            values["temperature"] = temperature_of(values["temperature"])
        return cls(**values)


def temperature_of(value: object) -> QueryTemperature | None:
    """True stands for Llama 4's numbers, a mapping for its fields."""
    if isinstance(value, Mapping):
        names = [field.name for field in fields(QueryTemperature)]
        right = set(value) <= set(names)
        check("temperature", dict(value), f"a mapping of {' and '.join(names)}", right)
        return QueryTemperature(**value)
    if value is None or isinstance(value, bool):
        return QueryTemperature() if value else None
    check("temperature", value, "true, false or a QueryTemperature", isinstance(value, QueryTemperature))
    return value  # type: ignore[return-value]


def _is_real(value: object) -> bool:
    return is_real(value) and abs(value) <= 1e30
