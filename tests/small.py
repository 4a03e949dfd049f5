"""The model of tests that ask for no particular one: windows so short that a few dozen tokens reach past them."""

from typing import Any

from longshort import GPTConfig


def small_config(**changes: Any) -> GPTConfig:
    """Two layers of one global and three local heads, unless told otherwise."""
    fields = {"vocab_size": 256, "context": 128, "n_layers": 2, "width": 32, "n_heads": 4}
    if all(changes.get(way) is None for way in ("plan", "plans", "reach")):
        fields |= {"n_global": 1, "window": 8}
    return GPTConfig(**fields | changes)
