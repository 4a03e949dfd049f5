"""GPT-2's tensor names, which nanoGPT shares, and the `GPT` that they fill.

Matrices are expected as in `nn.Linear`, (out, in), with q, k and v in one `c_attn` and the heads in the plan's order;
the importers undo any difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from longshort.model import GPT, GPTConfig

Tensors = dict[str, Tensor]

_WRAPPERS = ("_orig_mod.", "module.", "transformer.")
"""Prefixes that torch.compile, DistributedDataParallel and the language-model class put before a name."""
_OF_ATTENTION = re.compile(r"h\.\d+\.attn\.\w+")
"""Tensors that an attention layer holds itself, outside its projections."""
_OURS = {
    "wte": "embedding",
    "wpe": "position_embedding",
    "ln_f": "norm",
    "lm_head": "head",
    "ln_1": "attention_norm",
    "attn.c_attn": "attention.qkv",
    "attn.c_proj": "attention.out",
    "ln_2": "mlp_norm",
    "mlp.c_fc": "mlp.up",
    "mlp.c_proj": "mlp.down",
}


def weights(state: Mapping[str, Any], *, source: str) -> Tensors:
    """The weights under their bare names: `h.0.attn.c_attn.weight` and so on."""
    tensors = {}
    for key, value in state.items():
        name = str(key)
        while name.startswith(_WRAPPERS):
            name = name.split(".", 1)[1]
        if not isinstance(value, Tensor):
            raise ValueError(f"{source}: {key} must be a tensor, got {type(value).__name__}")
        if not (_OF_ATTENTION.fullmatch(name) and _is_mask(value)):
            tensors[name] = value
    return tensors


def sizes(tensors: Tensors, *, source: str) -> dict[str, Any]:
    """The fields of a `GPTConfig` that follow from the shapes; a head equal to the embedding counts as tied."""
    needed = ("wte.weight", "wpe.weight", "h.0.mlp.c_fc.weight", "h.0.ln_1.weight")
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise ValueError(f"{source}: a GPT-2-style model must have {', '.join(missing)}; {_sample(tensors)}")
    vocab_size, width = tensors["wte.weight"].shape
    hidden = tensors["h.0.mlp.c_fc.weight"].shape[0]
    if hidden % width:
        raise ValueError(f"{source}: the MLP's width must be a multiple of the width {width}, got {hidden}")
    layers = [int(found[1]) for name in tensors if (found := re.match(r"h\.(\d+)\.", name))]
    head = tensors.get("lm_head.weight")
    return {
        "vocab_size": vocab_size,
        "context": tensors["wpe.weight"].shape[0],
        "n_layers": max(layers) + 1,
        "width": width,
        "ff_multiplier": hidden // width,
        "bias": "h.0.ln_1.bias" in tensors,
        "tie_embeddings": head is None or torch.equal(head, tensors["wte.weight"]),
    }


def filled(config: GPTConfig, tensors: Tensors, *, source: str) -> GPT:
    """A model with these weights of GPT-2's names, whose shapes must match."""
    left_out = ("lm_head.weight",) if config.tie_embeddings else ()
    return loaded(config, {_renamed(name): x for name, x in tensors.items() if name not in left_out}, source=source)


def loaded(config: GPTConfig, tensors: Tensors, *, source: str) -> GPT:
    """A model with these weights of its own names, whose shapes must match."""
    with torch.device("meta"):
        model = GPT(config)
    wanted = model.state_dict()
    missing, unknown = wanted.keys() - tensors.keys(), tensors.keys() - wanted.keys()
    if missing or unknown:
        raise ValueError(f"{source}: weights do not fit: missing {listed(missing)}; unknown {listed(unknown)}")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            shapes = f"{tuple(wanted[name].shape)}, got {tuple(tensor.shape)}"
            raise ValueError(f"{source}: {name} must have the shape {shapes}")
    # Copies: the source model must not share its weights with ours.
    copies = {name: tensor.detach().to("cpu", torch.float32, copy=True) for name, tensor in tensors.items()}
    model.load_state_dict(copies, assign=True)
    return model.eval()


def _is_mask(x: Tensor) -> bool:
    """Older code saved masks (..., T, T), of all heads or of each, and the number that stood for -inf.

    A mask holds two values, such as 0 and 1 or 0 and -inf: what holds more was learned, or adds to the logits.
    """
    if x.ndim < 2 or not x.numel():
        return x.ndim == 0
    return x.shape[-1] == x.shape[-2] and bool(((x == x.amin()) | (x == x.amax())).all())


def _renamed(name: str) -> str:
    found = re.fullmatch(r"(?:h\.(\d+)\.)?(.+)\.(weight|bias)", name)
    if found is None or found[2] not in _OURS:
        return name
    layer = "" if found[1] is None else f"blocks.{found[1]}."
    return f"{layer}{_OURS[found[2]]}.{found[3]}"


def listed(names: Iterable[str], most: int = 6) -> str:
    """Some of the names, in order."""
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return (", ".join(ordered[:most]) or "nothing") + more


def _sample(tensors: Tensors) -> str:
    return f"it has {listed(tensors)}"
