"""The verb from end to end on tiny models: run, stop, go on, add arms, time, pack; and what it says when it cannot."""

import json
import shutil
import threading

import pytest
import torch
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.engine import child, sweep
from experiments.engine.catalogue import RECIPES
from experiments.engine.pack import pack, unpack
from experiments.engine.recipe import Options
from experiments.engine.step_clock import StepClock
from experiments.engine.sweep import is_left, plan_sweep
from longshort import HeadPlan
from longshort.runs.log import METRICS, read_log
from longshort.train import ConfigError, train
from longshort.train import processes as runner

from .made_up import made_up_sweep

QUICK = ("--quick", "--device", "cpu", "--steps", "2")


def reproduce(*arguments):
    return CliRunner().invoke(app, [*(str(argument) for argument in arguments)])


def assert_one_line_error(shown, *words):
    assert shown.exit_code == 1, shown.output
    (line,) = shown.stderr.strip().splitlines()
    assert line.startswith("error: ") and all(word in line for word in words), line


def arms_in(folder):
    return sorted(path.parent.name for path in folder.glob(f"*/{METRICS}"))


def test_runs_are_trained_once_arms_are_added_and_a_pack_holds_them_all(corpus, tmp_path, monkeypatch):
    out, archive = tmp_path / "out", tmp_path / "results.tar.gz"
    common = ("explosion", *QUICK, "--data", corpus, "--out", out, "--parallel", 2)
    shown = reproduce(*common, "--arms", "*-6e-4")
    assert shown.exit_code == 0, shown.output
    assert arms_in(out) == ["ls-6e-4-seed0", "plain-6e-4-seed0"]
    after = json.loads((out / "ls-6e-4-seed0" / "after.json").read_text())
    assert len(after["anatomy"]["near_mass"]) == 2 and after["spikes"] == 0
    assert "| ls-6e-4 | 1 | 2 |" in shown.output and (out / "report.html").is_file()

    logs = {path: path.read_bytes() for path in out.glob(f"*/{METRICS}")}
    shown = reproduce(*common, "--arms", "plain-6e-4,ls-3e-3", "--pack", archive)
    assert shown.exit_code == 0 and "2 runs, 1 to do" in shown.output, shown.output
    assert arms_in(out) == ["ls-3e-3-seed0", "ls-6e-4-seed0", "plain-6e-4-seed0"]
    assert all(path.read_bytes() == content for path, content in logs.items())

    monkeypatch.setattr(runner.subprocess, "Popen", None)
    shown = reproduce("explosion", "--out", tmp_path / "here", "--unpack", archive)
    assert shown.exit_code == 0, shown.output
    rows = RECIPES["explosion"].summarise(tmp_path / "here").data["rows"]
    assert [row["arm"] for row in rows] == ["plain-6e-4", "ls-6e-4", "ls-3e-3"]
    assert len(json.loads((tmp_path / "here" / "commands.json").read_text())) == 2


def test_a_sweep_that_ran_out_of_time_goes_on_with_the_same_command(corpus, tmp_path):
    common = ("endurance", *QUICK, "--data", corpus, "--out", tmp_path, "--arms", "ls", "--pack", tmp_path / "r.tar.gz")
    shown = reproduce(*common, "--minutes", 0)
    assert shown.exit_code == 0 and "stopped; the same command goes on" in shown.output, shown.output
    assert (tmp_path / "r.tar.gz").is_file()
    shown = reproduce(*common)
    assert shown.exit_code == 0, shown.output
    assert read_log(tmp_path / "ls-seed0")[-1]["status"] == "finished"


def test_time_that_preparation_takes_is_not_added_to_the_minutes(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(sweep.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(sweep, "draw_tasks", lambda *_: clock.__setitem__(0, 50.0))
    ends = []
    monkeypatch.setattr(sweep, "run_all", lambda *_, until, **__: ends.append(until))
    options = Options(out=tmp_path, minutes=2, quick=True, arms=("listops-ls",))
    sweep.run_sweep(RECIPES["long-range"], options, lambda _: None)
    assert ends == [120.0] and clock == [50.0]


def test_a_failing_run_stops_no_other_and_is_told_at_the_end(corpus, tmp_path):
    common = ("positions", *QUICK, "--data", corpus, "--out", tmp_path, "--arms", "ls-none,plain-none")
    blocked = tmp_path / "plain-none-seed0" / "checkpoints"
    blocked.parent.mkdir()
    blocked.write_text("a file where the run wants a folder")
    assert_one_line_error(reproduce(*common), "1 of 2 runs failed", "plain-none-seed0")
    assert read_log(tmp_path / "ls-none-seed0")[-1]["status"] == "finished"


def test_steps_of_each_arm_are_timed_and_times_are_kept(corpus, tmp_path):
    for arm in ("ls", "plain"):
        options = ("--data", corpus, "--out", tmp_path, "--time-steps", "--arms", arm)
        shown = reproduce("endurance", "--quick", "--device", "cpu", *options)
        assert shown.exit_code == 0, shown.output
    times = json.loads((tmp_path / "step_times.json").read_text())
    assert set(times) == {"ls", "plain"} and all(entry["seconds"] > 0 for entry in times.values())
    assert arms_in(tmp_path) == [] and not list((tmp_path / "timing").iterdir())


def finish(clock):
    for step, seconds in ((20, 1.0), (30, 3.0)):
        clock.record({"kind": "train", "step": step, "seconds": seconds}, steps=30)


def clock(folder, name):
    return StepClock(folder / name, torch.device("cpu"))


def start(clock):
    clock.record({"kind": "train", "step": 1, "seconds": 0.0}, steps=30)


def assert_waits_for(waiting, release):
    thread = threading.Thread(target=waiting)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    release()
    thread.join(5)
    assert not thread.is_alive()


def test_a_run_does_not_begin_while_another_is_timed(tmp_path):
    first = clock(tmp_path, "a")
    start(first)
    assert_waits_for(lambda: finish(clock(tmp_path, "b")), lambda: finish(first))
    assert json.loads((tmp_path / "a" / "step_time.json").read_text())["seconds"] == pytest.approx(0.2)


def test_a_run_is_not_timed_before_the_others_have_taken_their_first_step(tmp_path):
    first, second = clock(tmp_path, "a"), clock(tmp_path, "b")

    def rest():
        start(second)
        finish(second)

    threading.Timer(0.4, finish, [first]).start()
    assert_waits_for(lambda: start(first), threading.Thread(target=rest).start)


def test_the_flash_arm_trains_as_plain_attention_does_and_reports_its_logits(corpus, tmp_path):
    options = Options(out=tmp_path, arms=("plain", "plain-flash"), quick=True, steps=3, device="cpu")
    plain, flash = (arm.config for arm in plan_sweep(RECIPES["stabilizers"], options, data=corpus))
    train(plain)
    child.train_and_look(flash)
    mine, theirs = (
        [r for r in read_log(tmp_path / f"{name}-seed0") if r["kind"] == "train"] for name in ("plain-flash", "plain")
    )
    assert [r["loss"] for r in mine] == pytest.approx([r["loss"] for r in theirs], rel=1e-4)
    assert mine[0]["logit_max"][0] == pytest.approx(theirs[0]["logit_max"][0], rel=1e-3)


def test_steps_that_a_guard_skipped_count_as_spikes(corpus, tmp_path):
    wild = ("optimizer.lr=1e20", "schedule.warmup=0", "stability.guard=skip")
    options = Options(out=tmp_path, arms=("ls",), quick=True, steps=3, device="cpu", overrides=wild)
    (arm,) = plan_sweep(RECIPES["endurance"], options, data=corpus)
    child.train_and_look(arm.config)
    for _ in range(2):
        (row,) = RECIPES["endurance"].summarise(tmp_path).data["rows"]
        assert (row["spikes"], row["diverged"]) == (2, 1)
        (arm.out / "after.json").unlink(missing_ok=True)


def test_the_flash_arm_refuses_local_heads():
    with pytest.raises(ValueError, match="plain attention only"):
        child.flash_attention(None, None, None, HeadPlan(windows=(None, 4)))


def test_overrides_reach_every_run(corpus, tmp_path):
    shown = reproduce("explosion", "data.batch_size=32", "--plan", "--out", tmp_path, "--device", "cpu")
    assert shown.exit_code == 0 and shown.output.count("32 x 2048 tokens") == 6, shown.output


def ls_arm(out, data, steps):
    options = Options(out=out, arms=("ls",), quick=True, steps=steps, device="cpu")
    return plan_sweep(RECIPES["endurance"], options, data=data)[0]


def test_more_steps_are_left_to_do_and_fewer_are_not(corpus, tmp_path):
    child.train_and_look(ls_arm(tmp_path, corpus, 2).config)
    train(ls_arm(tmp_path, corpus, 4).config)
    assert is_left(ls_arm(tmp_path, corpus, 4))  # what was written after it is of step 2
    child.train_and_look(ls_arm(tmp_path, corpus, 4).config)
    assert [is_left(ls_arm(tmp_path, corpus, steps)) for steps in (2, 4, 5)] == [False, False, True]
    common = ("endurance", "--quick", "--device", "cpu", "--data", corpus, "--out", tmp_path, "--arms", "ls")
    for steps, left in ((4, 0), (5, 1)):
        assert f"{left} of 1 runs to do" in reproduce(*common, "--steps", steps, "--plan").output


def test_results_that_were_unpacked_are_done_wherever_the_data_lie_and_are_not_trained_over(corpus, tmp_path):
    child.train_and_look(ls_arm(tmp_path / "there", corpus, 2).config)
    here = tmp_path / "here"
    unpack(pack(tmp_path / "there", tmp_path / "r.tar.gz"), here)
    shutil.copytree(corpus, tmp_path / "moved")
    assert not is_left(ls_arm(here, tmp_path / "moved", 2))
    before = (here / "ls-seed0" / METRICS).read_bytes()
    with pytest.raises(ConfigError, match="no whole checkpoint to go on from"):
        child.train_and_look(ls_arm(here, tmp_path / "moved", 3).config)
    assert (here / "ls-seed0" / METRICS).read_bytes() == before


def test_what_was_written_before_a_run_went_on_is_not_taken_for_its_end(tmp_path):
    made_up_sweep(RECIPES["endurance"], tmp_path, arms=("ls",))
    after = tmp_path / "ls-seed0" / "after.json"
    for step, spikes in ((120, 3), (60, 0)):
        after.write_text(json.dumps({"step": step, "spikes": 3}))
        assert RECIPES["endurance"].summarise(tmp_path).data["rows"][0]["spikes"] == spikes


def test_the_list_names_every_experiment_and_its_cost():
    shown = reproduce("--list")
    assert shown.exit_code == 0
    assert all(recipe.name in shown.output and recipe.cost in shown.output for recipe in RECIPES.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explode"], ["NAME must be one of explosion", "'explode'"]),
        (["explosion"], ["needs --data", "longshort data --out"]),
        (["explosion", "--data", "nowhere"], ["nowhere holds no train.tokens", "longshort data --out"]),
        (["explosion", "--quick", "--arms", "lss"], ["--arms must be among plain-6e-4", "'lss'"]),
        (["explosion", "--quick", "--seeds", "a"], ["--seeds must be numbers", "'a'"]),
        (["explosion", "--quick", "run.step=3"], ["run has no key 'step'"]),
        (["explosion", "--results", "docs"], ["holds no evaluated run yet"]),
        (["explosion", "--quick", "optimizer.lr=1"], ["optimizer.lr=1 has no effect", "0.0006"]),
        (["explosion", "--quick", "run.seed=5"], ["run.seed=5 has no effect"]),
        (["heads-and-window", "--quick", "model.window=9"], ["model.window=9 has no effect"]),
        (["explosion", "--quick", "telemetry.logits_every=0"], ["telemetry.logits_every must be at least 1"]),
        (["explosion", "--unpack", __file__], ["is damaged, or no pack"]),
    ],
)
def test_bad_input_ends_in_one_line(arguments, words, tmp_path):
    assert_one_line_error(reproduce(*arguments, "--device", "cpu", "--out", tmp_path / "out"), *words)
