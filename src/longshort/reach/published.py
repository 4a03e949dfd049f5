"""The patterns of published models, read from their configuration and modelling files and papers.

Only what decides a head's reach and its positions is here: sizes, norms and MLPs belong to the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from longshort.ranges import AT_LEAST_1
from longshort.reach.layer import LayerReach, QueryTemperature
from longshort.reach.patterns import interleave

Letters = Callable[[int], str]
"""The letters L and G of a model with so many layers."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """How a published model gives reach to its layers."""

    source: str
    """Where the pattern is from."""
    window: int
    """Keys that a local layer sees, the current one included."""
    letters: Letters
    """L (local) or G (global) for each layer."""
    missing: str = ""
    """What `like` does not represent; empty if nothing."""
    options: dict[str, Any]
    """Options of `interleave`."""
    local_share: float = 1.0
    global_share: float | None = None
    """Rotated share of the features; 0 without rotation, as the options say if None."""


def like(
    model: str,
    *,
    n_layers: int,
    n_heads: int,
    n_kv_heads: int | None = None,
    context: int | None = None,
    window: int | None = None,
    sinks: bool | str | None = None,
) -> tuple[LayerReach, ...]:
    """The reach of a published model, for a model of these sizes; `MODELS` has its source and what is missing.

    Args:
        model: one of `MODELS`.
        context: longest sequence; a window beyond it is refused.
        window: instead of the published one.
        sinks: instead of the published ones, as in the patterns; False for none.

    >>> [layer.plan.n_global for layer in like("mimo-v2-flash", n_layers=7, n_heads=2)]
    [2, 0, 0, 0, 0, 2, 0]
    >>> MODELS["gemma-4"].missing
    'K = V and fewer, wider heads on global layers; rotary frequencies spread over the whole head'
    """
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    found = MODELS[model]
    AT_LEAST_1.check("n_layers", n_layers)
    options = found.options | ({} if sinks is None else {"sinks": sinks})
    layers = interleave(
        found.letters(n_layers),
        found.window if window is None else window,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        context=context,
        **options,
    )
    if found.global_share is None:
        return layers
    return tuple(replace(layer, local_share=found.local_share, global_share=found.global_share) for layer in layers)


def _every(period: int) -> Letters:
    """The last layer of each period global."""
    return lambda n_layers: "".join("G" if (layer + 1) % period == 0 else "L" for layer in range(n_layers))


def _every_and_last(period: int) -> Letters:
    return lambda n_layers: _every(period)(n_layers)[:-1] + "G"


def _first_of(period: int) -> Letters:
    """The first layer of each period global."""
    return lambda n_layers: "".join("L" if layer % period else "G" for layer in range(n_layers))


def _from_the_end(period: int) -> Letters:
    """The last layer global, and every `period`-th before it."""
    return lambda n_layers: _first_of(period)(n_layers)[::-1]


def _first_and_every(period: int) -> Letters:
    return lambda n_layers: "G" + _every(period)(n_layers)[1:]


MODELS: dict[str, Published] = {
    "gemma-2": Published(
        source="arXiv 2408.00118; transformers, Gemma2Config", window=4096, letters=_every(2), options={}
    ),
    "gemma-3": Published(
        source="arXiv 2503.19786; transformers, Gemma3TextConfig",
        window=1024,
        letters=_every(6),
        options={"dual_rope": (10_000.0, 1_000_000.0)},
        missing="linear scaling of the global positions beyond 32k tokens",
    ),
    "gemma-4": Published(
        source="transformers, Gemma4TextConfig",
        window=512,
        letters=_every_and_last(6),
        options={"dual_rope": (10_000.0, 1_000_000.0)},
        global_share=0.25,
        missing="K = V and fewer, wider heads on global layers; rotary frequencies spread over the whole head",
    ),
    "gpt-oss": Published(
        source="arXiv 2508.10925; transformers, GptOssConfig",
        window=128,
        letters=_every(2),
        options={"dual_rope": (150_000.0, 150_000.0), "sinks": True},
        missing="YaRN scaling of the positions",
    ),
    "command-a": Published(
        source="arXiv 2504.00698; transformers, Cohere2Config (also Command R7B)",
        window=4096,
        letters=_every(4),
        options={"nope": True},
    ),
    "llama-4": Published(
        source="transformers, Llama4TextConfig",
        window=8192,
        letters=_every(4),
        options={
            "nope": True,
            "dual_rope": (500_000.0, 500_000.0),
            "temperature": QueryTemperature(scale=0.1, every=8192),
        },
        missing="chunks: local layers here see a sliding window of 8,192, there the chunk of 8,192 they stand in",
    ),
    "olmo-3": Published(
        source="transformers, Olmo3Config",
        window=4096,
        letters=_every(4),
        options={"dual_rope": (500_000.0, 500_000.0)},
        missing="YaRN scaling of the global positions in the long-context models",
    ),
    "mimo-v2-flash": Published(
        source="transformers, MiMoV2FlashConfig",
        window=129,
        letters=_first_and_every(6),
        options={"dual_rope": (10_000.0, 5_000_000.0), "sinks": "local"},
        local_share=1 / 3,
        global_share=1 / 3,
        missing="twice as many KV heads on local layers; values narrower than keys",
    ),
    "modernbert": Published(
        source="arXiv 2412.13663; transformers, ModernBertConfig",
        window=65,
        letters=_first_of(3),
        options={"dual_rope": (10_000.0, 160_000.0)},
        missing="nothing in a two-sided model (causal=False), where 65 keys are 64 to each side and the current one",
    ),
    "granite-swa": Published(
        source="transformers, GraniteSWAConfig",
        window=128,
        letters=_first_of(4),
        options={"sinks": True},
        missing="a rotary base per layer, which its checkpoints choose",
    ),
    "trinity": Published(source="transformers, AfmoeConfig", window=2048, letters=_every(4), options={"nope": True}),
    "exaone-4": Published(
        source="arXiv 2507.11407; transformers, Exaone4Config",
        window=4096,
        letters=_every_and_last(4),
        options={"nope": True},
    ),
    "muse-glimmer": Published(
        source="transformers, MuseGlimmerTextConfig",
        window=2048,
        letters=_from_the_end(4),
        options={"nope": True},
    ),
}
"""The models that `like` knows.

Hymba and DuoAttention keep the first keys always visible, and MSWA, MoA and Longformer have windows of their own: see
`ladder` and `ramp`.
"""
