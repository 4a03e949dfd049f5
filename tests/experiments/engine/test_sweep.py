"""The command from end to end on tiny models: run, stop, resume, add variants, pack; and what it refuses."""

import json
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

from experiments import NAMES, load
from experiments.__main__ import app
from experiments.engine import child, sweep
from experiments.engine.pack import pack, unpack
from experiments.engine.pages import RESULTS
from experiments.engine.records import Options
from experiments.engine.sweep import is_left, plan_sweep
from longshort.runs.log import METRICS, read_log
from longshort.train import ConfigError, train
from longshort.train.sweeps import processes as runner
from longshort.train.sweeps.processes import RunFailed

from ..made_up import made_up_sweep

QUICK = ("--quick", "--device", "cpu", "--steps", "2")


def call(*arguments):
    return CliRunner().invoke(app, [*(str(argument) for argument in arguments)])


def assert_one_line_error(shown, *words):
    assert shown.exit_code == 1, shown.output
    (line,) = shown.stderr.strip().splitlines()
    assert line.startswith("error: ") and all(word in line for word in words), line


def runs_in(folder):
    return sorted(path.parent.name for path in folder.glob(f"*/{METRICS}"))


@pytest.mark.slow
def test_a_sweep_is_stopped_resumed_extended_packed_and_unpacked(corpus, tmp_path, monkeypatch):
    out, archive = tmp_path / "out", tmp_path / "results.tar.gz"
    monkeypatch.setattr(sys, "argv", ["experiments", "explosion", "--quick"])
    common = ("explosion", *QUICK, "--data", corpus, "--out", out, "--parallel", 2)
    shown = call(*common, "--variants", "*-6e-4", "--minutes", 0)
    assert shown.exit_code == 0 and "stopped; run the same command again to resume" in shown.output, shown.output
    shown = call(*common, "--variants", "*-6e-4")
    assert shown.exit_code == 0, shown.output
    assert runs_in(out) == ["ls-6e-4-seed0", "plain-6e-4-seed0"]
    after = json.loads((out / "ls-6e-4-seed0" / "after.json").read_text())
    assert len(after["anatomy"]["near_mass"]) == 2 and after["spikes"] == 0
    assert "| ls-6e-4 | 1 | 2 |" in shown.output and (out / "report.html").is_file()
    commands = json.loads((out / "commands.json").read_text())
    assert {entry["command"] for entry in commands} == {"python -m experiments explosion --quick"}

    logs = {path: path.read_bytes() for path in out.glob(f"*/{METRICS}")}
    shown = call(*common, "--arms", "plain-6e-4,ls-3e-3", "--pack", archive)  # the old name of --variants
    assert shown.exit_code == 0 and "2 runs, 1 to do" in shown.output, shown.output
    assert runs_in(out) == ["ls-3e-3-seed0", "ls-6e-4-seed0", "plain-6e-4-seed0"]
    assert all(path.read_bytes() == content for path, content in logs.items())

    monkeypatch.setattr(runner.subprocess, "Popen", None)
    shown = call("explosion", "--out", tmp_path / "here", "--unpack", archive)
    assert shown.exit_code == 0, shown.output
    rows = load("explosion").collect(tmp_path / "here")["rows"]
    assert [row["variant"] for row in rows] == ["plain-6e-4", "ls-6e-4", "ls-3e-3"]
    assert_one_line_error(call("explosion", "--out", tmp_path / "here", "--publish"), "--quick", "not published")


def test_time_that_preparation_takes_is_not_added_to_the_minutes(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(sweep.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(sweep, "draw_tasks", lambda *_: clock.__setitem__(0, 50.0))
    ends = []
    monkeypatch.setattr(sweep, "run_all", lambda *_, until, **__: ends.append(until))
    options = Options(out=tmp_path, minutes=2, quick=True, variants=("listops-ls",))
    sweep.run_sweep(load("long-range"), options, lambda _: None)
    assert ends == [120.0] and clock == [50.0]


def test_a_failing_run_stops_no_other_is_told_at_the_end_and_what_there_is_is_packed(corpus, tmp_path, monkeypatch):
    def one_fails(configs, *, failed, **_):
        for config in configs:
            if "plain" in config.run.out:
                failed(RunFailed(f"the run {config.run.out} failed: no reason"))
            else:
                child.train_and_look(config)
        return False

    monkeypatch.setattr(sweep, "run_all", one_fails)
    common = ("positions", *QUICK, "--data", corpus, "--out", tmp_path / "out", "--variants", "ls-none,plain-none")
    archive = tmp_path / "r.tar.gz"
    assert_one_line_error(call(*common, "--pack", archive), "1 of 2 runs failed", "plain-none-seed0")
    assert read_log(tmp_path / "out" / "ls-none-seed0")[-1]["status"] == "finished" and archive.is_file()


def trial_of(name, out, data, **options):
    (found,) = plan_sweep(load(name), Options(out=out, quick=True, device="cpu", **options), data=data)
    return found


def test_steps_that_a_guard_skipped_count_as_spikes(corpus, tmp_path):
    wild = ("optimizer.lr=1e20", "schedule.warmup=0", "stability.guard=skip")
    trial = trial_of("endurance", tmp_path, corpus, variants=("ls",), steps=3, overrides=wild)
    child.train_and_look(trial.config)
    for _ in range(2):
        (row,) = load("endurance").collect(tmp_path)["rows"]
        assert (row["spikes"], row["diverged"]) == (2, 1)
        (trial.out / "after.json").unlink(missing_ok=True)


def test_more_steps_are_left_to_do_and_fewer_are_not(corpus, tmp_path):
    def ls(steps):
        return trial_of("endurance", tmp_path, corpus, variants=("ls",), steps=steps)

    child.train_and_look(ls(2).config)
    train(ls(4).config)
    assert is_left(ls(4))  # what was written after it is of step 2
    child.train_and_look(ls(4).config)
    assert [is_left(ls(steps)) for steps in (2, 4, 5)] == [False, False, True]
    common = ("endurance", "--quick", "--device", "cpu", "--data", corpus, "--out", tmp_path, "--variants", "ls")
    for steps, left in ((4, 0), (5, 1)):
        assert f"{left} of 1 runs to do" in call(*common, "--steps", steps, "--plan").output

    # Unpacked elsewhere it is done, wherever the data lie, and without its weights it is not trained over.
    here = tmp_path / "here"
    unpack(pack(tmp_path, tmp_path / "r.tar.gz"), here)
    shutil.copytree(corpus, tmp_path / "moved")
    moved = tmp_path / "moved"
    assert not is_left(trial_of("endurance", here, moved, variants=("ls",), steps=4))
    before = (here / "ls-seed0" / METRICS).read_bytes()
    with pytest.raises(ConfigError, match="no complete checkpoint"):
        child.train_and_look(trial_of("endurance", here, moved, variants=("ls",), steps=5).config)
    assert (here / "ls-seed0" / METRICS).read_bytes() == before


def test_a_run_without_logits_is_trained_looked_into_and_shown(corpus, tmp_path):
    trial = trial_of("stabilizers", tmp_path, corpus, variants=("plain-flash",), steps=2)
    assert not trial.config.telemetry.logits_every
    child.train_and_look(trial.config)
    assert not is_left(trial)
    data = load("stabilizers").collect(tmp_path)
    assert "| not measured |" in load("stabilizers").table(data)
    load("stabilizers").figure(data)


def test_the_plan_counts_the_runs_that_are_left_and_overrides_reach_every_run(tmp_path):
    made_up_sweep(load("endurance"), tmp_path, variants=("ls",))
    shown = call("endurance", "data.batch_size=32", "--plan", "--out", tmp_path, "--device", "cpu")
    assert shown.exit_code == 0 and shown.output.count("32 x 2048 tokens") == 2, shown.output
    assert "2 of 2 runs to do" in shown.output  # a made-up run of other steps is none of this plan


def test_the_list_names_every_experiment_its_cost_and_what_is_published(monkeypatch, tmp_path):
    rows = {"reach": [{"seeds": [0, 1, 2]}, {"seeds": [1]}], "latency": [{"milliseconds": 1.0}]}
    for name, found in rows.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"rows": found}))
    monkeypatch.setattr("experiments.engine.pages.RESULTS", tmp_path)
    shown = call("--list")
    assert shown.exit_code == 0
    assert all(experiment.name in shown.output and experiment.cost in shown.output for experiment in map(load, NAMES))
    for name, words in (
        ("reach", "published, seeds per variant: 1 to 3"),
        ("latency", "published"),
        ("scale", "not run yet"),
    ):
        assert f"\n    {load(name).cost}\n    {words}\n" in shown.output


def test_results_of_another_experiment_are_not_mixed_in(tmp_path):
    there = made_up_sweep(load("endurance"), tmp_path / "there")
    entry = {"command": "python -m experiments --parallel 2 endurance --data 'd e'", "started": "2026"}
    (there / "commands.json").write_text(json.dumps([entry]))
    archive, here = pack(there, tmp_path / "r.tar.gz"), tmp_path / "here"
    shown = call("explosion", "--out", here, "--unpack", archive)
    assert_one_line_error(shown, "r.tar.gz: holds results of endurance, not of explosion")
    assert not here.exists()
    for arguments in (("--publish",), (*QUICK, "--variants", "ls-6e-4")):
        assert_one_line_error(call("explosion", "--out", there, *arguments), "there: holds results of endurance")
    assert call("endurance", "--out", here, "--unpack", archive).exit_code == 0


def test_a_pack_that_cannot_be_written_is_an_error_before_the_runs(corpus, tmp_path):
    (tmp_path / "file").touch()
    common = ("endurance", *QUICK, "--data", corpus, "--variants", "ls", "--out", tmp_path / "out")
    for archive in (tmp_path, tmp_path / "file" / "r.tar.gz"):
        assert_one_line_error(call(*common, "--pack", archive), str(tmp_path))
    assert not (tmp_path / "out").exists()


def test_several_packs_are_unpacked_and_packed_in_one_call(tmp_path):
    packs = []
    for seed in (0, 1):
        made_up_sweep(load("endurance"), tmp_path / str(seed), seeds=(seed,), variants=("ls",))
        packs.append(pack(tmp_path / str(seed), tmp_path / f"{seed}.tar.gz"))
    both, common = tmp_path / "both.tar.gz", ("endurance", "--out", tmp_path / "here", "--unpack", packs[0])
    assert_one_line_error(
        call(*common, packs[1]), "for several packs, repeat --unpack", "1.tar.gz"
    )  # as a shell expands *
    shown = call(*common, "--unpack", packs[1], "--pack", both)
    assert shown.exit_code == 0 and f"wrote {both}" in shown.output, shown.output
    unpack(both, tmp_path / "there")
    assert runs_in(tmp_path / "there") == ["ls-seed0", "ls-seed1"]


def test_calls_side_by_side_in_one_folder_are_all_recorded(tmp_path, monkeypatch):
    def slowly(path):
        found = json.loads(path.read_text())
        time.sleep(0.02)
        return found

    monkeypatch.setattr(sweep, "read_json", slowly)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(sweep.remember_command, [tmp_path] * 8))
    assert len(json.loads((tmp_path / "commands.json").read_text())) == 8


@pytest.mark.parametrize("quick", [False, True])
def test_results_of_quick_and_of_full_size_are_not_mixed(quick, tmp_path):
    here, there = (made_up_sweep(load("endurance"), tmp_path / place) for place in ("here", "there"))
    for folder, option in ((here, " --quick" if quick else ""), (there, "" if quick else " --quick")):
        (folder / "commands.json").write_text(json.dumps([{"command": f"python -m experiments endurance{option}"}]))
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    words = f"here: holds results of {'--quick' if quick else 'full size'}"
    shown = call("endurance", "--out", here, "--device", "cpu", "--minutes", 0, *(() if quick else ("--quick",)))
    assert_one_line_error(shown, words)
    assert_one_line_error(call("endurance", "--out", here, "--unpack", pack(there, tmp_path / "r.tar.gz")), words)
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explode"], ["NAME must be one of explosion", "'explode'"]),
        (["explosion"], ["needs --data", "longshort data --out"]),
        (["explosion", "--data", "nowhere"], ["nowhere holds no train.tokens", "longshort data --out"]),
        (["explosion", "--quick", "--variants", "lss"], ["--variants must be among plain-6e-4", "'lss'"]),
        (["explosion", "--quick", "--seeds", "a"], ["--seeds must be numbers", "'a'"]),
        (["explosion", "--quick", "run.step=3"], ["run has no key 'step'"]),
        (["explosion", "--publish"], ["holds no evaluated run yet"]),
        (["explosion", "--quick", "optimizer.lr=1"], ["optimizer.lr=1 has no effect", "0.0006"]),
        (["explosion", "--quick", "run.seed=5"], ["run.seed=5 has no effect"]),
        (["heads-and-window", "--quick", "model.window=9"], ["model.window=9 has no effect"]),
        (["explosion", "--quick", "telemetry.logits_every=0"], ["telemetry.logits_every must be at least 1"]),
        (["explosion", "--unpack", __file__], ["damaged, or not a pack"]),
        (["explosion", "--publish", "--variants", "ls-*"], ["--publish take whole packs and folders", "'ls-*'"]),
        (["explosion", "--add"], ["--add must come with --publish"]),
    ],
)
def test_bad_input_ends_in_one_line(arguments, words, tmp_path):
    assert_one_line_error(call(*arguments, "--device", "cpu", "--out", tmp_path / "out"), *words)


def test_estimate_comes_near_what_a_published_sweep_took(tmp_path):
    """Seven runs shared an H200; their seconds, added up, are seven times as many as it took."""
    published = json.loads((RESULTS / "stabilizers-long.json").read_text(encoding="utf-8"))["provenance"]
    assert "--parallel 7" in published["commands"][0]["command"]
    options = Options(out=tmp_path, device="cuda", seeds=(0, 1, 2))
    estimated = sweep.estimate(plan_sweep(load("stabilizers-long"), options, data=None), options)
    assert estimated == pytest.approx(published["run_seconds"] / 7, rel=0.3)


def test_estimate_counts_the_precision_and_takes_tasks(tmp_path):
    def seconds(name, variant):
        options = Options(out=tmp_path, device="cuda", variants=(variant,))
        return sweep.estimate(plan_sweep(load(name), options, data=None), options)

    bf16, tf32, fp32 = (seconds("precision", name) for name in ("plain", "plain-tf32", "plain-fp32"))
    assert (tf32 / bf16, fp32 / bf16) == pytest.approx((3, 15))
    assert seconds("recall", "passkey-g4") > 0
