"""Tables in a terminal of 80 columns."""

import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from longshort.cli import selfcheck
from longshort.report.live import live_table, result_table, running_table
from longshort.train.sweeps.variants import VARIANTS


def printed(table):
    console = Console(width=80, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("loss", [2.3227, None], ids=["finite", "not finite"])
def test_result_table_cuts_nothing(loss):
    row = {"seeds": 10, "parameters": 197_056, "validation_loss": loss, "spread": loss and 0.01234, "perplexity": loss}
    row |= {"accuracy": None, "max_logit": loss and 13_895.2, "tokens_per_second": 1_234_567.8, "spikes": 12}
    shown = printed(result_table([row | {"variant": name} for name in VARIANTS]))
    assert "…" not in shown
    assert all(name in shown for name in VARIANTS)


def test_caption_of_the_result_table_keeps_to_one_line_however_short_the_names():
    row = {"variant": "ls", "seeds": 2, "parameters": 9, "validation_loss": 2.0, "spread": 0.1, "perplexity": 7.4}
    row |= {"accuracy": None, "max_logit": 1.0, "tokens_per_second": 1.0, "spikes": 0}
    assert "means over seeds; spread: highest minus lowest loss; |logit|: largest" in printed(result_table([row]))


def test_one_seed_has_no_spread():
    row = {"variant": "ls", "seeds": 1, "parameters": 9, "validation_loss": 2.0, "spread": 0.0, "perplexity": 7.4}
    row |= {"accuracy": None, "max_logit": 1.0, "tokens_per_second": 1.0, "spikes": 0}
    shown = printed(result_table([row]))
    assert " - " in shown and "over seeds" not in shown


def test_a_comparison_that_is_finished_has_no_live_table():
    console = Console(width=80, file=io.StringIO(), force_terminal=True)
    with live_table([], console) as watch:
        watch({})
    assert console.file.getvalue() == ""


def test_running_table_cuts_nothing():
    step = SimpleNamespace(step=12_345, seconds=500.0, loss=2.34567, tokens_per_second=1_234_567.0)
    reader = SimpleNamespace(
        step=step, evaluation=SimpleNamespace(loss=2.34567), logits_LH=np.array([[12_345.6]]), end=None
    )
    run = SimpleNamespace(steps=100_000)
    trials = [
        SimpleNamespace(variant=name, seed=10, out=Path(name), config=SimpleNamespace(run=run)) for name in VARIANTS
    ]
    shown = printed(running_table(trials, {name: reader for name in VARIANTS}))
    assert "…" not in shown
    assert "12345/100000" in shown and "smoothing-only" in shown


def test_table_of_checks_cuts_nothing():
    names = [*(case.name for case in selfcheck.attention_cases()), f"{selfcheck.PAPER_6M_PARAMETERS:,} parameters"]
    checks = [
        selfcheck.Check(subject="attention blocked", name=name, error=1e-6, allowed=2e-5, seconds=12.3)
        for name in names
    ]
    shown = printed(selfcheck.table(checks))
    assert "…" not in shown and all(name in shown for name in names)
