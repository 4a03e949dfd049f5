"""Implementations of attention that are measured against each other, each called in its fastest form.

On a GPU inputs are (B, H, T, D) in (B, T, H, D) memory, as a model's projection gives them and FlashAttention reads
them without a copy. Windows differ by one: FlashAttention counts the keys before the current one, a plan includes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.harness import OURS
from benchmarks.shapes import Shape
from longshort.heads import HeadPlan
from longshort.model import GPT
from longshort.ops import attention

OURS_WITH_STATS = "longshort+stats"
FLEX = "FlexAttention"
TWO_CALLS = "two FA2 calls"
CUDNN = "cuDNN"
FA2 = "FA2"

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One way to do one kind of work."""

    name: str
    work: str
    """'full', 'ls', 'local' or 'global', as in `Shape.plan`. Implementations of one work are checked to agree."""
    build: Callable[[Shape], Attend]
    """Takes the shape, and makes masks and the like outside the timing."""
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot run here, or None."""


def on_cpu() -> tuple[Implementation, ...]:
    """The package's own op and its peers on a CPU."""
    return (
        Implementation(name="sdpa causal", work="full", build=lambda shape: sdpa()),
        Implementation(name=OURS, work="ls", build=ours("ls")),
        Implementation(name=OURS, work="local", build=ours("local")),
        Implementation(name="sdpa band mask", work="local", build=_sdpa_band_mask),
        Implementation(name="local-attention", work="local", build=_local_attention, missing=_local_attention_missing),
    )


def on_gpu(device: str = "cuda", *, backend: str = "triton") -> tuple[Implementation, ...]:
    """The same on a GPU; `device` is where masks and the like are made, `backend` that of the package's own op."""
    return (
        Implementation(name=OURS, work="ls", build=ours("ls", backend=backend)),
        Implementation(name=OURS_WITH_STATS, work="ls", build=ours("ls", backend=backend, stats=True)),
        Implementation(name=FLEX, work="ls", build=lambda shape: flex(shape.plan("ls"), shape.length, device)),
        Implementation(name=TWO_CALLS, work="ls", build=_two_calls(device)),
        Implementation(name=OURS, work="local", build=ours("local", backend=backend)),
        Implementation(name=FA2, work="local", build=_windowed(device)),
        Implementation(name=CUDNN, work="full", build=lambda shape: sdpa(SDPBackend.CUDNN_ATTENTION)),
        Implementation(name=FA2, work="full", build=lambda shape: sdpa(SDPBackend.FLASH_ATTENTION)),
        Implementation(name=CUDNN, work="global", build=lambda shape: sdpa(SDPBackend.CUDNN_ATTENTION)),
    )


def ours(work: str, *, backend: str = "blocked", stats: bool = False) -> Callable[[Shape], Attend]:
    """The package's own op."""

    def build(shape: Shape) -> Attend:
        plan = shape.plan(work)
        return lambda q, k, v: attention(q, k, v, plan, stats=stats, backend=backend).out

    return build


def sdpa(backend: SDPBackend | None = None) -> Attend:
    """Full causal attention by PyTorch's SDPA, or by one of its backends, which raises rather than falling back."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if backend is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attend


def _sdpa_band_mask(shape: Shape) -> Attend:
    ones = torch.ones(shape.length, shape.length, dtype=torch.bool)
    mask = ones.tril().triu(1 - shape.window)
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _local_attention(shape: Shape) -> Attend:
    from local_attention import LocalAttention

    # Its exact window reaches `window_size` keys before the current one, hence the minus one.
    heads = LocalAttention(
        window_size=shape.window - 1,
        causal=True,
        look_backward=1,
        look_forward=0,
        exact_windowsize=True,
        autopad=True,
        use_rotary_pos_emb=False,
    )
    return lambda q, k, v: heads(q, k, v)


def _local_attention_missing() -> str | None:
    return None if find_spec("local_attention") else "pip install local-attention"


def flex(plan: HeadPlan, length: int, device: str) -> Attend:
    """LS-attention by FlexAttention, compiled for its shape."""
    from torch.nn.attention.flex_attention import flex_attention

    mask = block_mask(plan, length, device)
    call: Any = flex_attention if device == "cpu" else _compiled_flex()
    return lambda q, k, v: call(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def block_mask(plan: HeadPlan, length: int, device: str) -> Any:
    """FlexAttention's mask of a plan with its global heads first and one window.

    It is made for one global and one local head and then repeated: for all heads, the dense mask that it starts from
    would take 34 GB at 32 heads and 32,768 positions, or minutes of compilation over all shapes.
    """
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask

    n_global, window = plan.n_global, plan.windows[-1]
    if window is None or plan.windows != (None,) * n_global + (window,) * (plan.n_heads - n_global):
        raise ValueError(f"plan must have its global heads first, then local heads of one window, got {plan.windows}")

    def sees(first_local: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query >= key) & ((head < first_local) | (query - key < window))

        return visible

    pair = create_block_mask(sees(1), None, 2, length, length, device=device)
    heads = torch.tensor([0] * n_global + [1] * (plan.n_heads - n_global), device=device)
    tables = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    repeated = {name: getattr(pair, name).index_select(1, heads) for name in tables}
    return BlockMask.from_kv_blocks(
        **repeated, BLOCK_SIZE=pair.BLOCK_SIZE, mask_mod=sees(n_global), seq_lengths=pair.seq_lengths
    )


def allow_many_graphs() -> None:
    """Settings for compiling one function for many static shapes; backward may be repeated with retain_graph."""
    from torch._dynamo import config as dynamo
    from torch._functorch import config as functorch

    dynamo.recompile_limit = 256
    functorch.donated_buffer = False


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    allow_many_graphs()
    return torch.compile(flex_attention, dynamic=False)


def _windowed(device: str) -> Callable[[Shape], Attend]:
    """Local heads by FlashAttention 2."""

    def build(shape: Shape) -> Attend:
        from torch.nn.attention.varlen import varlen_attn

        batch, length = shape.batch, shape.length
        bounds = torch.arange(batch + 1, dtype=torch.int32, device=device) * length

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B * T, H, D), views
            out = varlen_attn(q, k, v, bounds, bounds, length, length, window_size=(shape.window - 1, 0))
            assert isinstance(out, Tensor)  # without a log-sum-exp
            return out.unflatten(0, (batch, length)).transpose(1, 2)

        return attend

    return build


def _two_calls(device: str) -> Callable[[Shape], Attend]:
    """LS-attention by one call of FlashAttention 2 for the global head, one for the local heads, and a concatenation.

    Heads are split rather than sliced: the gradient of a split is one concatenation, of slices a sum of padded copies.
    """

    def build(shape: Shape) -> Attend:
        everything, windowed = sdpa(SDPBackend.FLASH_ATTENTION), _windowed(device)(shape)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            first, rest = zip(*(x.split((1, shape.heads - 1), dim=1) for x in (q, k, v)), strict=True)
            heads = [everything(*first), windowed(*rest)]
            return torch.cat([x.transpose(1, 2) for x in heads], dim=2).transpose(1, 2)

        return attend

    return build


def set_up_blocks(model: GPT, kernel: SDPBackend | None = None, *, compiled: bool = False) -> None:
    """Compile each of a model's blocks on its own: one graph for all layers, compiled once. With `kernel`, their calls
    of SDPA (`backend="sdpa"`) use that kernel, which raises rather than falling back.
    """
    if compiled:
        allow_many_graphs()
    for block in model.blocks:
        module: Any = block
        # Inside the compiled function, so that a graph contains its kernel and is not reused for another.
        forward = module.forward if kernel is None else _under(kernel, module.forward)
        module.forward = torch.compile(forward, dynamic=False) if compiled else forward


def _under(kernel: SDPBackend, forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(*inputs: Any, **options: Any) -> Any:
        with sdpa_kernel(kernel):
            return forward(*inputs, **options)

    return call
