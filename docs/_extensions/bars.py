"""Draws the bars of docs/ideas: las.svg, one row of attention, and soft-thinking.svg, one mixture.

`python docs/_extensions/bars.py` writes them again. The numbers come from the op and from `SoftThinking`, as in the
examples of the two pages; a test holds the committed files against them.
"""

from __future__ import annotations

import sys
from pathlib import Path

IDEAS = Path(__file__).parents[1] / "ideas"
BAR, SPACE, HEIGHT, TOP, LEFT, GAP = 26, 4, 110, 46, 14, 34
COLOUR, LINE, TEXT = "#2563a8", "#b8bec6", "#1f2933"

Panel = tuple[str, str, list[float]]
"""A title, what stands under it, and a share for each bar."""


def las() -> str:
    """Weights of the last of eight queries: plain, with decay, with decay and pooling."""
    import torch

    from longshort import HeadPlan, Smoothing, attention

    q, k = torch.zeros(1, 1, 1, 8).double(), torch.zeros(1, 1, 8, 8).double()
    q[..., 0], k[0, 0, [2, 5], 0] = 1, 3
    values = torch.eye(8).double().expand(1, 1, 8, 8)
    plain, decaying = HeadPlan.full(1), HeadPlan(windows=(None,), decays=(0.1,))
    steps = [
        ("plain attention", "equal logits, equal weights", plain, None),
        ("local", "logits fade with distance", decaying, None),
        ("local and smooth", "weights averaged over 3 keys", decaying, Smoothing(width=3)),
    ]
    panels = []
    for title, note, plan, smoothing in steps:
        row = attention(q, k, values, plan, scale=1.0, smoothing=smoothing, backend="reference").out
        panels.append((title, note, row.flatten().tolist()))
    return picture("One row of attention: the weights of eight keys", panels, [str(key) for key in range(8)], 0.5)


def mixture() -> str:
    """One draw of noise over five tokens: the weights of the mixture at three tau."""
    import torch

    from longshort.generation import SoftThinking

    p = torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04]).double()
    values = (p.log() + torch.tensor([0.2, 0.9, -0.5, 1.1, 0.3]))[None]
    panels = [("the model's p", "before the noise", p.tolist())]
    for tau, note in ((0.01, "one token"), (0.1, "nearly one token"), (1.0, "a mixture")):
        weights = SoftThinking(end=99, tau=tau).weights(torch.arange(5)[None], values)
        panels.append((f"tau {tau:g}", note, weights[0].tolist()))
    return picture("One draw: weights of five tokens", panels, list("ABCDE"), 1.0)


def picture(title: str, panels: list[Panel], names: list[str], highest: float) -> str:
    """The SVG: panels side by side, a bar for each name, its share above it."""
    side = len(names) * (BAR + SPACE)
    width, height = 2 * LEFT + len(panels) * (side + GAP) - GAP, TOP + HEIGHT + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="{TEXT}" text-anchor="middle" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    floor = TOP + HEIGHT + 18
    for number, (head, note, shares) in enumerate(panels):
        left = LEFT + number * (side + GAP)
        middle = left + side / 2
        parts.append(f'<text x="{middle:g}" y="16" font-size="13" font-weight="600">{head}</text>')
        parts.append(f'<text x="{middle:g}" y="32">{note}</text>')
        for place, (name, share) in enumerate(zip(names, shares, strict=True)):
            x, tall = left + place * (BAR + SPACE) + SPACE / 2, HEIGHT * share / highest
            y = floor - tall
            parts.append(f'<rect x="{x:g}" y="{y:.1f}" width="{BAR}" height="{tall:.1f}" fill="{COLOUR}"/>')
            parts.append(f'<text x="{x + BAR / 2:g}" y="{y - 4:.1f}" font-size="10">{share:.2f}</text>')
            parts.append(f'<text x="{x + BAR / 2:g}" y="{floor + 14}">{name}</text>')
        parts.append(f'<line x1="{left}" y1="{floor}" x2="{left + side}" y2="{floor}" stroke="{LINE}"/>')
    return "\n".join([*parts, "</svg>", ""])


PICTURES = {"las.svg": las, "soft-thinking.svg": mixture}

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
    for file, draw in PICTURES.items():
        (IDEAS / file).write_text(draw(), encoding="utf-8")
