"""Every recipe: its runs are valid, and its results can be summarised, drawn and published."""

import json
import sys

import pytest
import torch

from experiments.engine import call
from experiments.engine.catalogue import RECIPES
from experiments.engine.figures import picture
from experiments.engine.publish import END, START, claims_table, publish, write_index
from experiments.engine.recipe import FAILS, HOLDS, NOT_RUN, PARTLY, Options
from experiments.engine.sweep import describe, plan_sweep
from experiments.explosion import RATES, arm_name
from experiments.heads_and_window import above_the_best
from experiments.lr_sensitivity import edge
from longshort.runs import RunError
from longshort.train import TrainConfig
from longshort.train.models import build_model

from .made_up import made_up_sweep

SWEEPS = [name for name, recipe in RECIPES.items() if recipe.arms is not None]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", SWEEPS)
def test_every_run_is_a_valid_configuration_in_a_folder_of_its_own(name, quick, tmp_path):
    arms = plan_sweep(RECIPES[name], Options(out=tmp_path, seeds=(0, 1), quick=quick), data=None)
    assert len({arm.out for arm in arms}) == len(arms)
    for arm in arms:
        assert TrainConfig.from_dict(json.loads(json.dumps(arm.config.to_dict()))) == arm.config
        with torch.device("meta"):
            build_model(arm.config)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("explosion", 6),
        ("stabilizers", 14),
        ("lr-sensitivity", 20),
        ("heads-and-window", 111),
        ("positions", 10),
        ("corrupted-tokens", 16),
        ("long-range", 22),
        ("las-sweep", 32),
        ("las-gain", 36),
        ("las-books", 8),
        ("recall", 10),
    ],
)
def test_a_sweep_has_the_arms_that_its_question_needs(name, count, tmp_path):
    assert len(plan_sweep(RECIPES[name], Options(out=tmp_path), data=None)) == count


def test_explosion_differs_from_the_author_in_the_batch_and_the_learning_rates_only(tmp_path):
    config = plan_sweep(RECIPES["explosion"], Options(out=tmp_path), data=None)[0].config
    assert (config.optimizer.lr, config.optimizer.betas, config.optimizer.weight_decay) == (6e-4, (0.9, 0.95), 0.1)
    assert (config.length, config.data.batch_size, config.model.vocab_size) == (2048, 16, 10_000)
    assert RATES == (6e-4, 3e-3, 9.6e-3)


def test_arms_of_stabilizers_share_the_precision_but_for_one(tmp_path):
    arms = plan_sweep(RECIPES["stabilizers"], Options(out=tmp_path, device="cpu"), data=None)
    assert [arm.variant for arm in arms if arm.config.run.precision == "fp32"] == ["plain-fp32"]
    assert len({arm.config.model.backend for arm in arms}) == 1


def test_rows_of_other_lengths_have_as_many_tokens_a_step(tmp_path):
    arms = plan_sweep(RECIPES["heads-and-window"], Options(out=tmp_path), data=None)
    assert {arm.config.data.batch_size * arm.config.length for arm in arms} == {32768}
    assert {arm.config.length for arm in arms} == {512, 1024, 2048, 4096, 8192, 16384}


def test_scale_is_gpt2_small_at_4096(tmp_path):
    model = plan_sweep(RECIPES["scale"], Options(out=tmp_path), data=None)[0].config.model
    assert (model.n_layers, model.width, model.n_heads, model.context, model.bias) == (12, 768, 12, 4096, True)


def test_the_plan_counts_the_runs_that_are_left(tmp_path):
    made_up_sweep(RECIPES["endurance"], tmp_path, arms=("ls",))
    lines = describe(RECIPES["endurance"], Options(out=tmp_path, device="cpu"))
    assert lines[-1].startswith("2 of 2 runs to do")  # a made-up run of other steps is none of this plan


@pytest.mark.parametrize("name", SWEEPS)
def test_results_are_summarised_drawn_and_published(name, tmp_path):
    recipe = RECIPES[name]
    made_up_sweep(recipe, tmp_path / "runs")
    paths = publish(recipe, tmp_path / "runs", tmp_path / "docs")
    assert [path.name for path in paths] == [f"{name}.json", f"{name}.md", f"{name}.png", "README.md"]
    assert paths[2].stat().st_size > 10_000
    document, page = json.loads(paths[0].read_text()), paths[1].read_text()
    assert document["findings"].keys() <= recipe.claims.keys()
    assert {found["verdict"] for found in document["findings"].values()} <= {HOLDS, PARTLY, FAILS, NOT_RUN}
    assert all(sentence in page for sentence in document["sentences"]) and document["sentences"]
    for found in document["findings"].values():
        assert f"{found['ours']} | {found['verdict']}" in paths[3].read_text().replace("\\|", "|")


@pytest.mark.parametrize("name", ["stabilizers", "positions", "heads-and-window"])
def test_part_of_a_sweep_is_summarised_too(name, tmp_path):
    recipe = RECIPES[name]
    arms = {"stabilizers": ("plain",), "positions": ("ls-rotary",), "heads-and-window": ("g0-w8", "n512-w16")}[name]
    summary = recipe.summarise(made_up_sweep(recipe, tmp_path, arms=arms))
    assert [row["arm"] for row in summary.data["rows"]] == list(arms)
    assert summary.findings == {}
    picture(recipe.figure(summary.data), tmp_path / "figure.png", title="part")


def test_a_command_that_was_given_twice_is_told_once(tmp_path):
    recipe = RECIPES["positions"]
    made_up_sweep(recipe, tmp_path / "runs", arms=("ls-rotary",))
    given = [
        "longshort reproduce positions",
        "longshort reproduce positions",
        "longshort reproduce positions --steps 9",
    ]
    (tmp_path / "runs/commands.json").write_text(json.dumps([{"command": command} for command in given]))
    publish(recipe, tmp_path / "runs", tmp_path / "docs")
    page = (tmp_path / "docs/positions.md").read_text().splitlines()
    assert [line.strip() for line in page if line.startswith("    longshort")] == [given[0], given[2]]


def test_windows_are_drawn_relative_to_the_best_of_their_length():
    rows = [
        {"arm": arm, "n_global": 1, "window": window, "length": 512, "width": 192, "final_perplexity": perplexity}
        for arm, window, perplexity in (("n512-w16", 16, 60.0), ("n512-w4", 4, 75.0), ("n512-w8", 8, 50.0))
    ]
    rows.append({**rows[0], "length": 1024, "final_perplexity": None})
    points = above_the_best(rows, [{"length": 512, "width": 192}, {"length": 1024, "width": 192}])
    assert [(point["window"], point["above"]) for point in points] == [(4, 1.5), (8, 1.0), (16, 1.2)]


def test_explosion_says_nothing_of_a_claim_before_all_rates_have_run(tmp_path):
    recipe = RECIPES["explosion"]
    part = tuple(arm_name(kind, rate) for kind in ("plain", "ls") for rate in RATES[:2])
    assert recipe.summarise(made_up_sweep(recipe, tmp_path, arms=part)).findings == {}
    findings = recipe.summarise(made_up_sweep(recipe, tmp_path)).findings
    assert {key: found.verdict for key, found in findings.items()} == {
        "calm": HOLDS,  # the made-up logits stay below 10
        "explodes": HOLDS,  # at every rate a made-up logit of plain attention is not finite
        "sparse": FAILS,  # half of the far mass is on the far keys, not more
    }


def test_equal_time_counts_steps_times_the_time_of_a_step_alone(tmp_path):
    recipe = RECIPES["stabilizers"]
    made_up_sweep(recipe, tmp_path, arms=("plain", "ls"), steps=100)
    times = {"plain": {"seconds": 0.1}, "ls": {"seconds": 0.05}}
    (tmp_path / "step_times.json").write_text(json.dumps(times))
    plain, ls = recipe.summarise(tmp_path).data["rows"]
    assert recipe.summarise(tmp_path).data["time_budget_seconds"] == pytest.approx(5.0)
    assert ls["perplexity_at_equal_time"] == pytest.approx(ls["final_perplexity"])
    assert plain["perplexity_at_equal_time"] > plain["final_perplexity"]  # half its steps


def test_the_edge_ends_at_the_first_rate_that_is_worse():
    assert edge({1e-3: 4.0, 3e-3: 4.5, 1e-2: 4.05}) == 1e-3
    assert edge({1e-3: None}) is None


def test_claims_without_data_are_not_run_yet(tmp_path):
    table = claims_table(tmp_path)
    claims = [claim.text for recipe in RECIPES.values() for claim in recipe.claims.values()]
    rows = table.splitlines()[2:]
    assert len(rows) == len(claims) and all(NOT_RUN in row for row in rows)
    assert {row.replace("\\|", "").count("|") for row in rows} == {7}  # the bars of |logit| end no cell


def test_the_table_of_claims_goes_between_its_marks_and_nowhere_else(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(f"before\n{START}\noutdated\n{END}\nafter\n")
    write_index(tmp_path)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "outdated" not in text and NOT_RUN in text
    page.write_text("no place")
    with pytest.raises(RunError, match="no place for the claims"):
        write_index(tmp_path)


def test_numbers_need_no_drawing_packages(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    said = []
    recipe = RECIPES["endurance"]
    options = Options(out=made_up_sweep(recipe, tmp_path))
    call.read_results(recipe, options, said.append, unpack=None, results=None)
    assert said[0] == recipe.summarise(tmp_path).table and said[-1].startswith("no report page: a report needs")
    with pytest.raises(RunError, match="altair"):
        publish(recipe, tmp_path, tmp_path / "docs")


def test_an_empty_folder_is_an_error(tmp_path):
    for recipe in RECIPES.values():
        with pytest.raises(ValueError, match="holds no"):
            recipe.summarise(tmp_path)


def test_an_arm_of_stabilizers_with_fewer_steps_is_compared_after_as_many(tmp_path):
    recipe = RECIPES["stabilizers"]
    made_up_sweep(recipe, tmp_path, arms=("plain", "ls"), steps=120)
    made_up_sweep(recipe, tmp_path, arms=("plain-fp32",), steps=60)
    *ranked, last = recipe.summarise(tmp_path).sentences
    assert "plain-fp32" not in ranked[0]
    assert last.startswith("plain-fp32 took 60 steps: perplexity ") and "(plain " in last and ", ls " in last


def test_a_run_that_was_stopped_before_its_first_evaluation_counts_for_nothing(tmp_path):
    recipe = RECIPES["positions"]
    made_up_sweep(recipe, tmp_path, arms=("plain-rotary", "ls-rotary"))
    metrics = tmp_path / "ls-rotary-seed0" / "metrics.jsonl"
    metrics.write_text("".join(line for line in metrics.read_text().splitlines(True) if '"eval"' not in line))
    assert [row["arm"] for row in recipe.summarise(tmp_path).data["rows"]] == ["plain-rotary"]


def test_no_verdict_is_given_on_quick_results(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)  # no report, which takes seconds
    recipe, said = RECIPES["endurance"], []
    options = Options(out=made_up_sweep(recipe, tmp_path))
    for command, shown in (
        ("longshort reproduce endurance", HOLDS),
        ("longshort reproduce endurance --quick", "nothing"),
    ):
        (tmp_path / "commands.json").write_text(json.dumps([{"command": command}]))
        call.read_results(recipe, options, said.append, unpack=None, results=None)
        (line,) = [line for line in said if line.startswith("largest |logit|")]
        assert shown in line
        said.clear()
