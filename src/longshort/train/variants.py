"""The variants of a comparison: ways to give a model its attention, each a small change to one configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from longshort.heads import HeadPlan
from longshort.train import TrainConfig

LAS_MAX_DECAY = 0.001
"""The largest decay of the LaS variants; of the size that the paper's tasks were likely run with."""
LAS_WIDTH = 5
"""Smoothing of the LaS variants; the paper pools 3 or 5 keys."""


def plain(config: TrainConfig) -> TrainConfig:
    """Every head global, nothing else: the baseline."""
    return with_plan(config, HeadPlan.full(config.model.n_heads))


def long_short(config: TrainConfig) -> TrainConfig:
    """The configuration's own plan: a few global heads, the rest local."""
    return config


def all_local(config: TrainConfig) -> TrainConfig:
    """No global head."""
    return with_plan(config, HeadPlan(windows=(local_window(config),) * config.model.n_heads))


def layer_wise(config: TrainConfig) -> TrainConfig:
    """Whole layers local, every third one and the last global, as in models that alternate by layer (Gemma 3)."""
    heads, layers = config.model.n_heads, config.model.n_layers
    local, full = HeadPlan(windows=(local_window(config),) * heads), HeadPlan.full(heads)
    plans = tuple(full if layer % 3 == 2 or layer == layers - 1 else local for layer in range(layers))
    return replace(config, model=replace(config.model, plans=plans, plan=None, n_global=None, window=None))


def decay_only(config: TrainConfig) -> TrainConfig:
    """LaS without its smoothing: every head global, all but the first decaying."""
    return with_plan(config, HeadPlan.las(config.model.n_heads, max_decay=LAS_MAX_DECAY))


def las(config: TrainConfig) -> TrainConfig:
    """LaS attention (arXiv 2311.16620) in its causal form: decays, and one-sided smoothing."""
    return smoothed(decay_only(config))


def las_before(config: TrainConfig) -> TrainConfig:
    """LaS with the logits pooled before the softmax, as one summary of the paper has it: dense, by the reference."""
    config = las(config)
    return replace(config, model=replace(config.model, smoothing_stage="before", backend="reference"))


def smoothed(config: TrainConfig) -> TrainConfig:
    """The same configuration with smoothing: one-sided, unless it says centred, as a two-sided classifier's may."""
    return replace(config, model=replace(config.model, smoothing=LAS_WIDTH))


def with_plan(config: TrainConfig, plan: HeadPlan) -> TrainConfig:
    """The same configuration with one plan for all layers."""
    return replace(config, model=replace(config.model, plan=plan, plans=None, n_global=None, window=None))


def local_window(config: TrainConfig) -> int:
    """The smallest window among the configuration's heads."""
    windows = [w for plan in config.model.layer_plans for w in plan.windows if w is not None]
    if not windows:
        raise ValueError("the configuration has no local head: set model.n_global and model.window")
    return min(windows)


def _plain_with(**model: object) -> Callable[[TrainConfig], TrainConfig]:
    def change(config: TrainConfig) -> TrainConfig:
        config = plain(config)
        return replace(config, model=replace(config.model, **model))  # type: ignore[arg-type]

    return change


def _plain_with_z_loss(config: TrainConfig) -> TrainConfig:
    return _plain_with(loss=replace(config.loss, z_loss=1e-4))(config)


def _plain_and(**stability: object) -> Callable[[TrainConfig], TrainConfig]:
    def change(config: TrainConfig) -> TrainConfig:
        config = plain(config)
        return replace(config, stability=replace(config.stability, **stability))  # type: ignore[arg-type]

    return change


VARIANTS: dict[str, Callable[[TrainConfig], TrainConfig]] = {
    "plain": plain,
    "ls": long_short,
    "all-local": all_local,
    "layer-wise": layer_wise,
    "qk-norm-head": _plain_with(qk_norm="head"),
    "qk-norm-width": _plain_with(qk_norm="width"),
    "qk-norm-plain": _plain_with(qk_norm="plain"),
    "softcap": _plain_with(softcap=50.0),
    "sigma-reparam": _plain_with(sigma_reparam=True),
    "z-loss": _plain_with_z_loss,
    "qk-clip": _plain_and(qk_clip=100.0),
    "adagc": _plain_and(clip="tensor"),
    "las": las,
    "decay-only": decay_only,
    "smoothing-only": lambda config: smoothed(plain(config)),
    "las-before": las_before,
    "ls-smooth": smoothed,
}
"""Every variant by name. All but those with local heads or of LaS have plain attention, so that one thing differs."""

EXPERIMENTAL = ("las-before",)
"""Arms that are only run when asked for by name: this one forms whole attention matrices."""
