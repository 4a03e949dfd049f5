"""What models that differ only in their plan cost: whole training steps, decoding steps, and bytes of cache.

The models are the caller's, by name; `experiments.reach_costs` measures those of its experiments. A plan that cannot
run gets a row that says why. Models of one measurement are in memory together and take turns.

Shapes: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.decoders import FED, Ours, greedy_step, last_logits
from benchmarks.harness import DTYPES, Entrant, take_turns
from benchmarks.steps import BLOCKS, Setting, Way, as_a_user_trains, measure_steps
from benchmarks.timing import clocked, free, queued, warmed
from longshort.model import GPT, GPTConfig
from longshort.reach.costs import costs

Models = Mapping[str, GPTConfig]
Rows = list[dict[str, Any]]
_WARM_UP = 4
"""Decoding steps before those that are timed, in which the step is captured."""
_INIT_STD = 0.06
"""Large enough to make attention far from uniform: a wrong mask must show in the logits."""
_CHECKED = 640
"""Length of the check's sequences: more than the widest window."""
_TOLERANCE = 0.05
"""Largest accepted error of a logit in fp32. The logits' standard deviation is about 1; those of two plans of `reach`
that differ least are 0.56 apart."""


@dataclass(frozen=True, kw_only=True)
class Plans(Setting):
    """The tokens of a step; `heads` is the name of a model."""

    models: Models = field(repr=False)

    def config(self, heads: str, **changes: Any) -> GPTConfig:
        return replace(self.models[heads], context=self.context, **changes)


def training(
    models: Models, context: int, *, tokens: int, device: str, rounds: int, steps: int, how: str = BLOCKS
) -> Rows:
    """Milliseconds that a GPU takes for a whole step of `tokens` tokens in sequences of `context`.

    The host's time does not count, as with CUDA graphs, by which small models train. Plans have few kinds of layers
    between them; compiled block by block, each kind is compiled once.
    """
    setting = Plans(batch=max(1, tokens // context), context=context, models=models)
    ways = [Way(name=name, heads=name, how=how) for name in models]
    with as_a_user_trains():
        rows = measure_steps(setting, ways, device=device, rounds=rounds, steps=steps, timer=queued)
    torch.compiler.reset()
    for row in rows:
        if "failed" not in row:
            row["tokens_per_second"] = [1e3 * setting.tokens / ms for ms in row["milliseconds"]]
    kept = ("name", "failed", "milliseconds", "tokens_per_second", "peak_bytes")
    return [{key: row[key] for key in kept if key in row} for row in rows]


def decoding(models: Models, length: int, *, batch: int, device: str, rounds: int, steps: int) -> Rows:
    """Milliseconds of a greedy decoding step of `batch` sequences that have read `length` tokens.

    On a GPU a step is the replay of a CUDA graph, as in `generate`. Each model is checked first.
    """
    room = _WARM_UP + rounds * steps + 1

    def begin(config: GPTConfig, entrant: Entrant) -> None:
        size = (batch, length)
        prompt = torch.randint(config.vocab_size, size, generator=torch.Generator().manual_seed(2)).to(device)
        decoder, entrant.facts["error"] = _checked(config, device=device)
        free(device)
        entrant.sample = clocked(warmed(greedy_step(decoder, prompt, room), _WARM_UP), device, calls=steps)
        entrant.facts["mode"] = decoder.mode

    entrants = [Entrant(name) for name in models]
    for entrant in entrants:
        entrant.attempt(partial(begin, models[entrant.name], entrant))
        free(device)
    take_turns(entrants, rounds)
    rows = []
    for entrant in entrants:
        row = {"name": entrant.name, **entrant.row()}
        if entrant.failed is None:
            row["tokens_per_second"] = [1e3 * batch / ms for ms in entrant.milliseconds]
        rows.append(row)
    return rows


def cache_bytes(config: GPTConfig, length: int) -> int:
    """Bytes of a bf16 cache that holds `length` positions of one sequence, with nothing to take back.

    >>> cache_bytes(GPTConfig.preset("paper-6m", n_global=0), 32768) == 2 * 2 * 6 * 6 * 32 * 50
    True
    """
    spent = costs(config.layer_reaches, context=length, n_kv_heads=config.n_kv_heads, head_dim=config.head_features)
    return round(spent.cache_bytes * length)


@torch.no_grad()
def _checked(config: GPTConfig, *, device: str) -> tuple[Ours, float]:
    """A decoder with random weights, and how far its logits are from those of the reference, uncached: both in fp32,
    in which another plan's logits are far off. It decodes in the dtype of the device.
    """
    torch.manual_seed(0)
    config = replace(config, init_std=_INIT_STD)
    with torch.device(device):
        model, reference = GPT(config).eval(), GPT(replace(config, backend="reference")).eval()
    reference.load_state_dict(model.state_dict())
    tokens = torch.randint(config.vocab_size, (2, _CHECKED), generator=torch.Generator().manual_seed(1)).to(device)
    expected: Tensor = reference(tokens).logits[:, -FED:].float().cpu()
    error = (last_logits(Ours(model, device), tokens) - expected).abs().max().item()
    if not error <= _TOLERANCE:
        raise RuntimeError(f"decoding: logits are off by {error:.1e} (allowed: {_TOLERANCE:.1e})")
    return Ours(model.to(DTYPES[device]), device), error
