"""The experiments on tasks: variants that differ in the attention alone, the quick versions, and what is decided."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from experiments import classifiers, load, long_range, recall
from experiments.__main__ import app
from experiments.engine import child, sweep
from experiments.engine.evidence import FAILS, HOLDS, NOT_RUN, PARTLY
from longshort.train.settings.config import ConfigError, TaskConfig

from .made_up import made_up_sweep, planned, rewrite


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LONGSHORT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_variants_of_a_task_differ_in_the_attention_alone(tmp_path):
    own = {"plan": None, "positions": "none", "smoothing": None, "smoothing_side": "causal"}
    own |= {"smoothing_stage": "after", "backend": "auto"}
    for name, options in (
        ("long-range", {"data": tmp_path, "variants": ("*", "*-las-before")}),
        ("las-sweep", {}),
        ("las-causal", {"data": tmp_path}),
        ("recall", {}),
    ):
        configs = planned(load(name), tmp_path, **options)
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


def test_tasks_that_are_read_come_in_with_their_files(tmp_path):
    assert {config.task.name for config in planned(load("long-range"), tmp_path).values()} == {"listops", "pathfinder"}
    configs = planned(load("long-range"), tmp_path, data=tmp_path)
    assert {config.task.name for config in configs.values()} == {"listops", "pathfinder", "text", "image", "smnist"}
    assert {config.task.path for config in configs.values()} == {None, str(tmp_path.resolve())}


def test_dear_variants_come_only_where_nothing_else_is_named(tmp_path):
    assert "listops-las-before" not in planned(load("long-range"), tmp_path, variants=("listops-*",))
    assert list(planned(load("long-range"), tmp_path, variants=("listops-las-before",))) == ["listops-las-before"]
    both = planned(load("long-range"), tmp_path, variants=("listops-*", "*-las-before"))
    assert {"listops-las", "listops-las-before", "pathfinder-las-before"} <= both.keys()


def test_sizes_of_the_base_go_before_those_of_the_experiment_in_every_task_that_has_them(tmp_path):
    configs = planned(load("long-range"), tmp_path, overrides=("task.length=512", "task.train=1000", "task.norm=batch"))
    assert {replace(config.task, causal=False) for config in configs.values()} == {
        TaskConfig(name="listops", length=512, train=1000, norm="batch"),
        TaskConfig(name="pathfinder", paddles=9, train=1000, validation=2000, test=4000, norm="batch"),
    }
    causal = [name for name, config in configs.items() if config.task.causal]
    assert causal == ["listops-las-causal", "pathfinder-las-causal"]


@pytest.mark.parametrize(("variant", "rows"), [("listops-las-before", 32), ("pathfinder-las-before", 8)])
def test_whole_attention_matrices_are_formed_of_few_sequences_at_a_time(variant, rows, tmp_path):
    (config,) = planned(load("long-range"), tmp_path, variants=(variant,)).values()
    assert config.data.batch_size / config.run.accumulate == rows
    assert rows * config.length**2 <= classifiers.DENSE_PAIRS


def test_a_single_sequence_is_formed_however_long_it_is(tmp_path):
    options = {"variants": ("listops-las-before",), "overrides": ("task.length=8000",)}
    (config,) = planned(load("long-range"), tmp_path, **options).values()
    assert config.data.batch_size == config.run.accumulate


def test_pooling_before_the_softmax_is_run_when_asked_for(tmp_path):
    assert not any("before" in name for name in planned(load("long-range"), tmp_path))
    (config,) = planned(load("long-range"), tmp_path, variants=("listops-las-before",)).values()
    assert (config.model.smoothing_stage, config.model.backend) == ("before", "reference")
    usual = planned(load("long-range"), tmp_path)["listops-las"].model
    assert config.model == replace(usual, smoothing_stage="before", backend="reference")


def test_smoothing_is_centred_unless_attention_is_causal(tmp_path):
    for causal, expected in (("false", {(False, "centred"), (True, "causal")}), ("true", {(True, "causal")})):
        options = {"variants": ("*", "*-las-before"), "overrides": (f"task.causal={causal}",)}
        configs = planned(load("long-range"), tmp_path, **options).values()
        smoothed = [config for config in configs if config.model.smoothing is not None]
        assert {(config.task.causal, config.model.smoothing_side) for config in smoothed} == expected


def test_windows_and_decay_are_in_their_variants_only(tmp_path):
    plans = {name: config.model.layer_plans[0] for name, config in planned(load("long-range"), tmp_path).items()}
    assert plans["listops-ls"].windows == (None, None, *[64] * 6) == plans["listops-ls-rotary"].windows
    assert plans["listops-decay"].decays[-1] == 0.001 and plans["listops-none"].decays is None
    assert plans["listops-alibi"].slopes is not None and plans["listops-none"].n_global == 8


@pytest.mark.parametrize(
    "options", [{"overrides": ("task.train=1000",)}, {"quick": True, "overrides": ("task.pairs=3",)}]
)
def test_recall_refuses_settings_that_it_would_not_use(options, tmp_path):
    with pytest.raises(ConfigError, match="recall has two tasks of fixed settings"):
        planned(load("recall"), tmp_path, **options)


def test_recall_goes_from_no_global_head_to_plain_attention(tmp_path):
    configs = planned(load("recall"), tmp_path)
    assert [configs[f"recall-g{n}"].model.layer_plans[0].n_global for n in recall.GLOBAL_HEADS] == [0, 1, 2, 4, 8]


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("long-range", "listops-ls,listops-las-before"),
        ("recall", "*-g1"),
        pytest.param("las-sweep", "listops-b0.1-p[15]", marks=pytest.mark.slow),
        pytest.param("las-gain", "n32-x192-none,n32-x192-las", marks=pytest.mark.slow),
        pytest.param("las-causal", "listops-decay,listops-las-before", marks=pytest.mark.slow),
    ],
)
@pytest.mark.every(2)
def test_the_quick_version_trains_and_tests(name, variants, tmp_path, monkeypatch):
    def in_this_process(configs, **_):
        for config in configs:
            child.train_and_look(config)
        return True

    monkeypatch.setattr(sweep, "run_all", in_this_process)
    arguments = [name, "--quick", "--device", "cpu", "--steps", "4", "--variants", variants]
    shown = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert shown.exit_code == 0, shown.output
    data = load(name).collect(tmp_path / "out")
    assert len(data["rows"]) == 2 and load(name).table(data) in shown.output
    for row in data["rows"]:
        after = json.loads((tmp_path / "out" / f"{row['variant']}-seed0" / "after.json").read_text())
        assert row["accuracy"] == after["test"]["accuracy"] and after["test"]["split"] == "test"


def test_what_recall_decides(tmp_path):
    experiment = load("recall")
    data = experiment.collect(made_up_sweep(experiment, tmp_path, steps=20, seeds=(0, 1, 2)))
    findings = experiment.findings(data)
    # Made up: five points more with each global head.
    assert findings["enough"].verdict == FAILS and findings["needed"].verdict == HOLDS
    assert "recall: 50.0 %, 55.0 %, 90.0 %" in findings["enough"].ours
    experiment.figure(data).to_dict()


def accuracies(tasks):
    """Data of long-range: a share for three seeds, or shares by seed, for each task and kind."""
    rows = []
    for task, kinds in tasks.items():
        for kind, shares in kinds.items():
            by_seed = shares if isinstance(shares, dict) else dict.fromkeys(range(3), shares)
            values = list(by_seed.values())
            row = {"task": task, "kind": kind, "accuracy": sum(values) / len(values)}
            rows.append(row | {"seeds": list(by_seed), "accuracies": values})
    return {"rows": rows}


def decided(tasks):
    return load("long-range").findings(accuracies(tasks))


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


def test_variants_that_guess_are_not_compared_on_a_task_that_others_have_learned():
    guessing = {"none": 0.14, "alibi": 0.14, "decay": 0.18, "smoothing": 0.15, "ls": 0.14}
    tasks = {"listops": guessing | {"las": 0.4, "rotary": 0.4, "ls-rotary": 0.3}}
    findings = decided(tasks)
    assert "decay" not in findings and findings["las"].ours.startswith("las ahead on listops of listops")
    assert findings["windows"].ours.startswith("no loss on none of listops")
    assert "windows" not in decided({"listops": guessing})


def test_variants_are_compared_over_the_seeds_that_all_of_them_have():
    smoothing, decay = {0: 0.3, 1: 0.6}, {0: 0.2, 1: 0.2}
    found = decided({"listops": {"las": {0: 0.4}, "smoothing": smoothing, "decay": decay}})
    assert found["las"].ours.startswith("las ahead on listops of listops")
    assert "las" not in decided({"listops": {"las": {2: 0.4}, "smoothing": smoothing, "decay": decay}})


def test_tasks_that_no_variant_has_learned_decide_nothing():
    guessed = {"none": 0.51, "alibi": 0.5, "decay": 0.5, "ls": 0.5, "rotary": 0.5, "ls-rotary": 0.5}
    assert decided({"pathfinder": guessed}) == {}

    def rows(task, share):
        place = {"task": task, "accuracy": share, "accuracies": [share], "seeds": [0]}
        return [place | {"n_global": n} for n in (0, 1, 8)]

    assert recall.enough({"rows": rows("recall", 0.9) + rows("passkey", 0.12)}) is None
    assert recall.enough({"rows": rows("recall", 0.9) + rows("passkey", 0.9)}).verdict == HOLDS


def test_published_accuracies_stand_below_the_best_of_ours():
    table = long_range.published_table(accuracies({"listops": {"none": 0.3, "las": 0.4}, "smnist": {"ls": 0.98}}))
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert lines[0] == "| model | listops | smnist |"
    assert lines[2] == "| our best variant | 40.0 % (las) | 98.0 % (ls) |"
    assert "| Transformer (arXiv 2011.04006) | 36.4 % |  |" in lines
    assert "| Transformer (in arXiv 2111.00396, table 6) |  | 98.9 % |" in lines
    only = long_range.published_table(accuracies({"listops": {"none": 0.3}}))
    assert "table 6" not in only and "2209.10655" in only


def test_a_run_without_a_test_score_shows_its_last_evaluation(tmp_path):
    folder = made_up_sweep(load("recall"), tmp_path, variants=("recall-g1",))
    (folder / "recall-g1-seed0" / "after.json").unlink()
    (row,) = load("recall").collect(folder)["rows"]
    assert row["accuracy"] is None
    rewrite(folder / "recall-g1-seed0", lambda r: r | {"accuracy": 0.25} if r["kind"] == "eval" else r)
    (row,) = load("recall").collect(folder)["rows"]
    assert row["accuracy"] == 0.25
