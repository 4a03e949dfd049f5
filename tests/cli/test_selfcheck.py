"""`longshort check`: passes here, and fails loudly where something is broken."""

import torch
from typer.testing import CliRunner

from longshort.cli import app, selfcheck


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
