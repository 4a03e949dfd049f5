"""Held-out loss against a direct computation."""

import math

import pytest
import torch
import torch.nn.functional as F

from longshort.data.stream import TokenStream
from longshort.data.tokens import TokenFile
from longshort.train import TrainConfig, load_model
from longshort.train.evaluation import held_out
from longshort.train.evaluation.checkpoint_scores import text_scores
from longshort.train.evaluation.held_out import evaluate_split, validation_scores
from longshort.train.machine.distributed import World

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(finished):
    return load_model(finished)[0]


@pytest.fixture(scope="module")
def split(corpus):
    return TokenFile.open(corpus / "validation.tokens")


def evaluate(model, split, **options):
    return evaluate_split(model, split, device=CPU, **options)


@torch.no_grad()
def direct(model, split, length, stride, beginning=()):
    """The loss of every target in the first window that holds it, and of every position of every window."""
    text = torch.tensor(split.tokens[:].astype("int64"))
    first, by_position = {}, [[] for _ in range(length)]
    room = length - len(beginning)
    last = len(text) - 1 - room
    for start in sorted({*range(0, last, stride), last}):
        row = torch.cat((torch.tensor(beginning, dtype=torch.long), text[start : start + room + 1]))
        logits = model(row[None, :-1]).logits[0]
        for place in range(max(0, len(beginning) - 1), length):
            loss = F.cross_entropy(logits[place], row[place + 1]).item()
            first.setdefault(start + 1 + place - len(beginning), loss)
            by_position[place].append(loss)
    return first, by_position


@pytest.mark.parametrize(("length", "stride"), [(64, 64), (64, 32), (40, 33)])
def test_it_is_the_mean_loss_of_every_target_counted_once(model, split, length, stride):
    first, by_position = direct(model, split, length, stride)
    found = evaluate(model, split, length=length, stride=stride, bucket=16)
    assert found["tokens"] == len(first) == len(split) - 1
    assert found["loss"] == pytest.approx(sum(first.values()) / len(first), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["windows"] == len(by_position[0])
    for number, bucket in enumerate(found["buckets"]):
        inside = [loss for row in by_position[16 * number : 16 * number + 16] for loss in row]
        assert bucket["loss"] == pytest.approx(sum(inside) / len(inside), rel=1e-5)
        assert bucket["perplexity"] == pytest.approx(math.exp(bucket["loss"]))


@pytest.mark.parametrize(("beginning", "scored"), [((7,), 16), ((7, 256), 15)])
def test_every_window_begins_with_the_beginning_which_is_never_a_target(model, split, beginning, scored):
    first, by_position = direct(model, split, 16, 10, beginning)
    found = evaluate(model, split, length=16, stride=10, bucket=1, beginning=beginning)
    assert found["tokens"] == len(first) == len(split)
    assert found["loss"] == pytest.approx(sum(first.values()) / len(first), rel=1e-5)
    assert [int(bucket["positions"].partition("-")[0]) for bucket in found["buckets"]] == list(range(16))[-scored:]
    for bucket, losses in zip(found["buckets"], by_position[-scored:], strict=True):
        assert bucket["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_buckets_are_named_after_their_positions_and_the_last_may_be_short(model, split):
    found = evaluate(model, split, length=40, stride=40, bucket=16)
    assert [bucket["positions"] for bucket in found["buckets"]] == ["0-15", "16-31", "32-39"]


def test_the_result_does_not_depend_on_how_windows_are_batched(model, split, monkeypatch):
    found = []
    for size in (1, 3):
        monkeypatch.setattr(held_out, "AT_ONCE", 64 * size)
        found.append(evaluate(model, split, length=64, stride=50))
    one, three = found
    assert one["loss"] == pytest.approx(three["loss"], rel=1e-6)
    assert one["tokens"] == three["tokens"]


@pytest.mark.parametrize(("length", "rows"), [(8, 8), (12, 5), (33, 1), (64, 1)])
def test_long_windows_are_scored_few_at_a_time(model, split, length, rows, monkeypatch):
    monkeypatch.setattr(held_out, "AT_ONCE", 64)
    seen = []
    evaluate(model, split, length=length, stride=length, limit=12, progress=seen.append)
    assert seen[0] == rows


def test_sizes_and_segments_reach_the_evaluation_of_a_checkpoint(model, split, finished):
    config = TrainConfig.from_dict(load_model(finished)[1].state["config"])
    sizes, losses = {"length": 32, "stride": 31, "limit": 140, "bucket": 16}, set()
    for segments in (False, True):
        own = config.with_overrides([f"data.segments={str(segments).lower()}"])
        found = text_scores(model, split, own, **sizes, beginning=(), progress=lambda done: None)
        assert found == evaluate(model, split, segments=segments, **sizes)
        assert (found["length"], found["stride"], found["windows"], len(found["buckets"])) == (32, 31, 140, 2)
        losses.add(found["loss"])
    assert len(losses) == 2


def test_a_limit_stops_after_that_many_windows_and_progress_counts_them(model, split, monkeypatch):
    monkeypatch.setattr(held_out, "AT_ONCE", 128)
    seen = []
    found = evaluate(model, split, length=64, stride=32, limit=5, progress=seen.append)
    assert found["windows"] == 5 and found["tokens"] == 64 + 4 * 32
    assert seen == [2, 4, 5]


def test_it_turns_dropout_off(model, split):
    model.train()
    model.dropout.p = 0.5
    first = evaluate(model, split, length=64, stride=64, limit=2)["loss"]
    model.train()
    assert evaluate(model, split, length=64, stride=64, limit=2)["loss"] == first
    model.dropout.p = 0.0
    model.eval()


def test_validation_is_the_mean_over_the_same_first_batches_and_leaves_the_mode_alone(model, split):
    stream = TokenStream(split, batch_size=4, length=64, seed=0)
    batches = [stream.batch(step) for step in range(3)]
    with torch.no_grad():
        expected = sum(model(batch.tokens, batch.targets).loss.item() for batch in batches) / 3
    for training in (True, False):
        model.train(training)
        found = validation_scores(model, map(stream.batch, range(3)), world=World(0, 1, CPU), precision="fp32")["loss"]
        assert found == pytest.approx(expected, rel=1e-6)
        assert model.training is training
    model.eval()
