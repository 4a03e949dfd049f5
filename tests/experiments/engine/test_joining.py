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


def test_results_that_are_losses_are_refused():
    with pytest.raises(RunError, match="--add works only where results are accuracies"):
        joined({"provenance": {}, "rows": [{"variant": "a", "seeds": [0], "final_loss": 1.0}]}, data([1]))
