"""The recipes on tasks: arms that differ in the attention alone, the quick versions, and what their numbers decide."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from experiments import long_range, recall
from experiments.__main__ import app
from experiments.engine import child, classifiers, sweep
from experiments.engine.catalogue import RECIPES
from experiments.engine.figures import picture
from experiments.engine.recipe import FAILS, HOLDS, NOT_RUN, PARTLY, Options
from experiments.engine.sweep import plan_sweep
from longshort.train import processes as runner
from longshort.train.config import ConfigError, TaskConfig

from .made_up import made_up_sweep


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LONGSHORT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def planned(name, tmp_path, **options):
    return {arm.variant: arm.config for arm in plan_sweep(RECIPES[name], Options(out=tmp_path, **options), data=None)}


def test_arms_of_a_task_differ_in_the_attention_alone(tmp_path):
    own = {"plan": None, "positions": "none", "smoothing": None, "smoothing_side": "causal"}
    own |= {"smoothing_stage": "after", "backend": "auto"}
    for name, options in (
        ("long-range", {"data": tmp_path, "arms": ("*", "*-las-before")}),
        ("las-sweep", {}),
        ("recall", {}),
    ):
        configs = planned(name, tmp_path, **options)
        for task in {config.task.name for config in configs.values()}:
            same = {
                replace(
                    config,
                    model=replace(config.model, **own),
                    task=replace(config.task, causal=False),
                    run=replace(config.run, out="", variant=None, accumulate=1),
                )
                for config in configs.values()
                if config.task.name == task
            }
            assert len(same) == 1
    assert len(configs) == 10


def test_tasks_that_are_read_come_in_with_their_files(tmp_path):
    assert {config.task.name for config in planned("long-range", tmp_path).values()} == {"listops", "pathfinder"}
    configs = planned("long-range", tmp_path, data=tmp_path)
    assert {config.task.name for config in configs.values()} == {"listops", "pathfinder", "text", "image", "smnist"}
    assert {config.task.path for config in configs.values()} == {None, str(tmp_path.resolve())}
    assert len(configs) == 5 * (len(classifiers.KINDS) - 1)


def test_dear_arms_come_only_where_nothing_else_is_named(tmp_path):
    assert "listops-las-before" not in planned("long-range", tmp_path, arms=("listops-*",))
    assert list(planned("long-range", tmp_path, arms=("listops-las-before",))) == ["listops-las-before"]
    both = planned("long-range", tmp_path, arms=("listops-*", "*-las-before"))
    assert {"listops-las", "listops-las-before", "pathfinder-las-before"} <= both.keys()


def test_sizes_of_the_base_go_before_those_of_the_recipe_in_every_task_that_has_them(tmp_path):
    configs = planned("long-range", tmp_path, overrides=("task.length=512", "task.train=1000", "task.norm=batch"))
    assert {replace(config.task, causal=False) for config in configs.values()} == {
        TaskConfig(name="listops", length=512, train=1000, norm="batch"),
        TaskConfig(name="pathfinder", paddles=9, train=1000, validation=2000, test=4000, norm="batch"),
    }
    causal = [name for name, config in configs.items() if config.task.causal]
    assert causal == ["listops-las-causal", "pathfinder-las-causal"]


@pytest.mark.parametrize(("arm", "rows"), [("listops-las-before", 32), ("pathfinder-las-before", 8)])
def test_whole_attention_matrices_are_formed_of_few_rows_at_a_time(arm, rows, tmp_path):
    (config,) = planned("long-range", tmp_path, arms=(arm,)).values()
    assert config.data.batch_size / config.run.accumulate == rows
    assert rows * config.length**2 <= classifiers.DENSE_PAIRS


def test_a_single_row_is_formed_however_long_it_is(tmp_path):
    options = {"arms": ("listops-las-before",), "overrides": ("task.length=8000",)}
    (config,) = planned("long-range", tmp_path, **options).values()
    assert config.data.batch_size == config.run.accumulate


def test_pooling_before_the_softmax_is_run_when_asked_for(tmp_path):
    assert not any("before" in name for name in planned("long-range", tmp_path))
    (config,) = planned("long-range", tmp_path, arms=("listops-las-before",)).values()
    assert (config.model.smoothing_stage, config.model.backend) == ("before", "reference")
    usual = planned("long-range", tmp_path)["listops-las"].model
    assert config.model == replace(usual, smoothing_stage="before", backend="reference")


def test_windows_and_decay_are_in_their_arms_only(tmp_path):
    plans = {name: config.model.layer_plans[0] for name, config in planned("long-range", tmp_path).items()}
    assert plans["listops-ls"].windows == (None, None, *[64] * 6) == plans["listops-ls-rotary"].windows
    assert plans["listops-decay"].decays[-1] == 0.001 and plans["listops-none"].decays is None
    assert plans["listops-alibi"].slopes is not None and plans["listops-none"].n_global == 8


@pytest.mark.parametrize(
    "options", [{"overrides": ("task.train=1000",)}, {"quick": True, "overrides": ("task.pairs=3",)}]
)
def test_recall_refuses_settings_that_it_would_not_use(options, tmp_path):
    with pytest.raises(ConfigError, match="recall has two tasks of fixed settings"):
        planned("recall", tmp_path, **options)


def test_recall_goes_from_no_global_head_to_plain_attention(tmp_path):
    configs = planned("recall", tmp_path)
    assert [configs[f"recall-g{n}"].model.layer_plans[0].n_global for n in recall.GLOBAL_HEADS] == [0, 1, 2, 4, 8]


@pytest.mark.parametrize(
    ("name", "arms"),
    [
        ("long-range", "listops-ls,listops-las-before"),
        ("las-sweep", "listops-b0.1-p[15]"),
        ("las-gain", "n32-x192-none,n32-x192-las"),
        ("recall", "*-g1"),
    ],
)
def test_the_quick_version_trains_and_tests(name, arms, tmp_path, monkeypatch):
    def in_this_process(configs, **_):
        for config in configs:
            child.train_and_look(config)
        return True

    monkeypatch.setattr(sweep, "run_all", in_this_process)
    arguments = [name, "--quick", "--device", "cpu", "--steps", "4", "--arms", arms]
    shown = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert shown.exit_code == 0, shown.output
    summary = RECIPES[name].summarise(tmp_path / "out")
    assert len(summary.data["rows"]) == 2 and summary.table in shown.output
    for row in summary.data["rows"]:
        after = json.loads((tmp_path / "out" / f"{row['arm']}-seed0" / "after.json").read_text())
        assert row["accuracy"] == after["test"]["accuracy"] and after["test"]["split"] == "test"
    picture(RECIPES[name].figure(summary.data), tmp_path / "figure.png", title=name)


def test_what_recall_decides(tmp_path):
    findings = RECIPES["recall"].summarise(made_up_sweep(RECIPES["recall"], tmp_path)).findings
    # Made up: five points more with each global head.
    assert findings["enough"].verdict == FAILS and findings["needed"].verdict == HOLDS
    assert "recall: 50.0 %, 55.0 %, 90.0 %" in findings["enough"].ours


def decided(tasks, seed=0):
    """What long-range finds in accuracies of one seed."""
    by_seed = {task: {kind: {seed: share} for kind, share in kinds.items()} for task, kinds in tasks.items()}
    return long_range._findings(by_seed)


def test_what_long_range_decides():
    tasks = {
        "listops": {"none": 0.3, "alibi": 0.35, "decay": 0.4, "ls": 0.3, "rotary": 0.4, "ls-rotary": 0.5},
        "pathfinder": {"none": 0.6, "alibi": 0.7, "decay": 0.7, "ls": 0.5, "rotary": 0.7, "ls-rotary": 0.8},
    }
    findings = decided(tasks)
    assert {key: found.verdict for key, found in findings.items()} == {"decay": PARTLY, "windows": PARTLY}
    assert findings["windows"].ours == "no loss on listops of listops, pathfinder"
    assert decided({"listops": {"none": 0.3}}) == {}


def test_fewer_than_three_learned_tasks_decide_nothing_that_all_of_them_would():
    ahead = {"none": 0.3, "alibi": 0.3, "decay": 0.5}
    two, three = (dict.fromkeys(tasks, ahead) for tasks in (("smnist", "image"), ("smnist", "image", "listops")))
    assert decided(two)["decay"].verdict == NOT_RUN
    assert decided(two)["decay"].ours.endswith("(3 learned tasks decide)")
    assert decided(three)["decay"].verdict == HOLDS


def test_arms_that_guess_are_not_compared_on_a_task_that_others_have_learned():
    guessing = {"none": 0.14, "alibi": 0.14, "decay": 0.18, "smoothing": 0.15, "ls": 0.14}
    tasks = {"listops": guessing | {"las": 0.4, "rotary": 0.4, "ls-rotary": 0.3}}
    findings = decided(tasks)
    assert "decay" not in findings and findings["las"].ours.startswith("las ahead on listops of listops")
    assert findings["windows"].ours.startswith("no loss on none of listops")
    assert "windows" not in decided({"listops": guessing})


def test_arms_are_compared_over_the_seeds_that_all_of_them_have():
    las, smoothing, decay = {0: 0.4}, {0: 0.3, 1: 0.6}, {0: 0.2, 1: 0.2}
    found = long_range._findings({"listops": {"las": las, "smoothing": smoothing, "decay": decay}})
    assert found["las"].ours.startswith("las ahead on listops of listops")
    assert "las" not in long_range._findings({"listops": {"las": {2: 0.4}, "smoothing": smoothing, "decay": decay}})
    rows = [{"task": "listops", "kind": "las", "seeds": [0, 3], "accuracies": [0.1, 0.2]}]
    assert long_range._by_seed(rows) == {"listops": {"las": {0: 0.1, 3: 0.2}}}


def test_tasks_that_no_arm_has_learned_decide_nothing():
    guessed = {"none": 0.51, "alibi": 0.5, "decay": 0.5, "ls": 0.5, "rotary": 0.5, "ls-rotary": 0.5}
    assert decided({"pathfinder": guessed}) == {}
    learned = {"task": "recall", "accuracy": 0.9}
    rows = [learned | {"n_global": n} for n in (0, 1, 8)]
    guesses = [{"task": "passkey", "n_global": n, "accuracy": 0.12} for n in (0, 1, 8)]
    assert recall._findings(rows + guesses) == {}
    assert recall._findings(rows + [row | {"accuracy": 0.9} for row in guesses])["enough"].verdict == HOLDS


def test_published_accuracies_stand_below_the_best_of_ours():
    table = long_range._published_table({"listops": {"none": 0.3, "las": 0.4}, "smnist": {"ls": 0.98}})
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert lines[0] == "| model | listops | smnist |"
    assert lines[2] == "| our best arm | 40.0 % (las) | 98.0 % (ls) |"
    assert "| Transformer (arXiv 2011.04006) | 36.4 % |  |" in lines
    assert "| Transformer (in arXiv 2111.00396, table 6) |  | 98.9 % |" in lines
    only = long_range._published_table({"listops": {"none": 0.3}})
    assert "table 6" not in only and "2209.10655" in only


def test_a_run_without_a_test_score_shows_its_last_evaluation(tmp_path):
    folder = made_up_sweep(RECIPES["recall"], tmp_path, arms=("recall-g1",))
    (folder / "recall-g1-seed0" / "after.json").unlink()
    (row,) = RECIPES["recall"].summarise(folder).data["rows"]
    assert row["accuracy"] is None
    log = folder / "recall-g1-seed0" / runner.METRICS
    log.write_text(log.read_text().replace('"perplexity"', '"accuracy": 0.25, "perplexity"'))
    (row,) = RECIPES["recall"].summarise(folder).data["rows"]
    assert row["accuracy"] == 0.25
