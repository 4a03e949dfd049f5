"""Going on from published results: the same page as if the runs were still there."""

import json

import pytest

from experiments.engine import published
from experiments.engine.call import read_results
from experiments.engine.catalogue import RECIPES
from experiments.engine.publish import publish
from experiments.engine.recipe import Options
from longshort.runs import RunError

from .made_up import made_up_sweep

SIDES = {"long-range": "listops-l*", "las-sweep": "listops-b0.1-*", "las-gain": "n128-*", "recall": "passkey-*"}


def numbered(folder):
    """Runs differ: the accuracy of each is its seed's and its place's."""
    for number, path in enumerate(sorted(folder.glob("*/after.json"))):
        after = json.loads(path.read_text())
        after["test"]["accuracy"] += 0.001 * number
        path.write_text(json.dumps(after))


def same(value):
    if isinstance(value, float):
        return pytest.approx(value)
    if isinstance(value, list):
        return [same(entry) for entry in value]
    return {key: same(entry) for key, entry in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize(("name", "some"), SIDES.items())
def test_new_arms_and_seeds_join_what_was_published_as_if_all_runs_were_in_one_folder(name, some, tmp_path):
    recipe = RECIPES[name]
    whole = made_up_sweep(recipe, tmp_path / "whole", seeds=(0, 1), steps=20)
    numbered(whole)
    first, second = tmp_path / "first", tmp_path / "second"
    chosen = {path.name for path in made_up_sweep(recipe, tmp_path / "chosen", arms=(some,), steps=20).iterdir()}
    first.mkdir()
    for run in whole.iterdir():  # published: seed 0 of some arms; new: the others, and seed 1 of all
        if run.name in chosen:
            run.rename(first / run.name)
    whole.rename(second)
    publish(recipe, first, tmp_path / "pages")
    page = tmp_path / "pages" / f"{name}.json"
    read_results(recipe, Options(out=second), lambda text: None, unpack=page, results=None)
    joined = recipe.summarise(second)

    for run in first.iterdir():
        run.rename(second / run.name)
    (second / published.FILE).unlink()
    expected = recipe.summarise(second)
    assert joined.table == expected.table
    assert joined.findings == expected.findings
    got, wanted = dict(joined.data), dict(expected.data)
    for data in (got, wanted):
        data["provenance"] |= {
            "run_seconds": pytest.approx(data["provenance"]["run_seconds"], abs=0.2)
        }  # rounded twice
        if "curves" in data:
            data["curves"] = sorted(data["curves"], key=lambda curve: (curve["arm"], curve["seed"]))
    assert got == same(wanted)


def test_a_page_of_other_results_or_of_losses_is_refused_and_nothing_is_written(tmp_path):
    page = tmp_path / "page.json"
    for document, complaint in (
        ('{"name": "recall", "rows": [{"accuracies": []}]}', "holds results of 'recall'; expected those of 'las-gain'"),
        ('{"name": "las-gain", "rows": [{"final_loss": 1.0}]}', "where they are accuracies"),
        ('{"name": "las-gain", "rows": []}', "where they are accuracies"),
        ("[1]", "holds results of None"),
        ("{", "damaged, or no JSON"),
    ):
        page.write_text(document)
        with pytest.raises(ValueError, match=complaint):
            published.take(page, tmp_path / "runs", "las-gain")
    assert not (tmp_path / "runs").exists()


def row(seeds, steps=100):
    numbers = {"accuracy": 0.5, "exact": None, "validation_loss": 1.0, "max_logit": None, "diverged": 0}
    return {"arm": "a", "seeds": seeds, "steps": [steps] * len(seeds), "accuracies": [0.5] * len(seeds), **numbers}


def test_a_run_that_is_in_both_or_took_other_steps_is_refused(tmp_path):
    (tmp_path / published.FILE).write_text(json.dumps({"rows": [row([0, 1])]}))
    assert published.with_earlier_rows({"a": row([2])}, tmp_path, ())[0]["seeds"] == [0, 1, 2]
    with pytest.raises(RunError, match=r"a: seeds \[1\] are in the folder and in published\.json"):
        published.with_earlier_rows({"a": row([1, 2])}, tmp_path, ())
    with pytest.raises(RunError, match=r"a: runs of \[50\] steps in the folder, of \[100\] in"):
        published.with_earlier_rows({"a": row([2], steps=50)}, tmp_path, ())
