"""Every recipe by name."""

from __future__ import annotations

from longshort.lab.reproduce import (
    degrees_of_freedom,
    explosion,
    heads_and_window,
    latency,
    long_range,
    long_runs,
    lr_sensitivity,
    positions,
    recall,
    stabilizers,
)
from longshort.lab.reproduce.recipe import Recipe

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
        long_range.RECIPE,
        recall.RECIPE,
    )
}
