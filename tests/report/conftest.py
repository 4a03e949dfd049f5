"""One page about made-up runs, and one browser, for all tests of a process: both take seconds to make."""

from types import SimpleNamespace

import pytest

from longshort.report import write_report

from . import browser as chromium
from .synthetic import realistic, run_record, train_record, write_lines


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """Three seeds of a run that explodes and of one that stays calm, and a torn run with neither evals nor logits."""
    folder = tmp_path_factory.mktemp("report")
    runs = [realistic(folder / f"plain-{seed}", "plain", seed, steps=400, explode=True) for seed in (0, 1)]
    runs += [realistic(folder / f"ls-{seed}", "ls", seed, steps=400) for seed in (0, 1)]
    bare = [run_record("<bare & torn>"), *(train_record(step, 4.0) for step in range(1, 30))]
    runs.append(write_lines(folder / "bare", bare, torn='{"kind": "tr'))
    return SimpleNamespace(runs=runs, files=write_report(runs, folder / "page" / "report.html"))


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    binary = chromium.find()
    if binary is None:
        pytest.skip("no Chromium found; install one, or name it in the variable CHROMIUM")
    opened = chromium.Browser(binary, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()
