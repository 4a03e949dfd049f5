"""Reach in a modern block: plans that differ in their reach alone, with and without sinks and positions."""

from dataclasses import replace

import pytest
import torch

from experiments import load, reach, reach_30m
from experiments import reach_modern as modern
from experiments.engine import child
from experiments.engine.evidence import FAILS, HOLDS, ONCE, PARTLY, UNDECIDED
from experiments.engine.records import Options
from experiments.engine.sweep import plan_sweep
from longshort.model import GPT, meets_new_angles
from longshort.reach.costs import costs

from .made_up import planned


def test_plans_differ_in_their_reach_alone_and_have_the_global_heads_that_they_are_compared_at(tmp_path):
    configs = planned(load("reach-modern"), tmp_path)
    same = {
        replace(config, model=replace(config.model, reach=None), run=replace(config.run, out="", variant=None))
        for config in configs.values()
    }
    assert len(same) == 1
    counts = {name: sum(plan.n_global for plan in config.model.layer_plans) for name, config in configs.items()}
    few = {name for name, count in counts.items() if count == 8}
    assert {name for name in few if not name.endswith(("-sinks", "-nope"))} == set(modern.OF_EIGHT)
    assert [counts[name] for name in ("full", "interleave-5-1", "interleave-3-1", "interleave-1-1")] == [64, 16, 16, 32]
    kept = {name: costs(configs[name].model.layer_reaches, context=2048).cache_bytes for name in ("ladder", "ls1-w145")}
    assert abs(kept["ladder"] / kept["ls1-w145"] - 1) < 1e-3
    for name, config in configs.items():
        layers = config.model.layer_reaches
        assert all((layer.sink == "learned") == (name in modern.SUNK) for layer in layers)
        assert all((layer.global_share == 0) == (name in (*modern.UNTURNED, *modern.LATER)) for layer in layers)


def decided(**gains):
    """What is found where a plan is so much below full, a little more or less from seed to seed."""
    rows = []
    for name in modern.PLANS:
        gain = gains.get(name.replace("-", "_"), 0.0)
        losses = [3.6 - gain + 0.001 * seed * (1 if name == "full" else 2) for seed in range(3)]
        rows.append({"variant": name, "seeds": [0, 1, 2], "steps": [9] * 3, "final_losses": losses})
    found = load("reach-modern").findings({"rows": rows})
    return {key: found[key].verdict for key in ("mixed", "ladder", "sinks", "nope")}


def test_verdicts_follow_the_paired_intervals():
    ahead = {name.replace("-", "_"): 0.05 for name in modern.MIXED} | {"ladder": 0.08}
    with_options = {name.replace("-", "_"): 0.12 for name in (*modern.SUNK, *modern.UNTURNED)}
    assert decided(**ahead | with_options) == dict.fromkeys(("mixed", "ladder", "sinks", "nope"), HOLDS)
    assert decided(**ahead | with_options | {"full_sinks": 0.0})["sinks"] == PARTLY
    assert decided() == {"mixed": UNDECIDED, "ladder": UNDECIDED, "sinks": UNDECIDED, "nope": UNDECIDED}
    assert decided(**dict.fromkeys(ahead, -0.05))["mixed"] == FAILS


def test_plans_that_were_added_later_decide_nothing_of_what_was_claimed_before():
    gained = dict.fromkeys((name.replace("-", "_") for name in modern.UNTURNED), 0.12)
    lost = dict.fromkeys((name.replace("-", "_") for name in modern.LATER), -0.12)
    assert decided(**gained | lost) == decided(**gained)


def test_a_run_has_its_loss_and_its_costs_in_the_table(corpus, tmp_path):
    options = Options(out=tmp_path, variants=("one-full-8-sinks",), quick=True, steps=1, device="cpu")
    (trial,) = plan_sweep(load("reach-modern"), options, data=corpus)
    child.train_and_look(trial.config, also=reach.whole_validation)
    data = load("reach-modern").collect(tmp_path)
    (row,) = data["rows"]
    # 8 global heads of 8 features keep 32,768 positions, 56 local ones 64: keys and values in bf16
    assert row["cache_bytes"] == 2 * 2 * 8 * (8 * 32768 + 56 * 64)
    assert "| one-full-8-sinks | 1 | 8 of 64 | 8.1 |" in load("reach-modern").table(data)
    assert "| one-full-8-sinks |" in load("reach-modern").more(data)
    load("reach-modern").figure(data).to_dict()


def test_finalists_have_a_larger_model_and_as_many_global_heads(corpus, tmp_path):
    configs = planned(load("reach-30m"), tmp_path)
    counts = {name: sum(plan.n_global for plan in config.model.layer_plans) for name, config in configs.items()}
    assert counts == {"full": 72, "ls1-w128": 12, **dict.fromkeys(reach_30m.UNTURNED, 12)}
    assert {config.model.width for config in configs.values()} == {384}
    ladder = configs["ladder-nope"].model.layer_plans[0]
    assert ladder.windows == (None, 512, 256, 128, 64, 32)
    data = {
        "rows": [
            {"variant": name, "seeds": [0], "steps": [9], "final_losses": [3.5 - (name != "full")]} for name in configs
        ]
    }
    assert load("reach-30m").findings(data)["mixed"].ours.startswith("full is behind: ls1-w128")
    unturned = {name: {layer.global_share for layer in config.model.layer_reaches} for name, config in configs.items()}
    assert {name for name, shares in unturned.items() if shares == {0}} == set(reach_30m.UNTURNED)
    options = Options(out=tmp_path, variants=("ladder-nope",), quick=True, steps=1, device="cpu")
    (trial,) = plan_sweep(load("reach-30m"), options, data=corpus)
    assert trial.config.model.context == 256


@pytest.mark.parametrize(("claim", "far"), [("beyond", "beyond"), ("slowed", "beyond_yarn")])
def test_a_plan_goes_on_where_its_loss_changes_less_than_that_of_the_others(claim, far):
    def found(of_full, of_ls, seeds=(0, 1, 2)):
        """The others' losses change by so much, those of the plans by 0.1; all differ in where they begin."""
        rows = []
        for name, first, change in (
            *((name, 3.0, 0.1) for name in reach_30m.UNTURNED),
            ("full", 3.9, of_full),
            ("ls1-w128", 2.9, of_ls),
        ):
            last = [first + change + 0.001 * seed * (name == "full") for seed in seeds]
            losses = {"1 to 2,048": [first] * len(seeds), "8,193 to 16,384": last}
            row = {"variant": name, "seeds": [0, 1, 2], "steps": [9] * 3, "final_losses": [3.4] * 3}
            changed = {"beyond": {"seeds": list(seeds), "losses": losses}}
            if far != "beyond" and name in ("full", "ls1-w128"):
                changed["beyond_yarn"] = changed["beyond"]
                changed["beyond"] = {"seeds": list(seeds), "losses": losses | {"8,193 to 16,384": [99.0] * len(seeds)}}
            rows.append(row | changed)
        return load("reach-30m").findings({"rows": rows})[claim]

    assert [found(*pair).verdict for pair in ((0.2, 0.2), (0.2, 0.0), (0.0, 0.0))] == [HOLDS, PARTLY, FAILS]
    assert found(0.2, 0.2).ours.startswith("less of the first: ls1-w128-nope and full (-0.101, ")
    assert found(0.1, 0.2).verdict == PARTLY and "undecided: ls1-w128-nope and full" in found(0.1, 0.2).ours
    assert found(0.2, 0.2, seeds=(2,)).verdict == ONCE[HOLDS]


def test_plans_without_rotation_are_compared_with_full_attention_without_it():
    def found(**losses):
        names = (*modern.UNTURNED, "ls1-w64-nope")
        ours = {name: losses.get(name.replace("-", "_"), 3.4) for name in names} | {"full-nope": 3.5, "full": 3.0}
        rows = [
            {"variant": name, "seeds": [0, 1, 2], "steps": [9] * 3, "final_losses": [loss] * 3}
            for name, loss in ours.items()
        ]
        return load("reach-modern").findings({"rows": rows})["nope-mixed"]

    assert found().verdict == HOLDS and found(ladder_nope=3.6).verdict == PARTLY
    assert found(ladder_nope=3.6).ours.endswith("the other way round: ladder-nope (-0.100, -0.100 to -0.100)")


def test_plans_that_are_rotated_and_global_are_those_whose_angles_can_be_slowed(tmp_path):
    configs = planned(load("reach-30m"), tmp_path)
    assert {name for name, config in configs.items() if meets_new_angles(config.model)} == {
        "full",
        "ls1-w128",
    }
    older = planned(load("reach"), tmp_path)
    assert {name for name, config in older.items() if not meets_new_angles(config.model)} == {"all-local-w64"}


def test_the_largest_finalists_are_seen_once_at_most(corpus, tmp_path):
    experiment = load("reach-125m")
    configs = planned(experiment, tmp_path)
    counts = {name: sum(plan.n_global for plan in config.model.layer_plans) for name, config in configs.items()}
    assert counts == {"full": 144, "ls3-w128": 36, "ls3-w128-nope": 36, "ladder-nope": 36, "interleave-5-1-nope": 24}
    assert configs["ladder-nope"].model.layer_plans[0].kv_windows(4) == (None, 512, 128, 32)
    assert {config.run.steps * config.data.batch_size * config.model.context for config in configs.values()} == {
        199884800
    }
    with torch.device("meta"):
        assert round(GPT(configs["full"].model).n_parameters() / 1e6) == 88
    data = {
        "rows": [
            {"variant": name, "seeds": [0], "steps": [9], "final_losses": [3.5 - (name != "full")]} for name in configs
        ]
    }
    assert experiment.findings(data)["mixed"].verdict == ONCE[HOLDS]
    options = Options(out=tmp_path, variants=("ladder-nope",), quick=True, steps=1, device="cpu")
    (trial,) = plan_sweep(experiment, options, data=corpus)
    child.train_and_look(trial.config, also=reach.whole_validation)
    assert "| ladder-nope | 1 | 36 of 144 |" in experiment.table(experiment.collect(tmp_path))
