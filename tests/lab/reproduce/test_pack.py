"""Packs: small, and as good as the folder they were made from."""

import json

import pytest

from longshort.lab.reproduce.catalogue import RECIPES
from longshort.lab.reproduce.pack import LOGIT_READINGS, TRAIN_RECORDS, compact, pack, unpack

from ..report.synthetic import logits_of, run_record, train_record
from .made_up import made_up_sweep


def test_long_logs_are_thinned_without_losing_extremes_or_what_is_not_finite():
    steps = [train_record(step, 2.0, **logits_of(5.0)) for step in range(1, 20_001)]
    steps[777]["loss"], steps[1234]["loss"] = 9.0, None
    kept = compact([run_record(), *steps, {"kind": "end", "step": 20_000, "status": "finished"}])
    train = [record for record in kept if record["kind"] == "train"]
    assert len(train) <= TRAIN_RECORDS + LOGIT_READINGS
    assert sum("logit_max" in record for record in train) == LOGIT_READINGS
    assert {778, 1235, 1, 20_000} <= {record["step"] for record in train}
    assert kept[0]["kind"] == "run" and kept[-1]["kind"] == "end"
    assert sum(len(json.dumps(record)) for record in kept) < 700_000


def test_short_logs_keep_every_step():
    assert len(compact([train_record(step, 2.0) for step in range(1, 1000)])) == 999


def test_what_was_packed_gives_the_same_summary(tmp_path):
    recipe = RECIPES["positions"]
    made_up_sweep(recipe, tmp_path / "there")
    (tmp_path / "there" / "plain-none-seed0" / "checkpoints").mkdir()
    (tmp_path / "there" / "plain-none-seed0" / "checkpoints" / "weights").write_bytes(b"heavy")
    archive = pack(tmp_path / "there", tmp_path / "results.tar.gz")
    assert archive.stat().st_size < 200_000
    unpack(archive, tmp_path / "here")
    assert not list((tmp_path / "here").glob("*/checkpoints"))
    there, here = (recipe.summarise(tmp_path / place) for place in ("there", "here"))
    assert [row["arm"] for row in here.data["rows"]] == [row["arm"] for row in there.data["rows"]]
    for mine, theirs in zip(here.data["rows"], there.data["rows"], strict=True):
        assert mine["spikes"] == theirs["spikes"]
        assert mine["final_loss"] == pytest.approx(theirs["final_loss"], rel=1e-4)
        assert mine["max_logit"] == pytest.approx(theirs["max_logit"], rel=1e-4)
    assert here.sentences == there.sentences


def test_a_second_pack_adds_its_runs_commands_and_times(tmp_path):
    for place, arm in (("a", "ls"), ("b", "plain")):
        made_up_sweep(RECIPES["endurance"], tmp_path / place, arms=(arm,))
        (tmp_path / place / "commands.json").write_text(json.dumps([{"command": f"longshort {place}"}]))
        (tmp_path / place / "step_times.json").write_text(json.dumps({arm: {"seconds": 1.0}}))
        unpack(pack(tmp_path / place, tmp_path / f"{place}.tar.gz"), tmp_path / "all")
    summary = RECIPES["endurance"].summarise(tmp_path / "all")
    assert [row["arm"] for row in summary.data["rows"]] == ["plain", "ls"]
    assert [entry["command"] for entry in summary.data["provenance"]["commands"]] == ["longshort a", "longshort b"]
    assert all(row["tokens_per_second_alone"] == 32768 for row in summary.data["rows"])


def test_a_folder_without_results_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no results to pack"):
        pack(tmp_path, tmp_path / "results.tar.gz")
