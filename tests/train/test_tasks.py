"""Training on tasks: the same trainer, accuracy in the evaluations, resumed bit for bit, refused with reasons."""

import pytest
import torch

from longshort import GPT
from longshort.data.tasks import open_task
from longshort.data.tasks.example_stream import ExampleStream
from longshort.data.tokenizer import BPETokenizer
from longshort.model import SequenceClassifier
from longshort.train import ConfigError, TrainConfig, load_model, train
from longshort.train.checkpoints.checkpoint import CheckpointError, load_checkpoint
from longshort.train.checkpoints.tokenizer import checkpoint_tokenizer
from longshort.train.evaluation.answers import answer_scores
from longshort.train.evaluation.checkpoint_scores import evaluate_checkpoint
from longshort.train.machine.distributed import World
from longshort.train.machine.flops import flops_per_token
from longshort.train.models import build_model, load_trained
from longshort.train.progress import Silent

from . import several
from .tiny import differences, losses, records

TINY = {"vocab_size": 16, "context": 32, "n_layers": 2, "width": 16, "n_heads": 2, "n_global": 1, "window": 4}
ROWS = {"train": 40, "validation": 8, "test": 8}
LISTOPS = {"name": "listops", "length": 32, **ROWS}
RECALL = {"name": "recall", "length": 32, "pairs": 2, "symbols": 16, **ROWS}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LONGSHORT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def config(out, *overrides, task=LISTOPS, **sections):
    run = {"out": str(out), "steps": 8, "device": "cpu", "eval_every": 4, "eval_batches": 2, "save_every": 4}
    values = {"model": TINY, "task": task, "data": {"batch_size": 4}, "optimizer": {"lr": 1e-2}, "run": run}
    return TrainConfig.from_dict(values | sections).with_overrides(overrides)


@pytest.mark.parametrize(("task", "norm"), [(LISTOPS, "layer"), (LISTOPS, "batch"), (RECALL, "layer")])
def test_a_stopped_run_goes_on_bit_for_bit(task, norm, tmp_path):
    settings = task if norm == "layer" else {**task, "norm": norm}
    whole, halved = (config(tmp_path / name, task=settings) for name in ("whole", "halved"))
    train(whole)
    train(halved.with_overrides(["run.steps=4"]))
    train(halved)
    assert differences(tmp_path / "whole", tmp_path / "halved") == []
    assert losses(tmp_path / "whole") == losses(tmp_path / "halved")


def test_evaluations_record_the_accuracy(tmp_path):
    train(config(tmp_path / "classes"))
    train(config(tmp_path / "marked", task=RECALL))
    for record in records(tmp_path / "classes", "eval"):
        assert 0 <= record["accuracy"] <= 1 and "exact" not in record
    for record in records(tmp_path / "marked", "eval"):
        assert 0 <= record["exact"] <= record["accuracy"] <= 1


@pytest.mark.parametrize("exponent", [1.0, 0.5])
def test_accuracy_and_loss_are_those_of_the_whole_logits(exponent, tmp_path):
    settings = config(tmp_path, f"loss.exponent={exponent}", task=RECALL)
    task, model = open_task("recall", settings.task), build_model(settings).eval()
    batches = list(ExampleStream(task, "test", batch_size=3, seed=0).in_order())
    found = answer_scores(model, batches, world=World(0, 1, torch.device("cpu")), precision="fp32")
    right, exact, total = [], [], []
    for batch in batches:
        logits = model(batch.tokens).logits
        for row, targets in zip(logits, batch.targets, strict=True):
            asked = (targets != -100).nonzero().flatten().tolist()
            hits = [int(row[place].argmax()) == int(targets[place]) for place in asked]
            right += hits
            exact.append(all(hits))
            total += [-row[place].log_softmax(-1)[targets[place]].item() for place in asked]
    assert len(right) == 16 and found["accuracy"] == sum(right) / 16 and found["exact"] == sum(exact) / 8
    assert found["loss"] == pytest.approx(sum(total) / 16, rel=1e-5)


@pytest.mark.slow
def test_a_recall_task_is_learned(tmp_path):
    task = {"name": "recall", "length": 16, "pairs": 1, "symbols": 8, "train": 400, "validation": 40, "test": 40}
    changes = ("run.steps=150", "run.eval_every=0", "model.width=32", "model.vocab_size=8", "data.batch_size=16")
    train(config(tmp_path, *changes, task=task))
    assert records(tmp_path, "eval")[-1]["accuracy"] > 0.6  # a guess among the four values is right in a quarter


def test_a_classifier_is_built_for_classes_and_the_language_model_for_marked_positions(tmp_path):
    classifier = build_model(config(tmp_path, task={**LISTOPS, "causal": True, "norm": "batch"}))
    assert isinstance(classifier, SequenceClassifier) and classifier.causal and classifier.n_classes == 10
    assert isinstance(build_model(config(tmp_path, task=RECALL)), GPT)


def test_two_sided_attention_costs_more_than_causal(tmp_path):
    causal, both = (build_model(config(tmp_path, task={**LISTOPS, "causal": c})) for c in (True, False))
    # A global head sees 32 keys instead of 16.5 on average, a local one of window 4 as many to each side.
    difference = (32 - 16.5) + ((2 * 3.8125 - 1) - 3.8125)
    assert flops_per_token(both, 32) - flops_per_token(causal, 32) == pytest.approx(12 * 8 * 2 * difference)


def test_a_classifier_is_loaded_as_such_and_refused_as_a_language_model(tmp_path):
    train(config(tmp_path, "run.steps=1"))
    model, _ = load_trained(tmp_path)
    assert isinstance(model, SequenceClassifier) and not model.training
    with pytest.raises(CheckpointError, match="a classifier of the task listops, which writes no text"):
        load_model(tmp_path)


def test_other_examples_are_another_run(tmp_path):
    train(config(tmp_path, "run.steps=1"))
    with pytest.raises(ConfigError, match=r"holds a run with task.seed=0, not 1"):
        train(config(tmp_path, "task.seed=1"))


@pytest.mark.parametrize("given", ["task=listops", "task.name=listops"])
def test_a_task_is_given_by_its_name(given):
    settings = TrainConfig.from_dict({"model": TINY | {"positions": "none"}}).with_overrides([given])
    assert settings.task.name == "listops" and settings.length == 2000
    assert TrainConfig.from_dict({"model": TINY | {"positions": "none"}, "task": "listops"}) == settings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["task=list-ops"], "task.name must be one of listops, pathfinder, text, .* got 'list-ops'"),
        (["task.norm=group"], "task.norm must be one of layer, batch, got 'group'"),
        (["task.lenght=3"], r"task has no key 'lenght'; did you mean task.length\?"),
        (["task.pairs=3"], "listops has no setting 'pairs'"),
        (["data.length=16"], "data.length must not be set with a task"),
        (["data.corruption=0.2"], "data.corruption must not be set with a task"),
        (["data.share=0.5"], "data.share must not be set with a task"),
        (["task.length=64"], "model.context must be at least 64, the length of the task listops"),
        (["task.name=null"], "task.length needs task.name, one of listops"),
    ],
)
def test_settings_that_cannot_be_end_in_one_line(changes, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        config(tmp_path, *changes)


def test_norm_and_sight_are_the_classifiers_own(tmp_path):
    with pytest.raises(ConfigError, match=r"task.causal and task.norm are for classifiers; recall trains"):
        config(tmp_path, "task.norm=batch", task=RECALL)


def test_a_vocabulary_that_is_too_small_is_named_before_anything_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr("longshort.train.evaluation.answers.open_task", lambda *a, **b: pytest.fail("drawn"))
    with pytest.raises(ConfigError, match=r"model.vocab_size must be at least 16, the vocabulary of the task listops"):
        train(config(tmp_path, "model.vocab_size=15"))


RETRIEVAL = {"name": "retrieval", "length": 160, "kinds": "needle-noise,recall", **ROWS}
ON_TEXT = {"context": 160, "vocab_size": 257, "positions": "rotary"}


def test_every_kind_of_an_answer_is_judged_as_a_whole(tmp_path, monkeypatch):
    def knowing(model, tokens, targets, segments):
        """Right but for the last digit of needles."""
        rows, places = (targets != -100).nonzero().unbind(1)
        asked = targets[rows, places]
        needle = (targets[rows] != -100).sum(1) < 10
        return torch.nn.functional.one_hot(asked + (needle & (places == 159)), 257).float(), asked

    monkeypatch.setattr("longshort.train.evaluation.answers.model_answers", knowing)
    settings = config(tmp_path, task=RETRIEVAL, model=TINY | ON_TEXT)
    task = open_task("retrieval", settings.task)
    batches = list(ExampleStream(task, "test", batch_size=3, seed=0).in_order())
    where = {"world": World(0, 1, torch.device("cpu")), "precision": "fp32"}
    found = answer_scores(build_model(settings), batches, kinds=task.kinds, **where)
    assert found["by_kind"] == {"needle-noise": 0.0, "recall": 1.0}
    assert found["accuracy"] == (4 * 10 + 4 * 5) / (4 * 10 + 4 * 6)
    assert answer_scores(build_model(settings), batches[:1], kinds=("a", "b", "c", "d"), **where)["by_kind"].keys() == {
        *("a", "b", "c")
    }


def test_a_kind_that_has_several_turns_is_judged_by_all_of_them(tmp_path, monkeypatch):
    settings = config(tmp_path, task=RETRIEVAL | {"kinds": "recall,recall"}, model=TINY | ON_TEXT)
    task = open_task("retrieval", settings.task)
    (batch,) = ExampleStream(task, "test", batch_size=8, seed=0).in_order()

    def knowing(model, tokens, targets, segments):
        """Right in the first turn of each two."""
        rows, places = (targets != -100).nonzero().unbind(1)
        asked = targets[rows, places]
        return torch.nn.functional.one_hot((asked + rows % 2) % 257, 257).float(), asked

    monkeypatch.setattr("longshort.train.evaluation.answers.model_answers", knowing)
    where = {"world": World(0, 1, torch.device("cpu")), "precision": "fp32"}
    assert answer_scores(build_model(settings), [batch], kinds=task.kinds, **where)["by_kind"] == {"recall": 0.5}


@pytest.mark.parametrize("task", [LISTOPS, RECALL, RETRIEVAL], ids=lambda task: task["name"])
def test_evaluations_count_every_example_once_however_few_there_are(task, tmp_path):
    model = TINY | ON_TEXT if task is RETRIEVAL else TINY
    settings = config(tmp_path, "run.eval_batches=8", task=task | {"validation": 5}, model=model)
    train(settings)
    found = evaluate_checkpoint(tmp_path, split="validation", device="cpu")
    last = records(tmp_path, "eval")[-1]
    assert last["loss"] == pytest.approx(found["loss"], rel=1e-5)
    assert all(last[name] == found[name] for name in ("accuracy", "exact", "by_kind") if name in found)


def test_a_model_of_text_is_fine_tuned_and_keeps_its_tokenizer(tmp_path, corpus):
    text = config(tmp_path / "text", "run.steps=1", task={}, model=TINY | ON_TEXT, data={"path": str(corpus)})
    train(text)
    start = [f"task.start={tmp_path / 'text'}", "model.dropout=0.1"]  # which may differ
    tuned = config(tmp_path / "tuned", *start, task=RETRIEVAL, model=TINY | ON_TEXT)
    messages = []
    reporter = Silent()
    reporter.message = messages.append
    train(tuned.with_overrides(["optimizer.lr=1e-30", "schedule.warmup=0"]), reporter)
    assert any(m.startswith("starting with the weights of") for m in messages)
    before, after = (load_checkpoint(tmp_path / name).model for name in ("text", "tuned"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert checkpoint_tokenizer(load_checkpoint(tmp_path / "tuned")).vocab_size == 257
    assert records(tmp_path / "tuned", "eval")[-1]["by_kind"].keys() == {"needle-noise", "recall"}
    resumed = tuned.with_overrides(["optimizer.lr=1e-30", "schedule.warmup=0", "run.steps=9", "task.start=gone"])
    assert train(resumed).step == 9  # weights of the start are read once


@pytest.mark.slow
def test_processes_that_share_a_model_start_with_the_same_weights(tmp_path, corpus, ranks):
    train(config(tmp_path / "text", "run.steps=1", task={}, model=TINY | ON_TEXT, data={"path": str(corpus)}))
    still = ["optimizer.lr=1e-30", "schedule.warmup=0", "parallel.dp_shard=2", f"task.start={tmp_path / 'text'}"]
    tuned = config(tmp_path / "tuned", *still, task=RETRIEVAL, model=TINY | ON_TEXT)
    ranks.run(several.train, tuned.to_dict(), tmp_path, size=2)
    before, after = (load_checkpoint(tmp_path / name).model for name in ("text", "tuned"))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_start_with_another_tokenizer_or_model_is_refused(tmp_path, corpus):
    train(config(tmp_path / "text", "run.steps=1", task={}, model=TINY | ON_TEXT, data={"path": str(corpus)}))
    BPETokenizer.train(["to be or not to be"], 257).save(tmp_path / "bpe.json")
    task = RETRIEVAL | {"start": str(tmp_path / "text")}
    with pytest.raises(ConfigError, match=r"task.start: .* another tokenizer than the task's; set task.tokenizer to"):
        train(config(tmp_path / "a", f"task.tokenizer={tmp_path / 'bpe.json'}", task=task, model=TINY | ON_TEXT))
    with pytest.raises(ConfigError, match=r"task.start: .* has model.width=16, not 32; set it to the same"):
        train(config(tmp_path / "b", "model.width=32", task=task, model=TINY | ON_TEXT))


def test_a_step_counts_every_target_alike_however_it_is_divided(tmp_path, ranks):
    """Answers have different lengths, so its parts have different numbers of targets."""
    found = {}
    for name, parts, size, sections in (
        ("whole", 1, 1, {}),
        ("parts", 4, 1, {}),
        ("shared", 1, 2, {"parallel": {"dp_shard": 2}}),
        ("both", 2, 2, {"parallel": {"cp": 2}}),
    ):
        task = RETRIEVAL | {"validation": 5}  # so that the last batch of an evaluation is not full
        divided = config(tmp_path / name, f"run.accumulate={parts}", task=task, model=TINY | ON_TEXT, **sections)
        ranks.run(several.train, divided.to_dict(), tmp_path / "cache", size=size)
        scores = [r[key] for r in records(tmp_path / name, "eval") for key in ("loss", "accuracy", "exact")]
        found[name] = [*losses(tmp_path / name).values(), *scores]
    for name in ("parts", "shared", "both"):
        assert found[name] == pytest.approx(found["whole"], rel=1e-5)
