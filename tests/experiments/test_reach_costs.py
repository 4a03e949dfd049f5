"""Costs of plans: measured piece by piece and resumed, exact in bytes, and shown beside the losses where published."""

import json
from itertools import cycle
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import plans
from experiments import load, reach, reach_costs
from experiments.__main__ import app
from experiments.engine import choice, pages
from experiments.engine.records import Options
from longshort.nn import LSCache
from longshort.report.figures import specification
from longshort.runs import RunError

from .made_up import planned

EXPERIMENT = load("reach-costs")


@pytest.mark.parametrize("name", reach_costs.EXPERIMENTS)
def test_bytes_of_cache_are_those_of_a_real_cache(name, tmp_path):
    for config in planned(load(name), tmp_path).values():
        model = config.model
        sizes = {"head_dim": model.head_dim or model.width // model.n_heads, "n_kv_heads": model.n_kv_heads}
        cache = LSCache(model.layer_reaches, max_length=32_768, rollback=0, dtype=torch.bfloat16, **sizes)
        assert plans.cache_bytes(model, 32_768) == cache.nbytes


def test_the_quick_version_measures_resumes_and_is_not_published(tmp_path, monkeypatch):
    arguments = ["reach-costs", "--quick", "--device", "cpu", "--out", str(tmp_path), "--variants", "reach/ladder"]
    monkeypatch.setattr("sys.argv", ["experiments", *arguments])
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    names = [f"reach-{part}.json" for part in ("training-320", "training-384", "decoding-96", "training-128")]
    assert [Path(line.split()[1].rstrip(",")).name for line in shown.output.splitlines()[:4]] == names
    data = EXPERIMENT.collect(tmp_path)
    assert EXPERIMENT.table(data) in shown.output and [row["variant"] for row in data["rows"]] == ["full", "ladder"]
    assert all(set(row["training"]) == {"128", "320", "384"} and row["decoding"] > 0 for row in data["rows"])
    specification(EXPERIMENT.figure(data), title="costs")
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0 and "wrote" not in again.output
    shown = CliRunner().invoke(app, ["reach-costs", "--out", str(tmp_path), "--publish"])
    assert shown.exit_code == 1 and "decide nothing" in shown.stderr


@pytest.fixture
def instant(monkeypatch):
    """Measurements that take no time, and those that fail."""
    failing = set()

    def measured(models, **how):
        at = how.get("context", "decoding")
        if at in failing:
            raise RuntimeError("no memory")
        speeds = {name: 1.0 + place for place, name in enumerate(models)}
        return [{"name": n, "milliseconds": [s, 2 * s], "tokens_per_second": [1e6 / s] * 2} for n, s in speeds.items()]

    monkeypatch.setattr(plans, "training", measured)
    monkeypatch.setattr(plans, "decoding", measured)
    return failing


def measure(out, *variants, **options):
    said = []
    EXPERIMENT.measure(Options(out=out, quick=True, device="cpu", variants=variants or None, **options), said.append)
    return said


def test_every_plan_of_every_experiment_is_measured(tmp_path, instant):
    measure(tmp_path)
    found = {(row["experiment"], row["variant"]) for row in EXPERIMENT.collect(tmp_path)["rows"]}
    expected = {name: planned(load(name), tmp_path / "runs") for name in reach_costs.EXPERIMENTS}
    assert found == {(name, plan) for name, configs in expected.items() for plan in configs}


def test_a_failure_stops_nothing_and_is_tried_again(tmp_path, instant):
    instant.add(384)
    said = measure(tmp_path, "reach/ladder")
    assert len(said) == 4 and said[1].endswith("full: RuntimeError: no memory; ladder: RuntimeError: no memory")
    shown = EXPERIMENT.table(EXPERIMENT.collect(tmp_path))
    assert "| `reach` | ladder | 200 | 500 | failed | 500 |" in shown
    assert "- reach/ladder, training at 384 failed: RuntimeError: no memory" in shown
    instant.clear()
    assert len(measure(tmp_path, "reach/ladder")) == 1
    assert "failed" not in EXPERIMENT.table(EXPERIMENT.collect(tmp_path))


@pytest.mark.parametrize(("answers", "commits"), [(("abc", None), ["abc"]), ((None,), None)])
def test_measurements_may_lack_their_commit(answers, commits, tmp_path, instant, monkeypatch):
    answer = cycle(answers)
    monkeypatch.setattr(reach_costs, "git_revision", lambda: next(answer))
    measure(tmp_path, "reach/ladder")
    assert EXPERIMENT.collect(tmp_path)["provenance"]["commit"] == commits


def test_a_plan_that_joins_later_is_measured_beside_those_that_are_there(tmp_path, instant):
    measure(tmp_path, "reach/ladder")
    assert len(measure(tmp_path, "reach/ramp")) == 4 and measure(tmp_path, "reach/ladder") == []
    assert [row["variant"] for row in EXPERIMENT.collect(tmp_path)["rows"]] == ["full", "ladder", "ramp"]


def test_plans_stand_in_the_order_of_their_experiment(tmp_path, instant):
    measure(tmp_path, "reach/ramp", "reach/one-full-8")
    measure(tmp_path / "more", "reach/*")
    some, every = (EXPERIMENT.collect(folder) for folder in (tmp_path, tmp_path / "more"))
    first, rest = some["measured"][:1], every["measured"][1:]
    found = EXPERIMENT.join(every | {"measured": rest}, some | {"measured": first})
    assert [row["variant"] for row in found["rows"]] == list(reach.PLANS)
    assert [row["variant"] for row in some["rows"]] == ["full", "one-full-8", "ramp"]


def test_no_measurement_begins_after_the_time_is_up(tmp_path, instant):
    assert measure(tmp_path, "reach/ladder", minutes=0.0) == ["stopped; run the same command again to resume"]


def test_plans_that_a_folder_does_not_hold_are_named_when_it_is_published_over_them(tmp_path, instant, monkeypatch):
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(pages, "PAGES", tmp_path / "pages")
    said = []
    for place, variants in enumerate((("reach/full", "reach/ladder"), ("reach/full", "reach/ramp"))):
        measure(tmp_path / str(place), *variants)
        shown = CliRunner().invoke(app, ["reach-costs", "--out", str(tmp_path / str(place)), "--publish"])
        assert shown.exit_code == 0, shown.output
        said.append([line for line in shown.output.splitlines() if line.startswith("no longer published")])
    assert said == [[], [f"no longer published, since {tmp_path / '1'} does not hold them: reach/ladder"]]


def test_without_a_gpu_it_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="reach-costs needs a CUDA GPU, and --device is cpu"):
        EXPERIMENT.measure(Options(out=tmp_path, device="cpu"), print)


def test_the_time_beside_fulls_is_the_median_of_ratios_within_rounds(tmp_path):
    piece = {"experiment": "reach", "part": "training", "at": 2048, "context": 2048, "tokens": 65_536}
    piece |= {"batch": 32, "length": 32_768, "seconds": 1.0, "commit": "c", "machine": {}, "sizes": {}}
    times = {"full": [10.0, 20.0, 40.0], "ladder": [5.0, 20.0, 8.0]}
    rows = [{"name": n, "milliseconds": t, "tokens_per_second": t, "cache_bytes": 2**20} for n, t in times.items()]
    (tmp_path / "reach-training-2048.json").write_text(json.dumps(piece | {"rows": rows}))
    full, ladder = EXPERIMENT.collect(tmp_path)["rows"]
    assert (full["gpu_time"], ladder["gpu_time"]) == (1.0, 0.5) and "decoding" not in ladder
    other = piece | {"rows": rows, "at": 4096, "sizes": {"tokens": 1}}
    (tmp_path / "reach-training-4096.json").write_text(json.dumps(other))
    with pytest.raises(RunError, match="different sizes cannot be published together"):
        EXPERIMENT.collect(tmp_path)


def test_one_experiment_is_measured_on_one_machine_and_another_may_be_measured_elsewhere(tmp_path):
    piece = {"part": "training", "at": 2048, "context": 2048, "tokens": 65_536, "batch": 32, "length": 32_768}
    rows = [{"name": "full", "milliseconds": [1.0], "tokens_per_second": [1.0], "cache_bytes": 1}]
    piece |= {"seconds": 1.0, "commit": "c", "sizes": {}, "rows": rows}

    def measured(experiment, at, machine):
        found = piece | {"experiment": experiment, "at": at, "machine": {"gpu": machine, "threads": at}}
        (tmp_path / f"{experiment}-training-{at}.json").write_text(json.dumps(found))

    measured("reach", 2048, "one")
    assert EXPERIMENT.collect(tmp_path)["provenance"]["machine"]["gpu"] == "one"
    measured("reach-modern", 2048, "another")
    made = EXPERIMENT.collect(tmp_path)["provenance"]
    assert {key: value["gpu"] for key, value in made.items() if key.startswith("machine")} == {
        "machine of reach": "one",
        "machine of reach-modern": "another",
    }
    measured("reach-modern", 4096, "one")
    with pytest.raises(RunError, match="the plans of reach-modern must be measured on machines of one kind"):
        EXPERIMENT.collect(tmp_path)


def test_further_measurements_join_the_published_ones(tmp_path, instant, monkeypatch):
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(pages, "PAGES", tmp_path / "pages")

    def publish(place, *variants):
        measure(tmp_path / place, *variants)
        return CliRunner().invoke(app, ["reach-costs", "--out", str(tmp_path / place), "--publish", "--add"])

    for place, variants in (("a", ("reach/ladder", "reach/ramp")), ("b", ("reach-30m/ladder-nope",))):
        shown = publish(place, *variants)
        assert shown.exit_code == 0 and "no longer published" not in shown.output, shown.output
    first = json.loads((tmp_path / "results" / "reach-costs.json").read_text())
    plans_of = [(row["experiment"], row["variant"]) for row in first["rows"]]
    assert plans_of == [
        *(("reach", plan) for plan in ("full", "ladder", "ramp")),
        *(("reach-30m", plan) for plan in ("full", "ladder-nope")),
    ]
    assert publish("c", "reach/ladder").exit_code == 0  # fewer plans than are published: those stay
    again = json.loads((tmp_path / "results" / "reach-costs.json").read_text())
    assert again["rows"] == first["rows"]
    shown = publish("d", "reach/one-full-8")
    assert shown.exit_code == 1 and "ladder, ramp are published and not measured beside the new plans" in shown.stderr
    assert publish("e", "reach/ladder", "reach/ramp", "reach/one-full-8").exit_code == 0
    last = json.loads((tmp_path / "results" / "reach-costs.json").read_text())
    assert "one-full-8" in {row["variant"] for row in last["rows"]}


def test_the_page_of_an_experiment_has_costs_and_retrieval_where_they_are_published(tmp_path, monkeypatch):
    reach, published = load("reach"), pages.RESULTS
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    (tmp_path / "reach.json").write_text((published / "reach.json").read_text())
    without = pages.page(reach, pages.load(reach), "Words.")
    assert choice.TITLE not in without
    sizes = {"context": 2048, "tokens": 65_536, "batch": 32, "length": 32_768}
    rows = [
        sizes | {"experiment": name, "variant": "ladder", "training": {"4096": 3e6, "32768": None}, "gpu_time": 0.834}
        for name in ("reach", "reach-modern")
    ]
    rows[1]["gpu_time"] = 0.5
    for row in rows:
        row |= {"decoding": 61_234.0, "cache_bytes": plans.cache_bytes(_ladder(tmp_path), 32_768)}
    (tmp_path / "reach-costs.json").write_text(json.dumps({"rows": rows}))
    page = pages.page(reach, pages.load(reach), "Words.")
    loss = "| ladder | 3 | 3.5775 | -0.0365 | -0.041 to -0.032 | 3.948 | 3.551 |"
    spent = "| ladder | 83 | 3,000 | failed | 61.2 | 33.0 |"
    assert page.index(f"{loss} 16.3 |") < page.index(spent)
    before, _, rest = page.partition(f"## {choice.TITLE}\n")
    assert before + rest[rest.index("## Claims") :] == without  # it stands after the losses and before the claims
    shares = {"needles-books": {"2048": [0.5, 0.75], "1024": [0.0]}, "variables": {"2048": [1.0, 1.0]}}
    asked = [{"variant": name, "seeds": [0, 1], "length": 2048, "shares": shares} for name in ("ladder", "ramp")]
    (tmp_path / "retrieval.json").write_text(json.dumps({"rows": asked}))
    page = pages.page(reach, pages.load(reach), "Words.")
    assert f"{loss} 2 | 62 | 100 |  | 16.3 |" in page and page.count("| 2 | 62 | 100 |  |") == 2
    assert spent in page and page.count("| 61.2 |") == 1  # nothing was measured of the other


def _ladder(folder):
    return planned(load("reach"), folder / "runs", variants=("ladder",))["ladder"].model
