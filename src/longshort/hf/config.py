"""The configuration in Hugging Face's terms, and the conversion from a `GPTConfig` and back.

Every field of `GPTConfig` has one field here. The window is called `local_window`: transformers takes a field named
`sliding_window` to mean that every layer's cache may forget, and would drop the global heads' keys.
"""

from __future__ import annotations

import re
import sys
from dataclasses import fields, replace
from typing import Any

from transformers import PreTrainedConfig

from longshort.heads import HeadPlan
from longshort.losses import LossSettings
from longshort.model import GPTConfig
from longshort.numeric import check_count, is_int

_NAMES = {
    "vocab_size": "vocab_size",
    "context": "max_position_embeddings",
    "n_layers": "num_hidden_layers",
    "width": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "n_global": "num_global_heads",
    "window": "local_window",
    "reach": "layer_reach",
    "positions": "position_embedding_type",
    "restart_positions": "restart_positions",
    "rope_theta": "rope_theta",
    "rope_scaling": "rotary_scaling",
    "mlp": "hidden_act",
    "norm": "norm_type",
    "norm_unit_offset": "norm_unit_offset",
    "norm_placement": "norm_placement",
    "qk_norm": "qk_norm",
    "qk_norm_eps": "qk_norm_eps",
    "attention_scale": "attention_scale",
    "softcap": "attn_logit_softcapping",
    "sigma_reparam": "sigma_reparam",
    "dropout": "hidden_dropout",
    "bias": "use_bias",
    "tie_embeddings": "tie_word_embeddings",
    "embedding_scale": "embedding_scale",
    "norm_eps": "layer_norm_eps",
    "init_std": "initializer_range",
    "backend": "attention_backend",
    "smoothing": "attention_smoothing",
    "smoothing_side": "attention_smoothing_side",
    "smoothing_stage": "attention_smoothing_stage",
    "attention_chunk": "attention_chunk",
}
"""Fields that mean the same in both; `loss`, `ff_multiplier`, `ff_width`, `plan` and `plans` are expressed differently.
"""
_LOSS_NAMES = {
    "exponent": "score_exponent",
    "linear_below": "score_linear_below",
    "logit_softcap": "final_logit_softcapping",
    "z_loss": "z_loss",
    "chunk": "loss_chunk",
}
"""Fields of `LossSettings`, which are top-level fields here."""

_ELSEWHERE = {ours: theirs for ours, theirs in _NAMES.items() if ours != theirs} | {
    "ff_width": "intermediate_size",
    "ff_multiplier": "intermediate_size",
    "plan": "head_windows",
    "plans": "head_windows",
    "sliding_window": "local_window",
    "rope_scaling": "rotary_scaling",
}
"""Names of `GPTConfig` and of other models for fields of this class: transformers would take them and nothing else."""

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "swiglu": "swiglu",
    "geglu": "geglu",
    "relu2": "relu2",
}


class LongShortConfig(PreTrainedConfig):
    """What `LongShortForCausalLM` is made of.

    The reach of the heads is given by `num_global_heads` and `local_window` for all layers, or by `head_windows`
    (layers x heads; None: global). With neither, every head is global. `head_decays`, `head_slopes` and `head_firsts`,
    also layers x heads, add LaS decays, ALiBi slopes and the first keys of streaming heads to either.

    >>> config = LongShortConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_global_heads=1,
    ...                          local_window=32)
    >>> config.to_gpt().layer_plans[1].windows
    (None, 32, 32, 32)
    >>> LongShortConfig.from_gpt(config.to_gpt()).to_gpt() == config.to_gpt()
    True
    """

    model_type = "longshort"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (transformers' own form)

    vocab_size: int = 50_257
    hidden_size: int = 768
    intermediate_size: int | None = None
    """4 * hidden_size if None."""
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int | None = None
    """num_attention_heads if None."""
    head_dim: int | None = None
    """hidden_size / num_attention_heads if None."""
    max_position_embeddings: int = 1024

    num_global_heads: int | None = None
    """Global heads per layer; they come first."""
    local_window: int | None = None
    """Keys that each other head sees, the current one included."""
    head_windows: list | None = None
    head_decays: list | None = None
    head_slopes: list | None = None
    head_firsts: list | None = None
    layer_reach: list | None = None
    """A mapping per layer, as `reach.LayerReach.to_dict` gives it: plan, rotary bases, rotated shares; in place of the
    fields above."""

    position_embedding_type: str = "learned"
    """learned, rotary, sinusoidal, alibi or none."""
    restart_positions: bool = False
    rope_theta: float = 10000.0
    rotary_scaling: dict | None = None
    """The fields of `nn.RopeScaling`; transformers gives the name rope_scaling another form."""
    hidden_act: str = "gelu"
    """gelu (exact), gelu_pytorch_tanh, also called gelu_new, relu2, or gated: swiglu or geglu."""
    norm_type: str = "layer"
    """layer or rms."""
    norm_unit_offset: bool = False
    norm_placement: str = "pre"
    """pre, post or sandwich."""
    qk_norm: str | None = None
    """head, width or plain."""
    qk_norm_eps: float = 1e-6
    attention_scale: float | None = None
    attn_logit_softcapping: float | None = None
    sigma_reparam: bool = False
    z_loss: float = 0.0
    hidden_dropout: float = 0.0
    use_bias: bool = False
    tie_word_embeddings: bool = False
    embedding_scale: float | None = None
    """Multiplies inputs_embeds too."""
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    loss_chunk: int | None = None
    attention_backend: str = "auto"
    score_exponent: float = 1.0
    """Below 1 for a model trained with the e-exponentiated loss: logits are then transformed output scores."""
    score_linear_below: float = 0.01
    final_logit_softcapping: float | None = None
    attention_smoothing: int | None = None
    """Width of LaS smoothing."""
    attention_smoothing_side: str = "causal"
    attention_smoothing_stage: str = "after"
    """after the softmax (smoothed values) or before it (smoothed keys)."""
    attention_chunk: int | None = None
    """Attention within chunks of this many positions; `generate` then needs use_cache=False."""

    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for name, value in kwargs.items() if self.transformers_version is None else ():  # what was saved had no effect
            if name in _ELSEWHERE and value is not None:
                raise ValueError(f"{name} must be left out, got {value!r}: LongShortConfig calls it {_ELSEWHERE[name]}")
        check_count("hidden_size", self.hidden_size)
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        for name in ("head_windows", "head_decays", "head_slopes", "head_firsts"):
            rows = getattr(self, name)
            if rows is not None and not (_is_list(rows) and all(map(_is_list, rows))):
                raise ValueError(f"{name} must be None or a list for each layer, got {rows!r}")
            setattr(self, name, rows if rows is None else [list(row) for row in rows])
        super().__post_init__(**kwargs)
        self.to_gpt()  # raises if the fields do not make a model

    def to_dict(self) -> dict[str, Any]:
        """As in transformers. PEFT calls it before it looks up which modules its adapters go to."""
        _name_modules_to_peft()
        return super().to_dict()

    @classmethod
    def from_gpt(cls, config: GPTConfig, **more: Any) -> LongShortConfig:
        """The same model in Hugging Face's terms; `more` are fields that `GPTConfig` lacks, such as `eos_token_id`.

        >>> LongShortConfig.from_gpt(GPTConfig.preset("paper-6m"), eos_token_id=0).local_window
        50
        """
        values = {theirs: getattr(config, ours) for ours, theirs in _NAMES.items()}
        values |= {theirs: getattr(config.loss, ours) for ours, theirs in _LOSS_NAMES.items()}
        values["hidden_act"] = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}[config.mlp]
        values["intermediate_size"] = config.mlp_width
        values["rotary_scaling"] = config.rope_scaling and config.rope_scaling.to_dict()
        values["layer_reach"] = config.to_dict()["reach"]
        plans = config.plans if config.plan is None else (config.plan,) * config.n_layers
        if plans is not None:
            values["head_windows"] = [list(plan.windows) for plan in plans]
            for name, none in (("decays", 0.0), ("slopes", 0.0), ("firsts", 0)):
                given = [getattr(plan, name) for plan in plans]
                if any(row is not None for row in given):
                    values[f"head_{name}"] = [list(row or (none,) * config.n_heads) for row in given]
        return cls(**values, **more)

    def to_gpt(self) -> GPTConfig:
        """The configuration to build a `GPT` from; an error names the fields of this class."""
        values = {ours: getattr(self, theirs) for ours, theirs in _NAMES.items()}
        values["mlp"] = _ACTIVATIONS.get(self.hidden_act) if isinstance(self.hidden_act, str) else None
        if values["mlp"] is None:
            raise ValueError(f"hidden_act must be one of {', '.join(_ACTIVATIONS)}, got {self.hidden_act!r}")
        if self.num_key_value_heads == self.num_attention_heads:
            values["n_kv_heads"] = None  # the same, said as a `GPTConfig` says it
        size = self.intermediate_size
        multiple, rest = divmod(size, max(self.hidden_size, 1)) if is_int(size) else (0, 0)
        values |= {"ff_width": size} if rest or not multiple else {"ff_multiplier": multiple}
        try:
            loss = LossSettings(**{ours: getattr(self, theirs) for ours, theirs in _LOSS_NAMES.items()})
            config = GPTConfig(**values, loss=loss)
            plans = self._plans(config)
            return config if plans is None else replace(config, n_global=None, window=None, plans=plans)
        except ValueError as error:
            raise ValueError(_in_these_terms(str(error))) from None

    def _plans(self, config: GPTConfig) -> tuple[HeadPlan, ...] | None:
        """A plan per layer if `head_windows`, `head_decays`, `head_slopes` or `head_firsts` is given."""
        tables = {name: getattr(self, name) for name in ("head_windows", "head_decays", "head_slopes", "head_firsts")}
        if all(rows is None for rows in tables.values()):
            return None
        for name, rows in tables.items():
            if rows is not None and [len(row) for row in rows] != [config.n_heads] * config.n_layers:
                raise ValueError(
                    f"{name} must have num_hidden_layers={config.n_layers} rows of "
                    f"num_attention_heads={config.n_heads} entries, got rows of {[len(row) for row in rows]}"
                )
        if self.head_windows is not None and config.n_global is not None:
            raise ValueError("reach must be num_global_heads and local_window, or head_windows, got both")
        windows = self.head_windows or [plan.windows for plan in config.layer_plans]
        rows = ([None] * config.n_layers if rows is None else rows for rows in list(tables.values())[1:])
        layers = zip(windows, *rows, strict=True)
        return tuple(HeadPlan(windows=w, decays=d, slopes=s, firsts=f) for w, d, s, f in layers)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _name_modules_to_peft() -> None:
    """Tell PEFT, where it was imported, which modules LoRA adapts if it is not told: as in GPT-2, q, k and v."""
    if (peft := sys.modules.get("peft.utils.constants")) is not None:
        peft.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.setdefault(LongShortConfig.model_type, ["qkv"])


def _in_these_terms(message: str) -> str:
    """An error of `GPTConfig` or its loss with this class's names: the first word, and those that begin with n_."""
    names = {field.name: field.name for field in fields(GPTConfig)} | _NAMES | _LOSS_NAMES
    names |= {"ff_width": "intermediate_size"}
    return re.sub(r"^\w+|\bn_\w+", lambda word: names.get(word[0], word[0]), message)
