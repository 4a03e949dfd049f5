"""The verbs on tasks: compare ends in accuracies and a report, evaluate gives the accuracy of a whole split."""

import json
import re
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from longshort import report
from longshort.cli import app
from longshort.train import TrainConfig, TrainingStopped, train
from longshort.train.sweeps import processes as runner

MODEL = {"vocab_size": 16, "context": 32, "n_layers": 1, "width": 16, "n_heads": 2, "n_global": 1, "window": 4}
TASK = {"name": "listops", "length": 32, "train": 40, "validation": 8, "test": 8}
RUN = {"steps": 2, "device": "cpu", "eval_every": 1, "eval_batches": 1}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LONGSHORT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("COLUMNS", "200")


def verb(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_compare_ends_in_accuracies_and_a_report(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "run_all", lambda configs, **_: bool([train(config) for config in configs]))
    (tmp_path / "task.yaml").write_text(
        yaml.safe_dump({"model": MODEL, "task": TASK, "data": {"batch_size": 4}, "run": RUN})
    )
    shown = verb("compare", tmp_path / "task.yaml", "--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.output
    assert "accuracy" in shown.output and "perplexity" not in shown.output
    rows = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [row["variant"] for row in rows] == ["plain", "ls"] and all(0 <= row["accuracy"] <= 1 for row in rows)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "accuracy" in page


def test_compare_refuses_a_folder_of_one_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "run_all", lambda configs, **_: bool([train(config) for config in configs]))
    (tmp_path / "task.yaml").write_text(
        yaml.safe_dump({"model": MODEL, "task": TASK, "data": {"batch_size": 4}, "run": RUN})
    )
    shown = verb("compare", tmp_path / "task.yaml", f"run.out={tmp_path / 'mine'}")
    assert shown.exit_code == 1 and "use --out FOLDER" in shown.stderr
    assert not (tmp_path / "runs").exists()


def test_evaluate_gives_the_accuracy_of_a_split(tmp_path):
    config = {"model": MODEL, "task": TASK, "data": {"batch_size": 3}, "run": {**RUN, "out": str(tmp_path / "run")}}
    train(TrainConfig.from_dict(config))
    shown = verb("evaluate", tmp_path / "run", "--split", "test", "--device", "cpu", "--out", tmp_path / "e.json")
    assert shown.exit_code == 0 and "test of listops" in shown.output, shown.output
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["accuracy"] * 8 == round(found["accuracy"] * 8) and found["task"] == "listops"
    for option in ("--length", "--bucket"):
        shown = verb("evaluate", tmp_path / "run", option, 16)
        assert shown.exit_code == 1 and f"{option} is for text" in shown.stderr
    shown = verb("generate", tmp_path / "run", "--device", "cpu")
    assert shown.exit_code == 1 and "a classifier of the task" in shown.stderr


def test_a_wrong_name_gives_the_list(tmp_path):
    (tmp_path / "task.yaml").write_text(yaml.safe_dump({"model": MODEL}))
    shown = verb("train", tmp_path / "task.yaml", "task=sorting")
    assert shown.exit_code == 1
    assert "task.name must be one of listops, pathfinder, text, image, smnist, recall, passkey" in shown.stderr


def test_compare_says_what_it_trains_on_and_how_much(tmp_path, monkeypatch, corpus):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "run_all", lambda configs, **_: False)
    shown = verb("compare", "tiny", f"data.path={corpus}", "--seeds", 2)
    assert shown.output.splitlines()[0].startswith(f"training on {corpus} (")
    assert "\n4 runs of 500 steps each, 2 at a time\n" in shown.output


def test_compare_says_at_which_step_a_run_diverged(tmp_path, monkeypatch):
    def diverge(configs, **_):
        for config in configs:
            with pytest.raises(TrainingStopped):
                train(config)
        return True

    monkeypatch.setattr(runner, "run_all", diverge)
    monkeypatch.setattr(report, "write_report", lambda runs, out, **options: SimpleNamespace(html=out))
    values = {"model": MODEL, "task": TASK, "data": {"batch_size": 4}, "run": RUN | {"steps": 30}}
    values |= {"optimizer": {"lr": 1e30}, "schedule": {"warmup": 0}, "stability": {"nonfinite_cap": 2}}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(values))
    shown = verb("compare", tmp_path / "task.yaml", "--variants", "ls", "--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.output
    assert re.search(r"^ls seed 0 diverged at step \d+$", shown.output, flags=re.MULTILINE)
