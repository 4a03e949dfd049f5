"""The page on soft thinking does what it says, and its table holds what is drawn."""

import re
from pathlib import Path

import torch

from longshort.generation import AUTHORS_CLAMP, SoftThinking

PAGE = (Path(__file__).parents[2] / "docs" / "ideas" / "soft-thinking.md").read_text(encoding="utf-8")
DRAWS = 200_000


def test_python_of_the_page_runs():
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
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
