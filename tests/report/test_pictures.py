"""A chart's picture: small, the same every time, and the chart's own colours."""

from __future__ import annotations

import io

from PIL import Image

from longshort.report.charts import drawing
from longshort.report.pictures import small_png, write_picture

ROWS = [{"x": x, "y": (7 * x + shift) % 11, "line": f"line {shift}"} for x in range(12) for shift in range(4)]


def spec():
    alt = drawing()
    chart = alt.Chart(alt.Data(values=ROWS)).mark_line().encode(x="x:Q", y="y:Q", color="line:N")
    return chart.properties(background="white").to_dict()


def opened(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png))


def test_picture_has_a_palette_and_is_the_same_every_time(tmp_path):
    first, second = (write_picture(spec(), tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
    assert first == second
    assert opened(first).mode == "P"
    assert len(first) < 60_000  # 90 kB without a palette


def test_picture_of_few_colours_keeps_every_pixel(tmp_path):
    png = write_picture(spec(), tmp_path / "a.png").read_bytes()
    assert len(opened(png).getcolors()) < 256, "else nothing is shown"
    again = small_png(png)
    assert opened(again).convert("RGB").tobytes() == opened(png).convert("RGB").tobytes()


def test_cells_and_gradient_of_many_colours_keep_theirs():
    cells = [(225 - i, 232 - i // 2, 238 - i // 4) for i in range(100)]  # a heat map: light greys to blues
    drawn = Image.new("RGB", (1000, 400), "white")
    for i, color in enumerate(cells):
        drawn.paste(color, (10 * i, 0, 10 * i + 10, 100))
    for y in range(255):  # the gradient of a legend, and edges of many colours
        drawn.paste((y // 5, y // 2, y), (0, 100 + y, 20, 101 + y))
        for x in range(40):
            drawn.putpixel((30 + x, 100 + y), ((37 * x + y) % 256, (91 * y) % 256, (13 * x * y) % 256))
    png = io.BytesIO()
    drawn.save(png, "PNG")
    kept = opened(small_png(png.getvalue())).convert("RGB")
    assert kept.getpixel((900, 300)) == (255, 255, 255)
    assert max(_off(kept.getpixel((10 * i + 5, 50)), color) for i, color in enumerate(cells)) <= 4
    assert max(_off(kept.getpixel((10, 100 + y)), (y // 5, y // 2, y)) for y in range(255)) <= 20


def _off(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))
