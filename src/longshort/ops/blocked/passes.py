"""The op in plain PyTorch, on any device: O(T w) time and memory for local heads, no T x S tensor for global ones.

Heads with equal windows are computed together. Two engines compute a tile: `fused` passes strided views to PyTorch's
own flash attention, with slopes in its mask; `dense` spells the formula out in fp32 and serves what the fused kernels
cannot (softcap, steep decays, statistics). Other decays reach `fused` as rescaled queries and keys (`rescaled`). The
results of both are merged by log-sum-exp, and both differentiate from (out, lse) alone.

Shapes: N batch x heads of one group, T queries, S keys, D head dimension; tiles add n rectangles of R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from longshort.ops.autocast import without_autocast
from longshort.ops.blocked import fused, rescaled
from longshort.ops.blocked.firsts import FirstKeys
from longshort.ops.blocked.groups import (
    Group,
    Heads,
    flat,
    flatten,
    groups,
    in_pieces,
    kv_heads,
    rectangles,
)
from longshort.ops.blocked.tiles import CAUSAL, Tile
from longshort.ops.options import Options
from longshort.ops.padding import dense_rows, without_padding
from longshort.ops.scores import scores_and_derivative

_GRADIENT_BYTES = 1 << 23
"""Bound on the overlapping key and value gradients of blocks, which should stay in cache while they are added up."""


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: Options,
    segments: Tensor | None,
    extremes: int,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Implements longshort::blocked_forward."""
    wide = torch.promote_types(q.dtype, torch.float32)
    out, lse = torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=wide)
    largest, smallest = (
        q.new_full(q.shape[1:2], nothing, dtype=torch.float32) if extremes > i else None
        for i, nothing in enumerate((-torch.inf, torch.inf))
    )
    if out.numel() == 0:
        return out, lse, largest, smallest
    with without_autocast(q):
        unseen = None if segments is None else segments[:, k.shape[2] - q.shape[2] :] < 0
        q, k, v = without_padding(segments, q, k, v)
        for heads, rows, group in groups(q, k, v, options, segments):
            run, _ = _engines(group)
            with flat(out, rows, heads) as out_NTD, flat(lse, rows, heads) as lse_NT:
                run(group, out_NTD, lse_NT)
                if group.first:
                    _also_first_keys(group, out_NTD, lse_NT)
            if largest is not None:
                _note_extremes(group, heads, largest, smallest)
        if unseen is not None:
            out.masked_fill_(unseen[:, None, :, None], 0)
            lse.masked_fill_(unseen[:, None], -torch.inf)
        if sinks is not None:
            lse = _drained(out, lse, sinks)
    return out, lse, largest, smallest


def _drained(out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """Scale out, in place, by what the sinks leave of each row; returns the lse of the row with its sink."""
    sink = sinks.to(lse.dtype)[None, :, None]
    out.copy_(out * torch.sigmoid(lse - sink)[..., None])
    return torch.logaddexp(lse, sink).masked_fill_(lse == -torch.inf, -torch.inf)


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    options: Options,
    segments: Tensor | None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Implements longshort::blocked_backward. Key and value gradients are summed in fp32, in a fixed order."""
    wide = lse.dtype
    to_sinks = None if sinks is None else _sink_gradients(grad, out, lse, sinks)
    grads = [torch.empty(q.shape, dtype=wide, device=q.device)]
    grads += [torch.zeros(x.shape, dtype=wide, device=x.device) for x in (k, v)]
    if grad.numel() == 0:
        return grads[0].to(q.dtype), grads[1].to(k.dtype), grads[2].to(v.dtype), to_sinks
    with without_autocast(q):
        q, k, v = without_padding(segments, q, k, v)
        grad = dense_rows(grad)
        if segments is not None:
            unseen = segments[:, k.shape[2] - q.shape[2] :] < 0
            grad = grad.masked_fill(unseen[:, None, :, None], 0)
            lse = lse.masked_fill(unseen[:, None], 0)  # exp(-inf - 0) is 0 where exp(-inf + inf) would be NaN
        for heads, rows, group in groups(q, k, v, options, segments):
            theirs = kv_heads(heads, q.shape[1] // k.shape[1])
            _, run = _engines(group)
            grad_N, out_N = (flatten(x, rows, heads).to(group.q.dtype) for x in (grad, out))
            with (
                flat(grads[0], rows, heads) as grad_q,
                flat(grads[1], rows, theirs, add=True) as grad_k,
                flat(grads[2], rows, theirs, add=True) as grad_v,
            ):
                lse_N = flatten(lse, rows, heads)
                run(group, grad_N, out_N, lse_N, grad_q, grad_k, grad_v)
                if group.first:
                    _add_first_keys(group, grad_N, out_N, lse_N, grad_q, grad_k, grad_v)
    return grads[0].to(q.dtype), grads[1].to(k.dtype), grads[2].to(v.dtype), to_sinks


def _sink_gradients(grad: Tensor, out: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    """A sink's value is zero, so a row's gradient of its score is its weight times -(grad . out)."""
    inner = (grad.to(lse.dtype) * out.to(lse.dtype)).sum(-1)
    weights = (sinks.to(lse.dtype)[None, :, None] - lse).exp()
    blind = lse == -torch.inf
    return -(weights * inner).masked_fill_(blind, 0).sum((0, 2)).to(sinks.dtype)


def _engines(group: Group) -> tuple[Callable[..., None], Callable[..., None]]:
    """The functions that compute the group, forward and backward."""
    if group.is_fused:
        return _fused_forward, _fused_backward
    if rescaled.serves(group):
        return _rescaled_forward, _rescaled_backward
    return _dense_forward, _dense_backward


def _fused_forward(group: Group, out_NTD: Tensor, lse_NT: Tensor) -> None:
    for tile in group.fused_tiles(backward=False):
        q, k, v = _operands(group, tile)
        mask = group.additive_mask(tile)
        part, part_lse = fused.attend(q, k, v, scale=group.scale, causal=tile.kind == CAUSAL, mask=mask)
        if group.blind_rows and mask is not None:
            part_lse = part_lse.masked_fill(mask.amax(-1) == -torch.inf, -torch.inf)
        bias = group.row_bias(tile)
        if bias is not None:
            part_lse = part_lse + bias
        _store(tile, out_NTD, lse_NT, part, part_lse)


def _fused_backward(
    group: Group, grad: Tensor, out: Tensor, lse: Tensor, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor
) -> None:
    block_bytes = 8 * group.q.shape[0] * group.q.shape[2]
    tiles = group.fused_tiles(backward=True)
    for tile in in_pieces(tiles, lambda tile: max(2, _GRADIENT_BYTES // (block_bytes * tile.cols))):
        q, k, v = _operands(group, tile)
        rows = [_rows(x, tile) for x in (grad, out, lse[:, :, None])]
        bias, tile_lse = group.row_bias(tile), rows[2][..., 0]
        parts = fused.differentiate(
            *(rows[0], q, k, v, rows[1], tile_lse if bias is None else tile_lse - bias),
            scale=group.scale,
            causal=tile.kind == CAUSAL,
            mask=group.additive_mask(tile),
        )
        _accumulate(tile, (grad_q, grad_k, grad_v), parts)


def _rescaled_forward(group: Group, out_NTD: Tensor, lse_NT: Tensor) -> None:
    out, lse = torch.empty(out_NTD.shape, dtype=lse_NT.dtype), torch.empty_like(lse_NT)
    for side in rescaled.sides(group):
        part, part_lse = torch.empty_like(side.group.q), lse.new_empty(side.group.q.shape[:2])
        _fused_forward(side.group, part, part_lse)
        part, part_lse = side.turned(part), side.turned(part_lse)
        if side.mirrored:
            part, part_lse = _merged(out[:, side.rows], lse[:, side.rows], part, part_lse)
        out[:, side.rows], lse[:, side.rows] = part, part_lse
    out_NTD.copy_(out)
    lse_NT.copy_(lse)


def _rescaled_backward(
    group: Group, grad: Tensor, out: Tensor, lse: Tensor, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor
) -> None:
    grad_q.zero_()
    for side in rescaled.sides(group):
        rows = [side.turned(x[:, side.rows]) for x in (grad, out, lse)]
        parts = [torch.zeros_like(x) for x in (side.group.q, side.group.k, side.group.v)]
        _fused_backward(side.group, *rows, *parts)
        to_q, to_k, to_v = (side.turned(part) for part in parts)
        grad_q[:, side.rows].add_(to_q * side.row_factors)
        grad_k[:, side.columns].add_(to_k * side.column_factors)
        grad_v[:, side.columns].add_(to_v)


def _dense_forward(group: Group, out_NTD: Tensor, lse_NT: Tensor) -> None:
    wide = lse_NT.dtype
    for tile in group.dense_tiles():
        q, k, v = (x.to(wide) for x in _operands(group, tile))
        x, _ = _scores(group, tile, group.scale * (q @ k.mT), derivative=False)
        weights, part_lse = _weights(x)
        _store(tile, out_NTD, lse_NT, weights @ v, part_lse)


def _weights(x: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax of logits, 0 in rows that see nothing, and its lse."""
    lse = x.logsumexp(-1)
    return (x - lse.masked_fill(lse == -torch.inf, 0)[..., None]).exp_(), lse


def _dense_backward(
    group: Group, grad: Tensor, out: Tensor, lse: Tensor, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor
) -> None:
    wide, scale = lse.dtype, group.scale
    for tile in group.dense_tiles():
        q, k, v = (x.to(wide) for x in _operands(group, tile))
        rows = [_rows(x, tile).to(wide) for x in (grad, out, lse[:, :, None])]
        x, slope_of_x = _scores(group, tile, scale * (q @ k.mT), derivative=True)
        weights = (x - rows[2]).exp_()
        inner = rows[0] @ v.mT - (rows[0] * rows[1]).sum(-1, keepdim=True)
        grad_x = weights * inner
        if slope_of_x is not None:
            grad_x *= slope_of_x
        grad_x *= scale
        _accumulate(tile, (grad_q, grad_k, grad_v), (grad_x @ k, grad_x.mT @ q, weights.mT @ rows[0]))


def _also_first_keys(group: Group, out_NTD: Tensor, lse_NT: Tensor) -> None:
    """Merge what the rows see of their document's first keys, outside of their windows, with what they saw within."""
    wide, keys = lse_NT.dtype, FirstKeys.of(group)
    k, v = (keys.of_keys(x).to(wide) for x in (group.k, group.v))
    for rows, seen, distance in keys.tiles():
        x, _ = _first_scores(group, group.q[:, None, rows].to(wide) @ k.mT, seen, distance)
        weights, part_lse = _weights(x)
        out, lse = out_NTD[:, rows], lse_NT[:, rows]
        part, total = _merged(out, lse, (weights @ v)[:, 0], part_lse[:, 0])
        out.copy_(part)
        lse.copy_(total)


def _add_first_keys(
    group: Group, grad: Tensor, out: Tensor, lse: Tensor, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor
) -> None:
    wide, keys = lse.dtype, FirstKeys.of(group)
    k, v = (keys.of_keys(x).to(wide) for x in (group.k, group.v))
    for rows, seen, distance in keys.tiles():
        q, up, down = (x[:, None, rows].to(wide) for x in (group.q, grad, out))
        x, slope_of_x = _first_scores(group, q @ k.mT, seen, distance)
        weights = (x - lse[:, None, rows, None]).exp_()
        grad_x = weights * (up @ v.mT - (up * down).sum(-1, keepdim=True)) * group.scale
        if slope_of_x is not None:
            grad_x *= slope_of_x
        grad_q[:, rows].add_((grad_x @ k)[:, 0])
        keys.add_to(grad_k, grad_x.mT @ q)
        keys.add_to(grad_v, weights.mT @ up)


def _first_scores(group: Group, products: Tensor, seen: Tensor, distance: Tensor) -> tuple[Tensor, Tensor | None]:
    rates = group.decays_N, group.slopes_N
    x, slope_of_x = scores_and_derivative(group.scale * products, distance, *rates, group.options.softcap)
    return x.masked_fill(~seen, -torch.inf), slope_of_x


def _scores(group: Group, tile: Tile, logits: Tensor, *, derivative: bool) -> tuple[Tensor, Tensor | None]:
    """x of the definition, -inf where not visible, and dx/dlogits if asked for (None where it is 1)."""
    rates = group.decays_N, group.slopes_N
    x, slope_of_x = scores_and_derivative(
        logits, group.distance(tile), *rates, group.options.softcap, derivative=derivative
    )
    visible = group.visible(tile)
    return (x if visible is None else x.masked_fill(~visible, -torch.inf)), slope_of_x


def _note_extremes(group: Group, heads: Heads, largest: Tensor, smallest: Tensor | None) -> None:
    """A separate pass over the logits. amax, amin, aminmax, maximum and minimum all keep a NaN."""
    n_heads = len(largest[heads])
    high = largest.new_full((group.q.shape[0],), -torch.inf, dtype=torch.promote_types(group.q.dtype, torch.float32))
    low = None if smallest is None else torch.full_like(high, torch.inf)
    for q, k, visible in _all_tiles(group):
        logits = (group.scale * q.to(high.dtype)) @ k.to(high.dtype).mT
        if low is None:
            seen = logits if visible is None else logits.masked_fill_(~visible, -torch.inf)
            above = seen.flatten(1).amax(1)
        elif visible is None:
            below, above = logits.flatten(1).aminmax(dim=1)
            low = torch.minimum(low, below)
        else:
            above = logits.masked_fill(~visible, -torch.inf).flatten(1).amax(1)
            low = torch.minimum(low, logits.masked_fill_(~visible, torch.inf).flatten(1).amin(1))
        high = torch.maximum(high, above)
    largest[heads] = torch.maximum(largest[heads], high.unflatten(0, (-1, n_heads)).amax(0).float())
    if smallest is not None and low is not None:
        smallest[heads] = torch.minimum(smallest[heads], low.unflatten(0, (-1, n_heads)).amin(0).float())


def _all_tiles(group: Group) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Queries and keys of all tiles, those of first keys included, and which of their pairs are visible."""
    for tile in group.dense_tiles():
        q, k, _ = _operands(group, tile)
        yield q, k, group.visible(tile)
    if group.first:
        keys = FirstKeys.of(group)
        for rows, seen, _ in keys.tiles():
            yield group.q[:, None, rows], keys.of_keys(group.k), seen


def _store(tile: Tile, out_NTD: Tensor, lse_NT: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Write a tile's rows, or merge them with the result over their other columns."""
    out, lse = _rows(out_NTD, tile), _rows(lse_NT[:, :, None], tile)[..., 0]
    if tile.merge:
        part, part_lse = _merged(out, lse, part, part_lse)
    out.copy_(part)
    lse.copy_(part_lse)


def _merged(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> tuple[Tensor, Tensor]:
    """The result of rows over all columns, from those over some columns and over the others."""
    total = torch.logaddexp(lse, part_lse)
    blind = total == -torch.inf  # no visible key on either side: weights 0, not exp(-inf + inf)
    ours, theirs = ((x - total).exp_().masked_fill_(blind, 0)[..., None] for x in (lse, part_lse))
    return out * ours + part * theirs, total


def _accumulate(tile: Tile, totals: tuple[Tensor, Tensor, Tensor], parts: tuple[Tensor, Tensor, Tensor]) -> None:
    """Add a tile's gradients, one step of columns at a time, since neighbouring rectangles of a band share keys."""
    ours = _rows(totals[0], tile)
    if tile.merge:
        ours.add_(parts[0])
    else:
        ours.copy_(parts[0])
    step = tile.col_step or tile.cols
    for total, part in zip(totals[1:], parts[1:], strict=True):
        if tile.col_step == 0:
            total[:, tile.col : tile.col + tile.cols].add_(part.sum(1) if tile.n > 1 else part[:, 0])
            continue
        for first in range(0, tile.cols, step):
            width = min(step, tile.cols - first)
            rectangles(total, tile.col + first, width, tile.n, step).add_(part[:, :, first : first + width])


def _operands(group: Group, tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
    columns = (tile.col, tile.cols, tile.n, tile.col_step)
    return _rows(group.q, tile), rectangles(group.k, *columns), rectangles(group.v, *columns)


def _rows(x: Tensor, tile: Tile) -> Tensor:
    return rectangles(x, tile.row, tile.rows, tile.n, tile.row_step)
