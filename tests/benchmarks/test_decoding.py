"""The decoding benchmark: wrong decoders and caches are never measured, every part runs, goals are judged."""

import json
import sys

import pytest
import torch

from benchmarks import cache_memory, decode_arms, decode_report, decoding, prefill
from benchmarks.decode_arms import DYNAMIC, LS, PLAIN, STATIC, Arm, Expectation, Models, Ours, Setting
from benchmarks.gpu_check import WrongResult
from longshort import HeadPlan

SIZES = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 64}
TINY = Setting(batch=2, context=40, window=8, sizes=SIZES)
CPU = {"device": "cpu", "dtype": torch.float32}


@pytest.fixture(scope="module")
def models():
    return Models(TINY, room=20, **CPU)


@pytest.fixture(scope="module")
def expectation(models):
    return Expectation(models, 64)


def measure(*arms, **options):
    return decoding.decode_speed(TINY, arms, rounds=2, steps=2, **CPU, **options)


def test_every_arm_is_checked_and_timed_and_ls_compared_with_each():
    rows = measure(LS, PLAIN, DYNAMIC, STATIC)
    assert [(row["arm"], row["heads"]) for row in rows] == [(a.name, a.heads) for a in (LS, PLAIN, DYNAMIC, STATIC)]
    assert all(len(row["milliseconds"]) == 2 and row["error"] < 1e-4 for row in rows)
    assert rows[0]["ls_speedup"] == 1.0 and all(row["ls_speedup"] > 0 for row in rows)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 of its own
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", ["ls", "plain"])
def test_a_decoder_of_other_heads_than_it_says_is_refused(expectation, heads, dtype):
    models = Models(TINY, room=20, device="cpu", dtype=dtype)
    models.place()
    right = Arm(name="ours", heads=heads, build=lambda m: Ours(m.ours[heads], "cpu"))
    expectation.check(right, right.build(models), models)
    wrong = Arm(name="ours", heads="plain" if heads == "ls" else "ls", build=right.build)
    with pytest.raises(WrongResult, match="logits are off"):
        expectation.check(wrong, wrong.build(models), models)


def test_a_window_off_by_one_is_refused(models, expectation):
    plan = HeadPlan.long_short(4, 1, TINY.window + 1)
    wrong = Arm(name="ours", heads="ls", build=lambda m: Ours(decode_arms._with_plan(m.ours["plain"], plan), "cpu"))
    with pytest.raises(WrongResult, match="logits are off"):
        expectation.check(wrong, wrong.build(models), models)


def test_ls_and_plain_share_their_weights(models):
    plain, ls = (models.ours[heads].state_dict() for heads in ("plain", "ls"))
    assert all(torch.equal(plain[name], ls[name]) for name in plain)


def test_a_peer_that_fails_is_a_row_and_one_of_ours_is_an_error():
    class Broken(Ours):
        def begin(self, prompt, room):
            raise RuntimeError("no such kernel")

    def build(models):
        return Broken(models.ours["plain"], "cpu")

    rows = measure(LS, Arm(name="theirs", heads="plain", build=build))
    assert rows[1]["failed"] == "RuntimeError: no such kernel" and "milliseconds" in rows[0]
    with pytest.raises(RuntimeError, match="no such kernel"):
        measure(Arm(name="ours", heads="plain", build=build, required=True))


def test_bytes_are_those_of_the_issue_and_a_wrong_formula_is_noticed(monkeypatch):
    rows = cache_memory.bytes_rows()
    assert [round(row["smaller"], 2) for row in rows] == [8.39, 11.39, 11.84]
    monkeypatch.setattr(cache_memory, "formula", lambda *_, **__: 1)
    with pytest.raises(WrongResult, match="bytes, not 1"):
        cache_memory.bytes_rows((64,))


NARROW = {"n_layers": 1, "n_heads": 4, "width": 32, "vocab_size": 16}
SCARCE = {"length": 64, "window": 8, "sizes": NARROW, "memory": 1_000_000}


def test_the_largest_batch_is_what_the_memory_holds():
    row = cache_memory.largest_batches(device="cpu", dtype=torch.float32, **SCARCE)
    assert row["plain"] == {"bytes_a_row": 2 * 4 * 8 * 4 * 64, "free": 1_000_000, "computed": 61, "fits": 61}
    assert row["ls"]["bytes_a_row"] == 2 * 4 * 8 * (64 + 3 * 8) and row["ls"]["fits"] == 177
    assert row["ratio"] == pytest.approx(177 / 61)


def test_a_batch_that_does_not_fit_after_all_is_lowered(monkeypatch):
    real = cache_memory.GPT.new_cache

    def scarce(self, batch, **options):
        if batch > 50:
            raise torch.OutOfMemoryError("out of memory")
        return real(self, batch, **options)

    monkeypatch.setattr(cache_memory.GPT, "new_cache", scarce)
    row = cache_memory.largest_batches(device="cpu", dtype=torch.float32, **SCARCE)
    assert row["plain"]["computed"] == 61 and 48 <= row["plain"]["fits"] <= 50


def test_prefill_measures_each_arm_and_what_ls_saves():
    rows = prefill.measure("tiny", 64, device="cpu", tokens=128, loss=False, rounds=2)
    assert [row["arm"] for row in rows] == ["ls", "plain", "plain-flash"]  # cuDNN is for GPUs
    assert all(row["rows"] == 2 and len(row["milliseconds"]) == 2 for row in rows)
    made_up = [{"arm": "ls", "milliseconds": [5.0]}, {"arm": "plain-flash", "milliseconds": [9.0, 10.0, 11.0]}]
    assert prefill.saved(made_up) == {"plain-flash": 0.5}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_compiled_pass_ends_in_the_same_loss():
    eager, compiled = (prefill.forward("tiny", "ls", 32, 2, "cpu", compiled=compiled)() for compiled in (False, True))
    torch.testing.assert_close(compiled, eager)


def run(**options):
    small = {"preset": "tiny", "tokens": 128, "lengths": (32, 64)}
    return decoding.run(device="cpu", settings=(TINY,), rounds=2, **SCARCE, **small, **options)


def test_all_parts_run_and_what_there_is_is_kept_after_each(tmp_path):
    kept = []
    results = run(parts=("cache", "speed", "batch", "prefill"), keep=lambda r: kept.append(len(json.dumps(r))))
    assert len(kept) == 6 and kept == sorted(kept)
    assert [len(results[part]) for part in ("cache", "speed", "batch", "prefill")] == [3, 3, 1, 6]
    (page,) = [path for path in decode_report.save(results, tmp_path / "r.json") if path.suffix == ".md"]
    text = page.read_text()
    for heading in ("Bytes of the cache", "Decoding", "Largest batch", "Prefill", "Goals"):
        assert f"## {heading}" in text
    assert json.loads((tmp_path / "r.json").read_text())["goals"] == results["goals"]


def test_a_row_that_breaks_is_noted_and_the_others_go_on(monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("no memory\nat all")

    monkeypatch.setattr(decoding, "decode_speed", broken)
    said = []
    results = run(parts=("speed", "cache"), progress=said.append)
    assert results["speed"] == [{"name": "batch 2, context 40", "failed": "RuntimeError: no memory"}]
    assert len(results["cache"]) == 3 and any("Traceback" in line for line in said)
    assert "batch 2, context 40: RuntimeError: no memory" in decode_report.table(results)


def test_a_wrong_result_ends_the_benchmark(monkeypatch):
    def wrong(*args, **options):
        raise WrongResult("off")

    monkeypatch.setattr(decoding, "decode_speed", wrong)
    with pytest.raises(WrongResult):
        run(parts=("speed",))


def test_when_the_time_is_up_no_row_is_begun():
    results = run(parts=("cache", "speed"), minutes=-1)
    assert results["cache"] == [{"name": "bytes", "failed": "left out: the time was up"}]
    assert [goal["reached"] for goal in results["goals"]] == [None] * 4


def test_goals_are_judged_by_the_right_rows():
    def speed(arm, heads, batch, ratio):
        return {"arm": arm, "heads": heads, "batch": batch, "ls_speedup": ratio}

    def prefilled(n, arm, ms):
        return {"n": n, "arm": arm, "milliseconds": [ms]}

    results = {
        "device": "cuda",
        "speed": [
            speed("longshort", "ls", 32, 1.0),
            speed("longshort", "plain", 1, 9.0),
            speed("longshort", "plain", 32, 1.9),
            speed(STATIC.name, "plain", 32, 2.5),
        ],
        "batch": [{"ratio": 11.4}],
        "prefill": [
            *(prefilled(2048, arm, ms) for arm, ms in (("ls", 9.0), ("plain-flash", 10.0), ("plain-cudnn", 10.0))),
            *(prefilled(8192, arm, ms) for arm, ms in (("ls", 5.0), ("plain", 5.0), ("plain-flash", 10.0))),
            prefilled(8192, "plain-cudnn", 8.0),
        ],
        "compiled": [prefilled(8192, arm, ms) for arm, ms in (("ls", 3.0), ("plain-flash", 6.0), ("plain-cudnn", 4.0))],
    }
    found = {goal["goal"]: (goal["value"], goal["reached"]) for goal in decode_report.goals(results)}
    assert list(found.values()) == [(1.9, False), (2.5, True), (11.4, True), (0.375, True), (0.25, False)]


def test_the_command_writes_its_files_and_bad_input_is_one_line(tmp_path, monkeypatch, capsys):
    out = tmp_path / "decoding.json"
    monkeypatch.setattr(sys, "argv", ["decoding", "--parts", "cache", "--out", str(out)])
    decoding.main()
    assert "times smaller" in capsys.readouterr().out
    assert "--parts cache" in json.loads(out.read_text())["command"]
    monkeypatch.setattr(sys, "argv", ["decoding", "--parts", "speeed"])
    with pytest.raises(SystemExit) as caught:
        decoding.main()
    assert caught.value.code == 1
    assert capsys.readouterr().err == "error: parts must be among cache, speed, batch, prefill, compiled, got speeed\n"
