"""GPT-2 in the Hugging Face format, as a model in which every head is global."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from longshort.files import parse_json
from longshort.hf.importers.layout import Tensors, filled, sizes, weights
from longshort.model import GPT, GPTConfig

_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
"""Names of the Conv1D layers, whose weight is (in, out)."""


def from_gpt2(source: str | Path | Mapping[str, Tensor] | nn.Module, config: Mapping[str, Any] | None = None) -> GPT:
    """A `GPT` with GPT-2's weights and plain heads; its logits equal transformers' up to fp32 rounding.

    Args:
        source: a folder written by `save_pretrained`, a safetensors file, the state dict of a `GPT2LMHeadModel` or
            `GPT2Model`, or such a model itself.
        config: the values of config.json, needed with a state dict; otherwise read from the weights' folder.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> theirs = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=64, n_embd=32, n_layer=2, n_head=4)).eval()
    >>> ours = from_gpt2(theirs)
    >>> import torch
    >>> tokens = torch.randint(100, (1, 50))
    >>> torch.allclose(ours(tokens).logits, theirs(tokens).logits, atol=1e-5)
    True
    """
    state, config, named = _read(source, config)
    kind = config.get("model_type", "gpt2")
    if kind != "gpt2":
        raise ValueError(f"{named} must hold a model of type gpt2, got {kind!r}")
    tensors = weights(state, source=named)
    tensors = {name: x.mT if name.endswith(_TRANSPOSED) else x for name, x in tensors.items()}
    fields = sizes(tensors, source=named)
    n_heads = config.get("n_head", 12)
    if not isinstance(n_heads, int) or n_heads < 1 or fields["width"] % n_heads:
        raise ValueError(f"{named}: n_head must divide the width {fields['width']}, got {n_heads}")
    activation = config.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        choices = ", ".join(_ACTIVATIONS)
        raise ValueError(f"{named}: activation_function must be one of {choices}, got {activation!r}")
    ours = GPTConfig(
        n_heads=n_heads,
        mlp=_ACTIVATIONS[activation],
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        **fields,
    )
    return filled(ours, _with_our_scale(tensors, config, ours), source=named)


def _with_our_scale(tensors: Tensors, config: Mapping[str, Any], ours: GPTConfig) -> Tensors:
    """A logit scale other than 1 / sqrt(head dim) is folded into the queries."""
    head_dim = ours.width // ours.n_heads
    base = 1.0 if config.get("scale_attn_weights", True) else head_dim**0.5
    scaled = dict(tensors)
    for layer in range(ours.n_layers):
        factor = base / (layer + 1) if config.get("scale_attn_by_inverse_layer_idx", False) else base
        for name in (f"h.{layer}.attn.c_attn.weight", f"h.{layer}.attn.c_attn.bias"):
            if factor != 1 and name in scaled:
                scaled[name] = scaled[name].float().clone()
                scaled[name][: ours.width] *= factor
    return scaled


def _read(
    source: str | Path | Mapping[str, Tensor] | nn.Module, config: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any], Mapping[str, Any], str]:
    """Tensors, config.json and the name of the source in errors."""
    if isinstance(source, nn.Module):
        theirs: Any = source
        return theirs.state_dict(), config or theirs.config.to_dict(), type(source).__name__
    if isinstance(source, Mapping):
        if config is None:
            raise ValueError("config must be given with a state dict (the values of GPT-2's config.json), got None")
        return source, config, "the state dict"
    path = Path(source)
    if not path.exists():
        raise ValueError(
            f"source must be a folder or file of safetensors, got {str(source)!r}, which does not exist; load a model "
            "of the hub with transformers: from_gpt2(GPT2LMHeadModel.from_pretrained(name))"
        )
    folder = path if path.is_dir() else path.parent
    if config is None:
        if not (folder / "config.json").is_file():
            raise ValueError(f"{folder}: no config.json; add it or give config")
        try:
            config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{folder / 'config.json'} must hold JSON, got: {error}") from None
        if not isinstance(config, dict):
            raise ValueError(f"{folder / 'config.json'} must hold an object, got a {type(config).__name__}")
    return _tensors_of(path), config, str(path)


def _tensors_of(path: Path) -> Tensors:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path.is_dir():
        files = [path / _WEIGHTS]
        if (path / _INDEX).is_file():
            try:
                names = set(parse_json((path / _INDEX).read_text(encoding="utf-8"))["weight_map"].values())
                files = [path / name for name in sorted(names)]
            except (ValueError, KeyError, TypeError, AttributeError):
                raise ValueError(f"{path / _INDEX} must hold JSON with a weight_map of files, got none") from None
    else:
        files = [path]
    for file in files:
        if not file.is_file():
            raise ValueError(
                f"{path}: no {file.name}; pickled weights are not read, but you can load them with transformers and "
                "give the model itself"
            )
    try:
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    except SafetensorError as error:
        raise ValueError(f"{path} must hold safetensors, got a file that cannot be read: {error}") from None
