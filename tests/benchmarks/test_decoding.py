"""The decoding benchmark: wrong decoders are never measured, every part runs, goals are judged."""

import json

import pytest
import torch

from benchmarks import decoders, decoding, prefill
from benchmarks.decoders import DYNAMIC, LS, PLAIN, STATIC, DecoderKind, Expectation, Models, Ours, Setting
from benchmarks.decoding_page import goals, tables
from benchmarks.harness import LEFT_OUT, Recorder, WrongResult
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


def measure(*kinds, **options):
    return decoding.decode_speed(TINY, kinds, rounds=2, steps=2, **CPU, **options)


def test_every_decoder_is_checked_and_timed_and_ls_compared_with_each():
    rows = measure(LS, PLAIN, DYNAMIC, STATIC)
    assert [(row["variant"], row["heads"]) for row in rows] == [(a.name, a.heads) for a in (LS, PLAIN, DYNAMIC, STATIC)]
    assert all(len(row["milliseconds"]) == 2 and row["error"] < 1e-4 for row in rows)
    assert rows[0]["ls_speedup"] == 1.0 and all(row["ls_speedup"] > 0 for row in rows)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 of its own
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", ["ls", "plain"])
def test_a_decoder_of_other_heads_than_it_says_is_refused(expectation, heads, dtype):
    models = Models(TINY, room=20, device="cpu", dtype=dtype)
    models.place()
    right = DecoderKind(name="ours", heads=heads, build=lambda m: Ours(m.ours[heads], "cpu"))
    expectation.check(right, right.build(models), models)
    wrong = DecoderKind(name="ours", heads="plain" if heads == "ls" else "ls", build=right.build)
    with pytest.raises(WrongResult, match="logits are off"):
        expectation.check(wrong, wrong.build(models), models)


def test_a_window_off_by_one_is_refused(models, expectation):
    plan = HeadPlan.long_short(4, 1, TINY.window + 1)
    wrong = DecoderKind(
        name="ours", heads="ls", build=lambda m: Ours(decoders._with_plan(m.ours["plain"], plan), "cpu")
    )
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

    rows = measure(LS, DecoderKind(name="theirs", heads="plain", build=build))
    assert rows[1]["failed"] == "RuntimeError: no such kernel" and "milliseconds" in rows[0]
    results = {"speed": rows, "dtype": "float32", "goals": []}
    assert "theirs: RuntimeError: no such kernel" in tables(results)
    with pytest.raises(RuntimeError, match="no such kernel"):
        measure(DecoderKind(name="ours", heads="plain", build=build, required=True))


NARROW = {"n_layers": 1, "n_heads": 4, "width": 32, "vocab_size": 16}
SCARCE = {"length": 64, "window": 8, "sizes": NARROW, "memory": 1_000_000}


def test_prefill_measures_each_variant_and_what_ls_saves():
    rows = prefill.measure("tiny", 64, device="cpu", tokens=128, loss=False, rounds=2)
    assert [row["variant"] for row in rows] == ["ls", "plain", "plain-flash"]  # cuDNN is for GPUs
    assert all(row["rows"] == 2 and len(row["milliseconds"]) == 2 for row in rows)
    made_up = [{"variant": "ls", "milliseconds": [5.0]}, {"variant": "plain-flash", "milliseconds": [9.0, 10.0, 11.0]}]
    assert prefill.saved(made_up) == {"plain-flash": 0.5}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_compiled_pass_ends_in_the_same_loss():
    eager, compiled = (prefill.forward("tiny", "ls", 32, 2, "cpu", compiled=compiled)() for compiled in (False, True))
    torch.testing.assert_close(compiled, eager)


def run(record=None, **options):
    small = {"preset": "tiny", "tokens": 128, "lengths": (32, 64)}
    return decoding.run(record or Recorder(), device="cpu", settings=(TINY,), rounds=2, **SCARCE, **small, **options)


@pytest.mark.slow
def test_all_parts_run_and_the_page_has_each(tmp_path):
    out = tmp_path / "r.json"
    results = run(Recorder(out), parts=("cache", "speed", "batch", "prefill"), note="A note.")
    assert [len(results[part]) for part in ("cache", "speed", "batch", "prefill")] == [3, 3, 1, 6]
    text = out.with_suffix(".md").read_text()
    for heading in ("Bytes of the cache", "Decoding", "Largest batch", "Prefill", "Goals"):
        assert f"## {heading}" in text
    assert "A note." in text and json.loads(out.read_text())["goals"] == results["goals"]


def test_a_row_that_breaks_is_noted_and_the_others_are_measured(monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("no memory\nat all")

    monkeypatch.setattr(decoding, "decode_speed", broken)
    results = run(parts=("speed", "cache"))
    assert results["speed"] == [{"name": "batch 2, context 40", "failed": "RuntimeError: no memory"}]
    assert len(results["cache"]) == 3
    assert "batch 2, context 40: RuntimeError: no memory" in tables(results)


def test_what_the_time_was_up_for_has_no_verdict():
    results = run(Recorder(minutes=-1), parts=("cache", "speed"))
    assert results["cache"] == [{"name": "bytes", "failed": LEFT_OUT}]
    assert [goal["reached"] for goal in results["goals"]] == [None] * 4


def test_goals_are_judged_by_the_right_rows():
    def speed(name, heads, batch, ratio):
        return {"variant": name, "heads": heads, "batch": batch, "ls_speedup": ratio}

    def prefilled(n, variant, ms):
        return {"n": n, "variant": variant, "milliseconds": [ms]}

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
            *(prefilled(2048, name, ms) for name, ms in (("ls", 9.0), ("plain-flash", 10.0), ("plain-cudnn", 10.0))),
            *(prefilled(8192, name, ms) for name, ms in (("ls", 5.0), ("plain", 5.0), ("plain-flash", 10.0))),
            prefilled(8192, "plain-cudnn", 8.0),
        ],
        "compiled": [
            prefilled(8192, name, ms) for name, ms in (("ls", 3.0), ("plain-flash", 6.0), ("plain-cudnn", 4.0))
        ],
    }
    found = {goal["goal"]: (goal["value"], goal["reached"]) for goal in goals(results)}
    assert list(found.values()) == [(1.9, False), (2.5, True), (11.4, True), (0.375, True), (0.25, False)]
