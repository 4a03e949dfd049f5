"""The variants that a comparison trains: each is a small change to one configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from longshort.data.tasks import classes_of
from longshort.heads import HeadPlan
from longshort.train.settings.config import TrainConfig

Change = Callable[[TrainConfig], TrainConfig]
LAS_MAX_DECAY = 0.001
"""The largest decay of the LaS variants, about what the paper's tasks were likely run with."""
LAS_WIDTH = 5
"""Smoothing width of the LaS variants; the paper pools 3 or 5 keys."""


def plain(config: TrainConfig) -> TrainConfig:
    """Plain attention, every head global: the baseline."""
    return with_plan(config, HeadPlan.full(config.model.n_heads))


def long_short(config: TrainConfig) -> TrainConfig:
    """The configuration's own plan: global heads and local ones."""
    return config


def all_local(config: TrainConfig) -> TrainConfig:
    """No global head: every head sees only the window."""
    return with_plan(config, HeadPlan(windows=(local_window(config),) * config.model.n_heads))


def layer_wise(config: TrainConfig) -> TrainConfig:
    """Local layers, every third and the last global (as Gemma 3)."""
    heads, layers = config.model.n_heads, config.model.n_layers
    local, full = HeadPlan(windows=(local_window(config),) * heads), HeadPlan.full(heads)
    plans = tuple(full if layer % 3 == 2 or layer == layers - 1 else local for layer in range(layers))
    return replace(config, model=replace(config.model, plans=plans, plan=None, reach=None, n_global=None, window=None))


def decay_only(config: TrainConfig) -> TrainConfig:
    """LaS without its smoothing: all heads but the first decay."""
    return with_plan(config, HeadPlan.las(config.model.n_heads, max_decay=LAS_MAX_DECAY))


def las(config: TrainConfig) -> TrainConfig:
    """LaS attention (arXiv 2311.16620): decays, causal smoothing."""
    return smoothed(decay_only(config))


def las_before(config: TrainConfig) -> TrainConfig:
    """LaS pooled before the softmax: decays, smoothed keys.

    Two-sided classifiers have no smoothed keys, so the reference pools their logits.
    """
    config = las(config)
    model = replace(config.model, smoothing_stage="before")
    return replace(config, model=replace(model, backend="reference") if is_two_sided(config) else model)


def smoothed(config: TrainConfig) -> TrainConfig:
    """The same configuration with smoothing: causal unless it says centred, which two-sided classifiers may."""
    return replace(config, model=replace(config.model, smoothing=LAS_WIDTH))


def with_plan(config: TrainConfig, plan: HeadPlan) -> TrainConfig:
    """The same configuration with one plan for all layers."""
    return replace(config, model=replace(config.model, plan=plan, plans=None, reach=None, n_global=None, window=None))


def local_window(config: TrainConfig) -> int:
    """The smallest window among the configuration's heads."""
    windows = [w for plan in config.model.layer_plans for w in plan.windows if w is not None]
    if not windows:
        raise ValueError("the configuration has no local head: set model.n_global and model.window")
    return min(windows)


def is_two_sided(config: TrainConfig) -> bool:
    """Whether it trains a classifier that sees both sides."""
    task = config.task
    return task.name is not None and not task.causal and classes_of(task.name) is not None


def _smoothing_only(config: TrainConfig) -> TrainConfig:
    """LaS without its decays: plain attention, smoothed."""
    return smoothed(plain(config))


def _local_smoothed(config: TrainConfig) -> TrainConfig:
    """The configuration's own plan, with LaS's smoothing."""
    return smoothed(config)


def _z_loss(config: TrainConfig) -> TrainConfig:
    """Plain attention, with a z-loss of 1e-4 on the output logits."""
    config = plain(config)
    return replace(config, model=replace(config.model, loss=replace(config.loss, z_loss=1e-4)))


def _plain_with(section: str, what: str, **values: object) -> Change:
    def change(config: TrainConfig) -> TrainConfig:
        config = plain(config)
        return replace(config, **{section: replace(getattr(config, section), **values)})

    change.__doc__ = f"Plain attention, {what}."
    return change


VARIANTS: dict[str, Change] = {
    "plain": plain,
    "ls": long_short,
    "all-local": all_local,
    "layer-wise": layer_wise,
    "qk-norm-head": _plain_with("model", "queries and keys normalized per head", qk_norm="head"),
    "qk-norm-width": _plain_with("model", "queries and keys normalized over all heads", qk_norm="width"),
    "qk-norm-plain": _plain_with("model", "queries and keys normalized without a gain", qk_norm="plain"),
    "softcap": _plain_with("model", "logits capped at 50 by tanh", softcap=50.0),
    "sigma-reparam": _plain_with("model", "linear layers at a learned spectral norm", sigma_reparam=True),
    "z-loss": _z_loss,
    "qk-clip": _plain_with("stability", "each head's largest logit clipped at 100", qk_clip=100.0),
    "adagc": _plain_with("stability", "each tensor's gradient clipped by its past", clip="tensor"),
    "las": las,
    "decay-only": decay_only,
    "smoothing-only": _smoothing_only,
    "las-before": las_before,
    "ls-smooth": _local_smoothed,
}
"""Every variant by name. Apart from those with local heads and LaS, each changes one thing about plain attention."""


def every(config: TrainConfig) -> list[str]:
    """The variants of `all`: not those that form whole attention matrices, as las-before does to both sides."""
    return [name for name in VARIANTS if name != "las-before" or not is_two_sided(config)]


def described(name: str) -> str:
    """What a variant is, in one line.

    >>> described("plain")
    'Plain attention, every head global: the baseline.'
    """
    return (VARIANTS[name].__doc__ or "").split("\n")[0]
