"""The package as a user meets it: names, imports, command line."""

import importlib.resources
import re
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import longshort
from longshort.cli import app, selfcheck

PUBLIC_NAMES = ["HeadPlan", "attention", "LSAttention", "GPT", "GPTConfig", "LSCache", "generate"]
LOADED_ON_DEMAND = ["triton", "transformers", "tokenizers", "typer", "rich", "yaml", "altair", "longshort.lab"]


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_public_name_is_exported(name):
    assert name in longshort.__all__
    assert getattr(longshort, name).__doc__


def test_every_exported_name_exists():
    assert [name for name in longshort.__all__ if not hasattr(longshort, name)] == []


def test_types_are_shipped():
    assert importlib.resources.files("longshort").joinpath("py.typed").is_file()


def test_version_has_three_numbers():
    assert re.fullmatch(r"\d+\.\d+\.\d+", longshort.__version__)


def test_import_loads_torch_and_no_more():
    # Torch itself may load some of them: only what longshort adds counts.
    code = f"""
import sys, torch
before = set(sys.modules)
import longshort
for name in longshort.__all__:
    getattr(longshort, name)
print(sorted((set(sys.modules) - before) & set({LOADED_ON_DEMAND!r})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_command_line_module_runs_as_the_installed_script_does():
    code = "from longshort.cli import app; app(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "demo" in done.stdout


def test_help_of_each_verb_shows_an_example():
    for command in app.registered_commands:
        name = command.name or command.callback.__name__
        shown = CliRunner().invoke(app, [name, "--help"])
        assert shown.exit_code == 0
        assert f"Example: longshort {name}" in shown.output


def test_version_option_prints_the_version():
    assert CliRunner().invoke(app, ["--version"]).output.strip() == longshort.__version__


def test_unknown_verb_exits_non_zero():
    assert CliRunner().invoke(app, ["no-such-verb"]).exit_code != 0


def test_self_check_passes():
    shown = CliRunner().invoke(app, ["check"])
    assert shown.exit_code == 0, shown.output
    assert "FAIL" not in shown.output


def test_self_check_exits_non_zero_and_names_the_error_when_one_fails(monkeypatch):
    def broken(case, backend):
        raise RuntimeError("kernel went missing")

    monkeypatch.setattr(selfcheck, "deviation", broken)
    shown = CliRunner().invoke(app, ["check"])
    assert shown.exit_code == 1
    assert "FAIL" in shown.output
    assert "kernel went missing" in shown.output


def test_self_check_counts_nan_and_wrong_infinities_as_errors():
    good = torch.tensor([1.0, -torch.inf])
    assert selfcheck._distance(good, good) == 0
    assert selfcheck._distance(torch.tensor([torch.nan, -torch.inf]), good) == torch.inf
    assert selfcheck._distance(torch.tensor([1.0, 0.0]), good) == torch.inf
    assert selfcheck._distance(torch.tensor([1.5, -torch.inf]), good) == 0.5
