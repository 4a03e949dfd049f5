"""A model's reach as it is written in a configuration: a name, a mapping, or the layers themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from longshort.reach.layer import LayerReach
from longshort.reach.patterns import Options, full, interleave, ladder, long_short, ramp, streaming
from longshort.reach.published import MODELS, like

PATTERNS: dict[str, Callable[..., tuple[LayerReach, ...]]] = {
    "full": full,
    "long_short": long_short,
    "interleave": interleave,
    "ladder": ladder,
    "ramp": ramp,
    "streaming": streaming,
}
"""The patterns by name."""
_OF_THE_MODEL = ("n_layers", "n_heads", "n_kv_heads", "context")
"""Arguments that a configuration gives elsewhere."""


def resolve(
    reach: object, *, n_layers: int, n_heads: int, n_kv_heads: int | None = None, context: int | None = None
) -> tuple[LayerReach, ...]:
    """The layers of a model of these sizes.

    Args:
        reach: the name of a pattern or of a published model; a mapping of `pattern` or `like` and its arguments; or one
            `LayerReach`, or its mapping, per layer.

    >>> sizes = {"n_layers": 6, "n_heads": 4, "context": 2048}
    >>> resolve("ladder", **sizes) == ladder(**sizes)
    True
    >>> resolve({"pattern": "interleave", "layers": "LLG", "window": 64}, **sizes)[0].plan.windows
    (64, 64, 64, 64)
    >>> resolve({"like": "gemma-3", "window": 512}, **sizes)[5].global_base
    1000000.0
    """
    sizes = {"n_layers": n_layers, "n_heads": n_heads, "n_kv_heads": n_kv_heads, "context": context}
    if isinstance(reach, str):
        reach = {"like": reach} if reach in MODELS else {"pattern": reach}
    if isinstance(reach, Mapping):
        return _called(dict(reach), sizes)
    if not isinstance(reach, Sequence):
        raise ValueError(f"reach must be {_RIGHT}, got {reach!r}")
    layers = tuple(_layer(place, layer) for place, layer in enumerate(reach))
    if len(layers) != n_layers:
        raise ValueError(f"reach must have one entry for each of n_layers={n_layers}, got {len(layers)}")
    for place, layer in enumerate(layers):
        if layer.n_heads != n_heads:
            raise ValueError(f"reach[{place}] must have a plan of n_heads={n_heads} heads, got {layer.n_heads}")
    return layers


_RIGHT = (
    f"a pattern ({', '.join(PATTERNS)}), a model ({', '.join(MODELS)}), a mapping with the key pattern or like, or one "
    "entry per layer"
)


def _called(given: dict[str, Any], sizes: dict[str, int | None]) -> tuple[LayerReach, ...]:
    """The pattern or the model that a mapping names, with its arguments."""
    kinds = [kind for kind in ("pattern", "like") if kind in given]
    if len(kinds) != 1:
        raise ValueError(f"reach must have the key pattern or the key like, got {given!r}")
    name = given.pop(kinds[0])
    known: Mapping[str, Any] = PATTERNS if kinds[0] == "pattern" else MODELS
    if isinstance(name, str) and name not in known and name in (*PATTERNS, *MODELS):
        right = "like" if known is PATTERNS else "pattern"
        raise ValueError(f"reach must be {{{right}: {name}}}, got {{{kinds[0]}: {name}}}")
    if not isinstance(name, str) or name not in known:
        names = f"{', '.join(PATTERNS)} or a model ({', '.join(MODELS)})" if known is PATTERNS else ", ".join(known)
        raise ValueError(f"reach must be {names}, got {name!r}")
    call: Callable[..., tuple[LayerReach, ...]] = PATTERNS[name] if known is PATTERNS else like
    unknown = [str(key) for key in given if key not in _arguments(call)]
    if unknown:
        raise ValueError(f"reach {name} takes {', '.join(_arguments(call))}, got {', '.join(unknown)}")
    lacking = [argument for argument, needed in _arguments(call).items() if needed and argument not in given]
    if lacking:
        raise ValueError(f"reach {name} needs a value for {', '.join(lacking)}")
    try:
        return call(**({} if known is PATTERNS else {"model": name}), **given, **sizes)
    except ValueError as error:
        raise ValueError(f"reach {name}: {error}") from None


def _arguments(call: Callable[..., Any]) -> dict[str, bool]:
    """The arguments that a configuration may give, and whether it must."""
    found: dict[str, bool] = {}
    for name, parameter in inspect.signature(call).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= dict.fromkeys(Options.__annotations__, False)
        else:
            found[name] = parameter.default is parameter.empty
    return {name: needed for name, needed in found.items() if name not in (*_OF_THE_MODEL, "model")}


def _layer(place: int, layer: object) -> LayerReach:
    if isinstance(layer, LayerReach):
        return layer
    if not isinstance(layer, Mapping):
        raise ValueError(f"reach[{place}] must be a LayerReach or a mapping, got {layer!r}")
    try:
        return LayerReach.from_dict(layer)
    except ValueError as error:
        raise ValueError(f"reach[{place}]: {error}") from None
