"""Pages say what the committed data say, and nothing else."""

import json

import pytest

from benchmarks import attention_page, decoding_page
from benchmarks.__main__ import _pages
from benchmarks.pages import PAGES, RESULTS, Page
from longshort.report.theme import LIGHT, method_style

EVERY = {page.name: page for page in _pages() if (RESULTS / f"{page.name}.json").is_file()}


def data(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", EVERY)
def test_a_page_rebuilt_from_its_data_is_the_committed_one(name):
    text = EVERY[name].text(data(name), f"../../benchmarks/results/{name}.json")
    assert text == (PAGES / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", EVERY)
def test_a_page_has_the_recorded_command_verbatim_and_todays_beside_it(name):
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert f"\n    {data(name)['command']}\n" in page and f"\n    {EVERY[name].command}\n" in page


def test_verdicts_stored_with_the_data_follow_from_its_rows():
    stored = data("attention-gpu")
    assert attention_page.summarize(stored["rows"]) == stored["summary"]
    for name in ("decoding-cpu", "decoding-gpu"):
        assert decoding_page.goals(data(name)) == data(name)["goals"]


def test_todays_command_stands_alone_and_a_page_of_other_results_lies_beside_them(tmp_path):
    page = Page(name="x", title="X", command="of old", about=lambda r: "About.", tables=lambda r: "Tables.")
    results = {"command": "python -m benchmarks x", "machine": {"torch": "2"}}
    path = page.write(results, tmp_path / "mine.json")
    assert path == tmp_path / "mine.md"
    assert path.read_text() == (
        "# X\n\n    python -m benchmarks x\n\ntorch 2. About. Data: [mine.json](mine.json).\n\nTables.\n"
    )


def test_bars_of_the_picture_are_the_measured_bytes():
    pytest.importorskip("altair")
    rows = [{"length": 4096, "bytes": {"ls": 2**20, "plain": 2**31}, "smaller": 2048.0}, {"failed": "x"}]
    bars = decoding_page.cache_figure({"cache": rows}).to_dict()["data"]["values"]
    assert [(bar["gib"], bar["label"]) for bar in bars] == [(2.0, "2.00 GiB"), (2**-10, "1 MiB  (2048.0x smaller)")]


def test_the_picture_has_the_colours_of_plain_and_ls():
    pytest.importorskip("altair")
    rows = [{"length": 4096, "bytes": {"ls": 2**20, "plain": 2**31}, "smaller": 2048.0}]
    bars = decoding_page.cache_figure({"cache": rows}).to_dict()["spec"]["layer"][0]
    assert bars["encoding"]["color"]["scale"]["range"] == [method_style(n, LIGHT).color for n in ("plain", "ls")]


def test_a_picture_without_the_cache_is_refused():
    pytest.importorskip("altair")
    with pytest.raises(ValueError, match="rows of the part cache, got none"):
        decoding_page.cache_figure({"cache": [{"failed": "x"}]})


def test_the_committed_results_give_a_picture(tmp_path):
    pytest.importorskip("vl_convert")
    drawn = decoding_page.draw_cache(RESULTS / "decoding-cpu.json", tmp_path / "cache.png")
    assert drawn.read_bytes().startswith(b"\x89PNG")
