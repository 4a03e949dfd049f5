"""What a fuzz case is: one call of the op, or one attention layer with its caches, drawn from a seed and a number.

Cases come in families. A family fixes what GPU kernels are compiled for (dtype, head dim, options, windows), at seconds
per kernel; its cases differ in lengths, heads, segments and numbers. A case depends on nothing but the seed, its number
and the kind of device, so that any of them can be repeated by itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from longshort import HeadPlan, LSAttention, attention
from longshort.nn import RopeScaling
from longshort.ops import Smoothing
from longshort.ops.options import Stats
from longshort.reach import LayerReach, QueryTemperature

from ..ops.cases import LAYOUTS, SEGMENTS, Case
from .worker import PER_FAMILY

LENGTHS = {
    "cpu": (1, 2, 3, 7, 16, 17, 33, 64, 65, 100, 129, 200, 257),
    "cuda": (1, 3, 16, 17, 49, 63, 65, 127, 129, 255, 301, 513, 699),
}
EXTRA_KEYS = (0, 0, 0, 1, 5, 16, 63, 130)
WINDOWS = (1, 2, 3, 5, 16, 17, 50, 64, 128)
DIMS = {"cpu": (1, 3, 8, 16, 32, 40), "cuda": (16, 32, 40, 64, 64, 96, 128, 128, 256)}
DTYPES = {
    "cpu": (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16),
    "cuda": (torch.float32, torch.bfloat16, torch.bfloat16, torch.float16),
}
FIRSTS = "firsts" in {field.name for field in fields(HeadPlan)}
"""Whether plans can have first keys that are always visible."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """What the cases of a family share."""

    layer: bool
    """An attention layer and its caches, rather than a call of the op."""
    dtype: torch.dtype
    dim: int
    group: int
    """Query heads per KV head."""
    palette: tuple[int | None, ...]
    """Windows to choose from."""
    decays: bool
    slopes: bool
    firsts: bool
    causal: bool
    softcap: float | None
    segments: bool
    sinks: bool
    smoothing: Smoothing | None
    stats: Stats
    layout: str
    interpreted: bool
    """On a CPU, run the Triton kernels by their interpreter too: small cases."""
    flex: bool
    """On a GPU, compile FlexAttention for the first case."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of the op: `Case` with what came later."""

    case: Case
    sinks: bool
    smoothing: Smoothing | None
    stats: Stats
    backends: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """An attention layer, the sequence it is given, and how it is cut for the caches."""

    reach: LayerReach
    kv_heads: int
    dim: int
    dtype: torch.dtype
    device: str
    batch: int
    length: int
    options: dict[str, Any]
    """Of `LSAttention`."""
    segments: str | None
    stats: Stats
    rollback: int
    chunks: tuple[int, ...]
    """Tokens per pass with a cache; negative: take so many back."""
    backends: tuple[str, ...]
    seed: int

    @property
    def width(self) -> int:
        return self.reach.n_heads * self.dim


def drawn(seed: int, number: int, device: str) -> Call | Layer:
    """The case of this number."""
    family = _family(random.Random(f"{seed} {device} family {number // PER_FAMILY[device]}"), device)
    rng = random.Random(f"{seed} {device} case {number}")
    first = number % PER_FAMILY[device] == 0
    return _layer(rng, family, device) if family.layer else _call(rng, family, device, first)


def _one_in(rng: random.Random, n: int) -> bool:
    return rng.randrange(n) == 0


def _family(rng: random.Random, device: str) -> Family:
    layer = _one_in(rng, 3)
    dtype = rng.choice(DTYPES[device])
    if layer and dtype == torch.float64:
        dtype = torch.float32
    causal = layer or not _one_in(rng, 3)
    interpreted = device == "cpu" and dtype in (torch.float32, torch.float16) and _one_in(rng, 24 if layer else 6)
    return Family(
        layer=layer,
        dtype=dtype,
        dim=rng.choice([16, 32] if interpreted else DIMS[device]),
        group=rng.choice((1, 1, 2, 3, 4) if device == "cpu" else (1, 1, 2, 4)),
        palette=tuple(rng.sample([None] * 6 + [*WINDOWS], 3)),
        decays=_one_in(rng, 4),
        slopes=_one_in(rng, 4),
        firsts=_one_in(rng, 4) and FIRSTS,
        causal=causal,
        softcap=rng.choice([None, None, None, 0.5, 5.0, 20.0]),
        segments=_one_in(rng, 2),
        sinks=_one_in(rng, 3),
        smoothing=_smoothing(rng, causal, layer) if _one_in(rng, 5) else None,
        stats=rng.choice((False, True, "max")),
        layout=rng.choice(LAYOUTS),
        interpreted=interpreted,
        flex=device == "cuda" and _one_in(rng, 2),
    )


def _smoothing(rng: random.Random, causal: bool, layer: bool) -> Smoothing:
    width = rng.choice((2, 3, 5))
    if not causal and not layer and _one_in(rng, 2):
        return Smoothing(width=2 * width + 1, side="centred")
    return Smoothing(width=width, stage="before" if _one_in(rng, 2) and POOLS_LOGITS and causal else "after")


def _pools_logits() -> bool:
    """Whether backends other than the reference smooth before the softmax."""
    x, smoothing = torch.zeros(1, 1, 2, 8), Smoothing(width=2, stage="before")
    try:
        attention(x, x, x, HeadPlan.full(1), smoothing=smoothing, backend="blocked")
    except ValueError:
        return False
    return True


POOLS_LOGITS = _pools_logits()


def _plan(rng: random.Random, family: Family, kv_heads: int, n_keys: int) -> HeadPlan:
    heads = kv_heads * family.group
    palette = list(family.palette)
    if _one_in(rng, 5):
        palette += [max(1, n_keys - 1), n_keys, n_keys + 1]

    def per_head(*entries: Any) -> tuple[Any, ...]:
        return tuple(rng.choices(entries, k=heads))

    plan = HeadPlan(
        windows=per_head(*palette),
        decays=per_head(0.0, 0.001, 0.1, 1.0) if family.decays else None,
        slopes=per_head(0.0, 0.01, 0.3, 2.0) if family.slopes else None,
    )
    return replace(plan, firsts=per_head(0, 1, 4, 20)) if family.firsts else plan


def _call(rng: random.Random, family: Family, device: str, first: bool) -> Call:
    n_queries = rng.choice(LENGTHS[device])
    kv_heads, batch = rng.randint(1, 3), rng.choice((1, 1, 2, 2, 3, 0) if device == "cpu" else (1, 2, 3))
    extra = rng.choice(EXTRA_KEYS)
    if family.interpreted:
        n_queries, extra, kv_heads, batch = min(n_queries, 100), min(extra, 16), 1, 1
    plan = _plan(rng, family, kv_heads, n_queries + extra)
    case = Case(
        batch=batch,
        kv_heads=kv_heads,
        n_queries=n_queries,
        n_keys=n_queries + extra,
        dim=family.dim,
        plan=plan,
        scale=rng.choice((None, None, 0.3, -0.2, 0.0)),
        causal=family.causal,
        softcap=family.softcap,
        segments=rng.choice(SEGMENTS) if family.segments else None,
        layout=family.layout,
        dtype=family.dtype,
        device=device,
        tile_parts=rng.choice((None, None, 1, 2, 4)) if device == "cpu" else None,
        poison=_one_in(rng, 2),
        seed=rng.randrange(1 << 30),
    )
    backends = ["blocked"]
    if device == "cuda" or family.interpreted:
        backends.append("triton")
    usual_layout = device == "cpu" or family.layout in ("contiguous", "fused qkv")
    if usual_layout and _sdpa_serves(case, family):
        backends.append("sdpa")
    others = case.segments, family.sinks, family.smoothing, family.firsts, family.dim not in (16, 32, 64)
    if family.flex and first and usual_layout and not any(others):
        backends.append("flex")
    return Call(case=case, sinks=family.sinks, smoothing=family.smoothing, stats=family.stats, backends=tuple(backends))


def _sdpa_serves(case: Case, family: Family) -> bool:
    positive = case.scale is None or case.scale > 0
    others = family.decays, family.slopes, family.firsts, family.softcap, family.sinks, family.smoothing, case.segments
    return positive and not any(others)


def _layer(rng: random.Random, family: Family, device: str) -> Layer:
    """The layer of a modern model: its length is short, since a cache takes it token by token."""
    length, batch, kv_heads = rng.choice((1, 2, 17, 33, 64, 65, 100, 150)), rng.choice((1, 2, 3)), rng.randint(1, 2)
    if family.interpreted:
        length, batch = min(length, 7), 1
    positions = "rotary" if family.dim % 2 == 0 and not _one_in(rng, 3) else "none"
    options: dict[str, Any] = {"positions": positions, "softcap": family.softcap, "bias": _one_in(rng, 2)}
    options |= {"qk_norm": rng.choice((None, None, "head", "width", "plain"))}
    options |= {"scale": rng.choice((None, None, 0.3)), "qk_norm_eps": rng.choice((1e-6, 1e-3))}
    # one bit decides the sign of a feature that is normalised, and a head of one feature is its sign
    if family.dim == 1 or (family.dim < 8 and family.dtype != torch.float32):
        options["qk_norm"] = None
    if family.smoothing is not None:
        options |= {"smoothing": family.smoothing.width, "smoothing_stage": family.smoothing.stage}
    reach: dict[str, Any] = {}
    if positions == "rotary":
        options["rope_theta"] = rng.choice((1e4, 5e5))
        options["rope_scaling"] = rng.choice((None, *_SCALINGS))
        reach |= {"local_base": rng.choice((None, 1e4)), "global_base": rng.choice((None, 1e6))}
        reach |= {"local_share": rng.choice((1.0, 1.0, 0.5, 0.0)), "global_share": rng.choice((1.0, 1.0, 0.25, 0.0))}
    temperature = QueryTemperature(scale=0.1, every=8) if _one_in(rng, 4) else None
    rollback = rng.choice((0, 3, 8))
    plan = _plan(rng, family, kv_heads, length)
    if plan.firsts is not None:  # which a cache serves without these
        plan = replace(plan, decays=None, slopes=None)
    layer = Layer(
        reach=LayerReach(
            plan=plan,
            temperature=temperature,
            sink="learned" if family.sinks and SINKS_IN_LAYERS else "none",
            **reach,
        ),
        kv_heads=kv_heads,
        dim=family.dim,
        dtype=family.dtype,
        device=device,
        batch=batch,
        length=length,
        options=options,
        segments=rng.choice(("left padding", "sorted")) if family.segments else None,
        stats=family.stats,
        rollback=rollback,
        chunks=_chunks(rng, length, rollback),
        backends=("blocked", "triton") if device == "cuda" or family.interpreted else ("blocked",),
        seed=rng.randrange(1 << 30),
    )
    if plan.firsts is not None and layer.segments == "sorted":  # the beginning of a document is not taken back
        layer = replace(layer, chunks=(length,) if length < 3 else (length // 2, 1, length - length // 2 - 1))
    return layer


_SCALINGS = (
    RopeScaling(kind="linear", factor=4.0),
    RopeScaling(kind="linear", factor=8.0, heads="global"),
    RopeScaling(kind="llama3", factor=8.0, original_context=64),
    RopeScaling(kind="yarn", factor=4.0, original_context=64, heads="global"),
)


def _sinks_in_layers() -> bool:
    try:
        LSAttention(8, LayerReach(plan=HeadPlan.full(1), sink="learned"))
    except ValueError:
        return False
    return True


SINKS_IN_LAYERS = _sinks_in_layers()


def _chunks(rng: random.Random, length: int, rollback: int) -> tuple[int, ...]:
    """A long chunk first, or none, then single tokens and short chunks, some of them taken back and given again."""
    chunks, held = [], 0
    while held < length:
        left = length - held
        size = min(left, rng.choice((1, 1, 1, 1, 2, 5, 30)) if chunks or _one_in(rng, 4) else rng.randint(1, length))
        chunks.append(size)
        held += size
        back = min(rollback, size)
        if back and _one_in(rng, 8):
            taken = rng.randint(1, back)
            chunks.append(-taken)
            held -= taken
    return tuple(chunks)


def tags(case: Call | Layer) -> list[str]:
    """The options that a case has, as the record counts them."""
    of_op = isinstance(case, Call)
    plan = case.case.plan if isinstance(case, Call) else case.reach.plan
    dtype = case.case.dtype if isinstance(case, Call) else case.dtype
    group = plan.n_heads // (case.case.kv_heads if isinstance(case, Call) else case.kv_heads)
    softcap = case.case.softcap if isinstance(case, Call) else case.options["softcap"]
    segments = case.case.segments if isinstance(case, Call) else case.segments
    dim = case.case.dim if isinstance(case, Call) else case.dim
    found = {
        "reaches differ between heads": len(set(plan.windows)) > 1,
        "global heads": None in plan.windows,
        "local heads": any(window is not None for window in plan.windows),
        "first keys always visible": bool(getattr(plan, "firsts", None)),
        "decays": plan.decays is not None,
        "slopes": plan.slopes is not None,
        "grouped queries": group > 1,
        "softcap": softcap is not None,
        f"segments: {segments}": segments is not None,
        f"stats: {case.stats}": bool(case.stats),
        f"dtype: {str(dtype).removeprefix('torch.')}": True,
        f"head dim: {dim}": True,
    }
    found |= _tags_of_call(case) if isinstance(case, Call) else _tags_of_layer(case)
    return ["op" if of_op else "layer", *(name for name, there in found.items() if there)]


def _tags_of_call(call: Call) -> dict[str, bool]:
    case, smoothing = call.case, call.smoothing
    return {
        "sinks": call.sinks,
        "" if smoothing is None else f"smoothing: {smoothing.stage}, {smoothing.side}": smoothing is not None,
        "scale": case.scale is not None,
        "two-sided": not case.causal,
        "more keys than queries": case.n_keys > case.n_queries,
        "empty batch": case.batch == 0,
        f"layout: {case.layout}": True,
        "poisoned memory": case.poison,
        "small tiles": case.tile_parts is not None,
    }


def _tags_of_layer(layer: Layer) -> dict[str, bool]:
    options, reach = layer.options, layer.reach
    scaling = options.get("rope_scaling")
    return {
        "sinks": reach.sink != "none",
        f"smoothing: {options.get('smoothing_stage')}, causal": "smoothing" in options,
        "scale": options["scale"] is not None,
        "rotary": options["positions"] == "rotary",
        "two rotary bases": reach.local_base != reach.global_base,
        "partly rotated": {reach.local_share, reach.global_share} - {0.0, 1.0} != set(),
        "heads without rotation": 0.0 in (reach.local_share, reach.global_share),
        "" if scaling is None else f"rope scaling: {scaling.kind}, {scaling.heads} heads": scaling is not None,
        "query temperature": reach.temperature is not None,
        f"QK-norm: {options['qk_norm']}": options["qk_norm"] is not None,
        "biases": options["bias"],
        "tokens taken back": any(size < 0 for size in layer.chunks),
    }
