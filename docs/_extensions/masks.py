"""Draws docs/ideas/masks.svg: what each head of some plans sees. `python docs/_extensions/masks.py` writes it again.

The picture follows from `HeadPlan` alone; a test holds the committed file against it.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "ideas" / "masks.svg"
POSITIONS, CELL, GAP, LABEL, TOP = 16, 5, 14, 172, 26
GLOBAL, LOCAL, LINE, TEXT = "#d9730d", "#2563a8", "#b8bec6", "#1f2933"


def picture() -> str:
    """The SVG: one row per plan, one square per head, queries downwards and keys to the right."""
    from longshort.heads import HeadPlan

    plans = [
        ("plain", "6 global", HeadPlan.full(6)),
        ("long short", "1 global, 5 with window 4", HeadPlan.long_short(6, 1, 4)),
        ("ladder", "1 global, 10, 7, 5, 3, 2", HeadPlan(windows=(None, 10, 7, 5, 3, 2))),
        ("LaS", "decays up to 0.3", HeadPlan.las(6, max_decay=0.3)),
    ]
    side = POSITIONS * CELL
    width, height = LABEL + 6 * (side + GAP), TOP + len(plans) * (side + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{TEXT}" role="img">',
        "<title>What each head sees: queries downwards, keys to the right</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for head in range(6):
        x = LABEL + head * (side + GAP) + side / 2
        parts.append(f'<text x="{x:g}" y="16" text-anchor="middle" font-size="11">head {head}</text>')
    for row, (title, call, plan) in enumerate(plans):
        y = TOP + row * (side + GAP)
        parts.append(f'<text x="8" y="{y + side / 2 - 4:g}" font-weight="600">{title}</text>')
        parts.append(f'<text x="8" y="{y + side / 2 + 12:g}" font-size="11">{call}</text>')
        for head, window in enumerate(plan.windows):
            decay = plan.decays[head] if plan.decays else 0.0
            parts.append(_head(LABEL + head * (side + GAP), y, window, decay))
    return "\n".join([*parts, "</svg>", ""])


def _head(x: int, y: int, window: int | None, decay: float) -> str:
    """One square; a cell is filled where query t may see key j, and as strongly as the decay leaves its logit."""
    colour = GLOBAL if window is None else LOCAL
    side = POSITIONS * CELL
    cells = []
    for t in range(POSITIONS):
        seen = [j for j in range(t + 1) if window is None or t - j < window]
        # Without decay the keys that a query sees are one bar.
        spans = [(j, 1) for j in seen] if decay else [(seen[0], len(seen))]
        for j, count in spans:
            opacity = f' opacity="{math.exp(-decay * (t - j)):.2f}"' if decay else ""
            cells.append(
                f'<rect x="{x + j * CELL}" y="{y + t * CELL}" width="{count * CELL}" height="{CELL}"{opacity}/>'
            )
    frame = f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="none" stroke="{LINE}"/>'
    return f'<g fill="{colour}">{"".join(cells)}</g>\n{frame}'


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
    PICTURE.write_text(picture(), encoding="utf-8")
