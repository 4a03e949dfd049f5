"""Rotary positions of transformers' configurations in our terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from longshort.nn import RopeScaling
from longshort.numeric import is_real

_KINDS = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_max_position_embeddings": "original_context",
    },
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "original_context",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
    },
}
"""What each kind of scaling takes, and our names of it."""
_ANY = ("rope_theta", "rope_type", "type", "partial_rotary_factor", "truncate", "original_max_position_embeddings")


class Rope(NamedTuple):
    """The rotary positions of a model."""

    theta: float
    """The base of every layer, or of the global ones."""
    local_theta: float | None
    """The base of the local layers where it is another one."""
    scaling: RopeScaling | None


def rope_of(parameters: Mapping[str, Any], windows: Sequence[int | None], named: str) -> Rope:
    """The positions of layers with these windows, None for global, from `rope_parameters`, flat or by kind of layer."""
    by_kind = {
        kind: parameters.get(kind, parameters)
        for kind, present in (
            ("full_attention", any(window is None for window in windows)),
            ("sliding_attention", any(window is not None for window in windows)),
        )
        if present
    }
    for rope in by_kind.values():
        _check(rope, named)
    truncate = parameters.get("truncate", True)
    bases = {kind: float(rope["rope_theta"]) for kind, rope in by_kind.items()}
    scalings = {kind: _scaling(rope, truncate, named) for kind, rope in by_kind.items()}
    theta = bases.get("full_attention", bases.get("sliding_attention", 10000.0))
    local = bases.get("sliding_attention", theta)
    scaling = scalings.get("full_attention", scalings.get("sliding_attention"))
    slowed = scalings.get("sliding_attention", scaling)
    if slowed != scaling:
        if slowed is not None:
            raise ValueError(
                f"{named}: rope_parameters of sliding layers must be those of full layers or of type default, "
                f"got {dict(by_kind['sliding_attention'])}"
            )
        assert scaling is not None
        scaling = RopeScaling(**scaling.to_dict() | {"heads": "global"})
    return Rope(theta, local if local != theta else None, scaling)


def _check(rope: object, named: str) -> None:
    if not isinstance(rope, Mapping):
        raise ValueError(f"{named}: rope_parameters must be a mapping, or one by kind of layer, got {rope!r}")
    base, kind = rope.get("rope_theta"), rope.get("rope_type", "default")
    if not is_real(base) or not 1 < base <= 1e30:
        raise ValueError(f"{named}: rope_theta must be a number above 1, up to 1e30, got {base!r}")
    if not isinstance(kind, str):
        raise ValueError(f"{named}: rope_type must be one of default, {', '.join(_KINDS)}, got {kind!r}")


def _scaling(rope: Mapping[str, Any], truncate: bool, named: str) -> RopeScaling | None:
    kind = rope.get("rope_type", "default")
    if rope.get("partial_rotary_factor") not in (None, 1.0):
        share = rope["partial_rotary_factor"]
        raise ValueError(f"{named}: partial_rotary_factor must be 1 in these families, got {share}")
    if kind == "default":
        return None
    if kind not in _KINDS:
        raise ValueError(f"{named}: rope_type must be one of default, {', '.join(_KINDS)}, got {kind!r}")
    unknown = [name for name in rope if rope[name] is not None and name not in (*_KINDS[kind], *_ANY)]
    if unknown:
        raise ValueError(
            f"{named}: a rope of type {kind} must have {', '.join(_KINDS[kind])} alone, got {', '.join(unknown)}"
        )
    values = {ours: rope[theirs] for theirs, ours in _KINDS[kind].items() if rope.get(theirs) is not None}
    try:
        return RopeScaling.from_dict({"kind": kind, **values} | ({"truncate": truncate} if kind == "yarn" else {}))
    except ValueError as error:
        raise ValueError(f"{named}: {error}") from None
