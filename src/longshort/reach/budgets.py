"""Which plan to take within a budget, by the experiments `reach-modern`, `reach` and their `retrieval` (docs/results).

There, with 8 layers of 8 heads, a context of 2,048 and three or four seeds, a ladder of windows in every layer, with an
eighth of the heads global, had a lower loss than full attention, and its answers to chains of variables could not be
told from full attention's. A single full layer at the end answered fewer. With one global head and windows of 64 in
each layer neither the loss nor those answers could be told from full attention's. All found needles. Plans whose global
heads are not rotated, beside local heads that are, had the lowest losses of all. An early full layer, or no global
head, had a higher loss than full attention. Other sizes are an extrapolation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from longshort.numeric import is_real
from longshort.ranges import SWITCH
from longshort.reach.costs import Costs, check_sizes, costs
from longshort.reach.layer import LayerReach
from longshort.reach.notation import resolve

EVIDENCE = {
    "reach": {"ladder": -0.0365, "ls1-w64": -0.0116, "one-full-8": -0.0358},
    "reach-modern": {
        "ladder-nope": -0.0769,
        "ladder": -0.0287,
        "ls1-w64-nope": -0.0641,
        "ls1-w64": -0.0106,
        "one-full-8-nope": -0.0672,
        "one-full-8": -0.0280,
    },
    "reach-30m": {"ladder-nope": -0.0383, "ls1-w128-nope": -0.0259},
}
"""Loss minus that of full attention with the same seeds, in nats, of the plans that `budget` chooses from."""
_MODERN, _LARGER = EVIDENCE["reach-modern"], EVIDENCE["reach-30m"]
_HERE = "With 8 layers of 8 heads, "


def _both(name: str) -> str:
    return f"{EVIDENCE['reach'][name]:+.4f} and {_MODERN[name]:+.4f} nats"


_LADDER = (
    f"{_HERE}a ladder of windows beside an eighth of global heads in every layer had a lower loss than full attention "
    f"in two experiments ({_both('ladder')}, three and four seeds)"
)
_LADDER_UNTURNED = (
    f"{_HERE}a ladder of windows beside an eighth of global heads in every layer, which are not rotated, had the "
    f"lowest mean loss of 19 plans ({_MODERN['ladder-nope']:+.4f} nats against full attention, four seeds)"
)
_LADDER_LARGER = (
    " With 12 layers of 6 heads such a ladder, of windows of 512 to 32, had the lowest mean of 5 plans "
    f"({_LARGER['ladder-nope']:+.4f} nats, three seeds)."
)
_LONG_SHORT = (
    f"{_HERE}one global head and windows of 64 in each layer found needles as full attention does; its loss "
    f"({_both('ls1-w64')} in two experiments) and its tracking of variables (+2 points in both) could not be told from "
    "full attention's (three and four seeds)"
)
_LONG_SHORT_UNTURNED = (
    f"{_HERE}one global head, which is not rotated, and windows of 64 in each layer had a lower loss than full "
    f"attention ({_MODERN['ls1-w64-nope']:+.4f} nats, four seeds), and found needles and tracked variables as well "
    "(one seed)"
)
_LONG_SHORT_LARGER = (
    " With 12 layers of 6 heads and windows of 128 such a plan had a lower loss too "
    f"({_LARGER['ls1-w128-nope']:+.4f} nats, three seeds), but answered 89 % of chains of variables where full "
    "attention answered 98 % (three seeds; the difference is undecided)."
)
_FULL = (
    f"{_HERE}one full layer at the end had a loss of {_both('one-full-8')} against full attention's in two experiments "
    "(three seeds each); it found needles, but answered 46 and 80 % of chains of variables where full attention "
    "answered 95 and 99 %"
)
_FULL_UNTURNED = (
    f"{_HERE}one full layer at the end, whose heads are not rotated, had a lower loss than full attention "
    f"({_MODERN['one-full-8-nope']:+.4f} nats, four seeds); it found needles, but answered 37 % of chains of variables "
    "where full attention answered 92 % (one seed)"
)
EIGHTH = 8
"""One head or layer of so many is global in them; with fewer KV heads, those of one."""
WINDOW = 64
"""Window of the local layers beside a full one."""
LARGEST, SMALLEST = 512, 8
"""Windows of the ladder, at most a quarter of the context."""
_LEAST_RUNGS = 3
"""Fewer windows are no ladder: with one, the loss could not be told from full attention's."""


class Choice(NamedTuple):
    """A plan, what it costs, and why it was chosen."""

    layers: tuple[LayerReach, ...]
    costs: Costs
    reason: str
    reach: dict[str, Any]
    """The plan as `model.reach` has it in a configuration."""


def budget(
    *,
    n_layers: int,
    n_heads: int,
    context: int,
    n_kv_heads: int | None = None,
    head_dim: int = 64,
    value_bytes: int = 2,
    cache_bytes: float | None = None,
    share: float | None = None,
    rotary: bool = False,
) -> Choice:
    """The plan that the evidence supports best within a budget.

    Args:
        cache_bytes: bytes of cache per token at the context, over all layers, with `head_dim` and `value_bytes`.
        share: FLOPs of attention as a share of full attention's, from 0 to 1.
        rotary: whether the model has rotary positions. If so, global heads are not rotated, as in the plans of lowest
            loss.

    >>> choice = budget(n_layers=8, n_heads=8, context=2048, share=0.2)
    >>> choice.layers[0].plan.windows
    (None, 64, 64, 64, 64, 64, 64, 64)
    >>> choice.reach
    {'pattern': 'long_short', 'n_global': 1, 'window': 64}
    """
    check_budget(cache_bytes, share)
    kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    check_sizes(n_layers=n_layers, n_heads=n_heads, context=context, n_kv_heads=kv_heads)
    if n_heads % kv_heads:
        raise ValueError(f"n_kv_heads must be a divisor of n_heads={n_heads}, got {n_kv_heads!r}")
    SWITCH.check("rotary", rotary)
    cheapest: Costs | None = None
    sizes: dict[str, Any] = {"n_layers": n_layers, "n_heads": n_heads, "n_kv_heads": n_kv_heads, "context": context}
    for reach, reason in _candidates(n_layers, n_heads, kv_heads, context, rotary=rotary):
        layers = resolve(reach, **sizes)
        found = costs(layers, context=context, n_kv_heads=n_kv_heads, head_dim=head_dim, value_bytes=value_bytes)
        fits = found.cache_bytes <= (cache_bytes or float("inf")) and found.share <= (share or 1.0)
        if fits:
            return Choice(layers, found, reason, reach)
        cheapest = found if cheapest is None or found.share < cheapest.share else cheapest
    assert cheapest is not None
    raise ValueError(
        f"the budget must allow the cheapest plan that we know, which takes {_in_words(cheapest)}; "
        f"got {' and '.join(_given(cache_bytes, share))}. Without any global head the loss was 0.116 nats above "
        "full attention's"
    )


def _candidates(
    n_layers: int, n_heads: int, kv_heads: int, context: int, *, rotary: bool
) -> Iterator[tuple[dict[str, Any], str]]:
    """Plans from the best supported to the cheapest, as `model.reach` has them, each with a sentence."""
    largest = min(LARGEST, max(context // 4, 1))
    smallest = min(SMALLEST, largest)
    n_global = max(kv_heads // EIGHTH, 1) * (n_heads // kv_heads)
    nope = {"nope": True} if rotary else {}
    heads = ["one head of eight global"] if n_global * EIGHTH > n_heads else []
    if kv_heads >= _LEAST_RUNGS + 1 and largest >= smallest * 2 ** (_LEAST_RUNGS - 1):
        windows = {"largest": largest, "smallest": smallest}
        reach = {"pattern": "ladder", **windows, "n_global": n_global, **nope}
        there = ["windows of 512 to 8"] if (largest, smallest) != (LARGEST, SMALLEST) else []
        evidence = (_LADDER_UNTURNED, _LADDER_LARGER) if rotary else (_LADDER, "")
        yield reach, _sentence(*evidence, [*there, *heads])
    if kv_heads > 1:
        reach = {"pattern": "long_short", "n_global": n_global, "window": min(WINDOW, context), **nope}
        there = ["windows of 64"] if context < WINDOW else []
        evidence = (_LONG_SHORT_UNTURNED, _LONG_SHORT_LARGER) if rotary else (_LONG_SHORT, "")
        yield reach, _sentence(*evidence, [*there, *heads])
    if n_layers == 1:  # no layer is left to be local
        yield {"pattern": "full"}, "With a single layer and no cheaper plan for its heads, all of them are global."
        return
    for window in (WINDOW, WINDOW // 2, WINDOW // 4, WINDOW // 8):
        for period in _periods(n_layers):
            width = min(window, context)
            letters = "".join("L" if (n_layers - 1 - layer) % period else "G" for layer in range(n_layers))
            reach = {"pattern": "interleave", "layers": letters, "window": width, **nope}
            there = ["windows of 64"] if width != WINDOW else []
            yield reach, _sentence(_FULL_UNTURNED if rotary else _FULL, "", there)


def _sentence(evidence: str, larger: str, there: Sequence[str]) -> str:
    """The evidence, in what its plan differed from the one that is chosen, and what a larger model says."""
    return f"{evidence}; that plan had {' and '.join(there)}.{larger}" if there else f"{evidence}.{larger}"


def _periods(n_layers: int) -> list[int]:
    """Every eighth layer full, then fewer, down to the last alone."""
    periods = [EIGHTH]
    while periods[-1] < n_layers:
        periods.append(2 * periods[-1])
    return [period for period in periods if period < n_layers] + [n_layers]


def _in_words(found: Costs) -> str:
    return f"{found.share:.1%} of full attention's FLOPs and {found.cache_bytes:,.0f} bytes of cache per token"


def _given(cache_bytes: float | None, share: float | None) -> list[str]:
    given = {"cache_bytes": cache_bytes, "share": share}
    return [f"{name}={value!r}" for name, value in given.items() if value is not None]


def check_budget(cache_bytes: float | None, share: float | None) -> None:
    if cache_bytes is None and share is None:
        raise ValueError("a budget must have cache_bytes, share or both, got neither")
    for name, value, most in (("cache_bytes", cache_bytes, float("inf")), ("share", share, 1.0)):
        right = is_real(value) and 0 < value <= most
        if value is not None and not right:
            limit = "" if most == float("inf") else " and at most 1"
            raise ValueError(f"{name} must be a number above 0{limit}, got {value!r}")
