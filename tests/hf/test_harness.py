"""lm-evaluation-harness where it is not installed; tests/eco has the rest."""

import sys

import pytest
from typer.testing import CliRunner

from longshort.cli import app


def test_without_the_harness_the_verb_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    shown = CliRunner().invoke(app, ["evaluate", "runs/mine", "--harness", "piqa"])
    assert shown.exit_code == 1
    assert shown.stderr == "error: --harness needs lm-evaluation-harness: pip install 'longshort[eval]'\n"


@pytest.mark.parametrize("option", [["--split", "test"], ["--bucket", "8"], ["--yarn"]])
def test_options_that_the_harness_does_not_read_are_refused(option):
    shown = CliRunner().invoke(app, ["evaluate", "runs/mine", "--harness", "piqa", *option])
    assert shown.exit_code == 1
    assert shown.stderr == f"error: {option[0]} must not be given with --harness\n"
