"""What each head does on given sequences: where its attention goes, how sharp it is, what it copies.

Shapes: L layers, H query heads, T tokens. Numbers of attention are means over the queries in the later half of each
sequence, which all see at least half of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from longshort.heads import HeadPlan
from longshort.hf.head_plans import LayerCall
from longshort.hf.inspection.calls import attention_calls, probabilities, weights_of_pairs

FIRST = 4
"""The first keys of a sequence, on which heads that look for nothing put their attention (arXiv 2309.17453)."""

Done = Callable[[int], None]
"""Called with the number of sequences done."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of every head."""

    mass: Tensor
    """(L, H, T) float64: attention by distance, without that on the first keys."""
    first_mass: Tensor
    """(L, H, T): attention on the first keys, by distance."""
    learned_sink: Tensor
    """(L, H): attention on a learned sink; zeros in models without."""
    entropy: Tensor
    """(L, H), in nats."""
    largest_logit: Tensor
    """(L, H): the largest |scale * q . k| of a visible pair."""
    plans: tuple[HeadPlan, ...]
    """What each head could see while it was measured."""
    n_kv_heads: int
    head_dim: int

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.mass.shape[-1]

    @property
    def sink(self) -> Tensor:
        """(L, H): attention on the first keys."""
        return self.first_mass.sum(-1)

    def beyond(self, *, first: bool = False) -> Tensor:
        """(L, H, T + 1): attention further away than 0, 1, ... T keys; with `first`, the first keys are not lost."""
        mass = self.mass if first else self.mass + self.first_mass
        return torch.nn.functional.pad(mass.flip(-1).cumsum(-1).flip(-1), (0, 1))

    def windows(self, keep: float, *, first: bool = False) -> Tensor:
        """(L, H): the smallest window that keeps this share of the attention."""
        return (self.beyond(first=first) > 1 - keep).sum(-1).clamp(min=1)


@torch.no_grad()
def measure(model: PreTrainedModel, sequences: Tensor, done: Done = lambda sequences: None) -> Measured:
    """Measure every head on tokens (B, T), one sequence after the other.

    Memory does not grow with the square of T: probabilities exist for a block of queries and one layer at a time.
    """
    if sequences.ndim != 2 or sequences.shape[0] < 1 or sequences.shape[1] < 4 * FIRST:
        raise ValueError(f"sequences must be (B, T) of at least {4 * FIRST} tokens, got {tuple(sequences.shape)}")
    found: dict[int, _Sums] = {}

    def observe(call: LayerCall) -> None:
        found.setdefault(call.layer, _Sums(call)).add(call)

    with attention_calls(model, observe):
        for number, row in enumerate(sequences, start=1):
            model(row[None], use_cache=False)
            done(number)
    layers = [found[layer] for layer in sorted(found)]
    check_all_layers(model, len(layers))
    queries = len(sequences) * (sequences.shape[1] - sequences.shape[1] // 2)
    return Measured(
        mass=torch.stack([sums.mass for sums in layers]) / queries,
        first_mass=torch.stack([sums.first_mass for sums in layers]) / queries,
        learned_sink=torch.stack([sums.learned_sink for sums in layers]) / queries,
        entropy=torch.stack([sums.entropy for sums in layers]) / queries,
        largest_logit=torch.stack([sums.largest for sums in layers]),
        plans=tuple(sums.plan for sums in layers),
        n_kv_heads=layers[0].n_kv_heads,
        head_dim=layers[0].head_dim,
    )


class _Sums:
    """Sums over the queries of one layer, on the CPU in float64."""

    def __init__(self, call: LayerCall) -> None:
        heads, length = call.q.shape[1:3]
        self.plan, self.n_kv_heads, self.head_dim = call.plan, call.k.shape[1], call.k.shape[3]
        self.mass, self.first_mass = (torch.zeros(heads, length, dtype=torch.float64) for _ in range(2))
        self.learned_sink, self.entropy, self.largest = (torch.zeros(heads, dtype=torch.float64) for _ in range(3))

    def add(self, call: LayerCall) -> None:
        length = call.q.shape[2]
        assert call.result.stats is not None
        self.largest = torch.maximum(self.largest, call.result.stats.abs_max.double().cpu())
        for start, p_HRS in probabilities(call, length // 2):
            own = p_HRS.sum(-1)
            sink = (1 - own).clamp(min=0) if call.options["sinks"] is not None else torch.zeros_like(own)
            self.learned_sink += sink.sum(-1).double().cpu()
            terms = torch.special.entr(p_HRS).sum(-1) + torch.special.entr(sink)
            self.entropy += terms.sum(-1).double().cpu()
            rows = p_HRS.shape[1]
            for key in range(FIRST):
                away = slice(start - key, start - key + rows)
                self.first_mass[:, away] += p_HRS[:, :, key].double().cpu()
            p_HRS[:, :, :FIRST] = 0
            self.mass[:, : start + rows] += by_distance(p_HRS).double().cpu()


def by_distance(p_HRS: Tensor) -> Tensor:
    """(H, S): sums over the last R of S queries, by the distance of the key.

    >>> by_distance(torch.tensor([[[0.25, 0.75, 0.0], [0.5, 0.3, 0.2]]]))
    tensor([[0.9500, 0.5500, 0.5000]])
    """
    rows, keys = p_HRS.shape[1:]
    # Reversed and padded by a row's length, a row read with one column less is shifted by its number.
    padded = torch.nn.functional.pad(p_HRS.flip(-1), (0, rows))
    shifted = padded.flatten(1)[:, : rows * (keys + rows - 1)].unflatten(1, (rows, keys + rows - 1))
    return shifted.sum(1)[:, rows - 1 : rows - 1 + keys]


def check_all_layers(model: PreTrainedModel, found: int) -> None:
    """Raise where some layer has no attention that was seen."""
    layers = model.config.get_text_config().num_hidden_layers
    if found != layers:
        raise ValueError(f"model must have attention in each of its {layers} layers, got it in {found}")


@torch.no_grad()
def copying(
    model: PreTrainedModel,
    asked: Iterable[tuple[Tensor, Sequence[int], Sequence[int]]],
    done: Done = lambda sequences: None,
) -> Tensor:
    """(L, H): the attention that queries give to the keys they should find, each query to its own.

    Args:
        asked: tokens (T,), the places of the queries, and the place of the key of each.
    """
    found: dict[int, list[Tensor]] = {}
    for number, (tokens, queries, keys) in enumerate(asked, start=1):
        with attention_calls(model, partial(_note_pairs, found, torch.tensor(queries), torch.tensor(keys))):
            model(tokens[None].to(model.device), use_cache=False)
        done(number)
    return torch.stack([torch.cat(found[layer], dim=1).mean(1) for layer in sorted(found)])


def _note_pairs(found: dict[int, list[Tensor]], queries: Tensor, keys: Tensor, call: LayerCall) -> None:
    found.setdefault(call.layer, []).append(weights_of_pairs(call, queries, keys).double().cpu())
