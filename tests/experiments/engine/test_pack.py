"""Packs: small, and as good as the folder they were made from."""

import io
import json
import shutil
import tarfile

import pytest

from experiments import NAMES, load
from experiments.engine.pack import LOGIT_READINGS, TRAIN_RECORDS, compact, pack, unpack
from experiments.engine.records import Options
from experiments.engine.sweep import plan_sweep
from longshort.files import LOCK, alone_in, write_json
from longshort.runs import RunError
from longshort.train.folder import check_is_a_run_folder
from longshort.train.sweeps.processes import write_config

from ...report.synthetic import logits_of, run_record, train_record
from ..made_up import made_up_sweep, rewrite


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


def test_what_was_packed_gives_the_same_data(tmp_path):
    experiment = load("positions")
    made_up_sweep(experiment, tmp_path / "there")
    (tmp_path / "there" / "plain-none-seed0" / "checkpoints").mkdir()
    (tmp_path / "there" / "plain-none-seed0" / "checkpoints" / "weights").write_bytes(b"heavy")
    archive = pack(tmp_path / "there", tmp_path / "results.tar.gz")
    assert archive.stat().st_size < 200_000
    unpack(archive, tmp_path / "here")
    assert not list((tmp_path / "here").glob("*/checkpoints"))
    there, here = (experiment.collect(tmp_path / place) for place in ("there", "here"))
    assert [row["variant"] for row in here["rows"]] == [row["variant"] for row in there["rows"]]
    for mine, theirs in zip(here["rows"], there["rows"], strict=True):
        assert mine["spikes"] == theirs["spikes"]
        assert mine["final_loss"] == pytest.approx(theirs["final_loss"], rel=1e-4)
        assert mine["max_logit"] == pytest.approx(theirs["max_logit"], rel=1e-4)
    assert experiment.findings(here) == experiment.findings(there)


def test_a_second_pack_adds_its_runs_commands_and_times(tmp_path):
    for place, variant in (("a", "ls"), ("b", "plain")):
        made_up_sweep(load("endurance"), tmp_path / place, variants=(variant,))
        (tmp_path / place / "commands.json").write_text(json.dumps([{"command": f"longshort {place}"}]))
        (tmp_path / place / "step_times.json").write_text(json.dumps({variant: {"seconds": 1.0}}))
        unpack(pack(tmp_path / place, tmp_path / f"{place}.tar.gz"), tmp_path / "all")
    unpack(tmp_path / "a.tar.gz", tmp_path / "all")  # once more changes nothing
    data = load("endurance").collect(tmp_path / "all")
    assert [row["variant"] for row in data["rows"]] == ["plain", "ls"]
    assert [entry["command"] for entry in data["provenance"]["commands"]] == ["longshort a", "longshort b"]
    assert all(row["tokens_per_second_alone"] == 32768 for row in data["rows"])


def test_the_largest_logit_and_one_that_is_not_finite_are_packed():
    steps = [train_record(step, 2.0, **logits_of(5.0)) for step in range(1, 1001)]
    steps[500] |= logits_of(900.0)
    steps[705]["logit_max"] = [[None] * 4] * 2
    with_logits = {r["step"] for r in compact([run_record(), *steps]) if "logit_max" in r}
    assert {501, 706} <= with_logits  # neither is among those that are spread evenly


def archive_of(path, **files):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    "name", ["../climbs.json", "/climbs.json", "a/../../climbs.json", "run/weights.pt", "..", "a/b/c.json"]
)
def test_a_pack_with_other_files_than_results_is_refused_whole(name, tmp_path):
    archive = archive_of(tmp_path / "bad.tar.gz", **{"fine.json": b"{}", name: b"{}"})
    with pytest.raises(ValueError, match="is not a file of results"):
        unpack(archive, tmp_path / "in" / "here")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.tar.gz"]


def test_links_in_a_pack_are_refused(tmp_path):
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("link.json")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(member)
    with pytest.raises(ValueError, match=r"'link.json' is not a file of results"):
        unpack(tmp_path / "bad.tar.gz", tmp_path / "here")


DAMAGED = {
    "json": {"commands.json": b"[{"},
    "kind": {"commands.json": b"{}"},
    "config": {"ls-seed0/config.json": b"{"},
    "log": {"ls-seed0/metrics.jsonl": b'{"kind": "run"}\n{"kin\n'},
    "line": {"ls-seed0/metrics.jsonl": b"7\n"},
    "bytes": {"ls-seed0/after.json": b"\xff"},
}


@pytest.mark.parametrize("harm", ["cut", "flip", "empty", *DAMAGED])
def test_a_damaged_pack_changes_nothing_and_is_named(harm, tmp_path):
    made_up_sweep(load("endurance"), tmp_path / "there")
    archive = pack(tmp_path / "there", tmp_path / "results.tar.gz")
    whole = archive.read_bytes()
    middle = len(whole) // 2
    if harm in DAMAGED:
        archive_of(archive, **DAMAGED[harm])
    else:
        flipped = whole[:middle] + bytes(64) + whole[middle + 64 :]
        archive.write_bytes({"cut": whole[:middle], "flip": flipped, "empty": b""}[harm])
    with pytest.raises(ValueError, match=r"results.tar.gz: damaged, or not a pack"):
        unpack(archive, tmp_path / "here")
    assert not (tmp_path / "here").exists()


def measured(seeds=(), names=(), failed=(), draws=5):
    rows = [*({"name": name} for name in names), *({"name": name, "failed": "out of memory"} for name in failed)]
    return {"settings": {"draws": draws, "seeds": list(seeds)}, "rows": rows}


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (measured(seeds=[0]), measured(seeds=[0, 1])),
        (measured(names=["full"], failed=["1+7"]), measured(names=["full", "1+7"])),
        ({"seeds": [0]}, {"seeds": [0, 1]}),
    ],
)
def test_of_a_measurement_in_both_the_one_that_has_more_stays(mine, theirs, tmp_path):
    write_json(tmp_path / "less" / "m.json", mine)
    write_json(tmp_path / "more" / "m.json", theirs)
    less, more = (pack(tmp_path / place, tmp_path / f"{place}.tar.gz") for place in ("less", "more"))
    assert unpack(more, tmp_path / "less") == [] and unpack(less, tmp_path / "more") == ["m.json"]
    assert all(json.loads((tmp_path / place / "m.json").read_text()) == theirs for place in ("less", "more"))


def test_of_equal_measurements_the_packs_is_taken(tmp_path):
    for place in ("here", "there"):
        write_json(tmp_path / place / "m.json", measured(seeds=[0]) | {"from": place})
    assert unpack(pack(tmp_path / "there", tmp_path / "r.tar.gz"), tmp_path / "here") == []
    assert json.loads((tmp_path / "here" / "m.json").read_text())["from"] == "there"


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (measured(seeds=[0]), measured(seeds=[1]), "has not seed 0"),
        (measured(names=["full", "1+7"]), measured(names=["full", "2+6"]), r"has not 1\+7"),
        (measured(seeds=[0]), measured(seeds=[0], draws=6), "has other settings"),
    ],
)
def test_a_measurement_that_would_replace_another_is_refused(mine, theirs, words, tmp_path):
    write_json(tmp_path / "here" / "m.json", mine)
    write_json(tmp_path / "there" / "m.json", theirs)
    write_json(tmp_path / "there" / "a.json", theirs)
    with pytest.raises(ValueError, match=f"r.tar.gz: its m.json {words}, and would replace the one in .*here"):
        unpack(pack(tmp_path / "there", tmp_path / "r.tar.gz"), tmp_path / "here")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["m.json"]
    assert json.loads((tmp_path / "here" / "m.json").read_text()) == mine


def test_a_damaged_log_in_the_folder_is_named_before_anything_is_unpacked(tmp_path):
    there, here = (made_up_sweep(load("endurance"), tmp_path / place) for place in ("there", "here"))
    (here / "plain-seed0" / "metrics.jsonl").write_text('{"kind": "run"}\n{"kind\n{"kind": "end", "step": 3}\n')
    before = (here / "ls-seed0" / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match=r"plain-seed0/metrics.jsonl, line 2"):
        unpack(pack(there, tmp_path / "r.tar.gz"), here)
    assert (here / "ls-seed0" / "metrics.jsonl").read_bytes() == before


def test_a_log_whose_last_line_was_cut_short_is_no_obstacle(tmp_path):
    folders = [made_up_sweep(load("endurance"), tmp_path / place, variants=("ls",)) for place in ("there", "here")]
    log = folders[1] / "ls-seed0" / "metrics.jsonl"
    log.write_text(log.read_text().rsplit("\n", 20)[0] + '\n{"kind": "tra')
    assert unpack(pack(folders[0], tmp_path / "r.tar.gz"), folders[1]) == []
    assert log.read_text().endswith("\n")


def test_a_run_that_came_farther_than_the_packs_stays(tmp_path):
    experiment = load("endurance")
    packs = {}
    for steps in (60, 120):
        made_up_sweep(experiment, tmp_path / str(steps), variants=("ls",), steps=steps)
        packs[steps] = pack(tmp_path / str(steps), tmp_path / f"{steps}.tar.gz")
    assert unpack(packs[120], tmp_path / "here") == []
    assert unpack(packs[60], tmp_path / "here") == ["ls-seed0"]
    assert experiment.collect(tmp_path / "here")["rows"][0]["steps"] == [120]


@pytest.mark.parametrize("last", ["after.json", "end"])
def test_of_equally_many_steps_the_run_that_is_done_stays(last, tmp_path):
    here, there = (made_up_sweep(load("endurance"), tmp_path / place, variants=("ls",)) for place in ("here", "there"))
    (there / "ls-seed0" / "after.json").unlink()
    if last == "end":  # stopped at its last step, before it was recorded as finished
        (here / "ls-seed0" / "after.json").unlink()
        rewrite(
            there / "ls-seed0", lambda record: record | {"status": "stopped"} if record["kind"] == "end" else record
        )
    before = {path: path.read_bytes() for path in (here / "ls-seed0").iterdir()}
    assert unpack(pack(there, tmp_path / "r.tar.gz"), here) == ["ls-seed0"]
    assert {path: path.read_bytes() for path in (here / "ls-seed0").iterdir()} == before
    shutil.rmtree(there)
    assert unpack(pack(here, tmp_path / "r.tar.gz"), there) == []


def with_settings(folder, **sections):
    """The run with this configuration in its log, and with that of a later call, which was refused, beside it."""
    rewrite(folder, lambda record: record | {"config": sections} if record["kind"] == "run" else record)
    write_json(folder / "config.json", {"task": {"length": 1024}})


def test_a_run_of_the_same_name_with_other_settings_is_refused(tmp_path):
    for place, length in (("here", 512), ("there", 256)):
        made_up_sweep(load("endurance"), tmp_path / place, variants=("ls",))
        with_settings(tmp_path / place / "ls-seed0", task={"name": "recall", "length": length}, run={"out": place})
    archive = pack(tmp_path / "there", tmp_path / "r.tar.gz")
    before = {path: path.read_bytes() for path in (tmp_path / "here").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"its run ls-seed0 has task.length 256, and the one in .*here has 512"):
        unpack(archive, tmp_path / "here")
    assert {path: path.read_bytes() for path in (tmp_path / "here").rglob("*") if path.is_file()} == before
    with_settings(tmp_path / "here" / "ls-seed0", task={"length": 256}, run={"out": "elsewhere"})
    write_json(tmp_path / "here" / "ls-seed0" / "config.json", {"task": {"length": 2048}})
    assert unpack(archive, tmp_path / "here") == []


def test_a_run_under_way_is_not_replaced(tmp_path):
    here, there = (made_up_sweep(load("endurance"), tmp_path / place) for place in ("here", "there"))
    archive = pack(there, tmp_path / "r.tar.gz")
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    with alone_in(here / "plain-seed0"), pytest.raises(ValueError, match="plain-seed0: in use by another process"):
        unpack(archive, here)
    found = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert {path: content for path, content in found.items() if path.name != LOCK} == before
    assert unpack(archive, here) == []


def test_a_run_that_a_pack_replaces_leaves_nothing_behind(tmp_path):
    experiment = load("endurance")
    made_up_sweep(experiment, tmp_path / "here", variants=("ls",), steps=60)
    made_up_sweep(experiment, tmp_path / "there", variants=("ls",), steps=120)
    (tmp_path / "there" / "ls-seed0" / "after.json").unlink()
    unpack(pack(tmp_path / "there", tmp_path / "r.tar.gz"), tmp_path / "here")
    assert not (tmp_path / "here" / "ls-seed0" / "after.json").exists()


def test_the_runs_of_every_experiment_can_be_packed_and_unpacked(tmp_path):
    for experiment in map(load, NAMES):
        if experiment.variants is not None:
            there, here = tmp_path / experiment.name, tmp_path / "here" / experiment.name
            for trial in plan_sweep(experiment, Options(out=there, device="cpu"), data=None):
                write_json(trial.out / "config.json", {})
                (trial.out / "metrics.jsonl").touch()
            unpack(pack(there, tmp_path / "r.tar.gz"), here)
            assert sorted(path.name for path in here.iterdir()) == sorted(path.name for path in there.iterdir())


def test_a_run_that_failed_before_its_log_can_be_run_where_it_is_unpacked(tmp_path):
    (trial,) = plan_sweep(load("endurance"), Options(out=tmp_path / "there", device="cpu", variants=("ls",)), data=None)
    write_config(trial.config)
    (trial.out / "output.txt").write_text("OutOfMemoryError\n")
    unpack(pack(tmp_path / "there", tmp_path / "r.tar.gz"), tmp_path / "here")
    check_is_a_run_folder(tmp_path / "here" / "ls-seed0")
    assert (tmp_path / "here" / "ls-seed0" / "output.txt").is_file()


def test_files_that_are_no_results_do_not_spoil_a_pack(tmp_path):
    there = made_up_sweep(load("endurance"), tmp_path / "there", variants=("ls",))
    (there / "my notes.json").write_text("{}")
    (there / "folder.json").mkdir()
    shutil.copytree(there / "ls-seed0", there / "ls-seed0 (copy)")
    unpack(pack(there, tmp_path / "r.tar.gz"), tmp_path / "here")
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["ls-seed0"]


def test_a_copy_of_a_run_is_not_counted_as_another_seed(tmp_path):
    made_up_sweep(load("endurance"), tmp_path, variants=("ls",))
    shutil.copytree(tmp_path / "ls-seed0", tmp_path / "ls-seed0-before")
    with pytest.raises(RunError, match=r"ls-seed0 and .*ls-seed0-before: both are ls with seed 0; move one out"):
        load("endurance").collect(tmp_path)


def test_a_folder_without_results_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no results to pack"):
        pack(tmp_path, tmp_path / "results.tar.gz")
