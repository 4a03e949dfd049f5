"""The retrieval suite: exact scores by kind, length and distance, and what is left out with a reason."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from longshort import GPT, GPTConfig, generate
from longshort.cli import app
from longshort.data.tasks.retrieval import KINDS
from longshort.data.tokenizer import ByteTokenizer
from longshort.hf.retrieval import evaluate_suite
from longshort.train.evaluation import retrieval
from longshort.train.evaluation.answers import model_answers, whole_answers
from longshort.train.evaluation.retrieval import evaluate_retrieval, retrieval_tables, skipped_lines

FIXTURES = Path(__file__).parents[2] / "fixtures"
SIZES = {"n_layers": 1, "width": 16, "n_heads": 2, "vocab_size": 257}
NO_BOOKS = tuple(kind for kind in KINDS if not kind.endswith("-books"))


def model(**options):
    return GPT(GPTConfig(**SIZES | {"context": 512, "positions": "rotary"} | options))


def knowing(knows):
    """A stand-in for the model: right where `knows(tokens, place)` says so, else off by one."""

    def answers(model, tokens, targets, segments):
        rows, places = (targets != -100).nonzero().unbind(1)
        asked = targets[rows, places]
        good = [knows(tokens[row].numpy(), place) for row, place in zip(rows.tolist(), places.tolist(), strict=True)]
        return F.one_hot(torch.where(torch.tensor(good), asked, asked + 1), 257).float(), asked

    return answers


def test_greedy_decoding_writes_an_answer_exactly_where_it_is_right():
    small = model(init_std=0.5).eval()
    prompt = torch.randint(257, (1, 40))
    written = [int(token) for token in generate(small, prompt, max_new_tokens=5, temperature=0.0)]
    for wrong in (None, 0, 2, 4):
        answer = [token + (place == wrong) for place, token in enumerate(written)]
        tokens = torch.cat((prompt, torch.tensor([answer[:-1]])), 1)
        targets = torch.full_like(tokens, -100)
        targets[0, -5:] = torch.tensor(answer)
        with torch.no_grad():
            logits, asked = model_answers(small, tokens, targets, None)
        assert whole_answers(logits.argmax(-1) == asked, targets)[0].tolist() == [wrong is None]


def test_shares_are_those_of_a_model_that_is_known(monkeypatch):
    monkeypatch.setattr(retrieval, "model_answers", knowing(lambda tokens, place: True))
    found = evaluate_retrieval(model(), ByteTokenizer(), lengths=(320,), kinds=NO_BOOKS, examples=5)
    assert [(row["kind"], row["questions"], row["accuracy"]) for row in found["rows"]] == [
        ("needle-noise", 5, 1.0),
        ("needles-noise", 5, 1.0),
        ("variables", 5, 1.0),
        ("recall", 80, 1.0),
    ]
    # One token of many is enough for a wrong answer.
    monkeypatch.setattr(retrieval, "model_answers", knowing(lambda tokens, place: place != 319))
    found = evaluate_retrieval(model(), ByteTokenizer(), lengths=(320,), kinds=("variables",), examples=5)
    assert found["rows"][0]["accuracy"] == 0.0


def test_recall_is_told_by_distance(monkeypatch):
    def near(tokens, place):
        return place - np.flatnonzero(tokens == tokens[place])[0] < 32

    monkeypatch.setattr(retrieval, "model_answers", knowing(near))
    found = evaluate_retrieval(model(), ByteTokenizer(), lengths=(256, 512), kinds=("recall",), examples=20)
    for row in found["rows"]:
        shares = {part["distance"]: part["accuracy"] for part in row["by_distance"]}
        assert [*shares][:6] == ["4-7", "8-15", "16-31", "32-63", "64-127", "128-255"]
        assert all(share == (int(name.partition("-")[0]) < 32) for name, share in shares.items())
        assert sum(part["questions"] for part in row["by_distance"]) == row["questions"] == 320
    by_kind, by_distance = retrieval_tables(found)
    assert by_kind.row_count == 1 and by_distance.row_count == 7


def test_the_same_seed_asks_the_same():
    small = model()
    first, again = (evaluate_retrieval(small, ByteTokenizer(), lengths=(256,), examples=3) for _ in range(2))
    assert first == again


def test_what_cannot_be_asked_is_named():
    found = evaluate_retrieval(model(), ByteTokenizer(), lengths=(64, 256, 1024), examples=2)
    assert [row["kind"] for row in found["rows"]] == ["recall", "needle-noise", "needles-noise", "variables", "recall"]
    lines = skipped_lines(found)
    assert "skipped 1,024 tokens: longer than the model's context of 512 tokens" in lines
    assert any(
        line.startswith("skipped needle-books at 64, 256 tokens: needle-books must have books") for line in lines
    )
    assert any("variables at 64 tokens: length must be at least 236 for variables" in line for line in lines)
    past = evaluate_retrieval(
        model(), ByteTokenizer(), lengths=(1024,), kinds=("recall",), examples=2, past_context=True
    )
    assert past["rows"][0]["length"] == 1024
    learned = model(positions="learned")
    found = evaluate_retrieval(learned, ByteTokenizer(), lengths=(1024,), kinds=("recall",), past_context=True)
    assert skipped_lines(found) == ["skipped 1,024 tokens: positions are learned for 512 tokens"]


def verb(*arguments):
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments), "--suite", "retrieval", "--device", "cpu"])


@pytest.mark.parametrize("name", ["run", "exported-run"])
def test_the_verb_asks_runs_and_exported_folders_alike(name, tmp_path):
    data, out = FIXTURES / "data", tmp_path / "found.json"
    shown = verb(FIXTURES / name, "--data", data, "--length", 288, "--limit", 2, "--out", out)
    assert shown.exit_code == 0, shown.output
    found = json.loads(out.read_text())
    assert [row["kind"] for row in found["rows"]] == list(KINDS) and found["skipped"] == []
    assert "needles-books" in shown.output and "recall by distance" in shown.output and f"wrote {out}" in shown.output


@pytest.mark.parametrize("name", ["run", "exported-run"])
def test_the_verb_asks_a_lengthened_model(name, tmp_path, monkeypatch):
    asked, answers = [], retrieval.model_answers
    monkeypatch.setattr(
        retrieval, "model_answers", lambda model, *rest: asked.append(model.config) or answers(model, *rest)
    )
    shown = verb(FIXTURES / name, "--length", 288, "--limit", 1, "--yarn", "--out", tmp_path / "found.json")
    assert shown.exit_code == 0, shown.output
    assert {(config.context, config.rope_scaling.factor) for config in asked} == {(288, 6.0)}
    assert json.loads((tmp_path / "found.json").read_text())["yarn"] is True


@pytest.mark.parametrize("name", ["run", "exported-run"])
def test_the_verb_scores_text_with_a_lengthened_model(name, tmp_path):
    losses = []
    for options in ((), ("--yarn",)):
        sizes = ("--data", FIXTURES / "data", "--length", 96, "--limit", 2, "--device", "cpu", *options)
        words = ["evaluate", FIXTURES / name, *sizes, "--out", tmp_path / "found.json"]
        shown = CliRunner().invoke(app, [str(word) for word in words])
        assert shown.exit_code == 0, shown.output
        found = json.loads((tmp_path / "found.json").read_text())
        assert found.get("yarn") == (True if options else None)
        losses.append(found["loss"])
    assert losses[0] != losses[1] == pytest.approx(losses[0], abs=0.1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "the suite begins at 1,024 tokens, but the model's context is 48; give --length 48"),
        (("run", "--length", 16), "nothing can be asked: skipped needle-noise at 16 tokens: length must be at least"),
        (("run", "--data", "nowhere", "--length", 300), "nowhere/train.tokens"),
        (("run", "--stride", 3), "--stride must not be given with --suite"),
        (("run", "--yarn"), "--yarn must come with --length N, got --yarn alone"),
        (("run", "--yarn", "--length", 40), "context must be above the model's 48, got 40"),
        (("run", "--bucket", 64), "--bucket must not be given with --suite"),
        (("gpt2", "--length", 300), "no such tokenizer"),
    ],
)
def test_wrong_requests_end_in_one_line(arguments, words):
    shown = verb(FIXTURES / arguments[0], *arguments[1:])
    assert shown.exit_code == 1 and words in shown.stderr and shown.stderr.count("\n") == 1


def test_a_run_whose_text_is_gone_is_asked_without_books():
    found = evaluate_suite(FIXTURES / "run", length=288, examples=1, device="cpu")
    assert {entry["kind"] for entry in found["skipped"]} == {"needle-books", "needles-books"} and found["data"] is None
