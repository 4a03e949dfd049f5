"""The table of what differs between variants."""

import pytest

from longshort.report import comparison
from longshort.report.differences import differences, not_only_seeds
from longshort.runs import load_runs

from .synthetic import run_record, write_lines

DASH = "\N{EN DASH}"


def table(tmp_path, **models):
    folders = []
    for name, model in models.items():
        for seed in (0, 1):
            head = run_record(f"{name}-{seed}", variant=name, seed=seed)
            head["config"]["model"] = dict(model)
            folders.append(write_lines(tmp_path / f"{name}-{seed}", [head]))
    return [(row.name, row.key, row.values) for row in differences(comparison.group(load_runs(folders)))]


def test_only_settings_that_differ_are_named_in_words_with_a_column_for_each_variant(tmp_path):
    found = table(tmp_path, a={"d_model": 64, "qk_norm": None}, b={"d_model": 64, "qk_norm": "head", "extra": True})
    assert found == [
        ("QK-norm", "model.qk_norm", [DASH, "head"]),
        ("model: extra", "model.extra", [DASH, "yes"]),
    ]


def test_reach_of_the_heads_is_one_row_and_its_keys_are_not(tmp_path):
    folders = [
        write_lines(tmp_path / name, [run_record(name, plans=[[*windows]] * 2, config={"model": {"window": w}})])
        for name, windows, w in (("ls", (None, 16, 16, 16), 16), ("plain", (None,) * 4, None))
    ]
    (row,) = differences(comparison.group(load_runs(folders)))
    assert (row.name, row.values) == ("reach of the heads", ["1 global, 3 with window 16", "4 global"])


def test_runs_that_differ_by_seed_alone_have_no_rows(tmp_path):
    assert table(tmp_path, a={"d_model": 64}) == []


def test_runs_of_one_variant_that_differ_by_more_than_the_seed_are_told_apart(tmp_path):
    folders = [
        write_lines(
            tmp_path / f"{lr}-{variant}-{seed}",
            [run_record(config={"run": {"variant": variant, "steps": steps}, "optimizer": {"lr": lr}}, seed=seed)],
        )
        for lr, steps in ((1e-3, 5), (3e-3, 9))
        for variant in ("plain", "ls")
        for seed in (0, 1)
    ]
    variants = comparison.group(load_runs(folders))
    assert [(row.key, row.values) for row in differences(variants)] == [
        ("run.steps", ["5 / 9"] * 2),
        ("optimizer.lr", ["0.001 / 0.003"] * 2),
    ]
    notes = not_only_seeds(variants)
    assert notes[0].startswith("plain: its runs differ in optimizer.lr, so what is said of its seeds")
    assert notes[1] == "plain: more than one of its runs has seed 0, 1"
    assert not_only_seeds(comparison.group(load_runs(folders[:4]))) == ()


def test_a_setting_that_older_logs_do_not_have_is_no_difference_within_a_variant(tmp_path):
    older = {"optimizer": {"lr": 1e-3}, "model": {"rope_scaling": None}}
    newer = {**older, "data": {"share": 1.0}, "model": {"rope_scaling": {"factor": 8}}}
    runs = load_runs(
        [
            write_lines(tmp_path / f"{seed}", [run_record(config=it, seed=seed)])
            for seed, it in enumerate((older, newer))
        ]
    )
    assert [row.key for row in differences(comparison.group(runs))] == ["model.rope_scaling.factor"]
    assert len(not_only_seeds(comparison.group(runs))) == 1


def test_positions_of_the_heads_are_a_row_where_the_reach_has_them(tmp_path):
    plan = {"windows": [None, 8]}
    found = table(tmp_path, a={"reach": [{"plan": plan}]}, b={"reach": [{"plan": plan, "global_base": 1e6}] * 2})
    assert found == [("positions of the heads", "model.reach", [DASH, "global_base 1e+06"])]


def test_heads_that_are_not_rotated_are_told_in_words(tmp_path):
    plan = {"windows": [None, 8]}
    still = {"plan": plan, "global_share": 0.0, "sink": "learned"}
    found = table(tmp_path, a={"reach": [still] * 2}, b={"reach": [{"plan": plan, "global_share": 0.5}] * 2})
    assert found[0][2] == ["global heads not rotated, sink learned", "global_share 0.5"]


def test_reach_of_the_heads_tells_first_keys_too(tmp_path):
    folders = [
        write_lines(tmp_path / name, [run_record(name, firsts=[[0, first, first, first]] * 2)])
        for name, first in (("few", 4), ("many", 8))
    ]
    (row,) = differences(comparison.group(load_runs(folders)))
    assert (row.name, row.values) == (
        "reach of the heads",
        [f"1 global, 3 with the first {first} keys and window 16" for first in (4, 8)],
    )


@pytest.mark.parametrize("way", ["plan", "plans", "reach"])
def test_decays_and_slopes_are_one_row_however_the_plan_is_given(tmp_path, way):
    def given(**rates):
        plan = {"windows": [None, 8], "decays": None, "slopes": None, "firsts": None} | rates
        return {way: {"plan": plan, "plans": [plan] * 2, "reach": [{"plan": plan}] * 2}[way]}

    found = table(tmp_path, a=given(decays=[0.0, 0.001]), b=given(slopes=[0.5, 0.25]), c=given())
    values = ["decays 0, 0.001", "slopes 0.5, 0.25", DASH]
    assert found == [("decays and slopes of the heads", "model.plan.decays", values)]


def test_rates_that_differ_by_layer_name_the_layers(tmp_path):
    layers = [{"windows": [None, 8], "decays": [0.0, rate]} for rate in (0.5, 0.25)]
    found = table(tmp_path, a={"plans": layers}, b={"plans": [layers[0]] * 2})
    assert found[0][2] == ["layer 0: decays 0, 0.5; layer 1: decays 0, 0.25", "decays 0, 0.5"]
