"""The options of a call, besides its tensors: one record, flattened and rebuilt at the torch.library boundary.

torch.library takes flat lists of numbers only. `schema` and `decode` pass the fields one by one, and what they dispatch
to gets the record back; nothing else below the public op takes it apart.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from torch import Tensor

from longshort.heads import HeadPlan

GLOBAL = 1 << 30
"""The window of a global head below the public op: longer than any row, yet small enough for int32 sums in kernels."""

SCHEMA = "int[] windows, float[]? decays, float[]? slopes, float? scale, bool causal, float? softcap, int[]? firsts"
"""The fields of `Options` as torch.library writes them."""

Stats = bool | Literal["max"]
"""What to measure of the logits: nothing, the largest and the smallest, or the largest alone, which costs less."""


def extremes_of(stats: Stats) -> int:
    """How many extremes of the logits this asks for, as everything below the public op has it: 0, 1 (the largest) or 2.

    >>> extremes_of(False), extremes_of("max"), extremes_of(True)
    (0, 1, 2)
    """
    if isinstance(stats, bool):
        return 2 if stats else 0
    if stats != "max":
        raise ValueError(f'stats must be False, True or "max", got {stats!r}')
    return 1


class Options(NamedTuple):
    """The reach of each query head, and the options that all heads share."""

    windows: tuple[int, ...]
    """Visible keys, the current one included; `GLOBAL` for all."""
    decays: tuple[float, ...] | None = None
    slopes: tuple[float, ...] | None = None
    scale: float | None = None
    """See `scale_for`: a head dimension that torch.compile traces as a symbol is not a number yet."""
    causal: bool = True
    softcap: float | None = None
    firsts: tuple[int, ...] | None = None
    """Keys at the start of a document that a head sees besides its window."""

    @classmethod
    def of(
        cls, plan: HeadPlan, *, scale: float | None = None, causal: bool = True, softcap: float | None = None
    ) -> Options:
        """The only place where a plan's None becomes `GLOBAL`.

        >>> Options.of(HeadPlan(windows=(None, 8))).windows
        (1073741824, 8)
        """
        windows = tuple(GLOBAL if w is None else min(w, GLOBAL) for w in plan.windows)
        return cls(windows, plan.decays, plan.slopes, scale, causal, softcap, plan.firsts)

    @classmethod
    def received(cls, *fields: Any) -> Options:
        """From the fields as torch.library passes them: hashable again, so that tables can be cached by them."""
        return cls._make(tuple(field) if isinstance(field, list) else field for field in fields)

    def scale_for(self, q: Tensor) -> float:
        """The given scale, or 1 / sqrt(D)."""
        return q.shape[-1] ** -0.5 if self.scale is None else self.scale
