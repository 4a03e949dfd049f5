"""The configuration of a GPT: one frozen record that validates itself, converts to JSON and back, and has presets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeGuard

from longshort.heads import HeadPlan
from longshort.losses import LossSettings
from longshort.nn.block import ACTIVATIONS
from longshort.nn.norms import QK_NORMS
from longshort.ops.api import BACKENDS
from longshort.ops.smoothing import SIDES, STAGES
from longshort.reach import LayerReach, resolve
from longshort.spelling import check_fields

POSITIONS = ("learned", "rotary", "sinusoidal", "alibi", "none")
LOSS_ALIASES = {"z_loss": "z_loss", "loss_chunk": "chunk"}
"""Fields of `GPTConfig` in older files and code, and the fields of `loss` that replaced them."""


def _taking_loss_aliases(cls: type[GPTConfig]) -> type[GPTConfig]:
    """The class with an `__init__` that accepts `LOSS_ALIASES` too.

    They are not fields: `dataclasses.replace` would pass each old value along with a new `loss`.
    """
    init = cls.__init__

    @functools.wraps(init)
    def with_aliases(self: GPTConfig, **values: Any) -> None:
        init(self, **_with_one_loss(values))

    cls.__init__ = with_aliases  # type: ignore[method-assign]
    return cls


@_taking_loss_aliases
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
    """Hidden features of the MLP, as a multiple of the width."""
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
    activation: str = "gelu"
    """gelu (exact) or gelu_tanh (GPT-2's approximation)."""
    qk_norm: str | None = None
    """RMS norm of queries and keys: head (per head, with gain), width (over all heads, with gain), plain (no gain)."""
    softcap: float | None = None
    """Attention logits become softcap * tanh(logits / softcap); off if None."""
    sigma_reparam: bool = False
    """Hold every linear layer of the blocks at a learned spectral norm; a training loop of your own must call
    `nn.update_sigma` after each optimizer step."""
    loss: LossSettings = field(default_factory=LossSettings)
    """Settings of the loss, which the logits match; `z_loss` and `loss_chunk` are older names of two of them."""
    dropout: float = 0.0
    """Dropout rate of the embeddings and of the output of each attention and MLP."""
    bias: bool = False
    """Give the linear layers and norms biases; the output head never has one."""
    tie_embeddings: bool = False
    """Use the embedding matrix as the output head."""
    norm_eps: float = 1e-5
    """Epsilon of the layer norms."""
    init_std: float = 0.02
    """Standard deviation of the initial weights; divided by sqrt(2 n_layers) where a layer writes to the residual."""
    backend: str = "auto"
    """Backend of the attention op; sdpa and flex, PyTorch's own, are for comparison and give no logit statistics."""
    smoothing: int | None = None
    """Width of LaS smoothing: each value is averaged with the ones before it; no smoothing if None or 1."""
    smoothing_side: str = "causal"
    """Values that smoothing averages: causal (those before) or centred (both sides; classifiers only)."""
    smoothing_stage: str = "after"
    """Smooth after the softmax or before it (pooled logits, an experiment that needs the reference backend)."""
    attention_chunk: int | None = None
    """Keep attention within chunks of this many positions, which rules out a cache; the whole sequence if None."""

    def __post_init__(self) -> None:
        if isinstance(self.plans, list):
            object.__setattr__(self, "plans", tuple(self.plans))
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
        if any(overrides.get(way) is not None for way in ("plan", "plans", "reach")):
            del base["n_global"], base["window"]
        return cls.from_dict(base | overrides)

    @property
    def z_loss(self) -> float:
        """Alias of `loss.z_loss`."""
        return self.loss.z_loss

    @property
    def loss_chunk(self) -> int | None:
        """Alias of `loss.chunk`."""
        return self.loss.chunk

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
        values["reach"] = [layer.to_dict() for layer in self.reach] if isinstance(self.reach, tuple) else None
        return values

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GPTConfig:
        """The inverse of `to_dict`; plans and the loss may also be `HeadPlan` and `LossSettings` objects."""
        check_fields("GPTConfig", (key for key in data if key not in LOSS_ALIASES), [f.name for f in fields(cls)])
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

_PAPER = {"vocab_size": 10_000, "context": 2048, "n_global": 1}
_GPT2 = {
    "vocab_size": 50_257,
    "context": 1024,
    "n_global": 1,
    "window": 128,
    "activation": "gelu_tanh",
    "bias": True,
    "tie_embeddings": True,
}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"vocab_size": 257, "context": 512, "n_layers": 2, "width": 64, "n_heads": 4, "n_global": 1, "window": 16},
    "paper-6m": _PAPER | {"n_layers": 6, "width": 192, "n_heads": 6, "window": 50},
    "paper-12l-768": _PAPER | {"n_layers": 12, "width": 768, "n_heads": 12, "window": 100},
    "gpt2-small": _GPT2 | {"n_layers": 12, "width": 768, "n_heads": 12},
    "gpt2-medium": _GPT2 | {"n_layers": 24, "width": 1024, "n_heads": 16},
}
"""The paper's models (arXiv 2505.15548, as in the author's code), GPT-2's sizes with LS-attention, and `tiny`, which a
laptop trains on bytes in the configuration of that name.

GPT-2's vocabulary stays at 50,257, as in its tokenizer and checkpoints; `vocab_size=50304` is a multiple of 64.
"""


def _with_one_loss(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the loss as one record. An alias at its default, which older files spell out, is ignored."""
    loss = values.get("loss", LossSettings())
    loss = LossSettings.from_dict(loss) if isinstance(loss, Mapping) else loss
    _check("loss", loss, "a LossSettings", isinstance(loss, LossSettings))
    for alias, name in LOSS_ALIASES.items():
        default, own = getattr(LossSettings(), name), getattr(loss, name)
        value = values.get(alias, default)
        if value != default and own not in (default, value):
            raise ValueError(f"{alias}={value!r} and loss.{name}={own!r} set the same thing; give loss.{name} alone")
        loss = loss if value == default else replace(loss, **{name: value})
    return {name: value for name, value in values.items() if name not in LOSS_ALIASES} | {"loss": loss}


class Range(NamedTuple):
    """What a value must be, in words and as a test that NaN fails."""

    words: str
    holds: Callable[[Any], bool]


def _count(most: int = 2**31 - 1, words: str = "2^31 - 1") -> Range:
    return Range(f"an integer from 1 to {words}", lambda value: _is_count(value) and value <= most)


def _one_of(choices: Iterable[str]) -> Range:
    return Range(f"one of {', '.join(choices)}", lambda value: value in tuple(choices))


def _optional(right: Range) -> Range:
    return Range(f"None or {right.words}", lambda value: value is None or right.holds(value))


_POSITIVE = Range("a number from 1e-30 to 1e+30", lambda value: _is_real(value) and 1e-30 <= value <= 1e30)
"""Kernels hold it, and its inverse, in fp32."""
_SWITCH = Range("True or False", lambda value: isinstance(value, bool))
_PLANNED = _count(10_000, "10,000")
"""A plan has an entry for each head, and a model a block for each layer; kernels hold other counts in 32 bits."""

RANGES: dict[str, Range] = {
    "vocab_size": _count(),
    "context": _count(),
    "n_layers": _PLANNED,
    "width": _count(),
    "n_heads": _PLANNED,
    "n_kv_heads": _optional(_count()),
    "head_dim": _optional(_count()),
    "ff_multiplier": _count(),
    "window": _optional(_count()),
    "positions": _one_of(POSITIONS),
    "restart_positions": _SWITCH,
    "rope_theta": _POSITIVE,
    "activation": _one_of(ACTIVATIONS),
    "qk_norm": _optional(_one_of(QK_NORMS)),
    "softcap": _optional(_POSITIVE),
    "sigma_reparam": _SWITCH,
    "dropout": Range("a number from 0 to 1, 1 excluded", lambda value: _is_real(value) and 0 <= value < 1),
    "bias": _SWITCH,
    "tie_embeddings": _SWITCH,
    "norm_eps": _POSITIVE,
    "init_std": _POSITIVE,
    "backend": _one_of(BACKENDS),
    "smoothing": _optional(_count()),
    "smoothing_side": _one_of(SIDES),
    "smoothing_stage": _one_of(STAGES),
    "attention_chunk": _optional(_count()),
}
"""What each field must be on its own; the reach of the heads and the loss are checked separately."""


def _check_fields(config: GPTConfig) -> None:
    for name, right in RANGES.items():
        _check(name, getattr(config, name), right.words, right.holds(getattr(config, name)))
    if config.smoothing_side == "centred":
        odd = config.smoothing is None or config.smoothing % 2
        _check("smoothing", config.smoothing, "odd where smoothing_side is centred", odd)


def _check_reach(config: GPTConfig) -> None:
    heads, kv_heads = config.n_heads, config.n_kv_heads or config.n_heads
    _check("n_kv_heads", kv_heads, f"a divisor of n_heads={heads}", heads % kv_heads == 0)
    if config.head_dim is None:
        _check("width", config.width, f"a multiple of n_heads={heads}, or head_dim set", config.width % heads == 0)
    head_dim = config.head_dim or config.width // heads
    if config.positions == "rotary":
        _check("head_dim", head_dim, "even with rotary positions", head_dim % 2 == 0)
    if config.positions == "sinusoidal":
        _check("width", config.width, "even with sinusoidal positions", config.width % 2 == 0)
    group = heads // kv_heads
    if config.n_global is not None:
        # Otherwise the cache would keep everything of a KV head for the sake of some of its query heads.
        whole = config.n_global % group == 0
        _check("n_global", config.n_global, f"a multiple of n_heads / n_kv_heads = {group}", whole)
        return
    if isinstance(config.reach, tuple) and config.positions != "rotary":
        right = "rotary for the bases or shares of rotation in reach"
        _check("positions", config.positions, right, all(layer.rotates_alike for layer in config.reach))
    by_layer = config.plans is not None or config.reach is not None
    for layer, plan in enumerate(config.layer_plans if by_layer else config.layer_plans[:1]):
        name = "plan" if not by_layer else f"plans[{layer}]" if config.reach is None else f"reach[{layer}]"
        _check(name, plan, f"a HeadPlan of n_heads={heads} heads", plan.n_heads == heads)
        alike = all(plan[first : first + group].n_global in (0, group) for first in range(0, heads, group))
        _check(name, plan, f"all global or all local in each {group} query heads that share a KV head", alike)


def _check_one_way_of_reach(config: GPTConfig) -> None:
    ways = [name for name in ("n_global", "plan", "plans", "reach") if getattr(config, name) is not None]
    if len(ways) > 1:
        given = " and ".join(ways)
        raise ValueError(f"heads must have their reach by n_global and window, plan, plans, or reach, got {given}")
    n_global, window, plans = config.n_global, config.window, config.plans
    if n_global is None:
        _check("window", window, "None unless n_global is set", window is None)
    else:
        in_range = isinstance(n_global, int) and not isinstance(n_global, bool) and 0 <= n_global <= config.n_heads
        _check("n_global", n_global, f"None or an integer from 0 to n_heads={config.n_heads}", in_range)
        _check("window", window, "an integer >= 1 where some heads are local", window or n_global == config.n_heads)
    _check("plan", config.plan, "None or a HeadPlan", config.plan is None or isinstance(config.plan, HeadPlan))
    if plans is not None:
        right = isinstance(plans, tuple) and all(isinstance(plan, HeadPlan) for plan in plans)
        _check("plans", plans, "None or a tuple of HeadPlans", right)
        _check("plans", len(plans), f"one plan for each of n_layers={config.n_layers}", len(plans) == config.n_layers)


def _check(name: str, value: object, right: str, holds: object) -> None:
    if not holds:
        raise ValueError(f"{name} must be {right}, got {value!r}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_real(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
