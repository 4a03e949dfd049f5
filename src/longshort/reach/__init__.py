"""The reach of a whole model: what the heads of each layer may see, and how they tell positions apart.

`HeadPlan` says what a head may see. `LayerReach` adds rotary bases, heads without rotation, the temperature of the
queries and sinks; a model's reach is one of them per layer. Patterns make it in one call, `like` after a published
model, `budget` within a budget of cache or FLOPs. Pure data and validation.

>>> from longshort import reach
>>> layers = reach.interleave("LLG", 64, n_layers=6, n_heads=4, dual_rope=True)
>>> [layer.plan.n_global for layer in layers]
[0, 0, 4, 0, 0, 4]
>>> reach.like("gemma-3", n_layers=12, n_heads=4) == reach.interleave(
...     "LLLLLG", 1024, n_layers=12, n_heads=4, dual_rope=True
... )
True
"""

from longshort.reach.budgets import Choice, budget
from longshort.reach.costs import Costs, costs
from longshort.reach.layer import LayerReach, QueryTemperature, Rotation
from longshort.reach.notation import PATTERNS, resolve
from longshort.reach.patterns import full, interleave, ladder, long_short, ramp, streaming
from longshort.reach.published import MODELS, Published, like

__all__ = [
    "MODELS",
    "PATTERNS",
    "Choice",
    "Costs",
    "LayerReach",
    "Published",
    "QueryTemperature",
    "Rotation",
    "budget",
    "costs",
    "full",
    "interleave",
    "ladder",
    "like",
    "long_short",
    "ramp",
    "resolve",
    "streaming",
]
