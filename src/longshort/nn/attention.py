"""The attention layer: projections, positions and stabilizers around the op."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, overload

import torch
from torch import Tensor, nn

from longshort.heads import HeadPlan
from longshort.nn.arguments import check_input, check_positions, check_values, head_dim_of, projected_sizes
from longshort.nn.chunks import attend_within_chunks
from longshort.nn.layer_cache import CacheLayer, check_smoothing, check_streaming
from longshort.nn.norms import QKNorm
from longshort.nn.positions import RopeScaling, place, placed_heads
from longshort.nn.sigma_reparam import linear
from longshort.ops import LogitStats, Smoothing, attention, packed_attention
from longshort.ops.options import Stats, extremes_of
from longshort.reach import LayerReach

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class LSAttentionResult(NamedTuple):
    """What `LSAttention` and `Block` return with `stats`; without, they return the tensor `out` alone."""

    out: Tensor
    """(B, T, width)."""
    stats: LogitStats
    """Extremes of the attention logits per head."""

    @property
    def logits(self) -> LogitStats:
        """Another name of `stats`."""
        return self.stats


class StatsOnRequest(Protocol):
    """How `LSAttention` and `Block` are called, for type checkers: `nn.Module` says only that they return Any."""

    @overload
    def __call__(
        self,
        x: Tensor,
        *,
        positions: Tensor | None = ...,
        segments: Tensor | None = ...,
        cache: CacheLayer | None = ...,
        stats: Literal[False] = ...,
    ) -> Tensor: ...

    @overload
    def __call__(
        self,
        x: Tensor,
        *,
        positions: Tensor | None = ...,
        segments: Tensor | None = ...,
        cache: CacheLayer | None = ...,
        stats: Literal[True, "max"],
    ) -> LSAttentionResult: ...

    @overload
    def __call__(
        self,
        x: Tensor,
        *,
        positions: Tensor | None = ...,
        segments: Tensor | None = ...,
        cache: CacheLayer | None = ...,
        stats: Stats,
    ) -> Tensor | LSAttentionResult: ...


class LSAttention(nn.Module):
    """Self-attention, causal unless said otherwise, in which every head has its own reach.

    Project, QK-norm, rotary, smoothing of the values or keys, attention, project back, dropout: in that order.

    Args:
        width: features of the input and the output.
        plan: reach of each query head; its length is the number of heads. A `LayerReach` has rotary bases and sinks
            besides.
        n_kv_heads: key/value heads, a divisor of the number of heads (grouped queries); as many as heads if None.
        head_dim: features per head; width / heads if None.
        positions: "rotary", "alibi" (the standard slopes, unless the plan brings its own) or "none". Learned and
            sinusoidal positions belong to the input: the model adds them.
        qk_norm: None, "head", "width" or "plain": see `QKNorm`.
        qk_norm_eps: epsilon of QK-norm.
        softcap: logits become softcap * tanh(logits / softcap).
        sigma_reparam: all four projections as `SigmaLinear`; call `update_sigma` after each optimizer step.
        bias: biases in the projections.
        dropout: on the output.
        attention_dropout: must be 0, see the error.
        backend: passed to `attention`.
        rope_theta: base of the rotary angles.
        rope_scaling: how the rotary angles are slowed for long sequences; not at all if None.
        scale: factor of q . k, which becomes the logit; 1 / sqrt(head_dim) if None.
        causal: False lets a token see both sides, a local head window - 1 keys to each; no cache then.
        smoothing: values that are averaged, the pooling of LaS attention (arXiv 2311.16620); none if None or 1. A local
            head then reaches window + smoothing - 1 keys. See `Smoothing`.
        smoothing_side: "causal", or "centred" where the attention is two-sided or `lookahead` is set, or "leading".
        smoothing_stage: "after" the softmax (smoothed values), or "before" it (pooled logits, by smoothed keys).
        lookahead: allow sides that take in later values in causal attention, where they leak the future.
        chunk: attention within chunks of so many positions, without a cache; the whole sequence if None.

    >>> layer = LSAttention(64, HeadPlan.long_short(n_heads=4, n_global=1, window=16), positions="rotary")
    >>> x = torch.randn(2, 50, 64)
    >>> (x + layer(x)).shape
    torch.Size([2, 50, 64])
    >>> layer(x, stats=True).stats.abs_max.shape
    torch.Size([4])
    """

    if TYPE_CHECKING:
        __call__: StatsOnRequest

    def __init__(
        self,
        width: int,
        plan: HeadPlan | LayerReach,
        *,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        positions: str = "none",
        qk_norm: str | None = None,
        qk_norm_eps: float = 1e-6,
        softcap: float | None = None,
        sigma_reparam: bool = False,
        bias: bool = False,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        backend: str = "auto",
        rope_theta: float = 10000.0,
        rope_scaling: RopeScaling | None = None,
        scale: float | None = None,
        causal: bool = True,
        smoothing: int | None = None,
        smoothing_side: str = "causal",
        smoothing_stage: str = "after",
        lookahead: bool = False,
        chunk: int | None = None,
    ) -> None:
        super().__init__()
        check_values(width=width, n_kv_heads=n_kv_heads, head_dim=head_dim, chunk=chunk, qk_norm_eps=qk_norm_eps)
        check_values(rope_theta=rope_theta, rope_scaling=rope_scaling, softcap=softcap, scale=scale)
        check_values(bias=bias, causal=causal)
        if attention_dropout:
            raise ValueError(
                f"attention_dropout must be 0, got {attention_dropout}: the op never forms the attention probabilities "
                "that would be dropped; use dropout, which acts on the layer's output"
            )
        self.reach = _layer_reach(plan, positions)
        self.plan = self.reach.plan
        self.width, self.head_dim = width, head_dim_of(width, self.plan, head_dim)
        self.n_heads, self.n_kv_heads = self.plan.n_heads, n_kv_heads or self.plan.n_heads
        self.plan.kv_windows(self.n_kv_heads)  # raises where the heads cannot be grouped
        check_positions(positions, self.head_dim, rope_scaling)
        self.reach.check_backend(backend)
        self.rope_theta = rope_theta if positions == "rotary" else None
        self.rope_scaling, self.scale = rope_scaling, scale
        self._placed = placed_heads(self.reach, self.n_kv_heads, self.head_dim, self.rope_theta, rope_scaling)
        self.softcap, self.backend = softcap, backend
        self.causal, self.chunk = causal, chunk
        pooling = Smoothing(
            width=1 if smoothing is None else smoothing, side=smoothing_side, stage=smoothing_stage, lookahead=lookahead
        )
        pooling.check(causal=causal)
        self.smoothing = pooling if pooling.width > 1 else None
        if self.smoothing is not None:
            self.smoothing.check_backend(backend, causal=causal, decays=self.plan.decays)

        heads = (self.n_heads, self.n_kv_heads, self.n_kv_heads)
        self.qkv = linear(width, [n * self.head_dim for n in heads], bias=bias, sigma_reparam=sigma_reparam)
        self.out = linear(self.n_heads * self.head_dim, [width], bias=bias, sigma_reparam=sigma_reparam)
        self.q_norm = QKNorm(qk_norm, self.n_heads, self.head_dim, qk_norm_eps) if qk_norm is not None else None
        self.k_norm = QKNorm(qk_norm, self.n_kv_heads, self.head_dim, qk_norm_eps) if qk_norm is not None else None
        learned = self.reach.sink == "learned"
        self.sinks = nn.Parameter(torch.empty(self.n_heads)) if learned else None
        """(H,) scores of the learned sinks; fp32 in the op, whatever the dtype of the layer."""
        self.reset_sinks()
        self.dropout = nn.Dropout(dropout)
        self.watched: LogitStats | None = None
        """Where to keep the extremes of all passes, statistics asked for or not: see `stability.watch_logits`."""
        self.group: ProcessGroup | None = None
        """The processes that share a sequence: see `share_sequences`."""

    def share_sequences(self, group: ProcessGroup | None) -> None:
        """Take x as one of the shards of sequences that the ranks of `group` hold together, in their order.

        All shards have the same length; segments are then those of whole sequences, (B, ranks x T). None undoes it.
        """
        if group is not None and not self.causal:
            raise ValueError("causal must be True for a layer that shares sequences among processes, got False")
        if group is not None and self.chunk is not None:
            raise ValueError(
                f"chunk must be None for a layer that shares sequences among processes, got {self.chunk}: give the "
                "heads windows instead"
            )
        self.group = group

    @torch.no_grad()
    def reset_sinks(self) -> None:
        """Set the sinks to 0, the score of a key that the query has nothing to do with."""
        if self.sinks is not None:
            self.sinks.zero_()

    @classmethod
    def from_projections(
        cls, plan: HeadPlan | LayerReach, *, qkv: nn.Linear | Sequence[nn.Linear], out: nn.Linear, **options: Any
    ) -> LSAttention:
        """A layer with the weights of another attention, on their device and in their dtype.

        With a plan of global heads alone it computes what the other one did, if its logits are scaled by 1 / sqrt(head
        dim) or `scale` says otherwise. The weights are copied, so build the optimizer afterwards.

        Args:
            plan: reach of each query head; its length must be the other attention's number of heads.
            qkv: the projection to queries, keys and values, fused in this order as in nanoGPT, or the three of them as
                in Llama; fewer key/value than query heads (grouped queries) show in their sizes.
            out: the projection back to the residual stream.
            options: what weights do not show: positions, rope_theta, qk_norm, scale, softcap, backend ...

        >>> c_attn, c_proj = nn.Linear(64, 3 * 64), nn.Linear(64, 64)
        >>> layer = LSAttention.from_projections(HeadPlan(windows=(None, 16, 16, 16)), qkv=c_attn, out=c_proj)
        >>> torch.equal(layer.qkv.weight, c_attn.weight)
        True
        """
        parts = list(qkv) if isinstance(qkv, Iterable) else [qkv]
        head_dim, n_kv_heads = projected_sizes(plan, parts, out)
        sizes: dict[str, Any] = {"head_dim": head_dim, "n_kv_heads": n_kv_heads, "bias": False, "sigma_reparam": False}
        if shown := [name for name in sizes if name in options]:
            raise ValueError(f"options must be what the projections do not show, got {', '.join(shown)}")
        layer = cls(out.out_features, plan, **sizes, **options).to(out.weight)
        for mine, theirs in ((layer.qkv, parts), (layer.out, [out])):
            trained = any(part.weight.requires_grad for part in theirs)
            mine.weight = nn.Parameter(torch.cat([part.weight.detach() for part in theirs]), requires_grad=trained)
            if any(part.bias is not None for part in theirs):
                trained = any(part.bias is not None and part.bias.requires_grad for part in theirs)
                biases = [
                    (part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias) for part in theirs
                ]
                mine.bias = nn.Parameter(torch.cat([bias.detach() for bias in biases]), requires_grad=trained)
        return layer.train(out.training)

    def forward(
        self,
        x: Tensor,
        *,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        cache: CacheLayer | None = None,
        stats: Stats = False,
    ) -> Tensor | LSAttentionResult:
        """Attend within x (B, T, width) and, with a cache, to what came before it. Returns (B, T, width).

        Args:
            positions: (T,) or (B, T) integers for the rotary angles; 0, 1, ... if None. Windows and ALiBi go by the
                distance in the sequence, whatever the positions.
            segments: (B, T) integers; a token sees its own segment only, and a negative id is padding. With a cache,
                of the cached positions too: (B, cache.length + T). Of whole sequences where processes share them.
            cache: one of a cache's `layers`: x is appended to it, and positions continue from it. No gradients then.
                Where processes share sequences it must be empty, and each process gets all of what they hold.
            stats: return an `LSAttentionResult` instead, which also has the extremes of the logits, or with "max" only
                the largest.
        """
        check_input(x, self.width, positions)
        measured = self._measured(stats)
        if cache is not None:
            out, found = self._attend_cached(x, positions, segments, cache, measured)
        else:
            out, found = self._attend(x, positions, segments, measured)
        if found is None:
            return out
        if self.watched is not None:
            self.watched.max.copy_(torch.maximum(self.watched.max, found.max))
            if self.watched.min is not None and found.min is not None:
                self.watched.min.copy_(torch.minimum(self.watched.min, found.min))
        if not stats:
            return out
        return LSAttentionResult(out, found if stats is True else LogitStats(found.max))

    def _measured(self, stats: Stats) -> Stats:
        """What to ask of the op, for the caller and for the one who watches."""
        if self.watched is None or extremes_of(stats) == 2:
            return stats
        return "max" if self.watched.min is None else True

    def _attend(
        self, x: Tensor, positions: Tensor | None, segments: Tensor | None, stats: Stats
    ) -> tuple[Tensor, LogitStats | None]:
        options: dict[str, Any] = {"softcap": self.softcap, "segments": segments, "stats": stats}
        options |= {"sinks": self.sinks_for(x), "backend": self.backend}
        if self.group is not None:
            from longshort.ops.sharded import sharded_attention  # its collectives take 0.4 s to import

            options |= {"group": self.group, "smoothing": self.smoothing}
            result = sharded_attention(*self.heads(x, positions), self.plan, **options)
        elif self._untouched:
            result = packed_attention(self.qkv(x), self.plan, n_kv_heads=self.n_kv_heads, causal=self.causal, **options)
        else:
            options |= {"causal": self.causal, "smoothing": self.smoothing}
            heads = self.heads(x, positions)
            if self.chunk is None:
                result = attention(*heads, self.plan, **options)
            else:
                result = attend_within_chunks(*heads, self.plan, self.chunk, **options)
        out = self.out(result.out.transpose(1, 2).flatten(-2))
        return self.dropout(out), result.stats

    @torch.no_grad()
    def _attend_cached(
        self, x: Tensor, positions: Tensor | None, segments: Tensor | None, cache: CacheLayer, stats: Stats
    ) -> tuple[Tensor, LogitStats | None]:
        self.check_cacheable()
        if not isinstance(cache, CacheLayer):
            raise ValueError(f"cache must be one of a cache's layers, got {type(cache).__name__}: give cache.layers[i]")
        if not self.fits(cache):
            raise ValueError("cache must have the plan, KV heads, head dim and smoothing of this layer")
        if positions is None and self.group is None:
            positions = cache.next_positions(x.shape[1])
        q, k, v = self.heads(x, positions)
        options: dict[str, Any] = {"softcap": self.softcap, "segments": segments, "sinks": self.sinks_for(q)}
        options |= {"stats": stats, "backend": self.backend}
        if self.group is None:
            attended, found = cache.attend(q, k, v, **options)
        else:
            attended, found = self._attend_and_fill(q, k, v, cache, self.group, **options)
        out = self.out(attended.transpose(1, 2).flatten(-2))
        return self.dropout(out), found

    def _attend_and_fill(
        self, q: Tensor, k: Tensor, v: Tensor, cache: CacheLayer, group: ProcessGroup, **options: Any
    ) -> tuple[Tensor, LogitStats | None]:
        """Attend within sequences that processes share, and give each process all that a cache holds of them."""
        from longshort.ops.collectives import rows_from_all
        from longshort.ops.sharded import sharded_attention, smoothed_shard

        if (held := int(cache.next_positions(1)[0])) > 0:
            raise ValueError(f"cache must be empty while sequences are shared (share_sequences), got {held} tokens")
        raw = k if self.smoothing is not None and self.smoothing.stage == "before" else v
        if self.smoothing is not None:
            k, v = smoothed_shard(k, v, self.plan, self.smoothing, options["segments"], group)
        result = sharded_attention(q, k, v, self.plan, group=group, **options)
        cache.fill(group.size() * k.shape[2], k, v, raw, partial(rows_from_all, group=group))
        return result.out, result.stats

    def sinks_for(self, x: Tensor) -> Tensor | None:
        """The sinks in the precision that the op takes for such inputs."""
        return None if self.sinks is None else self.sinks.to(torch.promote_types(x.dtype, torch.float32))

    def fits(self, cache: CacheLayer) -> bool:
        """Whether the cache was made for a layer like this one."""
        theirs = (cache.reach, cache.n_kv_heads, cache.head_dim, cache.smoothing)
        return theirs == (self.reach, self.n_kv_heads, self.head_dim, self.smoothing)

    def check_cacheable(self) -> None:
        """Raise where what is cached of a token would not stay as it is, or not stay in sight."""
        if not self.causal:
            raise ValueError(
                "causal must be True for decoding with a cache, got False: run whole sequences without one"
            )
        if self.chunk is not None:
            raise ValueError(
                f"chunk must be None for decoding with a cache, got {self.chunk}: run whole sequences without one, or "
                "give the heads windows, which a cache serves"
            )
        check_smoothing(self.smoothing)
        check_streaming(self.plan)

    @property
    def _untouched(self) -> bool:
        """Whether queries, keys and values enter the op as the projection makes them."""
        changed = (self.q_norm, self.rope_theta, self.reach.temperature, self.scale, self.smoothing, self.chunk)
        return all(x is None for x in changed)

    def heads(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, T, D), k and v (B, H_kv, T, D) as they enter the op; views of one projection where they can be."""
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        q, k, v = heads.split((self.n_heads, self.n_kv_heads, self.n_kv_heads), dim=-2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rope_theta is not None or self.reach.temperature is not None:
            if positions is None:
                start = 0 if self.group is None else self.group.rank() * x.shape[1]
                positions = torch.arange(start, start + x.shape[1], device=x.device)
            q, k = place(q, k, positions, self._placed)
        if self.scale is not None:  # the op and every cache divide by sqrt(head_dim)
            q = q * (self.scale * math.sqrt(self.head_dim))
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def attention_layers(model: nn.Module) -> list[LSAttention]:
    """Every `LSAttention` of a model, in order."""
    return [module for module in model.modules() if isinstance(module, LSAttention)]


def _layer_reach(plan: HeadPlan | LayerReach, positions: str) -> LayerReach:
    """The plan as a record, with ALiBi's slopes where they are wanted and it has none."""
    if isinstance(plan, HeadPlan):
        plan = LayerReach(plan=plan)
    if not isinstance(plan, LayerReach):
        raise ValueError(f"plan must be a HeadPlan or a LayerReach, got {type(plan).__name__}")
    if not plan.rotates_alike and positions != "rotary":
        raise ValueError(f"positions must be 'rotary' for a reach with bases or shares of rotation, got {positions!r}")
    if positions == "alibi" and plan.plan.slopes is None:
        return replace(plan, plan=plan.plan.with_alibi())
    return plan
