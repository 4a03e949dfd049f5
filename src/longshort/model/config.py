"""The configuration of a GPT: one frozen record that validates itself, converts to JSON and back, and has presets."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from longshort.heads import HeadPlan
from longshort.losses import LossSettings
from longshort.model.presets import PRESETS
from longshort.nn.block import ACTIVATIONS, GATED, PLACEMENTS
from longshort.nn.norms import NORMS, QK_NORMS
from longshort.nn.positions import RopeScaling
from longshort.numeric import is_int, is_real
from longshort.ops.api import BACKENDS
from longshort.ops.smoothing import SIDES, STAGES
from longshort.ranges import SWITCH, Range, check, count, one_of, optional
from longshort.reach import LayerReach, resolve
from longshort.spelling import check_fields

POSITIONS = ("learned", "rotary", "sinusoidal", "alibi", "none")
LOSS_ALIASES = {"z_loss": "z_loss", "loss_chunk": "chunk", "logit_softcap": "logit_softcap"}
"""What `GPTConfig` takes besides its fields, and the fields of `loss` that they set; the first two are older names."""
MLP_ALIAS = "activation"
"""The name of `mlp` in older files and code, when it was one of the first two kinds."""


def _taking_aliases(cls: type[GPTConfig]) -> type[GPTConfig]:
    """The class with an `__init__` that accepts `LOSS_ALIASES` and `MLP_ALIAS` too.

    They are not fields: `dataclasses.replace` would pass each old value along with a new `loss` or `mlp`.
    """
    init = cls.__init__

    @functools.wraps(init)
    def with_aliases(self: GPTConfig, **values: Any) -> None:
        init(self, **_with_one_loss(with_one_mlp(values)))

    cls.__init__ = with_aliases  # type: ignore[method-assign]
    return cls


WAYS_OF_REACH = {"n_global": ("n_global", "window"), "plan": ("plan",), "plans": ("plans",), "reach": ("reach",)}
"""How heads are given their reach, with the fields that each way takes."""


@_taking_aliases
@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """What a GPT is made of. Fields are given by keyword; `GPTConfig.preset` has named sizes.

    The reach of the heads is given in one of four ways: `n_global` and `window` for all layers, one `plan` for all
    layers, `plans`, one per layer, or `reach`, a pattern. With none of them, every head is global: plain multi-head
    attention.

    >>> config = GPTConfig(vocab_size=256, context=512, n_layers=2, width=64, n_heads=4, n_global=1, window=32)
    >>> config.layer_plans[0].windows
    (None, 32, 32, 32)
    >>> GPTConfig.from_dict(config.to_dict()) == config
    True
    """

    vocab_size: int
    """Number of tokens in the vocabulary."""
    context: int
    """Longest sequence in training; with learned positions, the longest the model can take."""
    n_layers: int
    """Number of blocks."""
    width: int
    """Features of the residual stream."""
    n_heads: int
    """Query heads per layer."""
    n_kv_heads: int | None = None
    """Key/value heads per layer, a divisor of n_heads (grouped queries); n_heads if None."""
    head_dim: int | None = None
    """Features per head; width / n_heads if None."""
    ff_multiplier: int = 4
    """Hidden features of the MLP, as a multiple of the width, unless ff_width is set."""
    ff_width: int | None = None
    """Hidden features of the MLP; ff_multiplier * width if None."""
    n_global: int | None = None
    """Global heads per layer; they come first."""
    window: int | None = None
    """Keys that each local head sees, the current one included."""
    plan: HeadPlan | None = None
    """Reach of each head, the same in all layers."""
    plans: tuple[HeadPlan, ...] | None = None
    """Reach of each head, layer by layer."""
    reach: str | Mapping[str, Any] | tuple[LayerReach, ...] | None = None
    """Reach of the whole model: a pattern or a published model by name, or with arguments; kept as one entry per
    layer. See `longshort.reach`."""
    positions: str = "learned"
    """learned (a table added to the input), rotary, sinusoidal (fixed, added to the input), alibi or none."""
    restart_positions: bool = False
    """Count positions from 0 in each segment, so that they do not depend on where a document is packed."""
    rope_theta: float = 10000.0
    """Base of the rotary angles."""
    rope_scaling: RopeScaling | None = None
    """How the rotary angles are slowed for sequences longer than those of training: kind (linear, llama3 or
    yarn), factor, heads and more, see `RopeScaling`; not at all if None."""
    mlp: str = "gelu"
    """gelu (exact), gelu_tanh (GPT-2's approximation), relu2 (the square of ReLU), or gated, with a third
    matrix: swiglu (Llama) or geglu (Gemma). `activation` is an older name."""
    norm: str = "layer"
    """Norm of the residual stream: layer (LayerNorm) or rms (RMSNorm)."""
    norm_unit_offset: bool = False
    """Store the gains of the RMS norms as their difference from 1, as Gemma does; not those of QK-norm."""
    norm_placement: str = "pre"
    """Norms of what attention and MLP read (pre: GPT-2, Llama), of what they write (post: Olmo 2), or of both
    (sandwich: Gemma 2). The last block's output is normalised in any case."""
    qk_norm: str | None = None
    """RMS norm of queries and keys: head (per head, with gain), width (over all heads, with gain), plain (no gain)."""
    qk_norm_eps: float = 1e-6
    """Epsilon of QK-norm."""
    attention_scale: float | None = None
    """Factor of q . k in the attention logits; 1 / sqrt(head_dim) if None."""
    softcap: float | None = None
    """Attention logits become softcap * tanh(logits / softcap); off if None."""
    sigma_reparam: bool = False
    """Hold every linear layer of the blocks at a learned spectral norm; a training loop of your own must call
    `nn.update_sigma` after each optimizer step."""
    loss: LossSettings = field(default_factory=LossSettings)
    """Settings of the loss, which the logits match. `logit_softcap` may be given in its place for that setting alone;
    `z_loss` and `loss_chunk` are older names of two others."""
    dropout: float = 0.0
    """Dropout rate of the embeddings and of the output of each attention and MLP."""
    bias: bool = False
    """Give the linear layers and layer norms biases; RMS norms and the output head never have one."""
    tie_embeddings: bool = False
    """Use the embedding matrix as the output head."""
    embedding_scale: float | None = None
    """Factor of the token embeddings on their way in, such as Gemma's sqrt(width); the tied head is not scaled."""
    norm_eps: float = 1e-5
    """Epsilon of the norms of the residual stream."""
    init_std: float = 0.02
    """Standard deviation of the initial weights; divided by sqrt(2 n_layers) where a layer writes to the residual."""
    backend: str = "auto"
    """Backend of the attention op; sdpa and flex, PyTorch's own, are for comparison and give no logit statistics."""
    smoothing: int | None = None
    """Width of LaS smoothing: each value is averaged with the ones before it; no smoothing if None or 1."""
    smoothing_side: str = "causal"
    """Values that smoothing averages: causal (those before), centred (both sides; classifiers only) or leading (those
    after; classifiers, or before the softmax with the reference backend)."""
    smoothing_stage: str = "after"
    """Smooth after the softmax (the values) or before it (the logits, by smoothing the keys in the same way)."""
    attention_chunk: int | None = None
    """Keep attention within chunks of this many positions, which rules out a cache; the whole sequence if None."""

    def __post_init__(self) -> None:
        if isinstance(self.plans, list):
            object.__setattr__(self, "plans", tuple(self.plans))
        if isinstance(self.rope_scaling, Mapping):
            object.__setattr__(self, "rope_scaling", RopeScaling.from_dict(self.rope_scaling))
        _check_fields(self)
        _check_one_way_of_reach(self)
        if self.reach is not None:
            sizes = {name: getattr(self, name) for name in ("n_layers", "n_heads", "n_kv_heads", "context")}
            object.__setattr__(self, "reach", resolve(self.reach, **sizes))
        _check_reach(self)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> GPTConfig:
        """A named size, with some fields overridden; see `PRESETS`.

        >>> GPTConfig.preset("paper-6m").layer_plans[0] == HeadPlan.long_short(n_heads=6, n_global=1, window=50)
        True
        >>> GPTConfig.preset("paper-6m", plan=HeadPlan.full(6)).layer_plans[0].n_global  # plain attention
        6
        """
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
        base = dict(PRESETS[name])
        if any(overrides.get(way) is not None for way in WAYS_OF_REACH if way != "n_global"):
            for key in WAYS_OF_REACH["n_global"]:
                del base[key]
        return cls.from_dict(base | with_one_mlp(overrides))

    @property
    def z_loss(self) -> float:
        """Alias of `loss.z_loss`."""
        return self.loss.z_loss

    @property
    def loss_chunk(self) -> int | None:
        """Alias of `loss.chunk`."""
        return self.loss.chunk

    @property
    def logit_softcap(self) -> float | None:
        """Alias of `loss.logit_softcap`."""
        return self.loss.logit_softcap

    @property
    def activation(self) -> str:
        """Alias of `mlp`."""
        return self.mlp

    @property
    def mlp_width(self) -> int:
        """Hidden features of the MLP."""
        return self.ff_width or self.ff_multiplier * self.width

    @property
    def mlp_matrices(self) -> int:
        """Matrices of width x mlp_width in an MLP: three if it is gated."""
        return 3 if self.mlp in GATED else 2

    @property
    def head_features(self) -> int:
        """Features of a head: `head_dim`, or its part of the width."""
        return self.head_dim or self.width // self.n_heads

    @property
    def layer_plans(self) -> tuple[HeadPlan, ...]:
        """The plan of each layer, with ALiBi slopes added if positions are alibi and the plan has none."""
        if isinstance(self.reach, tuple):
            plans = tuple(layer.plan for layer in self.reach)
        elif self.plans is not None:
            plans = self.plans
        elif self.plan is not None:
            plans = (self.plan,) * self.n_layers
        elif self.n_global is None or self.window is None:
            plans = (HeadPlan.full(self.n_heads),) * self.n_layers
        else:
            plans = (HeadPlan.long_short(self.n_heads, self.n_global, self.window),) * self.n_layers
        if self.positions == "alibi":
            plans = tuple(plan.with_alibi() if plan.slopes is None else plan for plan in plans)
        return plans

    @property
    def layer_reaches(self) -> tuple[LayerReach, ...]:
        """The reach of each layer: its plan, as in `layer_plans`, and how its heads tell positions apart."""
        if not isinstance(self.reach, tuple):
            return tuple(LayerReach(plan=plan) for plan in self.layer_plans)
        return tuple(replace(layer, plan=plan) for layer, plan in zip(self.reach, self.layer_plans, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON or YAML."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["loss"] = self.loss.to_dict()
        values["plan"] = self.plan and self.plan.to_dict()
        values["plans"] = self.plans and [plan.to_dict() for plan in self.plans]
        values["rope_scaling"] = self.rope_scaling and self.rope_scaling.to_dict()
        values["reach"] = [layer.to_dict() for layer in self.reach] if isinstance(self.reach, tuple) else None
        return values

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GPTConfig:
        """The inverse of `to_dict`; plans and the loss may also be `HeadPlan` and `LossSettings` objects."""
        aliases = (*LOSS_ALIASES, MLP_ALIAS)
        check_fields("GPTConfig", (key for key in data if key not in aliases), [f.name for f in fields(cls)])
        missing = [name for name in _REQUIRED if name not in data]
        if missing:
            raise ValueError(f"GPTConfig needs a value for {', '.join(missing)}")
        values = dict(data)
        if isinstance(values.get("plan"), Mapping):
            values["plan"] = HeadPlan.from_dict(values["plan"])
        if isinstance(values.get("plans"), list | tuple):
            values["plans"] = tuple(HeadPlan.from_dict(p) if isinstance(p, Mapping) else p for p in values["plans"])
        return cls(**values)


_REQUIRED = ("vocab_size", "context", "n_layers", "width", "n_heads")


def _with_one_loss(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the loss as one record. An alias at its default, which older files spell out, is ignored."""
    loss = values.get("loss", LossSettings())
    loss = LossSettings.from_dict(loss) if isinstance(loss, Mapping) else loss
    check("loss", loss, "a LossSettings", isinstance(loss, LossSettings))
    for alias, name in LOSS_ALIASES.items():
        default, own = getattr(LossSettings(), name), getattr(loss, name)
        value = values.get(alias, default)
        if value != default and own not in (default, value):
            raise ValueError(f"{alias}={value!r} and loss.{name}={own!r} set the same thing; give loss.{name} alone")
        loss = loss if value == default else replace(loss, **{name: value})
    return {name: value for name, value in values.items() if name not in LOSS_ALIASES} | {"loss": loss}


def with_one_mlp(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with `activation` under its present name, `mlp`."""
    values = dict(values)
    if MLP_ALIAS not in values:
        return values
    activation, mlp = values.pop(MLP_ALIAS), values.get("mlp", "gelu")
    check(MLP_ALIAS, activation, "gelu or gelu_tanh", activation in ("gelu", "gelu_tanh"))
    if mlp not in ("gelu", activation):
        raise ValueError(f"{MLP_ALIAS}={activation!r} and mlp={mlp!r} set the same thing; give mlp alone")
    return values | {"mlp": activation}


_POSITIVE = Range("a number from 1e-30 to 1e+30", lambda value: is_real(value) and 1e-30 <= value <= 1e30)
"""Kernels hold it, and its inverse, in fp32."""
_PLANNED = count(10_000, "10,000")
"""A plan has an entry for each head, and a model a block for each layer; kernels hold other counts in 32 bits."""

RANGES: dict[str, Range] = {
    "vocab_size": count(),
    "context": count(),
    "n_layers": _PLANNED,
    "width": count(),
    "n_heads": _PLANNED,
    "n_kv_heads": optional(count()),
    "head_dim": optional(count()),
    "ff_multiplier": count(),
    "ff_width": optional(count()),
    "window": optional(count()),
    "positions": one_of(POSITIONS),
    "restart_positions": SWITCH,
    "rope_theta": _POSITIVE,
    "rope_scaling": optional(
        Range("fields such as {kind: linear, factor: 4}: see RopeScaling", lambda value: isinstance(value, RopeScaling))
    ),
    "mlp": one_of(ACTIVATIONS),
    "norm": one_of(NORMS),
    "norm_unit_offset": SWITCH,
    "norm_placement": one_of(PLACEMENTS),
    "qk_norm": optional(one_of(QK_NORMS)),
    "qk_norm_eps": _POSITIVE,
    "attention_scale": optional(_POSITIVE),
    "softcap": optional(_POSITIVE),
    "sigma_reparam": SWITCH,
    "dropout": Range("a number from 0 to 1, 1 excluded", lambda value: is_real(value) and 0 <= value < 1),
    "bias": SWITCH,
    "tie_embeddings": SWITCH,
    "embedding_scale": optional(_POSITIVE),
    "norm_eps": _POSITIVE,
    "init_std": _POSITIVE,
    "backend": one_of(BACKENDS),
    "smoothing": optional(count()),
    "smoothing_side": one_of(SIDES),
    "smoothing_stage": one_of(STAGES),
    "attention_chunk": optional(count()),
}
"""What each field must be on its own; the reach of the heads and the loss are checked separately."""


def _check_fields(config: GPTConfig) -> None:
    for name, right in RANGES.items():
        right.check(name, getattr(config, name))
    scaling, rotates = config.rope_scaling, config.positions == "rotary"
    check("rope_scaling", scaling, "None unless positions are rotary", scaling is None or rotates)
    unit_offset = config.norm_unit_offset
    check("norm_unit_offset", unit_offset, "False unless norm is rms", not unit_offset or config.norm == "rms")
    if config.smoothing_side == "centred":
        odd = config.smoothing is None or config.smoothing % 2
        check("smoothing", config.smoothing, "odd where smoothing_side is centred", odd)


def _check_reach(config: GPTConfig) -> None:
    heads, kv_heads = config.n_heads, config.n_kv_heads or config.n_heads
    check("n_kv_heads", kv_heads, f"a divisor of n_heads={heads}", heads % kv_heads == 0)
    if config.head_dim is None:
        check("width", config.width, f"a multiple of n_heads={heads}, or head_dim set", config.width % heads == 0)
    head_dim = config.head_features
    if config.positions == "rotary":
        check("head_dim", head_dim, "even with rotary positions", head_dim % 2 == 0)
    if config.positions == "sinusoidal":
        check("width", config.width, "even with sinusoidal positions", config.width % 2 == 0)
    group = heads // kv_heads
    if config.n_global is not None:
        # Otherwise the cache would keep everything of a KV head for the sake of some of its query heads.
        whole = config.n_global % group == 0
        check("n_global", config.n_global, f"a multiple of n_heads / n_kv_heads = {group}", whole)
        return
    if isinstance(config.reach, tuple) and config.positions != "rotary":
        right = "rotary for nope, dual_rope and partly rotated heads in reach"
        check("positions", config.positions, right, all(layer.rotates_alike for layer in config.reach))
    for reach in config.reach if isinstance(config.reach, tuple) else ():
        reach.check_backend(config.backend)
    if config.rope_scaling is not None and config.rope_scaling.heads == "global":
        shares = {reach.global_share for reach in config.layer_reaches if reach.plan.n_global}
        check("rope_scaling.heads", "global", "all where no global head is rotated", shares != {0.0})
    by_layer = config.plans is not None or config.reach is not None
    for layer, plan in enumerate(config.layer_plans if by_layer else config.layer_plans[:1]):
        name = "plan" if not by_layer else f"plans[{layer}]" if config.reach is None else f"reach[{layer}]"
        check(name, plan, f"a HeadPlan of n_heads={heads} heads", plan.n_heads == heads)
        alike = all(plan[first : first + group].n_global in (0, group) for first in range(0, heads, group))
        check(name, plan, f"all global or all local in each {group} query heads that share a KV head", alike)


def _check_one_way_of_reach(config: GPTConfig) -> None:
    ways = [way for way in WAYS_OF_REACH if getattr(config, way) is not None]
    if len(ways) > 1:
        given = " and ".join(ways)
        raise ValueError(f"heads must have their reach by n_global and window, plan, plans, or reach, got {given}")
    n_global, window, plans = config.n_global, config.window, config.plans
    if n_global is None:
        instead = f"beside {ways[0]}, which gives heads their windows" if ways else "unless n_global is set"
        check("window", window, f"None {instead}", window is None)
    else:
        in_range = is_int(n_global) and 0 <= n_global <= config.n_heads
        check("n_global", n_global, f"None or an integer from 0 to n_heads={config.n_heads}", in_range)
        check("window", window, "an integer >= 1 where some heads are local", window or n_global == config.n_heads)
    check(
        "plan",
        config.plan,
        "None or a HeadPlan, {windows: [...]} in a file",
        config.plan is None or isinstance(config.plan, HeadPlan),
    )
    if plans is not None:
        right = isinstance(plans, tuple) and all(isinstance(plan, HeadPlan) for plan in plans)
        check("plans", plans, "None or a tuple of HeadPlans", right)
        check("plans", len(plans), f"one plan for each of n_layers={config.n_layers}", len(plans) == config.n_layers)
