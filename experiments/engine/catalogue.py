"""Every recipe by name."""

from __future__ import annotations

from experiments import (
    corrupted_tokens,
    degrees_of_freedom,
    explosion,
    heads_and_window,
    label_noise,
    las_books,
    las_gain,
    las_sweep,
    latency,
    long_range,
    long_runs,
    loss_landscape,
    lr_sensitivity,
    positions,
    recall,
    stabilizers,
)
from experiments.engine.recipe import Recipe

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        explosion.RECIPE,
        stabilizers.RECIPE,
        lr_sensitivity.RECIPE,
        heads_and_window.RECIPE,
        degrees_of_freedom.RECIPE,
        positions.RECIPE,
        latency.RECIPE,
        long_runs.ENDURANCE,
        long_runs.SCALE,
        label_noise.RECIPE,
        corrupted_tokens.RECIPE,
        loss_landscape.RECIPE,
        long_range.RECIPE,
        las_sweep.RECIPE,
        las_gain.RECIPE,
        las_books.RECIPE,
        recall.RECIPE,
    )
}
