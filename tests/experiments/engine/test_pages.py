"""Pages are built from the committed data, and from nothing else."""

import json
import re
import sys

import pytest
from typer.testing import CliRunner

from experiments import NAMES, TOPICS, load, topics
from experiments.__main__ import app
from experiments.engine import pages
from experiments.engine.evidence import FAILS, HOLDS, NOT_RUN, ONCE, PARTLY, TWICE, UNDECIDED
from longshort.report import ReportError
from longshort.report.figures import drawn_from, fingerprint, picture, specification
from longshort.runs import RunError

from ..made_up import made_up_sweep

PUBLISHED = [name for name in NAMES if (pages.RESULTS / f"{name}.json").is_file()]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Results and pages of a test go to folders of its own."""
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(pages, "PAGES", tmp_path / "pages")
    return tmp_path / "results", tmp_path / "pages"


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_committed_page_is_what_its_data_give(name):
    experiment = load(name)
    data = pages.load(experiment)
    reading = (pages.RESULTS / f"{name}.reading.md").read_text(encoding="utf-8")
    assert (pages.PAGES / f"{name}.md").read_text(encoding="utf-8") == pages.page(experiment, data, reading)
    spec = specification(experiment.figure(data), title=experiment.question)
    assert drawn_from(pages.PAGES / f"{name}.png") == fingerprint(spec)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_claim_is_decided_by_three_seeds_or_more(name):
    for found in load(name).findings(pages.load(load(name))).values():
        assert found.verdict not in (HOLDS, PARTLY, FAILS) or min(found.seeds, default=3) > 2, found


@pytest.mark.parametrize("name", [name for name in PUBLISHED if "one seed" in " ".join(load(name).caption.split())])
def test_a_caption_that_says_one_seed_has_data_of_one(name):
    findings = load(name).findings(pages.load(load(name))).values()
    assert {seeds for found in findings for seeds in found.seeds} == {1}


def test_the_committed_tables_of_claims_are_what_the_data_give():
    text = (pages.PAGES / pages.INDEX).read_text(encoding="utf-8")
    assert f"{pages.START}\n\n{pages.claims_tables(topics())}\n\n{pages.END}" in text


def test_contents_name_each_published_experiment_under_its_topic():
    text = (pages.PAGES / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"```{toctree}\n:caption: (.*)\n:maxdepth: 1\n\n([^`]*)```", text)
    contents = {topic: names.splitlines() for topic, names in trees}
    expected = {topic: [f"{name} <{name}>" for name in names if name in PUBLISHED] for topic, names in TOPICS.items()}
    assert dict(list(contents.items())[: len(TOPICS)]) == expected


def test_seeds_that_a_folder_does_not_hold_are_named_when_it_is_published_over_them(folders, tmp_path):
    said = []
    for seeds in ((0, 1), (1, 2)):
        runs = made_up_sweep(load("endurance"), tmp_path / f"runs{seeds[0]}", variants=("ls",), seeds=seeds)
        shown = CliRunner().invoke(app, ["endurance", "--out", str(runs), "--publish"])
        assert shown.exit_code == 0, shown.output
        said.append([line for line in shown.output.splitlines() if line.startswith("no longer published")])
    assert said == [[], [f"no longer published, since {tmp_path / 'runs1'} does not hold them: ls seed 0"]]


def test_results_are_published_and_their_page_has_a_picture(folders, tmp_path):
    results, built = folders
    made_up_sweep(load("positions"), tmp_path / "runs", variants=("*-rotary",))
    given = ["longshort reproduce positions"] * 2 + ["python -m experiments positions --steps 9"]
    (tmp_path / "runs/commands.json").write_text(json.dumps([{"command": command} for command in given]))
    shown = CliRunner().invoke(app, ["positions", "--out", str(tmp_path / "runs"), "--publish"])
    assert shown.exit_code == 0, shown.output
    assert sorted(path.name for path in built.iterdir()) == ["README.md", "positions.md", "positions.png"]
    page = (built / "positions.md").read_text()
    assert ": **not run yet** (seeds: 1)\n" in page and "  - ours: loss and logits lower with rotary\n" in page
    assert "loss and logits lower with rotary | 1 | not run yet" in (built / "README.md").read_text()
    # The recorded command once, and today's form of it.
    assert page.count(given[0]) == page.count("    python -m experiments positions\n") == 1
    before = (built / "positions.png").read_bytes()
    (results / "positions.reading.md").write_text("A person's words.")
    assert CliRunner().invoke(app, ["--build"]).exit_code == 0
    assert "## Reading\n\nA person's words.\n" in (built / "positions.md").read_text()
    assert (built / "positions.png").read_bytes() == before and before[:4] == b"\x89PNG"


def test_a_picture_is_drawn_anew_where_its_chart_has_changed(tmp_path):
    chart = load("recall").figure(pages.load(load("recall")))
    path = picture(chart, tmp_path / "a.png", title="one")
    first = path.read_bytes()
    assert picture(chart, path, title="one").read_bytes() == first
    assert picture(chart, path, title="two").read_bytes() != first


def test_claims_without_data_are_not_run_yet(folders):
    counts, *tables = pages.claims_tables(topics()).split("\n\n## ")
    rows = [row for table in tables for row in table.splitlines()[4:]]
    n_claims = sum(len(load(name).claims) for name in NAMES)
    assert len(rows) == n_claims and all(f"| {NOT_RUN} | `" in row for row in rows)
    assert {row.replace("\\|", "").count("|") for row in rows} == {7}  # the bars of |logit| end no cell
    assert sum(int(row.split("|")[-2]) for row in counts.splitlines()[2:]) == n_claims


def test_every_verdict_is_counted_once(folders):
    verdicts = [HOLDS, PARTLY, FAILS, UNDECIDED, NOT_RUN, *ONCE.values(), *TWICE.values()]
    assert sorted(verdict for kinds in pages.STANDINGS.values() for verdict in kinds) == sorted(verdicts)


def test_the_tables_of_claims_go_between_its_marks_and_nowhere_else(folders):
    page = folders[1] / "README.md"
    page.parent.mkdir()
    page.write_text(f"before\n{pages.START}\noutdated\n{pages.END}\nafter\n")
    pages.write_index({"Retrieval": [load("recall")]})
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "outdated" not in text and NOT_RUN in text
    page.write_text("no place")
    with pytest.raises(RunError, match="no place for the claims"):
        pages.write_index({"Retrieval": [load("recall")]})


def test_numbers_need_no_drawing_packages(tmp_path, monkeypatch, folders):
    monkeypatch.setitem(sys.modules, "altair", None)
    out = made_up_sweep(load("endurance"), tmp_path / "runs")
    for command, shown in (("python -m experiments endurance", ONCE[HOLDS]), ("x --quick", "--quick decides nothing")):
        (out / "commands.json").write_text(json.dumps([{"command": command}]))
        said = CliRunner().invoke(app, ["endurance", "--out", str(out), "--unpack", str(_empty_pack(tmp_path))]).output
        (line,) = [line for line in said.splitlines() if line.startswith("largest |logit|")]
        assert shown in line and load("endurance").table(load("endurance").collect(out)) in said
        assert said.splitlines()[-1].startswith("no report page: a report needs the package altair")
    data = load("endurance").collect(out)
    data["provenance"]["commands"] = []
    pages.save(load("endurance"), data)
    with pytest.raises(ReportError, match="altair"):
        pages.build(load("endurance"))


def _empty_pack(folder):
    import tarfile

    with tarfile.open(folder / "empty.tar.gz", "w:gz"):
        return folder / "empty.tar.gz"


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_folder_is_an_error(name, tmp_path):
    with pytest.raises(RunError, match="holds no"):
        load(name).collect(tmp_path)
