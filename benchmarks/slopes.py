"""Time of attention with ALiBi's slopes on global heads against length, beside the same heads without them.

Run `python -m benchmarks.slopes --out docs/results/slopes-cpu.json`; `--device cuda` on a GPU. Measured as
`benchmarks.las` does, at its shapes: a form is only timed after it has agreed with the reference.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks import las
from longshort.heads import HeadPlan

PLAIN = HeadPlan.full(las.HEADS)
SLOPED = PLAIN.with_alibi()
DECAYING = replace(las.LAS, slopes=SLOPED.slopes)

FORMS: dict[str, tuple[str, las.Form]] = {
    "plain": ("plain attention", las.whole(PLAIN, None)),
    "slopes": ("with ALiBi's slopes", las.whole(SLOPED, None)),
    "slopes and decay": ("with slopes and LaS's decay", las.whole(DECAYING, None)),
    "plain, two-sided": ("plain attention to both sides", las.whole(PLAIN, None, causal=False)),
    "slopes, two-sided": ("slopes to both sides", las.whole(SLOPED, None, causal=False)),
}
"""Name -> what it is, and the call."""


if __name__ == "__main__":
    las.main(FORMS, __doc__)
