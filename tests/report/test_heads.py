"""The page about a model's heads: whole, self-contained, drawn."""

import json
import re

import pytest

from longshort.report import heads
from longshort.report.heads import MEASURES, check_heads_page, summary, write_heads_page

LAYERS, HEADS = 3, 4


def record(*, proposal=True, sinks=False):
    """As `longshort inspect` writes it, of made-up heads."""

    def rows(value):
        return [[value(layer, head) for head in range(HEADS)] for layer in range(LAYERS)]

    measured = {name: rows(lambda layer, head: (layer + head) / 10) for name in MEASURES}
    measured |= {
        name: rows(lambda layer, head: 1 + 100 * layer + head) for name in MEASURES if name.startswith("window")
    }
    measured["learned_sink"] = rows(lambda layer, head: 0.5 * sinks)
    lost = [[[0.9, 0.5, 0.1]] * HEADS] * LAYERS
    found = {
        "version": "0.0.0",
        "model": {"folder": "<b>mine</b>", "model_type": "llama", "parameters": 12345, "layers": LAYERS, "heads": HEADS}
        | {"kv_heads": 2, "head_dim": 8, "context": 2048, "dtype": "float32"},
        "text": {"source": "a <text>", "length": 512, "measured": 2, "held_out": 2},
        "sees": [{"windows": [None] * HEADS, "decays": None, "slopes": None}] * LAYERS,
        "heads": measured,
        "beyond": {"windows": [1, 2, 4], "attention": lost, "attention_first": lost},
        "loss": 2.5,
    }
    if proposal:
        costs = {"share": 0.25, "cache_share": 0.2, "cache_bytes": 4096.0}
        row = {"way": "even", "first": 4, "lost": 0.1, **costs, "loss": 2.7}
        plan = {"windows": [None, 8, 8, 8], "decays": None, "slopes": None, "firsts": [0, 4, 4, 4]}
        found["proposal"] = {"candidates": [row], "chosen": 0, "plans": [plan] * LAYERS, "costs": costs, "loss": 2.625}
    return found


@pytest.fixture
def no_script(monkeypatch):
    """Bundling the script that draws takes seconds."""
    monkeypatch.setattr(heads, "vega_script", lambda: "")


def payload(page):
    return json.loads(re.search(r'id="payload">(.*?)</script>', page.read_text(), re.S)[1])


def test_the_page_holds_every_head_and_escapes_names(tmp_path, no_script):
    page = write_heads_page(record(), tmp_path / "p.html", command="longshort inspect mine")
    text = page.read_text()
    assert "&lt;b&gt;mine" in text and "<b>mine" not in text and "longshort inspect mine" in text
    found = payload(page)
    assert len(found["data"]["heads"]) == LAYERS * HEADS and "learned_sink" not in found["data"]["heads"][0]
    assert {spec for spec in found["specs"] if spec.startswith("heat")} == {
        f"heat-{name}" for name in MEASURES if name != "learned_sink"
    }
    assert "4 + 8" in json.dumps(found["specs"]["plan"])


def test_what_was_not_measured_or_proposed_is_left_out(tmp_path, no_script):
    bare = record(proposal=False, sinks=True)
    bare["heads"]["retrieval"] = None
    page = write_heads_page(bare, tmp_path / "p.html", command="x")
    found = payload(page)
    assert "plan" not in found["specs"] and "heat-retrieval" not in found["specs"]
    assert "heat-learned_sink" in found["specs"] and 'id="plan"' not in page.read_text()


def test_the_summary_says_what_the_plan_costs():
    assert summary(record()) == (
        "Of 12 heads, 4 keep 99 % of their attention within 64 of 512 keys. Loss on the held-out text: 2.5000. The "
        "proposed plan has 25.0% of full attention's keys and 20.0% of its cache; untrained, its loss is 2.6250 "
        "(+0.1250)."
    )


def test_a_file_that_is_no_such_page_is_not_overwritten(tmp_path, no_script):
    (tmp_path / "p.html").write_text("precious")
    with pytest.raises(ValueError, match="not one of our files"):
        check_heads_page(tmp_path / "p.html")
    page = write_heads_page(record(), tmp_path / "q.html", command="x")
    write_heads_page(record(), page, command="y")


def test_every_chart_is_drawn_and_nothing_is_loaded(browser, tmp_path):
    page = write_heads_page(record(sinks=True), tmp_path / "p.html", command="x")
    before = len(browser.requests)
    browser.complaints.clear()
    browser.show(page, dark=True)
    loaded = [url for url in browser.requests[before:] if not url.startswith(("file:", "data:", "blob:"))]
    assert not loaded and not browser.complaints
    assert (
        browser.evaluate("document.querySelectorAll('#heads .chart .mark-rect.role-mark path').length")
        == LAYERS * HEADS
    )
    browser.evaluate("document.querySelector('[data-value=induction]').click()")
    browser.wait_until_drawn(dark=True)
    assert browser.evaluate("[...document.querySelectorAll('#heads .caption')].filter(c => !c.hidden).length") == 1
    assert "random tokens" in browser.evaluate(
        "[...document.querySelectorAll('#heads .caption')].find(c => !c.hidden).textContent"
    )
