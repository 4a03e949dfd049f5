"""Patterns of reach for a whole model, each one call.

Every pattern takes `n_layers` and `n_heads`, and these options:

- `n_kv_heads`: key/value heads, a divisor of n_heads; the query heads that share one have the same reach.
- `context`: longest sequence; a window beyond it is refused.
- `nope`: global heads are not rotated.
- `dual_rope`: rotary bases of local and global heads; True is 10,000 and 1,000,000, as in Gemma 3.
- `temperature`: queries of global heads grow with the logarithm of their position; True has Llama 4's numbers.
- `sinks`: True for a learned sink in every layer, "local" in layers with local heads only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from longshort.heads import HeadPlan
from longshort.numeric import is_int
from longshort.ranges import AT_LEAST_1, SWITCH, count, optional
from longshort.reach.layer import LayerReach, QueryTemperature, temperature_of

DUAL_BASES = (10_000.0, 1_000_000.0)
"""Rotary bases of local and of global heads in Gemma 3."""
Windows = tuple[int | None, ...]
"""Reach of each KV head of a layer."""


class Options(TypedDict, total=False):
    """What every pattern takes beside its own arguments; see the module."""

    n_kv_heads: int | None
    context: int | None
    nope: bool
    dual_rope: bool | Sequence[float]
    temperature: bool | Mapping[str, Any] | QueryTemperature | None
    sinks: bool | str


def full(*, n_layers: int, n_heads: int, **options: Unpack[Options]) -> tuple[LayerReach, ...]:
    """Plain attention: every head is global."""
    kv_heads = _kv_heads(n_layers, n_heads, options)
    return layers_of([(None,) * kv_heads] * n_layers, n_heads, options)


def long_short(
    n_global: int, window: int, *, n_layers: int, n_heads: int, **options: Unpack[Options]
) -> tuple[LayerReach, ...]:
    """LS-attention (arXiv 2505.15548): in every layer `n_global` global heads, the others with one window.

    >>> long_short(1, 50, n_layers=6, n_heads=6)[0].plan.windows
    (None, 50, 50, 50, 50, 50)
    """
    kv_heads = _kv_heads(n_layers, n_heads, options)
    first = _global_kv_heads(n_global, n_heads, kv_heads)
    _check_window("window", window, options)
    return layers_of([(None,) * first + (window,) * (kv_heads - first)] * n_layers, n_heads, options)


def interleave(
    layers: str, window: int, *, n_layers: int, n_heads: int, last_global: bool = False, **options: Unpack[Options]
) -> tuple[LayerReach, ...]:
    """Whole layers local (L) or global (G): the letters are repeated until there are `n_layers` of them.

    With `last_global` the last layer is global whatever its letter.

    >>> [layer.plan.n_global for layer in interleave("LLG", 64, n_layers=5, n_heads=2)]
    [0, 0, 2, 0, 0]
    """
    kv_heads = _kv_heads(n_layers, n_heads, options)
    if not isinstance(layers, str) or not layers or set(layers) - {"L", "G"}:
        raise ValueError(f"layers must be letters L (local) and G (global), such as LLLLLG, got {layers!r}")
    if len(layers) > n_layers:
        raise ValueError(f"layers must be at most n_layers={n_layers} letters, got {layers!r}")
    _check_window("window", window, options)
    SWITCH.check("last_global", last_global)
    letters = [layers[layer % len(layers)] for layer in range(n_layers)]
    if last_global:
        letters[-1] = "G"
    reaches: dict[str, Windows] = {"L": (window,) * kv_heads, "G": (None,) * kv_heads}
    return layers_of([reaches[letter] for letter in letters], n_heads, options)


def ladder(
    largest: int = 512,
    smallest: int = 8,
    *,
    n_layers: int,
    n_heads: int,
    n_global: int | None = None,
    **options: Unpack[Options],
) -> tuple[LayerReach, ...]:
    """One global head in every layer, the others with windows that halve from `largest` to `smallest`.

    With more heads than halvings some windows come several times, with fewer some are left out. With grouped queries
    the rungs are KV heads; `n_global` is the number of global query heads, those of one KV head if None.

    >>> ladder(n_layers=8, n_heads=8)[0].plan.windows
    (None, 512, 256, 128, 64, 32, 16, 8)
    """
    kv_heads = _kv_heads(n_layers, n_heads, options)
    group = n_heads // kv_heads
    first = _global_kv_heads(group if n_global is None else n_global, n_heads, kv_heads)
    if first == kv_heads:
        raise ValueError(f"ladder must have KV heads beside the {first} global ones, got n_kv_heads={kv_heads}")
    _check_window("largest", largest, options)
    _check_window("smallest", smallest, options)
    if smallest > largest:
        raise ValueError(f"smallest must be at most largest={largest}, got {smallest}")
    windows = (None,) * first + _rungs(largest, smallest, kv_heads - first)
    return layers_of([windows] * n_layers, n_heads, options)


def ramp(
    first: int = 8,
    last: int = 512,
    *,
    n_layers: int,
    n_heads: int,
    last_global: bool = True,
    **options: Unpack[Options],
) -> tuple[LayerReach, ...]:
    """Windows that grow with depth, from `first` to `last` by equal factors, and then one global layer.

    Without `last_global` the last layer has the window `last`.

    >>> [layer.plan.windows[0] for layer in ramp(n_layers=8, n_heads=4)]
    [8, 16, 32, 64, 128, 256, 512, None]
    """
    kv_heads = _kv_heads(n_layers, n_heads, options)
    _check_window("first", first, options)
    _check_window("last", last, options)
    SWITCH.check("last_global", last_global)
    if first > last:
        raise ValueError(f"first must be at most last={last}, got {first}: windows grow with depth")
    steps = n_layers - last_global
    least = 2 if last_global else 1
    if steps < 1:
        raise ValueError(f"n_layers must be at least {least} for a ramp, got {n_layers}")
    grown = [round(first * (last / first) ** (step / max(steps - 1, 1))) for step in range(steps)]
    reaches: list[int | None] = [*grown, None] if last_global else [*grown]
    return layers_of([(reach,) * kv_heads for reach in reaches], n_heads, options)


def streaming(
    first: int, recent: int, *, n_layers: int, n_heads: int, n_global: int = 0, **options: Unpack[Options]
) -> tuple[LayerReach, ...]:
    """Heads that see the `first` keys of a sequence and the `recent` ones (StreamingLLM, arXiv 2309.17453).

    With `n_global` global heads in every layer before them, it is the pattern of DuoAttention (arXiv 2410.10819).

    >>> plan = streaming(4, 64, n_layers=2, n_heads=4, n_global=1)[0].plan
    >>> plan.windows, plan.firsts
    ((None, 64, 64, 64), (0, 4, 4, 4))
    """
    kv_heads = _kv_heads(n_layers, n_heads, options)
    wide = _global_kv_heads(n_global, n_heads, kv_heads)
    _check_window("first", first, options)
    _check_window("recent", recent, options)
    rows: list[Windows] = [(None,) * wide + (recent,) * (kv_heads - wide)] * n_layers
    return layers_of(rows, n_heads, options, first)


def layers_of(kv_windows: Sequence[Windows], n_heads: int, options: Options, first: int = 0) -> tuple[LayerReach, ...]:
    """A layer for each row of reaches of KV heads, with the options; local heads also see the `first` keys."""
    local_base, global_base = _bases(options.get("dual_rope", False))
    nope, sinks = options.get("nope", False), options.get("sinks", False)
    SWITCH.check("nope", nope)
    if not isinstance(sinks, bool) and sinks != "local":
        raise ValueError(f"sinks must be True, False or 'local', got {sinks!r}")
    temperature = temperature_of(options.get("temperature"))
    made: dict[Windows, LayerReach] = {}
    for row in kv_windows:
        group = n_heads // len(row)
        made[row] = LayerReach(
            plan=HeadPlan(windows=tuple(window for window in row for _ in range(group)), firsts=(first,) * n_heads),
            local_base=local_base,
            global_base=None if nope else global_base,
            global_share=0.0 if nope else 1.0,
            temperature=temperature,
            sink="learned" if sinks is True or (sinks == "local" and any(row)) else "none",
        )
    return tuple(made[row] for row in kv_windows)


def _rungs(largest: int, smallest: int, count: int) -> tuple[int, ...]:
    """`count` windows from largest downwards, each a half, a quarter, ... of it."""
    halvings = (largest // smallest).bit_length() - 1
    if count == 1:
        return (largest >> halvings // 2,)
    return tuple(largest >> round(rung * halvings / (count - 1)) for rung in range(count))


def _bases(dual_rope: bool | Sequence[float]) -> tuple[float | None, float | None]:
    if isinstance(dual_rope, bool):
        return DUAL_BASES if dual_rope else (None, None)
    if isinstance(dual_rope, str) or not isinstance(dual_rope, Sequence) or len(dual_rope) != 2:
        raise ValueError(f"dual_rope must be True, False or the bases of local and global heads, got {dual_rope!r}")
    local, of_global = dual_rope
    return local, of_global


def _kv_heads(n_layers: int, n_heads: int, options: Options) -> int:
    unknown = sorted(set(options) - set(Options.__annotations__))
    if unknown:
        raise ValueError(f"options must be among {', '.join(Options.__annotations__)}, got {', '.join(unknown)}")
    count().check("n_layers", n_layers)
    count().check("n_heads", n_heads)
    optional(AT_LEAST_1).check("context", options.get("context"))
    kv_heads = options.get("n_kv_heads")
    if kv_heads is None:
        return n_heads
    if not is_int(kv_heads) or kv_heads < 1 or n_heads % kv_heads:
        raise ValueError(f"n_kv_heads must be a divisor of n_heads={n_heads}, got {kv_heads!r}")
    return kv_heads


def _global_kv_heads(n_global: int, n_heads: int, kv_heads: int) -> int:
    group = n_heads // kv_heads
    if not is_int(n_global) or not 0 <= n_global <= n_heads or n_global % group:
        multiple = f", a multiple of n_heads / n_kv_heads = {group}" if group > 1 else ""
        raise ValueError(f"n_global must be an integer from 0 to n_heads={n_heads}{multiple}, got {n_global!r}")
    return n_global // group


def _check_window(name: str, window: int, options: Options) -> None:
    count().check(name, window)
    context = options.get("context")
    if context is not None and window > context:
        raise ValueError(f"{name} must be at most context={context}, got {window}")
