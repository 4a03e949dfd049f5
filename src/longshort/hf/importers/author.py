"""Checkpoints of the LS-attention paper's author (arXiv 2505.15548): nanoGPT's `.pt` files, in two forms.

The first form has nanoGPT's fused `c_attn`, and a window of p means p visible keys. The later form has `c_local_attn`
and `c_global_attn`, each with q, k and v of its own heads, and passes FlashAttention a span: span + 1 visible keys.
Both put local heads before global ones. A `GPT` has global heads first, and a window counts the current key.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longshort.hf.importers.layout import Tensors, filled, sizes, weights
from longshort.model import GPT, GPTConfig
from longshort.numeric import is_int

_LOCAL, _GLOBAL = "attn.c_local_attn", "attn.c_global_attn"
_HEADS = ("n_head", "n_heads", "num_heads")
_LOCAL_HEADS = ("n_local_head", "n_local_heads", "num_local_heads", "local_heads", "n_local")
_GLOBAL_HEADS = ("n_global_head", "n_global_heads", "num_global_heads", "global_heads", "n_global")
_WINDOWS = ("window", "window_size", "local_window", "local_window_size")
_SPANS = ("span", "local_span", "attn_span", "local_attn_span")


def from_author(
    path: str | Path,
    *,
    n_heads: int | None = None,
    n_global: int | None = None,
    window: int | None = None,
    span: int | None = None,
    activation: str = "gelu",
) -> GPT:
    """The model of one of the author's checkpoints.

    What is not given is read from the checkpoint's `model_args` or `config`, under one of several names; if it is not
    there either, the error says what is missing. Read a plain nanoGPT checkpoint with `n_global=n_heads`.

    Args:
        path: a `.pt` file with `model` and `model_args` or `config`; it is read without running any code in it.
        n_heads: heads per layer.
        n_global: number of global heads per layer.
        window: keys that each local head sees, the current one included.
        span: the same in the later form's count, without the current key.
        activation: that of the MLP: "gelu" (exact), or "gelu_tanh" as in nanoGPT's first versions.

    >>> model = from_author("ckpt.pt", n_global=1, window=50)  # doctest: +SKIP
    """
    if window is not None and span is not None:
        raise ValueError(f"window and span must not both be given, got {window} and {span}")
    named = str(path)
    state, settings = _read(Path(path))
    tensors = weights(state, source=named)
    separate = any(f".{_LOCAL}." in name or f".{_GLOBAL}." in name for name in tensors)
    heads = n_heads or _setting(settings, _HEADS)
    fields = sizes(tensors, source=named)
    missing = [] if heads else [f"n_heads (in the checkpoint: {_either(_HEADS)})"]
    if heads and fields["width"] % heads:
        raise ValueError(f"n_heads must divide the width {fields['width']} of {named}, got {heads}")
    if n_global is None:
        n_global = _n_global(tensors, settings, heads, fields["width"], separate)
    if n_global is None:
        missing.append(f"n_global (in the checkpoint: {_either((*_GLOBAL_HEADS, *_LOCAL_HEADS))})")
    if window is None:
        window = _window(settings, span, separate, named)
    if window is None and (n_global is None or n_global != heads):
        found = _either(_SPANS if separate else _WINDOWS)
        missing.append(f"window, or span (in the checkpoint: {found})")
    if missing:
        raise ValueError(
            f"{named}: what it does not say must be given: {'; '.join(missing)}. It says {_said(settings)}"
        )
    assert heads is not None and n_global is not None
    window = None if n_global == heads else window
    config = GPTConfig(n_heads=heads, n_global=n_global, window=window, mlp=activation, **fields)
    return filled(config, _global_first(tensors, config, separate, named), source=named)


def _read(path: Path) -> tuple[Mapping[str, Any], dict[str, Any]]:
    if not path.is_file():
        raise ValueError(f"path must be a .pt file, got {str(path)!r}, which does not exist")
    try:
        with warnings.catch_warnings(action="ignore"):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch reports a damaged file in many ways
        # Torch's own words are not shown: they advise unpickling the file, which would run an attacker's code.
        named = re.search(r"GLOBAL (\S+)", str(error))
        found = "something else" if named is None else f"one that names {named[1]}: code, which is never run"
        raise ValueError(
            f"{path} must be a checkpoint of tensors and plain values, which torch reads with weights_only=True; "
            f"got {found}"
        ) from None
    if not isinstance(checkpoint, Mapping) or not isinstance(checkpoint.get("model"), Mapping):
        found = ", ".join(map(str, checkpoint)) if isinstance(checkpoint, Mapping) else type(checkpoint).__name__
        raise ValueError(f"{path} must hold a dictionary with the key model, got {found}")
    settings: dict[str, Any] = {}
    for key in ("config", "model_args"):  # the latter, which made the model, takes precedence
        if isinstance(checkpoint.get(key), Mapping):
            settings |= checkpoint[key]
    return checkpoint["model"], settings


def _n_global(
    tensors: Tensors, settings: Mapping[str, Any], heads: int | None, width: int, separate: bool
) -> int | None:
    if heads is None:
        return None
    if separate:
        whole = tensors.get(f"h.0.{_GLOBAL}.weight")
        return 0 if whole is None else whole.shape[0] * heads // (3 * width)
    local = _setting(settings, _LOCAL_HEADS)
    return _setting(settings, _GLOBAL_HEADS) if local is None else heads - local


def _window(settings: Mapping[str, Any], span: int | None, separate: bool, named: str) -> int | None:
    """The window under the names of this form; what a name of the other form counts is not known."""
    if span is not None:
        return span + 1
    ours, others = (_SPANS, _WINDOWS) if separate else (_WINDOWS, _SPANS)
    found = _setting(settings, ours)
    if found is not None:
        return found + 1 if separate else found
    unclear = next((name for name in others if settings.get(name) is not None), None)
    if unclear is None:
        return None
    raise ValueError(
        f"{named}: {unclear}={settings[unclear]!r} with {'separate' if separate else 'fused'} projections may or may "
        "not count the current key; give window (it counts) or span (it does not)"
    )


def _global_first(tensors: Tensors, config: GPTConfig, separate: bool, named: str) -> Tensors:
    """Fused projections with the heads in the plan's order, and the columns of the output projection to match."""
    n_local = config.n_heads - (config.n_global or 0)
    head_dim = config.width // config.n_heads
    turned = dict(tensors)
    for layer in range(config.n_layers):
        before = f"h.{layer}."
        for part in ("weight", "bias"):
            if separate:
                groups = [turned.pop(f"{before}{form}.{part}", None) for form in (_LOCAL, _GLOBAL)]
                if any(group is not None for group in groups):
                    turned[f"{before}attn.c_attn.{part}"] = _fused(groups, n_local, config, f"{named}, layer {layer}")
            name = f"{before}attn.c_attn.{part}"
            if name in turned and turned[name].shape[0] == 3 * config.width:
                heads = turned[name].unflatten(0, (3, config.n_heads, head_dim))
                turned[name] = heads.roll(-n_local, dims=1).flatten(0, 2)
        name = f"{before}attn.c_proj.weight"
        if name in turned and turned[name].shape[1] == config.width:
            heads = turned[name].unflatten(1, (config.n_heads, head_dim))
            turned[name] = heads.roll(-n_local, dims=1).flatten(1, 2)
    return turned


def _fused(groups: list[Tensor | None], n_local: int, config: GPTConfig, where: str) -> Tensor:
    """Rows in the order of the first form: q of local heads, q of global heads, then k, then v."""
    parts = []
    head_dim = config.width // config.n_heads
    names = zip((_LOCAL, _GLOBAL), groups, (n_local, config.n_heads - n_local), strict=True)
    for name, group, n_heads in names:
        rows = 0 if group is None else group.shape[0]
        if rows != 3 * n_heads * head_dim:
            expected = f"{3 * n_heads * head_dim} rows (q, k, v of {n_heads} heads of {head_dim})"
            raise ValueError(f"{where}: {name} must have {expected}, got {rows}; are n_heads and n_global right?")
        if group is not None:
            parts.append(group.unflatten(0, (3, n_heads * head_dim)))
    return torch.cat(parts, dim=1).flatten(0, 1)


def _setting(settings: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = settings.get(name)
        if is_int(value):
            return value
    return None


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _said(settings: Mapping[str, Any], most: int = 30) -> str:
    numbers = {key: value for key, value in settings.items() if is_int(value)}
    shown = [f"{key}={value}" for key, value in numbers.items()]
    return ", ".join(shown[:most]) or "nothing"
