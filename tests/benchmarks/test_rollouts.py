"""The benchmark of rollouts: wrong draws are never measured, every part runs, goals are judged."""

from dataclasses import replace

import pytest
import torch

from benchmarks import rollouts
from benchmarks.harness import OURS, Recorder, WrongResult
from benchmarks.rollouts import SIZES, check_drawn, of_tokens
from benchmarks.rollouts_page import DISCRETE, GPT2, HF, SOFT, goals, tables
from longshort.generation import SoftThinking
from longshort.rl import Sampler

from ..generation.drawn import build

TINY = replace(SIZES["cpu"], batch=4, prompt=4, new_tokens=6, long=((64, 2),), memory=2**20)


def test_every_part_is_checked_and_measured(tmp_path):
    results = rollouts.run(Recorder(tmp_path / "rollouts.json"), sizes=TINY, rounds=2)
    short = [(row["name"], row["heads"], row["how"]) for row in results["short"]]
    ours = [(OURS, "ls", SOFT), (OURS, "ls", DISCRETE), (OURS, "plain", DISCRETE)]
    assert short == [*ours, (GPT2, "plain", DISCRETE), (HF, "ls", DISCRETE)]
    assert all(row["sequences_per_second"] > 0 and len(row["milliseconds"]) == 2 for row in results["short"])
    assert [row["heads"] for row in results["long"]] == ["ls", "plain"]
    assert all(len(row["milliseconds"]) == 4 and row["tokens_per_second"] > 0 for row in results["long"])
    assert results["batch"][0]["ratio"] > 1
    page = (tmp_path / "rollouts.md").read_text()
    assert tables(results) in page and "failed" not in str(results)


@pytest.fixture(scope="module")
def model():
    return build(vocab_size=40, init_std=0.5)


@pytest.mark.parametrize("thinking", [None, SoftThinking(end=0, top_p=0.8)])
def test_draws_of_another_model_are_refused(model, thinking):
    prompts = torch.randint(40, (16, 4), generator=torch.Generator().manual_seed(0))
    drawn = Sampler(model, thinking, batch_size=16, max_prompt=4, max_new_tokens=32).draw(prompts, seed=0)
    assert abs(check_drawn(drawn, model, "right")) < 0.2
    other = build(vocab_size=40, init_std=0.5)
    with torch.no_grad():
        other.embedding.weight.mul_(1.5)
    with pytest.raises(WrongResult, match="wrong: what it draws is off by"):
        check_drawn(drawn, other, "wrong")


def test_greedy_tokens_are_refused(model):
    prompts = torch.randint(40, (16, 4), generator=torch.Generator().manual_seed(0))
    drawn = Sampler(model, top_k=1, batch_size=16, max_prompt=4, max_new_tokens=32).draw(prompts, seed=0)
    with pytest.raises(WrongResult, match="greedy: what it draws is off by -"):
        check_drawn(of_tokens(prompts, drawn.tokens), model, "greedy")


def row(name, heads, how, milliseconds):
    return {"name": name, "heads": heads, "how": how, "milliseconds": [milliseconds], "sequences_per_second": 1e6}


def test_goals_are_judged_by_ratios_and_rates():
    short = [row(OURS, "ls", SOFT, 10.0), row(OURS, "ls", DISCRETE, 9.0), row(OURS, "plain", DISCRETE, 8.0)]
    short += [row(GPT2, "plain", DISCRETE, 72.0), {"name": HF, "heads": "ls", "how": DISCRETE, "failed": "no"}]
    rates = {("ls", 64): 7.0, ("plain", 64): 2.0, ("ls", 512): 5.0}
    long = [
        {"name": "", "length": 32768, "batch": batch, "heads": heads, "tokens_per_second": rate}
        for (heads, batch), rate in rates.items()
    ]
    found = [(goal["value"], goal["reached"]) for goal in goals({"short": short, "long": long})]
    assert found == [(1e6, True), (0.9, True), (9.0, False), (None, None), (3.5, True)]


def test_an_unknown_part_is_named():
    with pytest.raises(ValueError, match="parts must be some of short, long, batch, got longer"):
        rollouts.run(Recorder(), parts=["longer"])
