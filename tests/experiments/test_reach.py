"""Reach: twelve plans that differ in their windows alone, and claims that paired intervals over three seeds decide."""

import json
from dataclasses import replace

import pytest

from experiments import load, reach
from experiments.engine import child
from experiments.engine.evidence import FAILS, HOLDS, ONCE, PARTLY, TWICE, UNDECIDED
from experiments.engine.records import Options
from experiments.engine.sweep import plan_sweep

from .made_up import made_up_sweep, planned, rewrite


def test_plans_differ_in_their_windows_alone_and_have_the_global_heads_that_they_are_compared_at(tmp_path):
    configs = planned(load("reach"), tmp_path)
    same = {
        replace(config, model=replace(config.model, plans=None), run=replace(config.run, out="", variant=None))
        for config in configs.values()
    }
    assert len(same) == 1
    counts = {name: sum(plan.n_global for plan in config.model.layer_plans) for name, config in configs.items()}
    assert {name for name, count in counts.items() if count == 8} == set(reach.OF_EIGHT)
    assert (counts["full"], counts["ls2-w64"], counts["two-full-3-6"], counts["all-local-w64"]) == (64, 16, 16, 0)
    assert [plan.windows[0] for plan in configs["ramp"].model.layer_plans] == [8, 16, 32, 64, 128, 256, 512, None]


def decided(seeds=3, **gains):
    """What reach finds where a plan is so much below full, a little more or less from seed to seed."""
    wiggle = [0.001 * seed for seed in range(seeds)]
    rows = []
    for name in reach.PLANS:
        gain = gains.get(name.replace("-", "_"), 0.0)
        losses = [3.6 - gain + w * (1 if name == "full" else 2) for w in wiggle]
        rows.append({"variant": name, "seeds": list(range(seeds)), "steps": [9] * seeds, "final_losses": losses})
    return load("reach").findings({"rows": rows})


def test_a_plan_is_ahead_where_the_interval_of_its_differences_excludes_zero():
    ahead = {name.replace("-", "_"): 0.05 for name in reach.MIXED}
    findings = decided(**ahead | {"ladder": 0.08, "all_local_w64": -0.1})
    assert {key: found.verdict for key, found in findings.items()} == dict.fromkeys(findings, HOLDS)
    findings = decided(ladder=0.05)
    verdicts = {key: found.verdict for key, found in findings.items()}
    assert verdicts == {"mixed": PARTLY, "head-wise": UNDECIDED, "ladder": HOLDS, "local": UNDECIDED}
    assert findings["mixed"].ours.startswith("full is behind: ladder (+0.049, +0.047 to +0.051); undecided: ls1-w64 (-")
    assert decided(ls1_w64=-0.05)["head-wise"].verdict == FAILS


@pytest.mark.parametrize(("seeds", "names"), [(1, ONCE), (2, TWICE)])
def test_fewer_than_three_seeds_show_something_and_decide_nothing(seeds, names):
    findings = decided(seeds=seeds, ladder=0.05)
    assert findings["ladder"].verdict == names[HOLDS] and findings["mixed"].verdict == names[PARTLY]
    assert findings["head-wise"].verdict == UNDECIDED


def test_runs_of_other_lengths_or_parts_of_the_text_are_not_compared():
    rows = [
        {
            "variant": name,
            "seeds": [0, 1, 2],
            "steps": [9] * 3,
            "final_losses": [loss] * 3,
            "first_positions": [4.0] * 3,
        }
        for name, loss in (("full", 3.6), ("ls1-w64", 3.5))
    ]
    judge = load("reach").claims["head-wise"].judge
    assert judge({"rows": rows}).verdict == HOLDS
    del rows[1]["first_positions"]  # one of its runs was not measured on the whole text
    assert judge({"rows": rows}) is None
    rows[1] |= {"first_positions": [4.0] * 3, "steps": [9, 9, 8]}
    assert judge({"rows": rows}) is None


def test_losses_of_a_part_of_the_text_are_not_subtracted_from_those_of_the_whole():
    rows = [
        {"variant": name, "seeds": [0], "steps": [9], "final_losses": [loss], "final_loss": loss, "keys": 1.0}
        | {"n_global": 8, "max_logit": 1.0, "diverged": 0}
        for name, loss in (("full", 3.6), ("ladder", 3.5))
    ]
    data = {"name": "reach", "provenance": {"seeds": [0]}, "rows": rows, "costs": [], "retrieval": []}
    assert "| ladder | 1 | 8 | 100.0 | 3.5000 | 3.5000 | -0.1000 |" in load("reach").table(data)
    rows[0] |= {"first_positions": [4.0], "second_half": [3.5]}
    assert "| ladder | 1 | 8 | 100.0 | 3.5000 | 3.5000 |  |" in load("reach").table(data)


def test_a_run_that_diverged_is_behind_on_the_whole_text_too(tmp_path):
    experiment = load("reach")
    folder = made_up_sweep(experiment, tmp_path, seeds=(0, 1, 2), variants=("full", "ls1-w64"), steps=20)
    for path in folder.glob("*/after.json"):
        found = {"validation": {"loss": 3.0, "tokens": 9, "by_position": [3.5, 2.5]}}
        path.write_text(json.dumps(json.loads(path.read_text()) | found))
    lost = folder / "full-seed2"
    rewrite(lost, lambda record: record | {"loss": None} if record["kind"] in ("train", "eval") else record)
    (lost / "after.json").write_text(json.dumps({"spikes": 1}))  # its model was not examined
    data = experiment.collect(folder)
    full = data["rows"][0]
    assert full["final_losses"] == [3.0, 3.0, None] and full["first_positions"] == [3.5, 3.5, None]
    assert full["final_loss"] is full["final_perplexity"] is full["spread"] is None
    assert experiment.findings(data)["head-wise"].verdict == UNDECIDED
    assert "3.5000, 3.5000, not finite" in experiment.more(data)
    assert "| 3.0000 | 3.0000 | not finite | not finite |" in experiment.table(data)
    experiment.figure(data).to_dict()


def test_a_run_is_also_judged_by_the_whole_validation_text(corpus, tmp_path):
    options = Options(out=tmp_path, variants=("ladder",), quick=True, steps=2, device="cpu")
    (trial,) = plan_sweep(load("reach"), options, data=corpus)
    child.train_and_look(trial.config, also=reach.whole_validation)
    found = json.loads((trial.out / "after.json").read_text())["validation"]
    assert len(found["by_position"]) == 128 // reach.BUCKET
    assert found["tokens"] == 8 * 128  # in a quick run, no more than the longer sequences need
    longer, slowed = (json.loads((trial.out / "after.json").read_text())[key] for key in ("beyond", "beyond_yarn"))
    assert len(slowed) == 8 and slowed != longer
    data = load("reach").collect(tmp_path)
    (row,) = data["rows"]
    assert row["final_losses"] == [found["loss"]] and row["n_global"] == 8
    assert row["beyond"]["seeds"] == [0] and len(longer) == 8
    assert row["beyond"]["losses"] == {
        "1 to 128": longer[:1],
        "129 to 256": longer[1:2],
        "257 to 512": [pytest.approx(sum(longer[2:4]) / 2)],
        "513 to 1,024": [pytest.approx(sum(longer[4:]) / 4)],
    }
    page = load("reach").more(data)
    assert f"| ladder | 0 | {longer[0]:.4g} | {longer[1]:.4g} |" in page
    assert f"| ladder, YaRN | 0 | {slowed[0]:.4g} | {slowed[1]:.4g} |" in page
    within = {key: value for key, value in row.items() if not key.startswith("beyond")}
    assert "longer" not in load("reach").more(data | {"rows": [within]})
    assert "| ladder | 1 | 8 |" in load("reach").table(data) and "| ladder |" in load("reach").more(data)
    load("reach").figure(data).to_dict()


@pytest.mark.parametrize(("quick", "limit"), [(True, 8), (False, None)])
def test_only_a_quick_run_is_judged_by_a_part_of_the_validation_text(corpus, tmp_path, monkeypatch, quick, limit):
    options = Options(out=tmp_path, variants=("full",), quick=quick, device="cpu")
    (trial,) = plan_sweep(load("reach"), options, data=corpus)
    asked = []

    def evaluated(out, **options):
        asked.append(options["limit"])
        return {"loss": 1.0, "tokens": 1 << 20, "buckets": []}

    monkeypatch.setattr(reach, "evaluate_checkpoint", evaluated)
    reach.whole_validation(trial.config, tmp_path)
    assert asked[0] == limit and len(asked) == 3
