"""The experiments that measure something themselves: free Q and K, latency, label noise, descent."""

import json

import pytest
import torch
from typer.testing import CliRunner

from experiments import load
from experiments.__main__ import app
from experiments.banded_fit import learn, rank_needed, target
from longshort.files import write_json
from longshort.report.figures import specification


def test_a_target_has_weights_on_the_band_alone():
    weights = target(10, 4, seed=0)
    assert weights.shape == (10, 4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(10))
    assert [int((row > 0).sum()) for row in weights] == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]


def test_a_window_that_sees_everything_learns_what_full_attention_does():
    full, window = (learn(8, 4, windowed=windowed, seed=0, steps=30, band=8) for windowed in (False, True))
    for key in ("error", "max_logit", "rank"):
        assert window[key] == pytest.approx(full[key], rel=1e-3)


def test_a_window_makes_a_long_pattern_easy():
    full, window = (learn(96, 8, windowed=windowed, seed=0, steps=80, band=8) for windowed in (False, True))
    assert window["error"] < full["error"] / 2 and window["max_logit"] < full["max_logit"]


def test_the_rank_needed_is_read_between_widths():
    assert rank_needed([(4, 0.001)]) == 4
    assert rank_needed([(4, 1.0), (8, 0.5)]) is None


@pytest.mark.parametrize(
    "name", ["degrees-of-freedom", "gumbel-score", pytest.param("latency", marks=pytest.mark.slow)]
)
def test_the_quick_version_measures_and_is_not_published(name, tmp_path, monkeypatch):
    arguments = [name, "--quick", "--device", "cpu", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["experiments", *arguments])
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    experiment = load(name)
    data = experiment.collect(tmp_path / "out")
    assert experiment.table(data) in shown.output and experiment.findings(data).keys() == experiment.claims.keys()
    specification(experiment.figure(data), title=name)
    shown = CliRunner().invoke(app, [name, "--out", str(tmp_path / "out"), "--publish"])
    assert shown.exit_code == 1 and "decide nothing" in shown.stderr


def test_latency_without_a_gpu_is_an_error(tmp_path):
    shown = CliRunner().invoke(app, ["latency", "--device", "cpu", "--out", str(tmp_path)])
    assert shown.exit_code == 1 and "needs a CUDA GPU" in shown.stderr


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("degrees-of-freedom", "results.json"),
        ("gumbel-score", "gumbel-score.json"),
        ("loss-landscape", "results.json"),
        ("label-noise", "mixture-mlp.json"),
        ("label-noise-images", "mixture-0.json"),
    ],
)
def test_seeds_that_were_measured_are_not_written_over(name, file, tmp_path):
    there = {"seeds": [1, 2]} if name.startswith("label") else {"settings": {"seeds": [1, 2]}}
    write_json(tmp_path / file, there)
    shown = CliRunner().invoke(app, [name, "--quick", "--seeds", "2,3", "--device", "cpu", "--out", str(tmp_path)])
    assert shown.exit_code == 1 and f"{file}: holds seeds 1,2, which this call would replace" in shown.stderr
    assert "--seeds 1,2,3" in shown.stderr and json.loads((tmp_path / file).read_text()) == there
