"""Each verdict follows the rule on its page, whatever the rows: rules are said again here, in other words."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import explosion, heads_and_window, long_runs, positions, stabilizers
from experiments.engine import equal_time, measures
from experiments.engine.catalogue import RECIPES
from experiments.engine.recipe import FAILS, HOLDS, NOT_RUN, PARTLY

from .made_up import made_up_sweep

perplexities = st.none() | st.sampled_from([25.0, 49.0, 50.0, 93.0, 98.0, 99.5, 100.0, 1e304])
peaks = st.none() | st.sampled_from([10.0, 49.9, 50.0, 99.9, 100.0, 200.0, 200.1, 400.0, 400.1, 1e6])
steps = st.sampled_from([(100,), (100, 100), (50, 100), (20_000,), (30_000,)])


@st.composite
def rows(draw, arm="ls", steps=steps):
    final = draw(perplexities)
    return {
        "arm": arm,
        "seeds": [0],
        "steps": list(draw(steps)),
        "final_perplexity": final,
        "final_loss": None if final is None else math.log(final),
        "best_perplexity": final,
        "max_logit": draw(peaks),
        "logits_lost": draw(st.integers(0, 1)),
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
    found = explosion._findings(list(table), {})
    ls, plain = ([row for row in table if row["arm"].startswith(kind)] for kind in ("ls", "plain"))
    assert found["calm"].verdict == in_how_many([largest(row) < 100 for row in ls])
    assert found["explodes"].verdict == in_how_many([row["diverged"] > 0 or largest(row) > 400 for row in plain])


@given(*(rows(name, st.just((100,))) for name in ("ls", "qk-norm-head", "all-local", "plain")))
def test_stabilizers_are_judged_by_ratios_of_perplexity_and_by_logits(ls, norm, local, plain):
    found = stabilizers._findings([ls, norm, local, plain])
    for key, other, holds, partly in (("quality", norm, 0.5, 0.98), ("global", local, 0.93, 0.995)):
        mine, theirs = final(ls), final(other)
        wins = mine < math.inf and mine <= holds * theirs
        partial = mine < math.inf and (theirs == math.inf or mine / theirs < partly)
        assert found[key].verdict == (HOLDS if wins else PARTLY if partial else FAILS)
    mine, theirs = largest(ls), largest(plain)
    expected = HOLDS if mine < 50 and theirs > 200 else PARTLY if mine < theirs / 2 else FAILS
    assert found["logits"].verdict == expected


def test_an_arm_with_fewer_steps_is_not_compared_with_the_others(tmp_path):
    recipe = RECIPES["stabilizers"]
    made_up_sweep(recipe, tmp_path, arms=("ls", "plain"), steps=120)
    made_up_sweep(recipe, tmp_path, arms=("qk-norm-head", "all-local"), steps=60)
    summary = recipe.summarise(tmp_path)
    assert set(summary.findings) == {"logits"}
    made_up_sweep(recipe, tmp_path, arms=("qk-norm-head",), steps=120)
    assert set(recipe.summarise(tmp_path).findings) == {"logits", "quality"}


@given(rows(), rows())
def test_endurance_is_judged_by_both_arms_and_by_as_many_steps(plain, ls):
    found = long_runs._endured(plain, ls)
    assert found["logits"].verdict == in_how_many([largest(ls) < 50, largest(plain) > 200])
    verdict = found["diverges"].verdict
    if plain["diverged"] and ls["diverged"]:
        assert verdict == FAILS
    elif plain["diverged"]:
        enough = max(ls["steps"]) >= max(plain["steps"]) or max(ls["steps"]) >= 20_000
        assert verdict == (HOLDS if enough else NOT_RUN)
    else:
        assert verdict == (FAILS if max(plain["steps"]) >= 20_000 else NOT_RUN)


@given(rows(), rows())
def test_scale_needs_equal_steps_and_counts_what_is_lower(plain, ls):
    found = long_runs._scaled(plain, ls)
    if len({*plain["steps"], *ls["steps"]}) > 1:
        assert found == {}
    else:
        lower = [final(ls) < final(plain), largest(ls) < largest(plain)]
        assert found["scale"].verdict == in_how_many(lower)


@given(st.dictionaries(st.sampled_from(positions.ENCODINGS), st.tuples(rows(), rows())))
def test_positions_hold_only_with_every_other_encoding(pairs):
    found = positions._findings(pairs)
    better = [
        final(ls) < final(plain) and largest(ls) < largest(plain)
        for name, (plain, ls) in pairs.items()
        if name != "learned" and len({*plain["steps"], *ls["steps"]}) == 1
    ]
    if not better:
        assert found == {}
    elif any(better) and not all(better):
        assert found["positions"].verdict == PARTLY
    else:
        assert found["positions"].verdict == (in_how_many(better) if len(better) == 4 else NOT_RUN)


def cell(n_global, window, loss, steps=100):
    return {"n_global": n_global, "window": window, "final_loss": loss, "steps": [steps]}


@pytest.mark.parametrize(
    ("loss", "verdict"), [(3.0, HOLDS), (3.019, HOLDS), (3.03, PARTLY), (3.06, FAILS), (None, FAILS), (1e4, FAILS)]
)
def test_the_choice_of_window_is_judged_against_the_best_cell(loss, verdict):
    grid = [cell(g, w, 3.0) for g in (2, 3) for w in heads_and_window.WINDOWS] + [cell(1, 50, loss)]
    assert heads_and_window._findings(grid)["choice"].verdict == verdict
    shorter = [*grid, cell(2, 9, 1.0, steps=50)]  # would be the best cell
    assert heads_and_window._findings(shorter)["choice"].verdict == verdict


def test_a_global_head_is_needed_only_if_it_is_better_at_every_window():
    def verdict(pairs):
        grid = [cell(g, w, loss) for w, losses in pairs.items() for g, loss in enumerate(losses)]
        return heads_and_window._findings(grid)["one"].verdict

    every = dict.fromkeys(heads_and_window.WINDOWS, (4.0, 3.0))
    assert verdict(every) == HOLDS
    assert verdict({8: (4.0, 3.0)}) == NOT_RUN
    assert verdict(every | {8: (3.0, 4.0)}) == verdict({8: (4.0, 3.0), 16: (3.0, 4.0)}) == PARTLY
    assert verdict(every | {8: (None, 3.0)}) == HOLDS  # none diverged, one did not


def test_equal_time_and_final_perplexity_are_of_the_mean_loss_over_seeds(tmp_path):
    recipe = RECIPES["stabilizers"]
    made_up_sweep(recipe, tmp_path, arms=("ls",), seeds=(0, 1), steps=100)
    (tmp_path / "step_times.json").write_text(json.dumps({"ls": {"seconds": 0.05}}))
    losses = [outcome.run.evaluations[-1].loss for outcome in measures.outcomes(tmp_path)]
    assert losses[0] != losses[1]
    (row,) = recipe.summarise(tmp_path).data["rows"]
    assert row["final_perplexity"] == pytest.approx(math.exp(sum(losses) / 2))
    assert row["perplexity_at_equal_time"] == row["final_perplexity"]
    assert row["spread"] == pytest.approx(abs(losses[0] - losses[1]))


@pytest.fixture(scope="module")
def hundred_steps(tmp_path_factory):
    folder = made_up_sweep(RECIPES["stabilizers"], tmp_path_factory.mktemp("runs"), arms=("ls",), steps=100)
    return measures.outcomes(folder)


@given(st.floats(1e-6, 10.0))
def test_the_arm_that_sets_the_time_budget_is_taken_at_its_last_step(hundred_steps, seconds):
    last = math.exp(hundred_steps[0].run.evaluations[-1].loss)
    assert equal_time.perplexity_at(hundred_steps, 100 * seconds / seconds) == pytest.approx(last)


def test_no_perplexity_is_given_for_a_step_that_a_run_did_not_reach(hundred_steps):
    assert equal_time.perplexity_at(hundred_steps, 101) is None
    assert equal_time.perplexity_at(hundred_steps, 0) is None


def rewrite(folder, change):
    """Every record of the run's log, as `change` leaves it."""
    path = folder / "metrics.jsonl"
    records = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records if record is not None))


@pytest.mark.parametrize("loss", [None, 5e3])
def test_losses_beyond_all_bounds_are_summarised_and_drawn(loss, tmp_path):
    recipe = RECIPES["stabilizers"]
    made_up_sweep(recipe, tmp_path, arms=("ls", "plain"), steps=100)
    rewrite(tmp_path / "plain-seed0", lambda r: r | {"loss": loss} if r["kind"] in ("eval", "train") else r)
    (tmp_path / "step_times.json").write_text(json.dumps({"ls": {"seconds": 0.1}, "plain": {"seconds": 0.1}}))
    summary = recipe.summarise(tmp_path)
    plain = summary.data["rows"][0]
    assert plain["diverged"] == (1 if loss is None else 0)  # it was never better
    assert plain["final_perplexity"] is None if loss is None else plain["final_perplexity"] > 1e300
    recipe.figure(summary.data)


def test_a_seed_that_lost_all_its_logits_does_not_hide_the_largest_of_the_others(tmp_path):
    recipe = RECIPES["endurance"]
    made_up_sweep(recipe, tmp_path, arms=("ls",), seeds=(0, 1))
    for lost in (0, 1):
        made_up_sweep(recipe, tmp_path, arms=("ls",), seeds=(0, 1))
        blank = {"logit_max": [[None] * 6] * 6, "logit_min": [[None] * 6] * 6}
        rewrite(tmp_path / f"ls-seed{lost}", lambda r, blank=blank: r | blank if "logit_max" in r else r)
        (row,) = recipe.summarise(tmp_path).data["rows"]
        assert row["max_logit"] > 1 and row["logits_lost"] == 1


def test_a_log_without_a_whole_line_counts_for_nothing(tmp_path):
    recipe = RECIPES["endurance"]
    made_up_sweep(recipe, tmp_path)
    for content in (b"", b'{"kind": "ru'):
        (tmp_path / "plain-seed0" / "metrics.jsonl").write_bytes(content)
        assert [row["arm"] for row in recipe.summarise(tmp_path).data["rows"]] == ["ls"]


def test_a_run_of_which_every_step_was_skipped_is_summarised(tmp_path):
    recipe = RECIPES["endurance"]
    made_up_sweep(recipe, tmp_path, arms=("ls",))
    rewrite(tmp_path / "ls-seed0", lambda r: None if r["kind"] == "train" else r)
    (row,) = recipe.summarise(tmp_path).data["rows"]
    assert row["max_logit"] is None and row["steps"] == [120]


def test_seeds_that_took_different_steps_show_both(tmp_path):
    recipe = RECIPES["endurance"]
    made_up_sweep(recipe, tmp_path, arms=("ls",), seeds=(0,), steps=120)
    made_up_sweep(recipe, tmp_path, arms=("ls",), seeds=(1,), steps=60)
    assert "| ls | 2 | 60 to 120 |" in recipe.summarise(tmp_path).table


def test_runs_of_another_recipe_in_the_folder_of_a_grid_go_last(tmp_path):
    made_up_sweep(RECIPES["endurance"], tmp_path, arms=("ls",))
    made_up_sweep(RECIPES["heads-and-window"], tmp_path, arms=("g1-w8", "n512-w16"))
    arms = [row["arm"] for row in RECIPES["heads-and-window"].summarise(tmp_path).data["rows"]]
    assert arms == ["g1-w8", "n512-w16", "ls"]
