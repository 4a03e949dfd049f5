"""Adding runs to published data gives what all runs in one folder would have given."""

import json

import pytest

from experiments import load
from experiments.engine.joining import joined
from longshort.runs import RunError

from ..made_up import made_up_sweep


def numbered(folder):
    """Runs differ: the accuracy of each is its seed's and its place's."""
    for number, path in enumerate(sorted(folder.glob("*/after.json"))):
        after = json.loads(path.read_text())
        after["test"]["accuracy"] += 0.001 * number
        path.write_text(json.dumps(after))


def test_new_variants_and_seeds_join_what_was_published_as_if_all_runs_were_in_one_folder(tmp_path):
    experiment = load("recall")
    folder = made_up_sweep(
        experiment, tmp_path / "all", seeds=(0, 1), variants=("recall-g[01]", "passkey-g0"), steps=20
    )
    numbered(folder)
    expected = experiment.collect(folder)
    (tmp_path / "first").mkdir()
    for name in ("recall-g0-seed0", "recall-g1-seed0"):
        (folder / name).rename(tmp_path / "first" / name)
    published = json.loads(json.dumps(experiment.collect(tmp_path / "first")))
    found = joined(published, experiment.collect(folder))
    assert experiment.table(found) == experiment.table(expected)
    assert found["provenance"] == expected["provenance"] | {
        "run_seconds": pytest.approx(expected["provenance"]["run_seconds"], abs=0.2)  # rounded twice
    }
    assert {(c["variant"], c["seed"]) for c in found["curves"]} == {
        (c["variant"], c["seed"]) for c in expected["curves"]
    }


def data(seeds, steps=100, **changes):
    numbers = {"accuracy": 0.5, "exact": None, "validation_loss": 1.0, "max_logit": None, "diverged": 0}
    row = {"variant": "a", "seeds": seeds, "steps": [steps] * len(seeds), "accuracies": [0.5] * len(seeds)}
    return {"provenance": {}, "rows": [row | numbers | changes]}


def test_a_run_that_is_in_both_or_took_other_steps_is_refused():
    assert joined(data([0, 1]), data([2]))["rows"][0]["seeds"] == [0, 1, 2]
    with pytest.raises(RunError, match=r"a: seeds \[1\] are both published and in the folder"):
        joined(data([0, 1]), data([1, 2]))
    with pytest.raises(
        RunError, match=r"a: runs must have equally many steps, got \[50\] in the folder and \[100\] published"
    ):
        joined(data([0]), data([2], steps=50))


def test_a_seed_does_not_stand_for_two_texts():
    def of(text, seeds, variant):
        found = data(seeds, variant=variant)
        texts = {} if text is None else {"vocabularies_by_seed": {str(seed): text for seed in seeds}}
        return found | {"provenance": texts}

    for text, words in (("a", "vocabulary a, got b"), (None, "vocabulary unknown, got b")):
        published = of(text, [0, 1], "full")
        whole = joined(published, of("b", [2], "full"))
        assert whole["provenance"]["vocabularies_by_seed"] == {
            **({} if text is None else {"0": "a", "1": "a"}),
            "2": "b",
        }
        for known in (published, whole):  # also once the other text has seeds of its own
            with pytest.raises(RunError, match=rf"seed 0 is published of another text \({words}\)"):
                joined(known, of("b", [0, 2], "ladder"))
        assert joined(whole, of("b", [2], "ladder"))["rows"][1]["variant"] == "ladder"
        assert joined(whole, of(None, [0], "ladder"))["rows"][1]["variant"] == "ladder"  # runs of earlier versions
    assert joined(of("a", [0], "full"), of("a", [0], "ladder"))["rows"][1]["variant"] == "ladder"


def test_means_weigh_every_seed_alike():
    published, new = data([0, 1, 2], validation_loss=1.0, max_logit=9.0), data([3], validation_loss=3.0, exact=0.25)
    row = joined(published, new)["rows"][0]
    assert (row["validation_loss"], row["exact"], row["max_logit"]) == (1.5, 0.25, 9.0)


def test_what_was_made_first_says_when_it_started():
    one, other = (
        data([0]) | {"provenance": {"started": "2026-01-02"}},
        data([1]) | {"provenance": {"started": "2026-01-01"}},
    )
    assert joined(one, other)["provenance"] == joined(other, one)["provenance"] == {"started": "2026-01-01"}
    noted = one | {"provenance": {"started": "2026-01-02", "note": "by hand"}}
    assert joined(noted, other)["provenance"] == {"started": "2026-01-01", "note": "by hand"}


@pytest.mark.parametrize("earlier", [0, 1, 2])
def test_losses_seed_by_seed_join_too_with_what_is_derived_from_them(tmp_path, earlier):
    experiment = load("reach-30m")
    folder = made_up_sweep(experiment, tmp_path / "all", seeds=(0, 1, 2), variants=("full", "ls1-w128"), steps=20)
    for number, path in enumerate(sorted(folder.glob("*/after.json"))):
        losses = [3.0 + 0.01 * number + 0.1 * place for place in range(8)]
        found = {"validation": {"loss": losses[0], "tokens": 9, "by_position": losses}, "beyond": losses}
        found |= {} if number % 2 else {"beyond_yarn": losses}  # not every run has it
        path.write_text(json.dumps(json.loads(path.read_text()) | found))
    expected = experiment.collect(folder)
    (tmp_path / "first").mkdir()
    for path in list(folder.glob(f"*-seed{earlier}")):
        path.rename(tmp_path / "first" / path.name)
    published = json.loads(json.dumps(experiment.collect(tmp_path / "first")))
    found = joined(published, experiment.collect(folder))
    for mine, theirs in zip(found["rows"], expected["rows"], strict=True):
        rounded = ("final_loss", "final_perplexity", "best_perplexity")
        assert mine == theirs | {key: pytest.approx(theirs[key]) for key in rounded}
    assert experiment.table(found) == experiment.table(expected) and experiment.more(found) == experiment.more(expected)


def asked(*seeds, **changes):
    """Answers at the length, and at twice it with YaRN."""
    shares = [0.5 + 0.1 * seed for seed in seeds]
    row = {
        "variant": "full",
        "seeds": list(seeds),
        "steps": [100] * len(seeds),
        "length": 64,
        "shares": {"recall": {"64": shares}},
        "seeds_of_shares": {"64": list(seeds)},
        "distances": {"4-7": shares},
    }
    return {"provenance": {}, "rows": [row | changes]}


def test_answers_join_by_kind_and_length():
    (row,) = joined(asked(2), asked(0, 1))["rows"]
    assert row["seeds"] == [0, 1, 2] and row["distances"] == {"4-7": [0.5, 0.6, 0.7]}
    far = {"shares_yarn": {"recall": {"128": [0.9]}}, "seeds_of_shares_yarn": {"128": [2]}}
    (row,) = joined(asked(0, 1), asked(2, **far))["rows"]
    assert row["shares"] == {"recall": {"64": [0.5, 0.6, 0.7]}} and row["distances"] == {"4-7": [0.5, 0.6, 0.7]}
    assert row["seeds_of_shares"] == {"64": [0, 1, 2]} and row["length"] == 64
    assert row["seeds_of_shares_yarn"] == {"128": [2]} and row["shares_yarn"] == {"recall": {"128": [0.9]}}


def test_what_is_not_known_of_all_seeds_goes_and_other_settings_are_refused():
    assert "half_at" not in joined(asked(0), asked(1, half_at={"recall": [50]}))["rows"][0]
    with pytest.raises(RunError, match="full: length must be the same in all runs, got 64 and 128"):
        joined(asked(0), asked(1, length=128))


def test_losses_of_the_whole_text_are_not_mixed_with_those_of_a_part():
    whole = data([0], final_losses=[3.0], final_loss=3.0, first_positions=[3.5])
    with pytest.raises(RunError, match="a: losses must be of the whole validation text in all runs or in none"):
        joined(whole, data([1], final_losses=[3.0], final_loss=3.0))


def test_a_run_that_was_trained_and_not_asked_is_not_there_twice():
    curve = {"curves": [{"variant": "full", "seed": 1}]}
    with pytest.raises(RunError, match="full: seed 1 is both published and in the folder"):
        joined(asked(0) | curve, asked(1) | curve)


def test_a_run_without_an_accuracy_does_not_count_in_the_mean():
    (row,) = joined(data([0, 1], accuracies=[0.5]), data([2], accuracies=[0.9]))["rows"]
    assert row["accuracy"] == pytest.approx(0.7)


def test_a_run_without_a_finite_loss_leaves_no_mean():
    losses = {"final_losses": [3.0], "final_loss": 3.0, "best_perplexity": 20.0, "diverged": 0, "max_logit": 4.0}
    lost = losses | {"final_losses": [None], "final_loss": None, "best_perplexity": None, "diverged": 1}
    (row,) = joined(data([0], **losses), data([1], **lost))["rows"]
    assert row["final_losses"] == [3.0, None] and row["diverged"] == 1 and row["max_logit"] == 4.0
    assert row["final_loss"] is row["spread"] is row["final_perplexity"] is row["best_perplexity"] is None


def test_what_is_not_kept_seed_by_seed_is_not_overwritten_by_that_of_the_new_runs():
    one, other = data([0]) | {"sight": {"a": 1}}, data([1]) | {"sight": {"a": 2}}
    assert joined(one, data([1]) | {"sight": {"a": 1}})["rows"][0]["seeds"] == [0, 1]
    with pytest.raises(RunError, match="--add cannot join sight, which is not kept seed by seed"):
        joined(one, other)


def test_results_that_are_no_runs_are_refused():
    with pytest.raises(RunError, match="--add works only where rows hold losses, accuracies or answers seed by seed"):
        joined({"provenance": {}, "rows": [{"variant": "a", "seeds": [0], "milliseconds": 1.0}]}, data([1]))


def test_a_run_that_diverged_joins_though_it_stopped_early():
    losses = {"final_losses": [3.0], "final_loss": 3.0, "diverged": 0}
    lost = {"final_losses": [None], "final_loss": None, "diverged": 1}
    (row,) = joined(data([0], **losses), data([1], steps=40, **lost))["rows"]
    assert row["steps"] == [100, 40] and row["final_losses"] == [3.0, None]


def test_seeds_stand_in_order_also_where_those_of_one_side_lie_between_those_of_the_other():
    far = {"shares_yarn": {"recall": {"128": [0.5, 0.7]}}, "seeds_of_shares_yarn": {"128": [0, 2]}}
    between = {"shares_yarn": {"recall": {"128": [0.6]}}, "seeds_of_shares_yarn": {"128": [1]}}
    (row,) = joined(asked(0, 2, **far), asked(1, **between))["rows"]
    assert row["seeds"] == [0, 1, 2] == row["seeds_of_shares"]["64"] == row["seeds_of_shares_yarn"]["128"]
    assert row["shares"]["recall"]["64"] == row["distances"]["4-7"] == [0.5, 0.6, 0.7]
    assert row["shares_yarn"] == {"recall": {"128": [0.5, 0.6, 0.7]}}
