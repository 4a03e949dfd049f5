"""Turn a chart into a PNG file, for reports, experiments and benchmarks: at twice its size, so that text stays sharp on
dense screens, and with a palette, so that the file stays small.
"""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

from longshort.files import write_atomically
from longshort.report.charts import drawing

SCALE = 2
COLORS = 256
"""The most that a PNG's palette holds."""


def drawn(spec: dict[str, Any]) -> bytes:
    """The PNG of a Vega-Lite specification that has its data and its background."""
    drawing()
    import vl_convert

    return small_png(vl_convert.vegalite_to_png(spec, vl_version=vegalite(), scale=SCALE))


def write_picture(spec: dict[str, Any], path: Path) -> Path:
    """Draw a specification into a file."""
    return write_atomically(path, drawn(spec))


def small_png(png: bytes) -> bytes:
    """The same picture in at most 256 colours, well packed: a seventh of what vl-convert writes (8.2 MB of figures
    became 1.2). The picture must be opaque.

    Most charts have more colours only where the edges of strokes meet. Median cut spends the palette by area: lines,
    cells and the gradients of legends keep theirs, and only a pixel in a thousand, at an edge, is off by 8 to 16.
    (Maximum coverage, which spends it by distance, turned grey cells of a heat map blue.) Nothing is dithered: dots are
    noise and pack badly.
    """
    from PIL import Image

    packed = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        small = image.convert("RGB").quantize(COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        small.save(packed, "PNG", optimize=True)
    return packed.getvalue()


def with_text(png: bytes, key: str, text: str) -> bytes:
    """The picture with a text in its metadata: a chunk after the signature and the header (8 + 25 bytes)."""
    chunk = b"tEXt" + f"{key}\0{text}".encode("latin-1", "replace")
    return png[:33] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + png[33:]


def vegalite() -> str:
    """The Vega-Lite version for which Altair writes, as vl-convert names it."""
    return str(drawing().SCHEMA_VERSION).lstrip("v").rpartition(".")[0]
