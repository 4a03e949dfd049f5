"""The benchmark of training: the peer computes what a plain model does, every part runs, and goals are judged."""

import json
from dataclasses import replace

import pytest
import torch

from benchmarks import loss, steps, trainer, training, training_page
from benchmarks.harness import OURS, Recorder, WrongResult
from benchmarks.host import SDPA
from benchmarks.nanogpt import NanoGPT
from benchmarks.peers import OURS_WITH_STATS
from benchmarks.steps import BLOCKS, COMPILED, EAGER, NANOGPT, RECOMPUTED, STEPS, Trainee, Way
from benchmarks.training import SIZES
from benchmarks.training_page import goals, tables
from longshort import GPT, GPTConfig
from longshort.train import TrainConfig

TINY = SIZES["cpu"]
SETTING = TINY.usual


def run(*parts, out=None, **options):
    return training.run(Recorder(out, command=" ".join(parts)), device="cpu", parts=parts, rounds=2, **options)


def not_failed(rows):
    return [row for row in rows if "failed" not in row]


@pytest.mark.parametrize("tied", [True, False])
def test_the_peer_has_the_loss_and_the_gradients_of_a_plain_model(tied):
    config = SETTING.config("plain", tie_embeddings=tied)
    torch.manual_seed(0)
    ours, peer = GPT(replace(config, init_std=0.5)), NanoGPT(config)  # large weights, to tell one GELU from another
    peer.take(ours)
    assert sum(p.numel() for p in peer.parameters()) == ours.n_parameters()
    tokens, targets = torch.randint(config.vocab_size, (2, SETTING.batch, SETTING.context))
    logits, loss = peer(tokens, targets)
    output = ours(tokens, targets, return_logits=True)
    torch.testing.assert_close(logits, output.logits)
    torch.testing.assert_close(loss, output.loss)
    loss.backward()
    output.loss.backward()
    torch.testing.assert_close(peer.tokens.weight.grad, ours.embedding.weight.grad)
    torch.testing.assert_close(
        peer.blocks[0].attention.project_in.weight.grad, ours.blocks[0].attention.qkv.weight.grad
    )


def test_our_models_have_their_defaults():
    for setting in SIZES["cuda"].steps:
        config = setting.config("ls")
        assert (config.loss, config.backend) == (type(config)(**SETTING.sizes, context=1).loss, "auto")
        assert not config.bias and config.activation == "gelu" and config.tie_embeddings
    with torch.device("meta"):
        assert GPT(SIZES["cuda"].steps[0].config("ls")).n_parameters(position_table=False) == pytest.approx(
            124e6, rel=0.01
        )


def test_the_small_model_is_that_of_the_preset():
    small = SIZES["cuda"].small
    assert TrainConfig.from_dict({"model": {"preset": "paper-6m"}}).model == small.config("ls")


def test_whole_steps_are_measured_of_ours_and_of_the_peer():
    rows = run("step")["step"]
    assert [(row["name"], row["heads"], row["how"]) for row in rows] == [(w.name, w.heads, w.how) for w in STEPS]
    assert all(len(row["milliseconds"]) == 2 and row["peak_bytes"] is None for row in rows)
    plain = [row["first_loss"] for row in rows if row["heads"] == "plain"]
    assert plain == pytest.approx(plain[:1] * 4, abs=1e-5)


def test_a_step_changes_the_weights_and_leaves_no_gradient():
    trainee = Trainee(Way(name=NANOGPT, heads="plain", how=EAGER), SETTING, device="cpu")
    before = trainee.model.norm.weight.clone()
    first = trainee.step()
    assert trainee.model.norm.weight.grad is None and not torch.equal(trainee.model.norm.weight, before)
    assert all(trainee.step() < first for _ in range(3))


def test_an_entrant_with_another_loss_ends_the_benchmark():
    class Wrong(Trainee):
        def step(self):
            loss = super().step()
            return loss if self.name == OURS else loss + 0.1

        def __init__(self, way, *args, **options):
            super().__init__(way, *args, **options)
            self.name = way.name

    with pytest.raises(WrongResult, match=r"longshort, eager: first loss .* by nanoGPT-style"):
        steps.measure_steps(SETTING, STEPS[3:], device="cpu", rounds=1, steps=1, make=Wrong)


def test_the_other_vocabulary_is_measured_beside_the_first():
    rows = run("vocabulary")["vocabulary"]
    assert [(row["vocab_size"], row["how"]) for row in rows] == [(128, COMPILED), (127, COMPILED)]


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # by Dynamo, of a block's input
def test_presets_are_measured_with_and_without_recomputation():
    rows = run("models")["models"]
    ways = (COMPILED, BLOCKS, RECOMPUTED)
    assert [(row["piece"], row["how"]) for row in rows] == [("models:tiny", how) for how in ways]
    for row in rows[1:]:
        assert row["first_loss"] == pytest.approx(rows[0]["first_loss"], abs=1e-6)
    for name, setting in SIZES["cuda"].models.items():
        assert setting.config("preset") == GPTConfig.preset(name)


def test_the_small_model_is_measured_as_the_trainer_runs_it():
    rows = run("small")["small"]
    assert [(row["name"], row["heads"]) for row in rows] == [(OURS, "ls"), (OURS, "plain"), (NANOGPT, "plain")]
    assert all(len(row["milliseconds"]) == 2 for row in rows)


def test_host_time_is_measured_eagerly_and_inside_a_compiled_model():
    rows = not_failed(run("host")["host"])
    eager = {(row["name"], row["direction"]) for row in rows if row["how"] == "eager"}
    assert {(OURS, "forward"), (OURS_WITH_STATS, "forward + backward"), (SDPA, "forward + backward")} <= eager
    inside = {(row["name"], row["direction"]) for row in rows if row["how"] != "eager"}
    assert inside == {(name, direction) for name in (OURS, SDPA) for direction in ("forward", "backward")}
    assert all(len(row["microseconds"]) == 2 for row in rows)


def test_the_loss_is_measured_with_each_vocabulary_and_what_is_not_installed_says_so(monkeypatch):
    monkeypatch.setattr(loss, "find_spec", lambda name: None)
    rows = run("loss")["loss"]
    assert {row["vocab_size"] for row in rows} == {128, 127}
    assert {row["name"]: row.get("failed") for row in rows} == {
        OURS: None,
        loss.FULL: None,
        loss.FULL_COMPILED: None,
        loss.LIGER: "not installed: pip install liger-kernel",
        loss.CCE: "not installed: pip install cut-cross-entropy",
    }


def test_a_loss_with_wrong_gradients_ends_the_benchmark(monkeypatch):
    def half(hidden, weight, targets):
        full = loss._full(hidden, weight, targets)
        return full.detach() + 0.5 * (full - full.detach())

    monkeypatch.setattr(loss, "linear_cross_entropy", half)
    with pytest.raises(WrongResult, match=r"longshort is wrong: gradients of the hidden state are apart by 50"):
        loss.measure_loss(TINY.head, 128, device="cpu", rounds=1, compiler="eager")


def test_the_trainer_is_timed_between_two_of_its_steps_and_then_stopped():
    rows = run("trainer")["trainer"]
    assert len(rows) == 2 and all(row["ratio"] > 0 for row in rows)
    assert all(set(row["tokens_per_second"]) == {"trainer", "own", "bare"} for row in rows)


def test_the_trainers_clock_ignores_the_first_steps_and_what_comes_after_the_last(monkeypatch):
    stopped, ticks = [], iter([1.0, 2.0, 4.0, 10.0])
    monkeypatch.setattr(trainer.signal, "raise_signal", stopped.append)
    clock = trainer.StepClock(2, 4, clock=lambda: next(ticks))
    for step in range(1, 6):
        clock.record({"kind": "train", "step": step, "tokens_per_second": 100.0 * step}, steps=9)
    clock.record({"kind": "end", "step": 5}, steps=9)
    assert clock.seconds_per_step == 4.0 and clock.rates == [300.0, 400.0] and len(stopped) == 1


@pytest.mark.slow
def test_the_start_is_timed_with_cold_and_with_warm_caches():
    rows = run("start")["start"]
    found = [(row["piece"], row["scope"], row["caches"]) for row in rows]
    assert found[:2] == [("start", "model", "cold"), ("start", "model", "warm")]
    assert found[2:] == [("start:deep", "model", "cold"), ("start:deep", "block", "cold")]
    assert all(0 < row["seconds_to_first"] <= row["seconds"] for row in rows)


def test_a_run_that_ends_before_its_second_step_is_told(tmp_path):
    config = tmp_path / "bad.json"
    config.write_text(json.dumps({"run": {"out": str(tmp_path / "run")}}))
    with pytest.raises(RuntimeError, match=r"did not reach step 2 in \d+ s: .*the section model is missing"):
        trainer.seconds_to_second_step(config, tmp_path)


def test_parts_measured_one_at_a_time_are_on_one_page(tmp_path):
    out = tmp_path / "training.json"
    run("vocabulary", out=out)
    results = run("loss:128", out=out)
    assert results["command"] == "vocabulary\n    loss:128"
    assert {row["piece"] for row in results["vocabulary"] + results["loss"]} == {"vocabulary", "loss:128"}
    page = out.with_suffix(".md").read_text()
    assert tables(results) in page and page.index("## The loss") < page.index("## Goals")


@pytest.mark.parametrize("part", ["stepp", "step:31"])
def test_an_unknown_part_is_named(part):
    with pytest.raises(ValueError, match=f"parts must be some of step, step:32, vocabulary, .* got {part}$"):
        run(part)


def step_row(tokens, name, heads, milliseconds, peak):
    row = {"tokens": tokens, "name": name, "heads": heads, "how": COMPILED, "window": 64, "vocab_size": 50304}
    return row | {"milliseconds": [milliseconds], "peak_bytes": peak}


RESULTS = {
    "step": [
        step_row("32 x 1,024", NANOGPT, "plain", 66.0, 200),
        step_row("32 x 1,024", OURS, "ls", 49.5, 140),
        step_row("8 x 4,096", NANOGPT, "plain", 100.0, 200),
        step_row("8 x 4,096", OURS, "ls", 80.0, 120),
        {"tokens": "1 x 32,768", "name": OURS, "heads": "ls", "how": COMPILED, "failed": "no memory"},
    ],
    "vocabulary": [step_row("8 x 4,096", OURS, "ls", ms, 1) for ms in (50.0, 51.0)],
    "small": [
        {"tokens": "16 x 2,048", "name": OURS, "heads": heads, "how": "", "window": 50, "milliseconds": [ms]}
        for heads, ms in (("ls", 6.0), ("plain", 8.0))
    ],
    "trainer": [{"tokens": "8 x 4,096", "layers": 12, "width": 768, "ratio": 0.96}],
    "start": [{"piece": "start", "caches": "cold", "seconds": 44.0}],
}


def judged(folder, results=RESULTS):
    return {goal["goal"]: (goal["value"], goal["reached"]) for goal in goals(results, folder)}


def test_goals_are_judged_by_ratios_times_and_memory(tmp_path):
    found = judged(tmp_path)
    assert found["124M step, 32 x 1,024, time / nanoGPT-style"] == (0.75, True)
    assert found["124M step, 8 x 4,096, time / nanoGPT-style"] == (0.8, False)
    assert found["124M step, 1 x 32,768, time / nanoGPT-style"] == (None, None)
    assert found["its peak memory / nanoGPT-style, largest"] == (0.7, False)
    assert found["the peer's step, 32 x 1,024, off from nanoGPT's 64.9 ms by"][1] is True
    assert found["the peer's step, 8 x 4,096, off from nanoGPT's 79.7 ms by"][1] is False
    assert found["vocabulary of 50,257, time / 50,304"] == (1.02, True)
    assert found["paper-6m, 16 x 2,048, LS, ms"] == (6.0, True)
    assert found["paper-6m, 16 x 2,048, LS / plain"] == (0.75, True)
    assert found["`longshort train`, tokens/s against a bare loop, 8 x 4,096 tokens, 12 x 768"] == (0.96, False)
    assert found["from `longshort train` to the second step, cold caches, s"] == (44.0, True)
    assert found["from `longshort train` to the second step, warm caches, s"] == (None, None)


def test_goals_of_the_op_come_from_its_own_results_and_name_them(tmp_path):
    (tmp_path / "decode-attention.json").write_text(
        json.dumps(
            {
                "commit": "0123456789",
                "shapes": [{"shape": "x", "rows": [{"name": OURS, "ratio": 0.5}, {"name": "other", "ratio": 1.0}]}],
            }
        )
    )
    (decode,) = [goal for goal in goals({}, tmp_path) if goal["goal"].startswith("decode")]
    assert (decode["value"], decode["reached"], decode["source"]) == (0.5, True, "decode-attention.json at 0123456")
    assert judged(tmp_path, {})["attention, forward / FlexAttention, worst"] == (None, None)


def test_the_committed_results_of_the_op_are_found():
    found = judged(training_page.RESULTS, {})
    assert all(found[name][0] is not None for name in found if name.startswith(("attention", "statistics", "decode")))


def test_settings_of_a_device_are_whole():
    for sizes in SIZES.values():
        assert replace(sizes).usual in sizes.steps
        assert sizes.odd_vocabulary % 8 and not sizes.usual.sizes["vocab_size"] % 64
