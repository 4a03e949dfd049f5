"""The experiments about LaS attention: their variants, and what made-up numbers decide by the rules that they state."""

import json
from itertools import product

import pytest

from experiments import las_books, las_causal, las_gain, las_sweep, load
from experiments.engine.evidence import FAILS, HOLDS, NOT_RUN, PARTLY, UNDECIDED

from .made_up import made_up_sweep, planned


def verdicts(findings):
    return {key: found.verdict for key, found in findings.items()}


# las-sweep


def test_a_pattern_chooses_a_row_of_the_sweep_and_its_cells_have_their_values(tmp_path):
    configs = planned(load("las-sweep"), tmp_path, variants=("listops-b0.01-*",))
    assert [config.model.smoothing for config in configs.values()] == [1, 3, 5, 9]
    assert {config.model.layer_plans[0].decays[-1] for config in configs.values()} == {0.01}
    assert {(config.task.length, config.task.test) for config in configs.values()} == {(512, 10_000)}


def test_the_task_of_pixels_is_pathfinder_unless_there_are_files(tmp_path):
    assert {config.task.name for config in planned(load("las-sweep"), tmp_path).values()} == {"listops", "pathfinder"}
    configs = planned(load("las-sweep"), tmp_path, data=tmp_path)
    assert {config.task.name for config in configs.values()} == {"listops", "image", "smnist"}


def accuracies(**tasks):
    """Data of the sweep with these grids."""
    rows = [
        {"task": task, "decay": decay, "width": width, "accuracy": share, "accuracies": [share] * 2, "seeds": [0, 1]}
        for task, cells in tasks.items()
        for (decay, width), share in cells.items()
    ]
    return {"rows": rows}


def grid(best, reported, rest=0.3):
    return {cell: rest for cell in las_sweep.CELLS} | {(0.1, 9): best, (0.001, 5): reported}


@pytest.mark.parametrize(
    ("listops", "pathfinder", "expected"),
    [
        (grid(0.40, 0.395), grid(0.8, 0.8), HOLDS),
        (grid(0.40, 0.38), grid(0.8, 0.8), PARTLY),
        (grid(0.40, 0.38), grid(0.8, 0.7), FAILS),
        (grid(0.40, 0.38), grid(0.31, 0.31), FAILS),  # cells that are all alike say nothing
    ],
)
def test_what_the_sweep_decides(listops, pathfinder, expected):
    assert las_sweep.reported(accuracies(listops=listops, pathfinder=pathfinder)).verdict == expected


def test_the_sweep_decides_nothing_before_all_cells_of_a_task_have_run():
    cells = grid(0.4, 0.4)
    del cells[0.1, 1]
    assert las_sweep.reported(accuracies(listops=cells)) is None
    assert las_sweep.reported(accuracies(listops=grid(0.31, 0.31))) is None


def test_the_grid_is_shown_and_drawn_in_per_cent(tmp_path):
    experiment = load("las-sweep")
    data = experiment.collect(made_up_sweep(experiment, tmp_path, variants=("listops-*",), steps=20))
    assert "| B 0.001 | 1 | 90.0 % | 90.0 % | 90.0 % | 90.0 % |" in experiment.table(data)
    figure = json.dumps(experiment.figure(data).to_dict())
    assert '"format": ".3~s"' not in figure  # the legend would have 900m for 90 %


def test_a_sweep_without_a_score_yet_is_shown_all_the_same(tmp_path):
    experiment = load("las-sweep")
    folder = made_up_sweep(experiment, tmp_path, variants=("listops-b0.1-p5",))
    (folder / "listops-b0.1-p5-seed0" / "after.json").unlink()
    data = experiment.collect(folder)
    assert "not measured" in experiment.more(data)
    experiment.figure(data).to_dict()


def test_the_image_task_is_held_to_the_width_reported_for_it():
    cells = dict.fromkeys(las_sweep.CELLS, 0.3) | {(0.001, 3): 0.4}
    assert las_sweep.reported(accuracies(image=cells)).verdict == HOLDS
    assert las_sweep.reported(accuracies(listops=cells)).verdict == FAILS


# las-gain


def test_every_length_has_every_number_of_training_examples_and_one_test_size(tmp_path):
    configs = planned(load("las-gain"), tmp_path)
    cells = {(config.task.length, config.task.train) for config in configs.values()}
    assert cells == set(product((128, 256, 512), (1_000, 10_000, 96_000)))
    assert {config.task.test for config in configs.values()} == {10_000}
    assert {name.split("-")[-1] for name in configs} == {"none", "rotary", "las", "ls"}
    assert configs["n256-x1000-ls"].model.layer_plans[0].windows == (None, None, *[64] * 6)


def test_the_quick_version_keeps_the_shape_of_the_grid(tmp_path):
    configs = planned(load("las-gain"), tmp_path, quick=True)
    cells = {(config.task.length, config.task.train) for config in configs.values()}
    assert cells == set(product((32, 64, 128), (2, 20, 192)))


def gained(by_cell, kind="las"):
    """What las-gain finds where plain heads have 40 % and `kind` so much more."""
    rows = []
    for (length, examples), gain in by_cell.items():
        place = {"length": length, "examples": examples, "seeds": [0, 1, 2]}
        rows += [
            place | {"kind": name, "accuracy": share, "accuracies": [share + 0.1 * seed for seed in range(3)]}
            for name, share in (("none", 0.4), (kind, 0.4 + gain))
        ]
    return load("las-gain").findings({"rows": rows})


def test_a_gain_that_grows_with_length_at_every_amount_holds():
    findings = gained({(128, 1000): 0.0, (512, 1000): 0.05, (128, 96_000): 0.01, (512, 96_000): 0.04})
    assert verdicts(findings) == {"length": HOLDS, "data": FAILS}  # the margin is two points
    assert findings["length"].ours == (
        "points gained, length 128 -> 512: +0.0 -> +5.0 (1,000 examples), +1.0 -> +4.0 (96,000 examples)"
    )


def test_a_gain_that_is_larger_with_more_data_at_one_length_holds_partly():
    findings = gained({(128, 1000): 0.01, (512, 1000): 0.04, (128, 96_000): 0.05, (512, 96_000): 0.05})
    assert verdicts(findings) == {"length": PARTLY, "data": PARTLY}
    assert findings["data"].ours == (
        "points gained, 1,000 -> 96,000 examples: +1.0 -> +5.0 (length 128), +4.0 -> +5.0 (length 512)"
    )


def test_lines_of_the_grid_without_their_ends_decide_nothing():
    assert gained({(128, 1000): 0.1, (256, 1000): 0.2, (128, 10_000): 0.0}) == {}
    assert gained({(128, 1000): 0.1, (512, 1000): 0.2}, kind="ls") == {}


def test_gains_are_counted_from_plain_heads_of_the_same_cell(tmp_path):
    experiment = load("las-gain")
    variants = ("n128-x1000-*", "n512-x1000-las", "n512-x1000-ls")
    data = experiment.collect(made_up_sweep(experiment, tmp_path, variants=variants, steps=20))
    # Made up: five points for each global head; without plain heads at length 512 nothing is said of it.
    (cell,) = las_gain.gains(data).items()
    assert cell == ((128, 1000), pytest.approx({"rotary": 0.0, "las": 0.0, "ls": -0.3}))
    assert "| 128 | 1,000 | 1 | 90.0 % | +0.0 | +0.0 | -30.0 |" in experiment.table(data)
    assert experiment.findings(data) == {}
    experiment.figure(data).to_dict()


# las-causal


def test_every_variant_is_causal_with_batch_norm_and_trains_on_tasks_as_published(tmp_path):
    configs = planned(load("las-causal"), tmp_path, data=tmp_path)
    assert {(config.task.causal, config.task.norm) for config in configs.values()} == {(True, "batch")}
    assert {(config.task.name, config.length, config.task.train) for config in configs.values()} == {
        ("listops", 2000, None),
        ("image", 1024, None),
    }
    kinds = ["none", "sinusoidal", "alibi", "decay", "smoothing", "las", "las-before"]
    assert list(configs) == [f"{task}-{kind}" for task in ("listops", "image") for kind in kinds]
    assert list(planned(load("las-causal"), tmp_path)) == [f"listops-{kind}" for kind in kinds]


def test_causal_smoothing_has_the_width_reported_for_the_task_and_needs_no_other_backend(tmp_path):
    configs = planned(load("las-causal"), tmp_path, data=tmp_path)
    pooled = {name: config.model for name, config in configs.items() if config.model.smoothing is not None}
    assert {name: (model.smoothing, model.smoothing_stage) for name, model in pooled.items()} == {
        f"{task}-{kind}": (width, "before" if kind == "las-before" else "after")
        for task, width in (("listops", 5), ("image", 3))
        for kind in ("smoothing", "las", "las-before")
    }
    assert {model.smoothing_side for model in pooled.values()} == {"causal"}
    assert {(config.model.backend, config.run.accumulate) for config in configs.values()} == {("auto", 1)}
    decaying = {name for name, config in configs.items() if config.model.layer_plans[0].decays is not None}
    assert {name.partition("-")[2] for name in decaying} == {"decay", "las", "las-before"}


def test_the_method_says_how_many_epochs_the_steps_are(tmp_path):
    experiment = load("las-causal")
    config = planned(experiment, tmp_path)["listops-none"]
    seen = config.run.steps * config.data.batch_size
    assert f"{config.run.steps:,} steps, which are {seen / 96_000:g} epochs of ListOps" in experiment.method
    assert f"and {seen / 45_000:.1f} of CIFAR-10" in experiment.method
    assert f"{config.model.n_layers} layers of width {config.model.width} with 8 heads" in experiment.method


def of_kinds(**tasks):
    """What las-causal finds in these accuracies, for three seeds alike or by seed, of the kinds of each task."""
    rows = []
    for task, kinds in tasks.items():
        for kind, shares in kinds.items():
            values = shares if isinstance(shares, list) else [shares + 0.01 * seed for seed in range(3)]
            place = {"task": task, "kind": kind.replace("_", "-"), "seeds": list(range(len(values)))}
            rows.append(place | {"accuracies": values, "accuracy": sum(values) / len(values)})
    return load("las-causal").findings({"rows": rows})


GAINING = {"none": 0.3, "decay": 0.32, "smoothing": 0.35, "las": 0.4, "sinusoidal": 0.38, "alibi": 0.36}


def test_parts_that_each_help_and_together_more_hold_on_both_tasks_alone():
    both = of_kinds(listops=GAINING, image=GAINING | {"las_before": 0.395})
    assert verdicts(both) == {"parts": HOLDS, "together": HOLDS, "positions": HOLDS, "order": NOT_RUN}
    assert both["together"].seeds == (3,) * 4
    assert both["together"].ours.startswith("listops: las less decay +8.0 (+8.0 to +8.0); listops: las less smoothing")
    assert set(verdicts(of_kinds(listops=GAINING)).values()) == {NOT_RUN}
    guessed = {"none": 0.15, "decay": 0.12, "smoothing": 0.12}
    assert of_kinds(listops=GAINING, image=guessed)["parts"].verdict == NOT_RUN
    all_guessed = dict.fromkeys((*GAINING, "las_before"), 0.1)
    assert of_kinds(listops=GAINING, image=all_guessed)["parts"].verdict == HOLDS  # which then does not count


def test_a_part_that_does_not_help_on_one_task_leaves_the_claim_partly():
    worse = GAINING | {"decay": 0.29, "sinusoidal": 0.45}
    found = of_kinds(listops=GAINING | {"las_before": 0.41}, image=worse | {"las_before": 0.38})
    assert verdicts(found) == {"parts": PARTLY, "together": HOLDS, "positions": PARTLY, "order": PARTLY}
    level = dict.fromkeys(GAINING, 0.3)
    assert of_kinds(listops=level, image=level)["parts"].verdict == FAILS
    nearly = GAINING | {"las_before": 0.392}
    assert of_kinds(listops=nearly, image=nearly)["order"].verdict == HOLDS  # at most a point below


def test_a_gain_that_changes_sign_with_the_seed_decides_nothing():
    unsure = GAINING | {"las": [0.5, 0.2, 0.5]}
    assert of_kinds(listops=unsure, image=unsure)["together"].verdict == UNDECIDED


def test_part_of_las_causal_is_shown_and_drawn(tmp_path):
    experiment = load("las-causal")
    data = experiment.collect(made_up_sweep(experiment, tmp_path, variants=("*-las-before", "*-none"), steps=20))
    assert [(row["task"], row["kind"]) for row in data["rows"]] == [("listops", "none"), ("listops", "las-before")]
    assert "| listops-las-before | 1 |" in experiment.table(data) and las_causal.learned(data) == ["listops"]
    experiment.figure(data).to_dict()


# las-books


def test_the_variants_of_books_are_three_kinds_of_attention_by_widths_of_smoothing(tmp_path):
    configs = planned(load("las-books"), tmp_path)
    found = {name: (config.model.smoothing, config.model.smoothing_side) for name, config in configs.items()}
    assert {name: width for name, (width, _) in found.items()} == {
        **{"plain": None, "decay-only": None, "ls": None},
        **{"smoothing-only": 5, "las": 5, "ls-smooth": 5, "ls-smooth-2": 2, "ls-smooth-3": 3},
    }
    assert {side for _, side in found.values()} == {"causal"}
    assert configs["ls-smooth-2"].model.layer_plans == configs["ls"].model.layer_plans


def decided(**losses):
    """What las-books finds in final losses by variant and seed."""
    rows = [
        {"variant": name.replace("_", "-"), "seeds": list(range(len(finals))), "final_losses": finals}
        for name, finals in losses.items()
    ]
    return load("las-books").findings({"rows": rows})


BASE = {"plain": [4.0, 4.1, 4.2], "decay_only": [4.0, 4.1, 4.2], "ls": [3.9, 4.0, 4.1]}


def above(name, *nats):
    """Losses so far above another's."""
    return [loss + more for loss, more in zip(BASE[name], nats, strict=True)]


def test_smoothing_that_costs_more_than_the_margin_everywhere_hurts_and_decay_does_not():
    smooth = {
        "smoothing_only": above("plain", 0.05, 0.051, 0.049),
        "las": above("plain", 0.03, 0.031, 0.029),
        "ls_smooth": above("ls", 0.02, 0.021, 0.019),
    }
    findings = decided(**BASE, **smooth)
    assert verdicts(findings) == {"smoothing": HOLDS, "decay": HOLDS}
    assert findings["smoothing"].ours == "+0.0500 nats on plain, +0.0300 nats on decay-only, +0.0200 nats on ls"


def test_a_difference_whose_sign_changes_with_the_seed_is_undecided():
    unsure = {"smoothing_only": above("plain", 0.2, -0.01, 0.1), "las": above("plain", 0.03, 0.03, 0.03)}
    assert verdicts(decided(**BASE, **unsure, ls_smooth=above("ls", 0.05, 0.05, 0.06))) == {
        "smoothing": PARTLY,
        "decay": PARTLY,  # decay-only is not worse than plain; of las nothing is known
    }
    unsure |= {"las": above("plain", -0.1, 0.1, 0.0)}
    assert verdicts(decided(**BASE, **unsure, ls_smooth=above("ls", 0.05, -0.05, 0.06)))["smoothing"] == UNDECIDED


def test_decay_that_costs_more_than_the_margin_hurts():
    findings = decided(plain=[4.0] * 3, decay_only=[4.02] * 3, smoothing_only=[4.1] * 3, las=[4.12] * 3)
    assert verdicts(findings) == {"decay": FAILS}


def test_wider_smoothing_is_judged_over_the_seeds_that_all_widths_have():
    ladder = {"ls": [3.9] * 3 + [9.0], "ls_smooth_2": [3.92] * 3, "ls_smooth_3": [3.94] * 3, "ls_smooth": [3.97] * 3}
    assert verdicts(decided(**ladder)) == {"width": HOLDS}
    findings = decided(**ladder | {"ls_smooth_3": [3.925] * 3})  # a step of less than the margin counts as none
    assert verdicts(findings) == {"width": PARTLY}
    assert findings["width"].ours == "3.9000 at 1, 3.9200 at 2, 3.9250 at 3, 3.9700 at 5"


def test_differences_are_taken_between_runs_of_one_seed():
    rows = [
        {"variant": "plain", "seeds": [0, 1], "final_losses": [4.0, 5.0]},
        {"variant": "smoothing-only", "seeds": [1, 2], "final_losses": [5.1, 1.0]},
    ]
    assert las_books.added({"rows": rows}, las_books.SMOOTHED) == {"plain": pytest.approx([0.1])}


def test_part_of_books_is_shown_and_drawn(tmp_path):
    experiment = load("las-books")
    data = experiment.collect(made_up_sweep(experiment, tmp_path, variants=("decay-only", "las", "ls-smooth-3")))
    assert experiment.findings(data) == {} and list(las_books.added(data, las_books.SMOOTHED)) == ["decay-only"]
    places = {row["variant"]: (row["attention"], row["width"]) for row in data["rows"]}
    assert places == {"decay-only": ("decay-only", 1), "las": ("decay-only", 5), "ls-smooth-3": ("ls", 3)}
    experiment.figure(data).to_dict()
