"""The files of a report: what the page holds, what it never refers to, and the pictures beside it."""

import re
import struct
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from longshort.cli import app
from longshort.report import ReportError, charts, comparison, datasets, write_report
from longshort.runs import load_run, load_runs

from .synthetic import eval_record, logits_of, run_record, spike_record, train_record, write_lines


class Page(HTMLParser):
    """The attributes that make a browser load something, the style sheets, and the text of cells by row."""

    def __init__(self, html):
        super().__init__()
        self.loads, self.styles, self.rows, self._open = [], [], {}, []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self._open.append(tag)
        named = dict(attrs)
        self.loads += [named[name] for name in ("src", "href", "srcset", "data", "action") if named.get(name)]
        if tag == "tr" and "data-variant" in named:
            self._row = self.rows.setdefault(named["data-variant"], {})
        if tag == "td":
            self._cell = named.get("data-label")

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, text):
        if "style" in self._open:
            self.styles.append(text)
        if "td" in self._open and self._cell:
            self._row[self._cell] = f"{self._row.get(self._cell, '')} {text.strip()}".strip()


@pytest.fixture(scope="module")
def html(report):
    return report.files.html.read_text()


def small_run(folder, records, **head):
    return write_lines(folder, [run_record(**head), *records])


def test_page_loads_nothing_from_anywhere(html):
    page = Page(html)
    assert page.loads
    assert [target for target in page.loads if not target.startswith("data:")] == []
    assert not re.search(r"@import|url\(", " ".join(page.styles))
    assert "default-src 'none'" in html


def test_page_stays_small(html):
    assert len(html) < 2_000_000


def test_long_runs_of_many_heads_stay_small_too(tmp_path):
    telemetry = logits_of(5.0, 12, 12)
    steps = [train_record(step, 3.0 + step % 7, **(telemetry if step % 20 == 0 else {})) for step in range(1, 6001)]
    head = {"layers": 12, "heads": 12}
    folders = [small_run(tmp_path / str(seed), steps, seed=seed, **head) for seed in range(3)]
    data = datasets.build(load_runs(folders))
    assert sum(len(table["columns"]["step"]) for table in data.tables["curve"]) <= datasets.CURVE_POINTS
    assert sum(len(row["logit"]) for heat in data.heat for row in heat) <= datasets.HEAT_CELLS


def test_table_shows_the_numbers_of_the_runs(tmp_path):
    seeds = [
        [train_record(1, 3.0, **logits_of(4.0)), eval_record(1, 2.0), eval_record(2, 2.5)],
        [train_record(1, 3.0, **logits_of(8.0)), eval_record(1, 3.0), eval_record(2, 3.5), spike_record(2, 9.0)],
    ]
    folders = [
        small_run(tmp_path / str(seed), records, name=f"s{seed}", variant="ls", seed=seed)
        for seed, records in enumerate(seeds)
    ]
    row = Page(write_report(folders, tmp_path / "r.html", png=False).html.read_text()).rows["ls"]
    row = {label: text.replace("\N{EN DASH}", "-") for label, text in row.items()}
    assert row == {
        "seeds": "2 seeds 0, 1",
        "parameters": "123,456",
        "steps": "2",
        "final loss": "3.000 2.500-3.500",
        "final perplexity": "22.65 12.18-33.12",
        "best loss": "2.500 2.000-3.000",
        "best perplexity": "13.74 7.389-20.09",
        "training loss": "3.000 3.000-3.000",
        "max |logit|": "6.00 4.00-8.00",
        "tokens/s": "4,096 4,096-4,096",
        "spikes": "1",
        "status": "in progress",
    }


def test_text_of_runs_is_escaped(html):
    assert "&lt;bare &amp; torn&gt;" in html
    assert "<bare & torn>" not in re.sub(r"<script.*?</script>", "", html, flags=re.S)


def test_torn_line_is_said_on_the_page_and_to_the_caller(report, html):
    assert "the last line is incomplete" in html
    (note,) = (note for note in report.files.notes if "the last line is incomplete" in note)
    assert "bare" in note


def test_summary_configs_differences_samples_and_commands_are_on_the_page(report, html):
    assert comparison.summary(comparison.group(load_runs(report.runs))).split(".")[0] in html
    assert "reach of the heads" in html
    assert "def read_plain(self, path):" in html
    assert "longshort train plain-s0.yaml" in html
    assert "longshort report" in html


def test_script_end_in_a_sample_does_not_end_the_script(tmp_path):
    name = "</script><b>"
    folder = small_run(tmp_path / "run", [train_record(1, 2.0)], name=name)
    html = write_report([folder], tmp_path / "r.html", png=False).html.read_text()
    assert name not in html


def test_pictures_are_pngs_at_twice_the_size(report):
    assert [path.name for path in report.files.pngs] == ["loss.png", "perplexity.png", "logits.png", "heatmap.png"]
    for path in report.files.pngs:
        signature, width = path.read_bytes()[:8], struct.unpack(">I", path.read_bytes()[16:20])[0]
        assert signature == b"\x89PNG\r\n\x1a\n"
        assert width > 2 * charts.WIDTH
        assert path.parent == report.files.html.with_name("report-figures")


def test_runs_without_logits_have_no_pictures_of_them(tmp_path):
    files = write_report([small_run(tmp_path / "run", [train_record(1, 2.0)])], tmp_path / "r.html")
    assert [path.name for path in files.pngs] == ["loss.png", "perplexity.png"]
    assert "None of these runs recorded them" in files.html.read_text()


def test_pictures_of_an_earlier_report_go_where_the_runs_have_no_such_chart_anymore(tmp_path):
    folder = tmp_path / "r-figures"
    folder.mkdir()
    for name in ("heatmap.png", "entropy.png", "mine.png"):
        (folder / name).write_bytes(b"old")
    files = write_report([small_run(tmp_path / "run", [train_record(1, 2.0)])], tmp_path / "r.html")
    assert sorted(folder.iterdir()) == sorted([*files.pngs, folder / "mine.png"])


@pytest.mark.parametrize(
    "records",
    [
        [],
        [train_record(1, None)],
        [train_record(1, 2.0, **logits_of(0.0))],
        [train_record(1, 2.0, logit_max=[[None] * 4] * 2, logit_min=[[None] * 4] * 2)],
        [train_record(step, 10.0**step) for step in range(1, 9)],
        [train_record(1, 2e4), train_record(2, 5.0)],
        [eval_record(5, 2.0)],
    ],
    ids=["nothing", "only null", "zero logits", "null logits", "blown up", "fell from afar", "only evals"],
)
@pytest.mark.every(3)
def test_odd_runs_make_a_page_and_pictures(tmp_path, records):
    files = write_report([small_run(tmp_path / "run", records)], tmp_path / "r.html")
    assert files.html.stat().st_size > 500_000
    assert len(files.pngs) >= 2


def test_spikes_of_a_long_run_reach_the_chart(tmp_path):
    places = (777, 4321, 5000)
    steps = [train_record(step, 9.0 if step in places else 2.0 + step % 3 / 100) for step in range(1, 8001)]
    run = load_run(small_run(tmp_path, [*steps, *(spike_record(step, 9.0) for step in places)]))
    data = datasets.build([run])
    shown = {row["step"] for row in datasets.rows(data.tables["curve"]) if row["loss"] == 9.0}
    assert shown == set(places)
    assert [row["step"] for row in datasets.rows(data.tables["spikes"])] == list(places)


def test_heat_map_bins_keep_the_largest_value_and_any_that_is_not_finite(tmp_path):
    steps = [train_record(step, 2.0, **logits_of(9.0 if step == 500 else 3.0)) for step in range(1, 1001)]
    steps[199]["logit_max"] = [[None] * 4] * 2
    (heat,) = datasets.build([load_run(small_run(tmp_path, steps))]).heat
    assert len(heat) <= datasets.MAX_HEAT_BINS
    assert [row["step"] <= 500 < row["until"] for row in heat if row["logit"][-1] == 9.0] == [True]
    assert [row["step"] <= 200 < row["until"] for row in heat if row["logit"][0] is None] == [True]


def test_step_with_a_head_that_was_not_finite_reaches_the_chart(tmp_path):
    steps = [train_record(step, 2.0, **logits_of(3.0)) for step in range(1, 4001)]
    steps[1233]["logit_min"][0][2] = None
    data = datasets.build([load_run(small_run(tmp_path, steps))])
    assert [(row["step"], row["lost"]) for row in datasets.rows(data.tables["logits"]) if row["lost"]] == [(1234, 1)]


def test_losses_far_above_the_first_do_not_flatten_the_chart(tmp_path):
    steps = [train_record(step, 5.0 if step < 50 else 1e6) for step in range(1, 60)]
    data = datasets.build([load_run(small_run(tmp_path, steps))])
    assert data.clipped
    assert data.loss_range[1] < 10


def test_reading_needs_none_of_the_drawing_packages(tmp_path):
    folder = small_run(tmp_path / "run", [train_record(1, 2.0)])
    code = f"""
import sys
for name in ("altair", "vl_convert", "jinja2", "PIL"):
    sys.modules[name] = None
from longshort.report import ReportError, write_report
from longshort.runs import load_run
assert load_run({str(folder)!r}).last_step == 1
try:
    write_report([{str(folder)!r}], "never.html")
except ReportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "a report needs the package altair: pip install 'longshort[report]'"


def test_folder_as_output_is_refused(tmp_path):
    folder = small_run(tmp_path / "run", [train_record(1, 2.0)])
    with pytest.raises(ReportError, match="is a folder"):
        write_report([folder], tmp_path)


def test_a_page_is_replaced_and_a_users_own_file_is_not(tmp_path):
    folder, page = small_run(tmp_path / "run", [train_record(1, 2.0)]), tmp_path / "report.html"
    for _ in range(2):
        write_report([folder], page, png=False)
    for theirs in (folder / "metrics.jsonl", page):
        theirs.write_text(theirs.read_text().replace("data-variant", "precious"))
        before = theirs.read_bytes()
        with pytest.raises(ValueError, match="already exists and is not one of our files"):
            write_report([folder], theirs, png=False)
        assert theirs.read_bytes() == before


def test_verb_says_what_it_wrote(tmp_path):
    folder = small_run(tmp_path / "run", [train_record(1, 2.0)])
    shown = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "r.html"), "--no-png"])
    assert shown.exit_code == 0, shown.output
    assert shown.output == f"wrote {tmp_path / 'r.html'}\n"


def test_verb_ends_on_bad_input_with_one_line(tmp_path):
    shown = CliRunner().invoke(app, ["report", str(tmp_path / "missing")])
    assert shown.exit_code == 1
    assert shown.output == f"error: {tmp_path / 'missing'}: no such run folder\n"


def test_one_run_is_not_headed_a_comparison(tmp_path, html):
    folder = small_run(tmp_path / "run", [train_record(1, 2.0)])
    alone = write_report([folder], tmp_path / "r.html", png=False).html.read_text()
    assert "<h2>Results</h2>" in alone and "<h2>Comparison</h2>" not in alone
    assert "<h2>Comparison</h2>" in html


def test_caption_states_the_smoothing_and_the_bands(html):
    text = " ".join(html.split())
    assert "the strong ones its running median over 21 steps, averaged over seeds; the bands reach" in text


def test_noisy_trace_is_smoothed_and_its_spike_stays_in_the_raw_line(tmp_path):
    losses = [9.0 if step == 300 else 2.0 + step % 2 for step in range(1, 601)]
    run = load_run(small_run(tmp_path, [train_record(step, loss) for step, loss in enumerate(losses, 1)]))
    data = datasets.build([run])
    assert max(row["loss"] for row in datasets.rows(data.tables["trend"])) <= 3.0
    assert max(row["loss"] for row in datasets.rows(data.tables["curve"])) == 9.0


def test_band_reaches_from_the_lowest_to_the_highest_seed(tmp_path):
    folders = [
        small_run(tmp_path / str(seed), [train_record(step, 2.0 + seed) for step in range(1, 9 - seed)], seed=seed)
        for seed in range(3)
    ]
    data = datasets.build(load_runs(folders))
    trend = datasets.rows(data.tables["trend"])
    assert {(row["loss_low"], row["loss"], row["loss_high"]) for row in trend} == {(2, 3, 4)}
    assert max(row["step"] for row in trend) == 6, "as far as every seed has come"
