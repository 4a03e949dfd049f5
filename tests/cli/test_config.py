"""`longshort config`, and configurations by name."""

from typer.testing import CliRunner

from longshort.cli import app
from longshort.train import TrainConfig
from longshort.train.settings.key_text import describe, starting_file
from longshort.train.settings.shipped import shipped_names
from longshort.train.sweeps.variants import VARIANTS


def run(*arguments):
    return CliRunner().invoke(app, arguments, prog_name="longshort", terminal_width=80)


def test_config_prints_every_key_a_section_or_one_key():
    assert run("config").output == describe() + "\n"
    assert run("config", "optimizer").output == describe("optimizer") + "\n"
    assert run("config", "run.precision").output == describe("run.precision") + "\n"


def test_config_prints_a_file_to_start_from(tmp_path):
    shown = run("config", "--preset", "tiny")
    assert shown.output == starting_file("tiny") + "\n"
    (tmp_path / "mine.yaml").write_text(shown.output)
    assert TrainConfig.load(tmp_path / "mine.yaml") == TrainConfig.load("tiny")


def test_config_lists_the_names_where_none_or_a_wrong_one_is_given():
    names = ", ".join(shipped_names())
    for arguments, got in ((["--preset"], ""), (["--preset", "mine"], "mine")):
        shown = run("config", *arguments)
        assert (shown.exit_code, shown.stderr) == (1, f"error: --preset must be one of {names}, got {got!r}\n")
    assert names in " ".join(run("config", "--help").output.split())


def test_config_takes_a_name_or_a_preset():
    shown = run("config", "run", "--preset", "tiny")
    assert shown.exit_code == 1 and "got 'run' and --preset tiny" in shown.stderr


def test_train_takes_the_name_of_a_configuration(tmp_path, monkeypatch, corpus):
    monkeypatch.chdir(tmp_path)
    small = ["run.steps=1", "data.batch_size=1", "model.context=16", "run.eval_batches=1", "run.device=cpu"]
    shown = run("train", "tiny", f"data.path={corpus}", *small)
    assert shown.exit_code == 0, shown.output
    assert "finished at step 1; metrics and checkpoints are in runs/tiny" in shown.output


def test_train_names_the_configurations_where_the_name_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = run("train", "mine.yaml")
    assert shown.exit_code == 1
    assert shown.stderr.startswith("error: mine.yaml: no such file; ") and "rl-tiny, tiny" in shown.stderr


def test_compare_help_has_a_line_for_each_variant():
    shown = run("compare", "--help").output.partition("Variants:\n")[2].splitlines()
    assert [line.split()[0] for line in shown if line] == list(VARIANTS)
    assert all(len(line.split()) > 3 and line.endswith(".") for line in shown)
