"""The model card of an exported folder: what the model is, how to open it, and how it was trained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from longshort.heads import HeadPlan
from longshort.model import GPTConfig
from longshort.reach import costs
from longshort.version import __version__

_HEAD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- longshort
- long-short-attention
---

# A language model whose heads have their own reach
"""
_USE = """
## Use

    pip install 'longshort[hf]'

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

import longshort.hf

model = AutoModelForCausalLM.from_pretrained(FOLDER)
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
```
"""
_LEFT = """
What it was trained on, what it is good for and where it fails, only its makers can say: please write it here.
"""


def model_card(config: GPTConfig, n_parameters: int, *, trained: Mapping[str, Any] | None = None) -> str:
    """The text of README.md; `trained` are facts of the training, by name.

    >>> card = model_card(GPTConfig.preset("modern-10m"), 10_620_000)
    >>> [line for line in card.splitlines() if line.startswith("| reach")]
    ['| reach | layers 1 to 8: 1 global head, 7 with a window of 64 |']
    """
    spent = costs(config.layer_reaches, context=config.context, n_kv_heads=config.n_kv_heads)
    facts = {
        "parameters": f"{n_parameters:,}",
        "layers, heads, width": f"{config.n_layers}, {config.n_heads}, {config.width}",
        "context": f"{config.context:,} tokens",
        "vocabulary": f"{config.vocab_size:,}",
        "positions": _positions(config),
        "reach": reach_in_words(config.layer_plans),
        "cache at the whole context": f"{spent.cache_share:.1%} of full attention's",
    }
    parts = [_HEAD, _table(facts), _USE]
    if trained:
        parts.append(f"\n## Training\n{_table(trained)}")
    return "".join([*parts, _LEFT, f"\nWritten by longshort {__version__}.\n"])


def reach_in_words(plans: tuple[HeadPlan, ...]) -> str:
    """Which heads of which layers see how far.

    >>> reach_in_words((HeadPlan.full(2),) * 2 + (HeadPlan(windows=(8, 16)),))
    'layers 1 to 2: 2 global heads; layer 3: 1 with a window of 8, 1 with a window of 16'
    """
    said, start = [], 1
    for plan, alike in groupby(plans):
        stop = start + len(list(alike))
        layers = f"layer {start}" if stop - start == 1 else f"layers {start} to {stop - 1}"
        seen = Counter(zip(plan.windows, plan.first_keys, strict=True))
        order = sorted(seen.items(), key=lambda item: -math.inf if item[0][0] is None else item[0][0])
        said.append(f"{layers}: {', '.join(_heads(*sees, count) for sees, count in order)}")
        start = stop
    return "; ".join(said)


def _positions(config: GPTConfig) -> str:
    shares = {layer.global_share for layer in config.layer_reaches if layer.plan.n_global}
    return f"{config.positions}; global heads are not rotated" if shares == {0.0} else config.positions


def _heads(window: int | None, first: int, count: int) -> str:
    if window is None:
        return f"{count} global head{'s' if count > 1 else ''}"
    return f"{count} with a window of {window:,}" + (f" and the first {first}" if first else "")


def _table(facts: Mapping[str, Any]) -> str:
    lines = [f"| {name} | {str(value).replace('|', chr(92) + '|')} |" for name, value in facts.items()]
    return "\n".join(["", "| | |", "|---|---|", *lines, ""])
