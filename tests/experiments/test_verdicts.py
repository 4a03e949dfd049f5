"""Each verdict follows the rule on its page, whatever the rows: rules are said again here, in other words."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import endurance, explosion, heads_and_window, load, lr_sensitivity, positions, scale, stabilizers
from experiments.engine import measures
from experiments.engine.evidence import FAILS, HOLDS, NOT_RUN, PARTLY, TWICE, UNDECIDED
from experiments.engine.joining import joined
from experiments.lr_sensitivity import edge

from .made_up import made_up_sweep, planned, rewrite

perplexities = st.none() | st.sampled_from([25.0, 49.0, 50.0, 93.0, 98.0, 99.5, 100.0, 1e304])
peaks = st.none() | st.sampled_from([10.0, 49.9, 50.0, 99.9, 100.0, 200.0, 200.1, 400.0, 400.1, 1e6])
steps = st.sampled_from([(100,), (50,), (20_000,), (30_000,)])


@st.composite
def rows(draw, variant="ls", steps=steps):
    final = draw(perplexities)
    return {
        "variant": variant,
        "seeds": [0],
        "steps": list(draw(steps)),
        "final_perplexity": final,
        "final_loss": (loss := None if final is None else math.log(final)),
        "final_losses": [loss],
        "best_perplexity": final,
        "max_logit": (peak := draw(peaks)),
        "logits_lost": (lost := 1 if peak is None else draw(st.integers(0, 1))),
        "max_logits": [None if lost else peak],
        "diverged": draw(st.integers(0, 1)),
        "seconds_to": {},
    }


def largest(row):
    return math.inf if row["logits_lost"] or row["max_logit"] is None else row["max_logit"]


def final(row):
    return math.inf if row["final_perplexity"] is None else row["final_perplexity"]


def in_how_many(cases):
    return HOLDS if all(cases) else PARTLY if any(cases) else FAILS


@given(st.tuples(*(rows(name) for name in explosion.NAMES)))
def test_explosion_is_judged_by_logits_and_divergence_at_every_rate(table):
    data = {"rows": list(table)}
    ls, plain = ([row for row in table if row["variant"].startswith(kind)] for kind in ("ls", "plain"))
    assert explosion.calm(data).verdict == in_how_many([largest(row) < 50 for row in ls])
    assert explosion.explodes(data).verdict == in_how_many([row["diverged"] > 0 or largest(row) > 200 for row in plain])


@given(*(rows(name, st.just((100,))) for name in ("ls", "qk-norm-head", "all-local", "plain")))
def test_stabilizers_are_judged_by_ratios_of_perplexity_and_by_logits(ls, norm, local, plain):
    found = {"rows": [ls, norm, local, plain]}
    for judge, other, holds, partly in (
        (stabilizers.quality, norm, 0.5, 0.98),
        (stabilizers.needs_global, local, 0.93, 0.995),
    ):
        mine, theirs = final(ls), final(other)
        wins = mine < math.inf and math.log(mine) - math.log(theirs) <= math.log(holds)
        partial = mine < math.inf and (theirs == math.inf or mine / theirs < partly)
        assert judge(found).verdict == (HOLDS if wins else PARTLY if partial else FAILS)
    mine, theirs = largest(ls), largest(plain)
    assert stabilizers.logits(found).verdict == in_how_many([mine < 50, theirs > 200])


def test_a_variant_that_diverged_early_is_behind():
    row = {"seeds": [0], "max_logits": [40.0], "max_logit": 40.0, "logits_lost": 0, "seconds_to": {}}
    ls = row | {"variant": "ls", "steps": [100], "final_loss": 4.0, "final_losses": [4.0], "final_perplexity": 54.6}
    lost = {"steps": [4], "final_loss": None, "final_losses": [None], "final_perplexity": None}
    for name, judge in (("qk-norm-head", stabilizers.quality), ("all-local", stabilizers.needs_global)):
        assert judge({"rows": [ls, row | lost | {"variant": name}]}).verdict == HOLDS


def test_a_variant_with_fewer_steps_is_not_compared_with_the_others(tmp_path):
    experiment = load("stabilizers")
    made_up_sweep(experiment, tmp_path, variants=("ls", "plain"), steps=120)
    made_up_sweep(experiment, tmp_path, variants=("qk-norm-head", "all-local"), steps=60)
    assert set(experiment.findings(experiment.collect(tmp_path))) == {"logits"}
    made_up_sweep(experiment, tmp_path, variants=("qk-norm-head",), steps=120)
    assert set(experiment.findings(experiment.collect(tmp_path))) == {"logits", "quality"}


@given(rows("plain"), rows("ls"))
def test_the_logits_of_a_long_run_are_held_to_both_bounds(plain, ls):
    found = endurance.logits({"rows": [plain, ls]})
    assert found.verdict == in_how_many([largest(ls) < 50, largest(plain) > 200])


def ended(plain, ls, steps=30_000, ls_steps=30_000):
    """The verdict where so many of so many seeds diverged."""
    rows = [
        {"variant": name, "seeds": list(range(of)), "diverged": lost, "steps": [taken] * of}
        for name, (lost, of), taken in (("plain", plain, steps), ("ls", ls, ls_steps))
    ]
    return load("endurance").claims["diverges"].judge({"rows": rows}).by_seeds()


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (ended((3, 3), (0, 3)), HOLDS),
        (ended((2, 3), (0, 3)), UNDECIDED),  # by chance in one of five
        (ended((3, 3), (1, 3)), UNDECIDED),
        (ended((4, 5), (0, 5)), PARTLY),
        (ended((1, 2), (0, 2)), TWICE[PARTLY]),
        (ended((1, 3), (1, 3)), FAILS),
        (ended((0, 3), (0, 3)), FAILS),
        (ended((0, 3), (0, 3), steps=15_000), NOT_RUN),  # the paper's diverge later
        (ended((3, 3), (0, 3), steps=15_000, ls_steps=14_000), NOT_RUN),  # LS has not come so far
        (ended((3, 3), (0, 3), steps=30_000, ls_steps=20_000), HOLDS),
    ],
)
def test_plain_attention_must_diverge_in_every_seed_and_ls_in_none(found, verdict):
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("diverged", "steps", "verdict"),
    [((0, 0), 40_000, HOLDS), ((1, 0), 40_000, PARTLY), ((1, 1), 9_000, FAILS), ((0, 0), 9_000, UNDECIDED)],
)
def test_other_remedies_must_not_diverge(diverged, steps, verdict):
    names = ("layer-wise", "qk-norm-head")
    rows = [
        {"variant": name, "seeds": [0, 1, 2], "diverged": lost, "steps": [steps] * 3}
        for name, lost in zip(names, diverged, strict=True)
    ]
    judge = load("endurance-others").claims["stays"].judge
    assert judge({"rows": rows}).verdict == verdict and judge({"rows": rows[:1]}) is None


@given(rows("plain"), rows("ls"))
def test_scale_needs_equal_steps_and_counts_what_is_lower(plain, ls):
    found = scale.larger({"rows": [plain, ls]})
    if plain["steps"] != ls["steps"] and math.inf not in (final(plain), final(ls)):
        assert found is None
    else:
        lower = [final(ls) < final(plain), largest(ls) < largest(plain)]
        assert found.verdict == in_how_many(lower)


@given(st.dictionaries(st.sampled_from(positions.ENCODINGS), st.tuples(rows(), rows())))
def test_positions_hold_only_with_every_other_encoding(pairs):
    named = {"plain": 0, "ls": 1}
    data = {"rows": [p[i] | {"variant": f"{kind}-{e}"} for e, p in pairs.items() for kind, i in named.items()]}
    found = positions.independent(data)
    better = [
        final(ls) < final(plain) and largest(ls) < largest(plain)
        for name, (plain, ls) in pairs.items()
        if name != "learned" and (plain["steps"] == ls["steps"] or math.inf in (final(plain), final(ls)))
    ]
    if not better:
        assert found is None
    elif any(better) and not all(better):
        assert found.verdict == PARTLY
    else:
        assert found.verdict == (in_how_many(better) if len(better) == 4 else NOT_RUN)


def cell(n_global, window, loss, steps=100):
    place = {"variant": "g", "n_global": n_global, "window": window}
    return place | {"final_loss": loss, "final_losses": [loss], "steps": [steps], "seeds": [0]}


@pytest.mark.parametrize(
    ("loss", "verdict"), [(3.0, HOLDS), (3.019, HOLDS), (3.03, PARTLY), (3.06, FAILS), (None, FAILS), (1e4, FAILS)]
)
def test_the_choice_of_window_is_judged_against_the_best_cell(loss, verdict):
    grid = [cell(g, w, 3.0) for g in (2, 3) for w in heads_and_window.WINDOWS] + [cell(1, 50, loss)]
    assert heads_and_window.choice({"rows": grid}).verdict == verdict
    shorter = [*grid, cell(2, 9, 1.0, steps=50)]  # would be the best cell
    assert heads_and_window.choice({"rows": shorter}).verdict == verdict
    grid[-1] = cell(1, 50, loss, steps=100 if loss else 5)  # one that diverges stops early
    assert heads_and_window.choice({"rows": grid}).verdict == verdict


def test_a_global_head_is_needed_only_if_it_is_better_at_every_window():
    def verdict(pairs):
        grid = [cell(g, w, loss) for w, losses in pairs.items() for g, loss in enumerate(losses)]
        return heads_and_window.one({"rows": grid}).verdict

    every = dict.fromkeys(heads_and_window.WINDOWS, (4.0, 3.0))
    assert verdict(every) == HOLDS
    assert verdict({8: (4.0, 3.0)}) == NOT_RUN
    assert verdict(every | {8: (3.0, 4.0)}) == verdict({8: (4.0, 3.0), 16: (3.0, 4.0)}) == PARTLY
    assert verdict(every | {8: (None, 3.0)}) == HOLDS  # none diverged, one did not


def test_equal_time_and_final_perplexity_are_of_the_mean_loss_over_seeds(tmp_path):
    experiment = load("stabilizers")
    made_up_sweep(experiment, tmp_path, variants=("ls",), seeds=(0, 1), steps=100)
    (tmp_path / "step_times.json").write_text(json.dumps({"ls": {"seconds": 0.05}}))
    losses = [outcome.run.evaluations[-1].loss for outcome in measures.outcomes(tmp_path)]
    assert losses[0] != losses[1]
    data = experiment.collect(tmp_path)
    (row,) = data["rows"]
    assert row["final_perplexity"] == pytest.approx(math.exp(sum(losses) / 2))
    assert stabilizers.at_equal_time(data, row) == pytest.approx(losses, abs=1e-4)
    assert row["spread"] == pytest.approx(abs(losses[0] - losses[1]))


def timed(seconds, *, budget, evaluations=((50, 5.0), (100, 4.0))):
    row = {"variant": "ls", "step_seconds": seconds}
    return {
        "time_budget_seconds": budget,
        "curves": [{"variant": "ls", "validation": [list(e) for e in evaluations]}],
    }, row


@given(st.floats(1e-6, 10.0))
def test_the_variant_that_sets_the_time_budget_is_taken_at_its_last_step(seconds):
    assert stabilizers.at_equal_time(*timed(seconds, budget=100 * seconds)) == pytest.approx([4.0])


@pytest.mark.parametrize(("budget", "losses"), [(7.5, [4.5]), (5.0, []), (4.0, []), (10.1, [])])
def test_equal_time_falls_between_two_evaluations_or_says_nothing(budget, losses):
    assert stabilizers.at_equal_time(*timed(0.1, budget=budget)) == pytest.approx(losses)


def test_a_loss_that_is_not_finite_has_no_value_at_equal_time():
    assert stabilizers.at_equal_time(*timed(0.1, budget=7.5, evaluations=((50, 5.0), (100, None)))) == []


@pytest.mark.parametrize("loss", [None, 5e3])
def test_losses_beyond_all_bounds_are_summarised_and_drawn(loss, tmp_path):
    experiment = load("stabilizers")
    made_up_sweep(experiment, tmp_path, variants=("ls", "plain"), steps=100)
    rewrite(tmp_path / "plain-seed0", lambda r: r | {"loss": loss} if r["kind"] in ("eval", "train") else r)
    (tmp_path / "step_times.json").write_text(json.dumps({"ls": {"seconds": 0.1}, "plain": {"seconds": 0.1}}))
    data = experiment.collect(tmp_path)
    plain = data["rows"][0]
    assert plain["diverged"] == (1 if loss is None else 0)  # it was never better
    assert plain["final_perplexity"] is None if loss is None else plain["final_perplexity"] > 1e300
    experiment.figure(data)


def test_a_seed_that_lost_all_its_logits_does_not_hide_the_largest_of_the_others(tmp_path):
    experiment = load("endurance")
    made_up_sweep(experiment, tmp_path, variants=("ls",), seeds=(0, 1))
    for lost in (0, 1):
        made_up_sweep(experiment, tmp_path, variants=("ls",), seeds=(0, 1))
        blank = {"logit_max": [[None] * 6] * 6, "logit_min": [[None] * 6] * 6}
        rewrite(tmp_path / f"ls-seed{lost}", lambda r, blank=blank: r | blank if "logit_max" in r else r)
        (row,) = experiment.collect(tmp_path)["rows"]
        assert row["max_logit"] > 1 and row["logits_lost"] == 1


def test_a_log_without_a_whole_line_counts_for_nothing(tmp_path):
    experiment = load("endurance")
    made_up_sweep(experiment, tmp_path)
    for content in (b"", b'{"kind": "ru'):
        (tmp_path / "plain-seed0" / "metrics.jsonl").write_bytes(content)
        assert [row["variant"] for row in experiment.collect(tmp_path)["rows"]] == ["ls"]


def test_a_run_of_which_every_step_was_skipped_is_summarised(tmp_path):
    experiment = load("endurance")
    made_up_sweep(experiment, tmp_path, variants=("ls",))
    rewrite(tmp_path / "ls-seed0", lambda r: None if r["kind"] == "train" else r)
    (row,) = experiment.collect(tmp_path)["rows"]
    assert row["max_logit"] is None and row["steps"] == [120]


def test_seeds_that_took_different_steps_show_both(tmp_path):
    experiment = load("endurance")
    made_up_sweep(experiment, tmp_path, variants=("ls",), seeds=(0,), steps=120)
    made_up_sweep(experiment, tmp_path, variants=("ls",), seeds=(1,), steps=60)
    assert "| ls | 2 | 60 to 120 |" in experiment.table(experiment.collect(tmp_path))


def test_runs_of_another_experiment_in_the_folder_of_a_grid_go_last(tmp_path):
    made_up_sweep(load("endurance"), tmp_path, variants=("ls",))
    made_up_sweep(load("heads-and-window"), tmp_path, variants=("g1-w8", "n512-w16"))
    names = [row["variant"] for row in load("heads-and-window").collect(tmp_path)["rows"]]
    assert names == ["g1-w8", "n512-w16", "ls"]


def test_explosion_says_nothing_of_a_claim_before_all_rates_have_run(tmp_path):
    experiment = load("explosion")
    part = tuple(name for name in explosion.NAMES if not name.endswith("-9.6e-3"))
    assert experiment.findings(experiment.collect(made_up_sweep(experiment, tmp_path, variants=part))) == {}
    data = experiment.collect(made_up_sweep(experiment, tmp_path, seeds=(0, 1, 2)))
    findings = experiment.findings(data)
    assert {key: found.verdict for key, found in findings.items()} == {
        "calm": HOLDS,  # the made-up logits stay below 10
        "explodes": HOLDS,  # at every rate a made-up logit of plain attention is not finite
        "sparse": FAILS,  # half of the far mass is on the far keys, not more
    }


def test_where_the_trained_heads_of_explosion_look_is_kept_seed_by_seed(tmp_path):
    experiment = load("explosion")
    one = experiment.collect(made_up_sweep(experiment, tmp_path / "one"))
    folder = made_up_sweep(experiment, tmp_path / "others", seeds=(1, 2))
    (path,) = folder.glob("ls-6e-4-seed2/after.json")
    found = json.loads(path.read_text())
    plans = json.loads(path.with_name("metrics.jsonl").read_text().partition("\n")[0])["plans"]
    for values, windows in zip(found["anatomy"]["far_keys"], plans, strict=True):
        values[:] = [9.5 if window is None else 1e6 for window in windows]  # only global heads are asked
    path.write_text(json.dumps(found))
    data = joined(one, experiment.collect(folder))
    rows = {row["variant"]: row for row in data["rows"]}
    assert rows["ls-6e-4"]["far_keys"] == [0.5, 0.5, 9.5]
    assert "| ls-6e-4 | 3 | 0.5 | 3.5 |" in experiment.more(data)
    assert experiment.findings(data)["sparse"].seeds == (3, 3, 3)

    path.write_text("{}")  # a model that was not examined
    data = experiment.collect(folder)
    assert "ls-6e-4" not in experiment.more(data) and "ls-3e-3" in experiment.more(data)
    assert "sparse" not in experiment.findings(data)


@pytest.mark.parametrize(
    ("name", "variants"),
    [("stabilizers", ("plain",)), ("positions", ("ls-rotary",)), ("heads-and-window", ("g0-w8", "n512-w16"))],
)
def test_part_of_a_sweep_decides_nothing_and_is_shown_too(name, variants, tmp_path):
    experiment = load(name)
    data = experiment.collect(made_up_sweep(experiment, tmp_path, variants=variants))
    assert [row["variant"] for row in data["rows"]] == list(variants)
    assert experiment.findings(data) == {}
    assert experiment.table(data) and (experiment.more is None or experiment.more(data))
    experiment.figure(data).to_dict()


def test_equal_time_counts_steps_times_the_time_of_a_step_alone(tmp_path):
    experiment = load("stabilizers")
    made_up_sweep(experiment, tmp_path, variants=("plain", "ls"), steps=100)
    times = {"plain": {"seconds": 0.1}, "ls": {"seconds": 0.05}}
    (tmp_path / "step_times.json").write_text(json.dumps(times))
    data = experiment.collect(tmp_path)
    plain, ls = data["rows"]
    assert data["time_budget_seconds"] == pytest.approx(5.0)
    assert stabilizers.at_equal_time(data, ls) == pytest.approx([ls["final_loss"]], abs=1e-4)
    assert stabilizers.at_equal_time(data, plain)[0] > plain["final_loss"]  # half its steps


def edges_found(*best, seeds=3):
    """What lr-sensitivity finds where LS's edge is at the rate of this index, seed by seed, and plain's at 1e-2."""
    rows = []
    for kind, lasts in (("ls", best), ("plain", (3,) * seeds)):
        for place, rate in enumerate(lr_sensitivity.RATES):
            losses = [4.0 if place <= last else None for last in lasts]  # a rate that is too large diverges
            rows.append(
                {
                    "variant": lr_sensitivity.at_rate(kind, rate),
                    "seeds": list(range(seeds)),
                    "steps": [2 if loss is None else 9 for loss in losses],
                    "final_losses": losses,
                    "final_loss": None if None in losses else 4.0,
                }
            )
    every = {f"{rate:g}": 4.0 for rate in lr_sensitivity.RATES}
    kinds = [{"kind": kind, "losses": every, "edge": 0.01, "best": 4.0} for kind in ("ls", "plain")]
    return load("lr-sensitivity").findings({"rows": rows, "kinds": kinds})["edge"].verdict


def test_an_edge_is_larger_only_where_the_seeds_agree():
    assert edges_found(4, 4, 4) == HOLDS
    assert edges_found(3, 3, 3) == edges_found(2, 2, 2) == FAILS  # equal edges are not larger
    assert edges_found(4, 3, 2) == UNDECIDED


@pytest.mark.parametrize(
    ("ls", "verdict"), [((5.0, 5.1, 4.9), HOLDS), ((5.0, 5.1, 30.0), UNDECIDED), ((11.0, 11.1, 10.9), FAILS)]
)
def test_a_pass_is_faster_only_where_the_rounds_agree(ls, verdict):
    place = {"model": "paper-6m", "n": 512, "timing": "eager"}
    times = {"ls": list(ls), "plain-flash": [10.0, 10.1, 9.9]}
    row = place | {"saved": {"plain-flash": 0.5}}
    measured = [place | {"variant": name, "milliseconds": rounds} for name, rounds in times.items()]
    assert load("latency").findings({"rows": [row], "measured": measured})["latency"].verdict == verdict


def test_the_edge_ends_at_the_first_rate_that_is_worse():
    assert edge({1e-3: 4.0, 3e-3: 4.5, 1e-2: 4.05}) == 1e-3
    assert edge({1e-3: None}) is None


def test_windows_are_drawn_relative_to_the_best_of_their_length():
    rows = [
        {
            "n_global": 1,
            "window": window,
            "length": 512,
            "width": 192,
            "final_loss": 1.0,
            "final_perplexity": perplexity,
        }
        for window, perplexity in ((16, 60.0), (4, 75.0), (8, 50.0))
    ]
    rows += [{**rows[0], "length": 1024, "final_loss": None}, {**rows[0], "length": 4096}]  # too few to compare
    points = heads_and_window.above_the_best({"rows": rows})
    assert [(point["window"], point["above"]) for point in points] == [(4, 1.5), (8, 1.0), (16, 1.2)]


def test_a_run_that_was_stopped_before_its_first_evaluation_counts_for_nothing(tmp_path):
    made_up_sweep(load("positions"), tmp_path, variants=("plain-rotary", "ls-rotary"))
    rewrite(tmp_path / "ls-rotary-seed0", lambda r: None if r["kind"] == "eval" else r)
    assert [row["variant"] for row in load("positions").collect(tmp_path)["rows"]] == ["plain-rotary"]


def test_what_was_written_before_a_run_was_resumed_is_not_taken_for_its_end(tmp_path):
    made_up_sweep(load("endurance"), tmp_path, variants=("ls",))
    after = tmp_path / "ls-seed0" / "after.json"
    for step, spikes in ((120, 3), (60, 0)):
        after.write_text(json.dumps({"step": step, "spikes": 3}))
        assert load("endurance").collect(tmp_path)["rows"][0]["spikes"] == spikes


def test_explosion_differs_from_the_author_in_the_batch_and_the_learning_rates_only(tmp_path):
    config = next(iter(planned(load("explosion"), tmp_path).values()))
    assert (config.optimizer.lr, config.optimizer.betas, config.optimizer.weight_decay) == (6e-4, (0.9, 0.95), 0.1)
    assert (config.length, config.data.batch_size, config.model.vocab_size) == (2048, 16, 10_000)
    assert explosion.RATES == (6e-4, 3e-3, 9.6e-3)


def test_variants_of_stabilizers_share_the_precision_but_for_one(tmp_path):
    configs = planned(load("stabilizers"), tmp_path)
    assert [name for name, config in configs.items() if config.run.precision == "fp32"] == ["plain-fp32"]
    assert len({config.model.backend for name, config in configs.items() if name != "plain-flash"}) == 1


def test_sequences_of_other_lengths_have_as_many_tokens_per_step(tmp_path):
    configs = planned(load("heads-and-window"), tmp_path).values()
    assert {config.data.batch_size * config.length for config in configs} == {32768}
    assert {config.length for config in configs} == {512, 1024, 2048, 4096, 8192, 16384}


def test_scale_is_gpt2_small_at_4096(tmp_path):
    model = planned(load("scale"), tmp_path)["ls"].model
    assert (model.n_layers, model.width, model.n_heads, model.context, model.bias) == (12, 768, 12, 4096, True)
