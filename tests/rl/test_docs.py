"""The pages on soft thinking and reinforcement learning do what they say, and their tables hold what was drawn."""

import json
import re
from pathlib import Path

import torch

from longshort.generation import AUTHORS_CLAMP, SoftThinking

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "ideas" / "soft-thinking.md").read_text(encoding="utf-8")
DRAWS = 200_000


def test_python_of_the_page_runs():
    example, _ = re.findall(r"```python\n(.*?)```", PAGE, re.S)  # tests/docs/test_ideas.py runs the second
    scope = {"__name__": "example"}
    exec(compile(example, "docs/ideas/soft-thinking.md", "exec"), scope)
    assert (scope["ratio"] == 1).all()


def test_the_table_of_the_clamp_holds_what_is_drawn():
    p, *rows = (
        [float(cell) for cell in re.findall(r"\.\d+", line)] for line in re.findall(r"^\|.*\| \.0.*$", PAGE, re.M)
    )
    for clamp, row in zip((None, AUTHORS_CLAMP), rows, strict=True):
        thinking = SoftThinking(end=99, top_p=1.0, tau=1e-6, clamp=clamp)
        logits = torch.tensor(p).log().expand(DRAWS, 5)
        ids, values = thinking.draw(logits, generator=torch.Generator().manual_seed(0))
        largest = ids.gather(-1, thinking.weights(ids, values).argmax(-1, keepdim=True))[:, 0]
        share = torch.bincount(largest, minlength=5) / DRAWS
        torch.testing.assert_close(share, torch.tensor(row), atol=0.00051, rtol=0)


def test_at_tau_a_tenth_a_mixture_is_nearly_one_token():
    (told,) = re.findall(r"below 0\.9 in (\d+) % of draws", PAGE)
    thinking = SoftThinking(end=99, top_p=1.0, top_k=2)
    ids, values = thinking.draw(torch.zeros(DRAWS, 2), generator=torch.Generator().manual_seed(0))
    share = (thinking.weights(ids, values).amax(-1) < 0.9).double().mean().item()
    assert round(100 * share) == int(told)


def test_python_of_the_page_on_reinforcement_learning_runs():
    page = (DOCS / "howto" / "reinforcement-learning.md").read_text(encoding="utf-8")
    _, example = re.findall(r"```python\n(.*?)```", page, re.S)  # tests/docs/test_ideas.py runs the first
    scope = {"__name__": "example"}
    exec(compile(example, "docs/howto/reinforcement-learning.md", "exec"), scope)
    assert scope["result"].status == "finished" and len(scope["rewards"]) == 2
    assert 0 <= scope["scores"]["reward"] <= 1


def test_the_first_example_learned_what_the_page_says():
    page = (DOCS / "howto" / "reinforcement-learning.md").read_text(encoding="utf-8")
    data = json.loads((DOCS / "results" / "rl-tiny.json").read_text(encoding="utf-8"))
    rewards = data["runs"][0]["reward_by_step"]
    rows = re.findall(r"^\| (\d+) \|.*?\| ([\d.]+) \|$", page, re.M)
    assert len(rows) >= 3 and all(float(reward) == round(rewards[step], 2) for step, reward in rows)
    assert float(rows[0][1]) < 0.5 and float(rows[-1][1]) > 0.9
    others = re.findall(r"from (0\.\d\d) to (0\.\d\d)", page)
    for told, run in zip(others, data["runs"][1:], strict=True):
        rewards = run["reward_by_step"]
        assert tuple(float(x) for x in told) == (round(rewards["120"], 2), round(list(rewards.values())[-1], 2))
