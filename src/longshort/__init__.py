"""Transformers that train stably and run long, because each attention head has its own reach."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from longshort.version import __version__ as __version__

if TYPE_CHECKING:
    from longshort import reach
    from longshort.generation import generate
    from longshort.heads import HeadPlan
    from longshort.model import GPT, GPTConfig
    from longshort.nn import LSAttention, LSCache
    from longshort.ops import AttentionResult, LogitStats, Smoothing, attention

__all__ = [
    "GPT",
    "AttentionResult",
    "GPTConfig",
    "HeadPlan",
    "LSAttention",
    "LSCache",
    "LogitStats",
    "Smoothing",
    "attention",
    "generate",
    "reach",
]

_HOMES = {
    "HeadPlan": "longshort.heads",
    "GPT": "longshort.model",
    "GPTConfig": "longshort.model",
    "LSAttention": "longshort.nn",
    "LSCache": "longshort.nn",
    "AttentionResult": "longshort.ops",
    "LogitStats": "longshort.ops",
    "Smoothing": "longshort.ops",
    "attention": "longshort.ops",
    "generate": "longshort.generation",
    "reach": "longshort.reach",
}


def __getattr__(name: str) -> Any:
    """Names load when first used, so that `longshort --help` need not wait two seconds for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(_HOMES[name])
    value = globals()[name] = home if home.__name__ == f"{__name__}.{name}" else getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
