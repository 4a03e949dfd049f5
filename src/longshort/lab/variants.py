"""The arms of a comparison: ways to give a model its attention, each a small change to one configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from longshort.heads import HeadPlan
from longshort.train import TrainConfig


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
    "z-loss": _plain_with(z_loss=1e-4),
    "qk-clip": _plain_and(qk_clip=100.0),
    "adagc": _plain_and(clip="tensor"),
}
"""Every arm by name. All but ls, all-local and layer-wise have plain attention, so that one thing differs."""
