"""The training loop: it learns, repeats itself, goes on where it stopped, and records what it is asked to."""

import dataclasses
import math
import os
import shutil
import signal

import pytest
import torch

from longshort.files import alone_in
from longshort.model import GPT
from longshort.ops import Smoothing
from longshort.runs import load_run
from longshort.runs.log import METRICS, read_log
from longshort.stability import attention_entropy
from longshort.train import ConfigError, TrainConfig, load_model, train
from longshort.train.checkpoints.checkpoint import load_checkpoint, newest_checkpoint
from longshort.train.machine.distributed import World
from longshort.train.progress import Silent
from longshort.train.trainer import Trainer

from .tiny import MODEL, differences, losses, records, tiny_config


def trainer_of(config, *, rank=0, size=1):
    return Trainer(config, World(rank, size, torch.device("cpu")), Silent())


class Told(Silent):
    """A reporter that remembers what it was told."""

    def __init__(self):
        self.messages = []

    def message(self, text):
        self.messages.append(text)


def stop_after(monkeypatch, step):
    """Send this process SIGTERM while a step is being taken, as a batch system would."""
    original = Trainer._step

    def interrupted(self):
        if self.progress.step == step - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        original(self)

    monkeypatch.setattr(Trainer, "_step", interrupted)


def test_the_loss_falls(finished):
    found = losses(finished)
    assert list(found) == list(range(1, 31))
    assert found[1] == pytest.approx(math.log(257), abs=0.2)
    assert found[30] < found[1] - 2


def test_a_run_says_what_it_is_and_how_it_ended(finished, corpus):
    first, last = read_log(finished)[0], read_log(finished)[-1]
    assert first["kind"] == "run" and first["config"]["data"]["path"] == str(corpus)
    assert {"versions", "git", "device", "seed", "parameters", "plans", "world_size"} <= first.keys()
    assert (last["kind"], last["status"], last["step"]) == ("end", "finished", 30)


def test_evaluations_come_when_asked_for_and_at_the_end(finished):
    assert [record["step"] for record in records(finished, "eval")] == [15, 30]
    best = min(record["loss"] for record in records(finished, "eval"))
    assert load_checkpoint(finished).state["progress"]["best_loss"] == best


def test_only_as_many_checkpoints_stay_as_asked_for(finished):
    assert [path.name for path in (finished / "checkpoints").iterdir()] == ["step-00000030"]


def test_logit_extremes_are_recorded_at_the_first_and_every_k_th_step(finished):
    with_logits = [record["step"] for record in records(finished, "train") if "logit_max" in record]
    assert with_logits == [1, 7, 14, 21, 28]
    record = records(finished, "train")[6]
    largest, smallest = torch.tensor(record["logit_max"]), torch.tensor(record["logit_min"])
    assert largest.shape == smallest.shape == (2, 2)
    assert (largest > smallest).all()


def test_the_recorded_rate_and_tokens_are_those_of_the_step(finished):
    found = records(finished, "train")
    assert [record["lr"] for record in found[:3]] == pytest.approx([5e-3, 1e-2, 1e-2])
    assert [record["tokens"] for record in found[:2]] == [4 * 64, 8 * 64]


def test_a_loaded_model_has_the_trained_weights_and_is_ready_to_evaluate(finished):
    model, checkpoint = load_model(finished)
    assert checkpoint.step == 30 and not model.training
    assert torch.equal(model.embedding.weight, checkpoint.model["embedding.weight"])


def test_two_runs_give_the_same_bits(finished, corpus, tmp_path):
    train(tiny_config(corpus, tmp_path / "again", "telemetry.logits_every=7", "run.eval_every=15", "run.keep=1"))
    assert losses(tmp_path / "again") == losses(finished)
    assert differences(tmp_path / "again", finished) == []


def test_measuring_changes_nothing_that_is_trained(finished, corpus, tmp_path):
    changes = ["telemetry.logits_every=1", "telemetry.entropy_every=1", "telemetry.layer_gradients=true"]
    train(tiny_config(corpus, tmp_path / "measured", *changes, "run.eval_every=15", "run.save_every=7"))
    assert losses(tmp_path / "measured") == losses(finished)
    assert differences(tmp_path / "measured", finished) == []


def test_a_smoothed_model_trains_and_is_loaded_as_it_was(corpus, tmp_path):
    train(tiny_config(corpus, tmp_path / "smoothed", smoothing=3))
    found = list(losses(tmp_path / "smoothed").values())
    assert found[-1] < found[0]
    model, _ = load_model(tmp_path / "smoothed")
    assert model.blocks[0].attention.smoothing == Smoothing(width=3)


@pytest.mark.parametrize("seed", [1, -1, 20260101, 2**40 + 1])
def test_another_seed_is_another_run(finished, corpus, tmp_path, seed):
    train(tiny_config(corpus, tmp_path / "other", f"run.seed={seed}", "run.steps=2"))
    assert losses(tmp_path / "other")[1] != losses(finished)[1]


def test_a_signal_ends_the_run_with_a_checkpoint_and_it_goes_on_as_if_never_stopped(
    finished, corpus, tmp_path, monkeypatch
):
    config = tiny_config(corpus, tmp_path / "run", "telemetry.logits_every=7", "run.eval_every=15", "run.keep=1")
    handler = signal.getsignal(signal.SIGTERM)
    stop_after(monkeypatch, 17)
    result = train(config)
    monkeypatch.undo()
    assert (result.status, result.step) == ("interrupted", 17)
    assert read_log(tmp_path / "run")[-1]["status"] == "interrupted"
    assert newest_checkpoint(tmp_path / "run" / "checkpoints").step == 17
    assert signal.getsignal(signal.SIGTERM) is handler
    assert train(config).status == "finished"
    assert losses(tmp_path / "run") == losses(finished)
    assert differences(tmp_path / "run", finished) == []
    kinds = [record["kind"] for record in read_log(tmp_path / "run")]
    assert kinds.count("run") == kinds.count("resume") == kinds.count("end") == 1


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before_and_no_more(finished, corpus, tmp_path):
    config = tiny_config(corpus, tmp_path / "run", "telemetry.logits_every=7")
    train(dataclasses.replace(config, run=dataclasses.replace(config.run, steps=20)))
    (tmp_path / "run" / "checkpoints" / "step-00000020" / "model.safetensors").write_bytes(b"rubbish")
    told = Told()
    train(config, told)
    assert "step-00000020/model.safetensors: damaged or missing" in told.messages[0]
    assert [record["step"] for record in records(tmp_path / "run", "resume")] == [10]
    assert losses(tmp_path / "run") == losses(finished)


def test_checkpoints_of_a_path_that_was_left_are_removed(corpus, tmp_path):
    train(tiny_config(corpus, tmp_path / "run", "run.steps=20"))
    (tmp_path / "run" / "checkpoints" / "step-00000020" / "model.safetensors").write_bytes(b"rubbish")
    shorter = tiny_config(corpus, tmp_path / "run", "run.steps=12")
    train(shorter)
    assert load_checkpoint(tmp_path / "run").step == 12


def test_a_run_of_which_every_checkpoint_is_damaged_is_not_started_anew_over_them(corpus, tmp_path):
    config = tiny_config(corpus, tmp_path / "run", "run.steps=3")
    train(config)
    (tmp_path / "run" / METRICS).write_text("")
    weights = tmp_path / "run" / "checkpoints" / "step-00000003" / "model.safetensors"
    weights.write_bytes(b"rubbish")
    with pytest.raises(ConfigError, match="no complete checkpoint to resume from"):
        train(config)
    assert weights.read_bytes() == b"rubbish"


@pytest.mark.parametrize("lost", ["emptied", "removed", "torn"])
def test_a_run_that_lost_its_log_resumes_with_a_log_that_can_be_read(corpus, tmp_path, lost):
    train(tiny_config(corpus, tmp_path / "run", "run.steps=3"))
    log = tmp_path / "run" / METRICS
    log.write_bytes(log.read_bytes()[:40] if lost == "torn" else b"")
    if lost == "removed":
        log.unlink()
    train(tiny_config(corpus, tmp_path / "run", "run.steps=5"))
    assert [record["kind"] for record in read_log(tmp_path / "run")][:2] == ["run", "resume"]
    run = load_run(tmp_path / "run")
    assert run.is_finished(5) and list(run.train["step"]) == [4, 5]


def test_a_run_that_is_moved_while_it_trains_goes_on_in_both_places(corpus, tmp_path, monkeypatch):
    original, told = Trainer._step, Told()

    def moved(self):
        if self.progress.step == 12:
            self._saver.wait()  # a checkpoint that is being written would be lost
            (tmp_path / "run").rename(tmp_path / "moved")
        original(self)

    monkeypatch.setattr(Trainer, "_step", moved)
    train(tiny_config(corpus, tmp_path / "run", "run.steps=20"), told)
    monkeypatch.undo()
    assert "run is gone (was it moved?); step 20 is in it" in told.messages[-1]
    assert (tmp_path / "run" / "tokenizer.json").is_file()
    for name in ("run", "moved"):
        train(tiny_config(corpus, tmp_path / name, "run.steps=21"))
        assert load_run(tmp_path / name).is_finished(21)
    assert differences(tmp_path / "run", tmp_path / "moved") == []


def test_a_linked_tokenizer_is_not_written_through(corpus, tmp_path):
    theirs, config = tmp_path / "theirs.json", tiny_config(corpus, tmp_path / "run", "run.steps=1")
    train(config)
    theirs.write_text("precious")
    (tmp_path / "run" / "tokenizer.json").unlink()
    (tmp_path / "run" / "tokenizer.json").symlink_to(theirs)
    train(config)
    assert theirs.read_text() == "precious"
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == (corpus / "tokenizer.json").read_bytes()


def test_a_finished_run_is_left_as_it_is(finished, corpus, tmp_path):
    config = tiny_config(corpus, tmp_path / "run", "run.steps=3")
    train(config)
    before = losses(tmp_path / "run")
    assert train(config).status == "finished"
    assert losses(tmp_path / "run") == before


def test_a_run_whose_plan_is_given_head_by_head_can_be_resumed(corpus, tmp_path):
    plan = {"plan": {"windows": [None, 5]}, "n_global": None, "window": None}
    for steps in (2, 4):
        train(tiny_config(corpus, tmp_path / "run", f"run.steps={steps}", **plan))
    assert list(losses(tmp_path / "run")) == [1, 2, 3, 4]


@pytest.mark.parametrize("change", ["optimizer.lr=0.5", "model.window=4", "run.seed=3", "data.batch_size=8"])
def test_another_configuration_in_the_same_folder_is_refused_by_key(finished, corpus, change):
    config = tiny_config(corpus, finished, change)
    before = (finished / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=f"holds a run with {change.split('=')[0]}="):
        train(config)
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_what_is_no_configuration_is_refused():
    with pytest.raises(ConfigError, match=r"^config must be a TrainConfig, as TrainConfig\.load .*, got dict$"):
        train({"model": {"preset": "tiny"}})


def test_a_model_too_small_for_the_vocabulary_is_refused(corpus, tmp_path):
    with pytest.raises(ConfigError, match=r"model\.vocab_size must be at least 257"):
        train(tiny_config(corpus, tmp_path / "run", vocab_size=256))


def test_micro_batches_give_the_loss_and_the_gradients_of_the_whole_batch(corpus, tmp_path):
    found = {}
    for accumulate in (1, 2, 4):
        trainer = trainer_of(tiny_config(corpus, tmp_path, f"run.accumulate={accumulate}"))
        loss = trainer._forward_backward(trainer.stream.batch(0), with_stats=True)
        gradients = {name: p.grad for name, p in trainer.model.named_parameters()}
        found[accumulate] = loss, gradients, trainer.meter.read()
    for accumulate in (2, 4):
        torch.testing.assert_close(found[accumulate], found[1], rtol=1e-4, atol=1e-7)


def test_rows_that_do_not_divide_among_processes_and_micro_batches_are_refused(corpus, tmp_path):
    config = tiny_config(corpus, tmp_path, "run.accumulate=4")
    with pytest.raises(ConfigError, match=r"multiple of 2 processes times run\.accumulate=4, got 4"):
        trainer_of(config, size=2)


def test_dropout_differs_from_batch_to_batch_and_from_rank_to_rank_but_repeats(corpus, tmp_path):
    trainer = trainer_of(tiny_config(corpus, tmp_path, dropout=0.5))
    batch = trainer.stream.batch(0)

    def loss(number, rank):
        trainer.progress.batch, trainer.world = number, World(rank, 1, torch.device("cpu"))
        return trainer._forward_backward(batch, with_stats=False).item()

    assert loss(0, 0) == loss(0, 0)
    assert len({loss(0, 0), loss(1, 0), loss(0, 1), loss(1, 1)}) == 4


def test_entropy_is_recorded_every_k_steps_for_every_head(corpus, tmp_path):
    config = tiny_config(corpus, tmp_path / "run", "run.steps=4", "telemetry.entropy_every=2", dropout=0.2)
    train(config)
    found = {r["step"]: r["entropy"] for r in records(tmp_path / "run", "train") if "entropy" in r}
    assert list(found) == [2, 4]
    model, _ = load_model(tmp_path / "run")
    tokens = trainer_of(config).validation.batch(0).tokens[:1]
    torch.testing.assert_close(torch.tensor(found[4]), attention_entropy(model, tokens))


def test_layer_gradients_are_recorded_before_clipping(corpus, tmp_path):
    changes = ["run.steps=1", "telemetry.layer_gradients=true", "stability.clip_norm=1e-3"]
    config = tiny_config(corpus, tmp_path / "run", *changes)
    train(config)
    trainer = trainer_of(config)
    trainer._forward_backward(trainer.stream.batch(0), with_stats=False)
    expected = {
        str(layer): torch.cat([p.grad.flatten() for p in block.parameters()]).norm().item()
        for layer, block in enumerate(trainer.model.blocks)
    }
    assert records(tmp_path / "run", "train")[0]["layer_gradients"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # torch's own, on a CPU without bf16
def test_bf16_autocast_runs_on_a_cpu_and_learns_much_the_same(finished, corpus, tmp_path):
    train(tiny_config(corpus, tmp_path / "run", "run.precision=bf16", "run.steps=6"))
    found = losses(tmp_path / "run")
    assert found[1] != losses(finished)[1]
    assert found[6] == pytest.approx(losses(finished)[6], abs=0.05)


def test_recomputing_activations_gives_the_same_losses(finished, corpus, tmp_path):
    train(tiny_config(corpus, tmp_path / "run", "run.checkpoint_activations=true", "run.steps=3"))
    for step, loss in losses(tmp_path / "run").items():
        assert loss == pytest.approx(losses(finished)[step], rel=1e-5)


def test_segments_reach_the_model(corpus, tmp_path, monkeypatch):
    seen = []
    forward = GPT.forward

    def watched(self, *arguments, segments=None, **options):
        seen.append(segments)
        return forward(self, *arguments, segments=segments, **options)

    monkeypatch.setattr(GPT, "forward", watched)
    train(tiny_config(corpus, tmp_path / "run", "run.steps=1", "data.segments=true"))
    assert seen and all(segments is not None and segments.shape == (4, 64) for segments in seen)


def test_z_loss_enters_training_and_not_evaluation(finished, corpus, tmp_path):
    train(tiny_config(corpus, tmp_path / "run", "run.steps=1", z_loss=0.01))
    plain = tiny_config(corpus, tmp_path / "plain", "run.steps=1")
    train(plain)
    assert losses(tmp_path / "run")[1] > losses(finished)[1] + 0.1
    assert records(tmp_path / "run", "eval")[0]["loss"] == pytest.approx(
        records(tmp_path / "plain", "eval")[0]["loss"], abs=0.05
    )


def test_each_clipping_does_what_it_is_named_after(corpus, tmp_path):
    norms = {}
    for clip in ("global", "tensor", "none"):
        trainer = trainer_of(tiny_config(corpus, tmp_path, f"stability.clip={clip}", "stability.clip_norm=0.01"))
        trainer._forward_backward(trainer.stream.batch(0), with_stats=False)
        norm = torch.nn.utils.get_total_norm([p.grad for p in trainer.model.parameters()])
        trainer._clip(norm)
        norms[clip] = torch.nn.utils.get_total_norm([p.grad for p in trainer.model.parameters()]).item()
        assert (trainer.tensor_clip is not None) == (clip == "tensor")
    assert norms["none"] == pytest.approx(norm.item())
    assert norms["global"] == norms["tensor"] == pytest.approx(0.01, rel=1e-3)


def test_qk_clip_holds_the_largest_logit_at_its_bound(corpus, tmp_path):
    sizes = ["run.steps=12", "optimizer.lr=0.05", "telemetry.logits_every=1"]
    largest = {}
    for bound in ("null", "0.2"):
        out = tmp_path / bound
        train(tiny_config(corpus, out, *sizes, f"stability.qk_clip={bound}"))
        largest[bound] = [max(max(row) for row in r["logit_max"]) for r in records(out, "train")]
    assert max(largest["null"]) > 1.0
    assert max(largest["0.2"]) < 0.6  # a step can pass the bound before it is brought back
    assert len(largest["0.2"]) == 12


def test_qk_clip_is_refused_where_it_has_no_effect(corpus, tmp_path):
    with pytest.raises(ValueError, match="qk_clip must be off with qk_norm"):
        train(tiny_config(corpus, tmp_path / "run", "stability.qk_clip=10", qk_norm="head"))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks at the residual stream's
@pytest.mark.parametrize("scope", ["model", "block"])
def test_a_compiled_run_gives_the_losses_of_an_eager_one(scope, corpus, tmp_path, monkeypatch):
    compile_model = torch.compile
    # Traced and differentiated ahead of time, without the minute that generating and building C++ would take.
    monkeypatch.setattr(torch, "compile", lambda model: compile_model(model, backend="aot_eager"))
    for name, compiled in (("eager", "false"), ("compiled", "true")):
        changes = [f"run.compile={compiled}", f"run.compile_scope={scope}", "run.steps=4", "telemetry.logits_every=1"]
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        train(tiny_config(corpus, tmp_path / name, *changes, "run.eval_every=2", n_layers=2))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # of one block, or of all; none to evaluate
    assert list(losses(tmp_path / "compiled").values()) == pytest.approx(list(losses(tmp_path / "eager").values()))
    names = {name: set(load_checkpoint(tmp_path / name).model) for name in ("eager", "compiled")}
    assert names["compiled"] == names["eager"]


def test_the_best_model_is_kept_though_no_checkpoint_was_due_at_its_step(corpus, tmp_path, monkeypatch):
    found = iter([3.0, 1.0, 2.0, 2.5, 1.5])
    monkeypatch.setattr("longshort.train.trainer.validation_scores", lambda *_, **options: {"loss": next(found)})
    changes = ["run.steps=10", "run.eval_every=2", "run.save_every=5", "run.keep=1"]
    for _ in ("trained", "and resumed"):
        assert train(tiny_config(corpus, tmp_path / "run", *changes)).best_validation_loss == 1.0
        left = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
        assert left == ["step-00000004", "step-00000010"]


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_what_comes_before_cuda_graphs_leaves_the_run_as_it_is(corpus, tmp_path, monkeypatch):
    compile_model = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: compile_model(model, backend="eager"))
    for name in ("false", "true"):
        changes = ["run.compile=true", "run.compile_scope=block", f"run.cuda_graphs={name}", "run.steps=3"]
        train(tiny_config(corpus, tmp_path / name, *changes, dropout=0.1))
    assert losses(tmp_path / "true") == losses(tmp_path / "false")


def test_a_record_whose_checkpoints_are_gone_is_not_written_over(finished, corpus, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    shutil.copyfile(finished / METRICS, out / METRICS)
    before = (out / METRICS).read_bytes()
    with pytest.raises(ConfigError, match=r"log of a run up to step 30, but no complete checkpoint"):
        train(tiny_config(corpus, out))
    assert (out / METRICS).read_bytes() == before


def test_two_processes_do_not_train_in_one_folder(corpus, tmp_path):
    with alone_in(tmp_path / "run"), pytest.raises(ValueError, match="in use by another process"):
        train(tiny_config(corpus, tmp_path / "run"))
    assert not (tmp_path / "run" / METRICS).exists()


def test_the_step_that_is_not_taken_leaves_the_running_means_of_batch_norm(tmp_path):
    config = TrainConfig.from_dict(
        {
            "task": {"name": "listops", "norm": "batch", "length": 64, "train": 16, "validation": 8, "test": 8},
            "model": MODEL,
            "data": {"batch_size": 4},
            "run": {"out": str(tmp_path), "device": "cpu", "compile": True, "cuda_graphs": True},
        }
    )
    trainer = trainer_of(config)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer._fill_tables()
    after = trainer.model.state_dict()
    assert trainer.model.training and all(value.equal(after[name]) for name, value in before.items())
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_a_signal_at_a_step_that_is_saved_does_not_replace_its_checkpoint(corpus, tmp_path, monkeypatch):
    saved = []
    save = Trainer._save
    monkeypatch.setattr(Trainer, "_save", lambda self: saved.append(self.progress.step) or save(self))
    stop_after(monkeypatch, 10)
    train(tiny_config(corpus, tmp_path / "run", "run.save_every=5"))
    assert saved == [5, 10]


def test_a_run_that_gets_a_signal_in_its_last_step_is_finished(corpus, tmp_path, monkeypatch):
    stop_after(monkeypatch, 3)
    assert train(tiny_config(corpus, tmp_path / "run", "run.steps=3")).status == "finished"
    assert records(tmp_path / "run", "end")[0]["status"] == "finished"
