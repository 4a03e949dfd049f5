"""In a terminal of 80 columns nothing is cut, and sentences break between words."""

import pytest
from typer.testing import CliRunner

from longshort.cli import app
from longshort.cli.prose import say
from longshort.report.demo import demo_config, introduction, remark

ROW = {"max_logit": 13.84, "validation_loss": 2.352, "tokens_per_second": 9465.2}


def widest(text):
    return max(map(len, text.splitlines()))


@pytest.mark.parametrize("verb", ["", "check", "compare", "config", "data", "demo", "report", "train"])
def test_help_fits_80_columns(verb):
    shown = CliRunner().invoke(app, [*verb.split(), "--help"], prog_name="longshort", terminal_width=80)
    assert shown.exit_code == 0 and widest(shown.output) <= 80


@pytest.mark.parametrize("arguments", [["check"], ["config"], ["config", "model"]], ids=" ".join)
def test_output_fits_80_columns(monkeypatch, arguments):
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0 and widest(shown.output) <= 80 and "…" not in shown.output


@pytest.mark.parametrize(
    "text",
    [introduction(demo_config()), remark([ROW | {"variant": name} for name in ("plain", "ls")])],
    ids=["introduction", "remark"],
)
def test_what_the_demo_says_breaks_between_words(monkeypatch, capsys, text):
    monkeypatch.setenv("COLUMNS", "80")
    say(text)
    shown = capsys.readouterr().out
    assert widest(text) > 80 >= widest(shown)
    assert shown.split() == text.split()


def test_a_long_path_stays_in_one_piece(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    say("wrote runs/a-long-name/report.html")
    assert capsys.readouterr().out == "wrote\nruns/a-long-name/report.html\n"
