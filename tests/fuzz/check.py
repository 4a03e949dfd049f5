"""Hold a drawn case to the reference in float64, in every backend and in both caches, and say how far off each was.

What fp32 and float64 may err is a share of a tensor's magnitude. What half precision may err is found for each case by
the reference with the result of every operation rounded to the dtype, since that is what the dtype itself costs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from longshort import LSAttention, attention
from longshort.nn import LSCache, LSStaticCache

from ..ops.cases import Case, poisoned_memory, small_tiles
from .draw import Call, Layer

TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-11}
LAYER_TOLERANCE = 1e-4
"""Of fp32 layers: besides the op's error, rotary angles in fp32, and sums over all tokens in gradients."""
IN_FP32 = ("lse", "stats.max", "stats.min")
"""Whatever the dtype of the inputs."""
HALF_TOLERANCE = 1e-3
"""Of these, in half-precision calls."""

Tensors = dict[str, Tensor]


class Finding(NamedTuple):
    """The tensor of a result that was furthest from its bound."""

    share: float
    """Its error as a share of what is allowed: above 1 is a failure, infinite where NaN or infinities differ."""
    error: float
    tensor: str


class Rounding(TorchDispatchMode):
    """Every operation gives float64 numbers that the dtype can hold; conversions of dtype are left alone."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default or not isinstance(found, Tensor) or found.dtype != torch.float64:
            return found
        return found if found._base is not None else found.to(self.dtype).double()


def check(case: Call | Layer) -> dict[str, Finding | str]:
    """The worst tensor of each way to compute the case, or why this way does not serve it."""
    return dict(_check_call(case) if isinstance(case, Call) else _check_layer(case))


def _unless_refused(compute: Callable[[], Finding]) -> Finding | str:
    try:
        return compute()
    except ValueError as error:
        if "cannot serve this call" in str(error) or str(error).startswith("a cache serves"):
            return str(error)
        raise


def _check_call(call: Call) -> Iterator[tuple[str, Finding | str]]:
    case = call.case
    exact = _results(call, "reference", torch.float64)
    rounded = None
    if case.dtype in (torch.bfloat16, torch.float16):
        with Rounding(case.dtype):
            rounded = _results(call, "reference", torch.float64)

    def finding(backend: str) -> Finding:
        got = _results(call, backend)
        if rounded is None:
            return _within(got, exact, TOLERANCE[case.dtype])
        pooled = call.smoothing is not None and call.smoothing.stage == "before"  # smoothed keys are rounded
        in_fp32 = 2 * torch.finfo(case.dtype).eps if pooled else HALF_TOLERANCE
        # Of few numbers, rounding may by chance have spared all of the reference's, and sum(grad * out) is taken from
        # the rounded output: with 3 queries and 8 keys of D 256 in bf16, a gradient needed 8.6 times.
        few = case.n_queries * case.n_keys < 100
        return _against_rounding(got, exact, rounded, times=12 if few else 3, ulps=2, in_fp32=in_fp32)

    for backend in call.backends:
        yield backend, _unless_refused(partial(finding, backend))


def _results(call: Call, backend: str, dtype: torch.dtype | None = None) -> Tensors:
    case = call.case
    q, k, v, grad = case.tensors()
    sinks = None
    if call.sinks:
        drawn = torch.randn(case.plan.n_heads, generator=torch.Generator().manual_seed(case.seed + 1))
        sinks = drawn.to(case.device, torch.promote_types(dtype or case.dtype, torch.float32)).requires_grad_()
    if dtype is not None:
        q, k, v = (x.detach().to(dtype).requires_grad_() for x in (q, k, v))
    peer = backend in ("sdpa", "flex")
    given = {"q": q, "k": k, "v": v} | ({} if sinks is None else {"sinks": sinks})
    with _circumstances(case, backend):
        result = attention(
            q, k, v, case.plan, scale=case.scale, causal=case.causal, softcap=case.softcap,
            segments=case.make_segments(), sinks=sinks, smoothing=call.smoothing,
            stats=False if peer else call.stats, backend=backend,
        )  # fmt: skip
        grads = torch.autograd.grad(result.out, list(given.values()), grad.to(result.out.dtype), allow_unused=True)
    named = {"out": result.out.detach()} | ({} if peer else {"lse": result.lse})
    if result.stats is not None:
        named["stats.max"] = result.stats.max
        if result.stats.min is not None:
            named["stats.min"] = result.stats.min
    for (name, x), found in zip(given.items(), grads, strict=True):
        named[f"grad of {name}"] = torch.zeros_like(x) if found is None else found
    return named


def _circumstances(case: Case, backend: str) -> ExitStack:
    stack = ExitStack()
    if backend == "blocked" and case.tile_parts is not None:
        stack.enter_context(small_tiles(case.tile_parts))
    if case.poison and (backend == "triton" or (backend == "blocked" and case.device == "cpu")):
        stack.enter_context(poisoned_memory())  # on a GPU it asks for deterministic matmuls, which some lack
    return stack


def _check_layer(layer: Layer) -> Iterator[tuple[str, Finding | str]]:
    module, x, segments, grad = _built(layer)
    exact, rounded = _exact_layer(layer, module, x, segments, grad)

    def finding(backend: str, kind: Any = None) -> Finding:
        module.backend = backend
        got = _decoded(layer, kind, module, x, segments) if kind else _pass(module, x, segments, grad, layer.stats)
        return _judged(layer, got, exact, rounded)

    for backend in layer.backends:
        yield f"layer, {backend}", _unless_refused(partial(finding, backend))
    for backend in layer.backends if layer.device == "cpu" else ("auto",):
        for kind in (LSCache, LSStaticCache):
            yield f"{kind.__name__}, {backend}", _unless_refused(partial(finding, backend, kind))


def _built(layer: Layer) -> tuple[LSAttention, Tensor, Tensor | None, Tensor]:
    """The layer with drawn weights, its input, segments, and a gradient for the output."""
    generator = torch.Generator().manual_seed(layer.seed)
    module = LSAttention(
        layer.width, layer.reach, n_kv_heads=layer.kv_heads, head_dim=layer.dim, **layer.options
    ).to(layer.device)  # fmt: skip
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            scale = 1.5 * layer.width**-0.5 if parameter.ndim == 2 else 0.3
            parameter.copy_(scale * drawn + ("norm" in name))
    module = module.to(layer.dtype)
    shape = (layer.batch, layer.length, layer.width)
    x, grad = (torch.randn(shape, generator=generator).to(layer.device, layer.dtype) for _ in range(2))
    ids = torch.arange(layer.length).expand(layer.batch, -1)
    segments = None
    if layer.segments == "left padding":
        pads = torch.randint(0, layer.length, (layer.batch, 1), generator=generator)
        segments = torch.where(ids < pads, -1, 0).to(layer.device)
    elif layer.segments == "sorted":
        cuts = torch.randint(1, layer.length + 1, (layer.batch, 2, 1), generator=generator)
        segments = (ids[:, None] >= cuts).sum(1).to(layer.device)
    return module, x, segments, grad


def _pass(module: LSAttention, x: Tensor, segments: Tensor | None, grad: Tensor, stats: Any) -> Tensors:
    """One pass over the whole sequence, and its gradients."""
    x = x.detach().requires_grad_()
    parameters = dict(module.named_parameters())
    found = module(x, segments=segments, stats=stats)
    out, extremes = (found.out, found.stats) if stats else (found, None)
    grads = torch.autograd.grad(out, [x, *parameters.values()], grad.to(out.dtype), allow_unused=True)
    named = {"out": out.detach()} | _extremes(extremes)
    for (name, given), gradient in zip([("x", x), *parameters.items()], grads, strict=True):
        named[f"grad of {name}"] = torch.zeros_like(given) if gradient is None else gradient
    return named


def _extremes(stats: Any) -> Tensors:
    found = {} if stats is None else {"stats.max": stats.max, "stats.min": stats.min}
    return {name: x for name, x in found.items() if x is not None}


def _exact_layer(
    layer: Layer, module: LSAttention, x: Tensor, segments: Tensor | None, grad: Tensor
) -> tuple[Tensors, Tensors | None]:
    """The reference in float64; for half precision from the projected heads on, and what rounding makes of that."""
    double = copy.deepcopy(module).double()
    double.backend = "reference"
    if layer.dtype == torch.float32:
        return _pass(double, x.double(), segments, grad.double(), layer.stats), None
    with torch.no_grad():
        heads = [head.double() for head in module.heads(x)]
        sinks = getattr(double, "sinks", None)
        options = {"softcap": double.softcap, "segments": segments, "smoothing": double.smoothing, "stats": layer.stats}

        def attended() -> Tensors:
            result = attention(*heads, double.plan, **options, sinks=sinks, backend="reference")  # type: ignore[arg-type]
            return {"out": double.out(result.out.transpose(1, 2).flatten(-2))} | _extremes(result.stats)

        exact = attended()
        with Rounding(layer.dtype):
            return exact, attended()


@torch.no_grad()
def _decoded(layer: Layer, kind: Any, module: LSAttention, x: Tensor, segments: Tensor | None) -> Tensors:
    """All rows, and the extremes over all passes, the sequence given in the chunks of the case."""
    sizes = {"n_kv_heads": layer.kv_heads, "head_dim": layer.dim, "batch_size": layer.batch}
    sizes |= {"rollback": layer.rollback, "smoothing": module.smoothing, "dtype": layer.dtype, "device": layer.device}
    limit = {"max_length": layer.length} if kind is LSStaticCache or layer.seed % 2 else {}
    cache = kind([layer.reach], **sizes, **limit)
    for store in cache.layers[0].stores:  # a row that is read before it is written shows
        store.k.fill_(torch.nan)
        store.v.fill_(torch.nan)
    rows: list[Tensor] = []
    extremes: list[Tensors] = []
    held = 0
    for size in layer.chunks:
        if size < 0:
            cache.crop(-size)
            held += size
            kept = torch.cat(rows, 1)[:, :held]
            rows = [kept]
            continue
        part = None if segments is None else segments[:, held : held + size]
        ids = cache.record(size, part, None)
        found = module(
            x[:, held : held + size], positions=cache.next_positions(size), segments=ids, cache=cache.layers[0],
            stats=layer.stats,
        )  # fmt: skip
        cache.advance(size)
        rows.append(found.out if layer.stats else found)
        extremes.append(_extremes(found.stats) if layer.stats else {})
        held += size
    named = {"out": torch.cat(rows, 1)}
    for name, over in (("stats.max", torch.amax), ("stats.min", torch.amin)):
        if name in extremes[0]:
            named[name] = over(torch.stack([part[name] for part in extremes]), 0)
    return named


def _judged(layer: Layer, got: Tensors, exact: Tensors, rounded: Tensors | None) -> Finding:
    if rounded is None:
        return _within(got, exact, LAYER_TOLERANCE)
    got = {name: x for name, x in got.items() if name in exact}
    # Queries and keys of a chunk are rounded otherwise than those of the whole sequence, by an ulp.
    extremes = 2 * torch.finfo(layer.dtype).eps
    return _against_rounding(got, exact, rounded, times=4, ulps=4, in_fp32=extremes)


def _within(got: Tensors, exact: Tensors, tolerance: float) -> Finding:
    """Each tensor within `tolerance` of its own magnitude, but at least of 1."""
    return max(_finding(name, x, exact[name], tolerance * _size(exact[name])) for name, x in got.items())


def _against_rounding(
    got: Tensors, exact: Tensors, rounded: Tensors, *, times: float, ulps: float, in_fp32: float = HALF_TOLERANCE
) -> Finding:
    """Out and gradients may err `times` as much as rounding does where it does most harm, and some ulps."""
    in_half = [name for name in got if name not in IN_FP32]
    usual = max(_size(rounded[name].double() - exact[name], 0.0) / _size(exact[name]) for name in in_half)
    allowed = times * usual + ulps * torch.finfo(got["out"].dtype).eps
    return max(
        _finding(name, x, exact[name], (in_fp32 if name in IN_FP32 else allowed) * _size(exact[name]))
        for name, x in got.items()
    )


def _size(x: Tensor, least: float = 1.0) -> float:
    """The largest finite number, but at least `least`."""
    finite = x[x.isfinite()].abs()
    return max(least, finite.amax().item()) if finite.numel() else least


def _finding(name: str, got: Tensor, want: Tensor, allowed: float) -> Finding:
    got, want = got.double(), want.double()
    if got.shape != want.shape or not torch.equal(got.isfinite(), want.isfinite()) or got.isnan().any():
        return Finding(float("inf"), float("inf"), name)
    there = want.isfinite()
    if not torch.equal(got[~there], want[~there]):
        return Finding(float("inf"), float("inf"), name)
    error = (got[there] - want[there]).abs().amax().item() if there.any() else 0.0
    return Finding(error / allowed, error, name)
