"""Label noise on images: its rules on made results, and its quick form."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments import load
from experiments.__main__ import app
from experiments.engine.evidence import FAILS, HOLDS, ONCE, PARTLY, UNDECIDED
from experiments.label_noise.tuned import COMPARED, ENDS, PICTURES, SHARES
from longshort.runs import RunError

NAME = "label-noise-images"
EXPERIMENT = load(NAME)
WIGGLE = (-0.002, -0.001, 0.0, 0.001, 0.002)


def made_up(folder, gains, seeds=5, shares=SHARES):
    """Results with e 0.75 chosen, in which each loss is better than cross-entropy by its gain, (data set, share,
    loss) -> gain; spread over seeds where the gain is a pair of mean and size."""
    folder.mkdir(exist_ok=True)
    for pictures in PICTURES:
        for share in shares:
            accuracies = {}
            for loss in COMPARED:
                gain = gains(pictures.name, share, loss.name)
                mean, size = gain if isinstance(gain, tuple) else (gain, 0.0)
                accuracies[loss.name] = [0.7 + w + mean + size * (-1) ** seed for seed, w in enumerate(WIGGLE[:seeds])]
            about = {"dataset": pictures.name, "model": "convolutional", "share": share, "seeds": list(range(seeds))}
            about |= {"sizes": [1, 1, 1], "settings": {}, "seconds": 1.0, "machine": {}}
            about |= {"chosen_rates": {end: {loss.name: 0.003 for loss in COMPARED} for end in ENDS}}
            about |= {"chosen_exponents": dict.fromkeys(ENDS, "e 0.75")}
            path = folder / f"{pictures.name}-{100 * share:.0f}.json"
            path.write_text(json.dumps(about | dict.fromkeys(ENDS, accuracies)))
    return EXPERIMENT.collect(folder)


def verdicts(folder, gains, **more):
    found = EXPERIMENT.findings(made_up(folder, gains, **more))
    return {key.partition("-")[0]: finding.verdict for key, finding in found.items()}


@pytest.mark.parametrize(
    ("mine", "base", "robust"),
    [
        (lambda dataset, share: 0.05, HOLDS, HOLDS),
        (lambda dataset, share: -0.05, FAILS, FAILS),
        (lambda dataset, share: -0.005, FAILS, HOLDS),  # worse than cross-entropy, but within one point of the others
        (lambda dataset, share: (0.0, 0.01), UNDECIDED, UNDECIDED),
        (lambda dataset, share: 0.05 if dataset == "mnist" or share == 0.4 else -0.05, PARTLY, PARTLY),
        (lambda dataset, share: 0.05 if share else -0.5, HOLDS, HOLDS),  # clean data are no case
    ],
)
def test_verdicts_follow_the_rules(tmp_path, mine, base, robust):
    def gains(dataset, share, loss):
        return {"e 0.75": mine(dataset, share), "e 0.5": 0.3}.get(loss, 0.0)

    assert verdicts(tmp_path, gains) == {"base": base, "robust": robust}


def test_one_near_rival_is_enough_and_the_words_name_it(tmp_path):
    rivals = {"generalised CE": 0.2, "symmetric CE": 0.004, "bootstrap": 0.0}
    data = made_up(tmp_path, lambda dataset, share, loss: rivals.get(loss, 0.0))
    found = EXPERIMENT.findings(data)["robust-last"]
    assert found.verdict == HOLDS and found.seeds == (5,) * 6
    assert "comparable in 6, not in 0 of 6: mnist 20% -0.4 (e 0.75 against symmetric CE)" in found.ours


def test_each_end_is_judged_by_its_own_accuracies_and_exponent(tmp_path):
    made_up(tmp_path, lambda dataset, share, loss: 0.05 * (loss == "e 0.75"))
    for path in tmp_path.glob("*.json"):
        result = json.loads(path.read_text())
        result["chosen_exponents"]["stopped"] = "e 0.5"
        path.write_text(json.dumps(result))
    found = EXPERIMENT.findings(EXPERIMENT.collect(tmp_path))
    assert found["base-last"].verdict == HOLDS and "mnist 40% +5.0 (e 0.75)" in found["base-last"].ours
    assert found["base-stopped"].verdict == UNDECIDED and "mnist 40% +0.0 (e 0.5)" in found["base-stopped"].ours


def test_one_seed_is_seen_once_and_missing_cases_decide_nothing(tmp_path):
    def gains(dataset, share, loss):
        return 0.05 * (loss == "e 0.75")

    assert verdicts(tmp_path / "one", gains, seeds=1) == {"base": ONCE[HOLDS], "robust": ONCE[HOLDS]}
    assert verdicts(tmp_path / "few", gains, shares=SHARES[:3]) == {}


def test_results_of_different_settings_or_seeds_are_not_joined(tmp_path):
    made_up(tmp_path, lambda dataset, share, loss: 0.0)
    path = next(tmp_path.glob("*.json"))
    result = json.loads(path.read_text())
    for key, other in (("settings", {"epochs": 5}), ("seeds", [0, 1, 2])):
        path.write_text(json.dumps(result | {key: other}))
        with pytest.raises(RunError, match=f"holds results with different {key}"):
            EXPERIMENT.collect(tmp_path)


def test_the_table_has_both_ends_with_their_rates_and_the_figure_is_drawn(tmp_path):
    data = made_up(tmp_path, lambda dataset, share, loss: 0.05 * (loss == "e 0.75"))
    table = EXPERIMENT.table(data)
    assert "## cifar10-gray: test accuracy" in table and "| loss | seeds | 0% wrong | 20% wrong |" in table
    assert "| e 0.75 | 5 | 75.0 ± 0.2 (0.003) |" in table
    assert "| cross-entropy, stopped early | 5 | 70.0 ± 0.2 (0.003) |" in table
    assert "| chosen exponent, stopped early |  | e 0.75 |" in table
    EXPERIMENT.figure(data).to_dict()


def call(monkeypatch, *arguments):
    words = [NAME, *(str(argument) for argument in arguments)]
    monkeypatch.setattr("sys.argv", ["experiments", *words])
    return CliRunner().invoke(app, words)


def test_the_quick_form_runs_once_resumes_and_is_not_published(tmp_path, monkeypatch):
    common = ("--quick", "--device", "cpu", "--out", tmp_path / "out")
    shown = call(monkeypatch, *common, "--variants", "mixture-40")
    assert shown.exit_code == 0 and "| bootstrap, stopped early | 1 |" in shown.output, shown.output
    shown = call(monkeypatch, *common, "--minutes", "0")
    assert "mixture-40 is already there" not in shown.output and "run the same command again" in shown.output
    assert not (tmp_path / "out" / "mixture-0.json").exists()
    shown = call(monkeypatch, *common)
    assert "mixture-40 is already there" in shown.output and (tmp_path / "out" / "mixture-0.json").exists()
    EXPERIMENT.figure(EXPERIMENT.collect(tmp_path / "out")).to_dict()
    shown = call(monkeypatch, "--out", tmp_path / "out", "--publish")
    assert shown.exit_code == 1 and "decide nothing" in shown.stderr


def write_images(path, side, seed=0):
    draw = np.random.default_rng(seed)
    x, y = draw.integers(0, 256, (400, side, side), dtype=np.uint8), np.arange(400) % 10
    np.savez(path, x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])


def test_the_data_sets_are_those_whose_files_are_there_and_other_images_are_trained_on_again(tmp_path, monkeypatch):
    write_images(tmp_path / "cifar10-gray.npz", 32)
    common = ("--quick", "--device", "cpu", "--data", tmp_path, "--out", tmp_path / "out", "--variants", "*-40")
    monkeypatch.setattr("experiments.label_noise.tuned.QUICK_SIZES", (50, 20, 20))
    monkeypatch.setattr("experiments.label_noise.tuned.COMPARED", COMPARED[2:3])
    monkeypatch.setattr("experiments.label_noise.tuned.EXPONENTIATED", ("e 0.5",))
    shown = call(monkeypatch, *common)
    assert "## cifar10-gray" in shown.output and "mnist" not in shown.output, shown.output
    assert "cifar10-gray-40 is already there" in call(monkeypatch, *common).output
    write_images(tmp_path / "cifar10-gray.npz", 32, seed=1)
    assert "is already there" not in call(monkeypatch, *common).output


def test_missing_files_and_seeds_that_choose_the_rates_are_clear_errors(tmp_path, monkeypatch):
    shown = call(monkeypatch, "--out", tmp_path / "out")
    assert shown.exit_code == 1 and "needs --data, a folder with mnist.npz, cifar10-gray.npz or both" in shown.stderr
    shown = call(monkeypatch, "--out", tmp_path / "out", "--data", tmp_path)
    assert shown.exit_code == 1 and "--data must be a folder with mnist.npz" in shown.stderr
    shown = call(monkeypatch, "--out", tmp_path / "out", "--data", tmp_path, "--seeds", "0,101")
    assert shown.exit_code == 1 and "--seeds must leave out those that choose the rates" in shown.stderr
