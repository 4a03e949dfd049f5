"""Log-probabilities of tokens and of soft tokens, from hidden states, without the logits of a whole batch.

A discrete token needs the log-sum-exp over the vocabulary, which is computed for one chunk of tokens at a time and
again in the backward pass; so does the entropy of any token. A soft token needs the logits of its k tokens alone.

Shapes: N tokens, d features, V vocabulary, k tokens of a mixture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from longshort.generation import AUTHORS_CLAMP, gaussian_log_density, gumbel_log_density, mixed
from longshort.losses.head import head_scores
from longshort.numeric import is_integral, is_real

Form = Literal["paper", "code", "categorical"]

FORMS: tuple[Form, ...] = get_args(Form)
"""The two forms in which arXiv 2511.06411 scores a soft token, and the plain one; see `soft_log_probs`."""
_LEAST_LOG_P = -3.0
"""The form "code" leaves out tokens that are less probable than this."""
_CHUNK_BYTES = {"cpu": 2**26, "cuda": 2**30}
"""Budget for what one chunk of tokens holds in fp32, by device; a GPU wants thousands of rows."""

Transform = Callable[[Tensor], Tensor]


class Scores(NamedTuple):
    """What a model gives to each token that was drawn."""

    log_probs: Tensor
    """Log-probabilities, log-densities for mixtures; differentiable."""
    entropy: Tensor | None
    """Entropy of the whole distribution that the token is from, in nats; a constant."""


def token_log_probs(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    transform: Transform | None = None,
    chunk: int | None = None,
) -> Tensor:
    """The log-probability (N,) of each token: log-softmax(hidden @ weight.T / temperature) at that token.

    In fp32, float64 for float64 inputs; differentiable.

    Args:
        hidden: (N, d).
        weight: (V, d).
        tokens: (N,) int64.
        transform: turns the head's scores into logits, element by element.
        chunk: number of tokens whose logits exist at a time; as many as fill 64 MiB if None, on a GPU 1 GiB.

    >>> hidden, weight, tokens = torch.randn(10, 8), torch.randn(100, 8), torch.randint(100, (10,))
    >>> direct = (hidden @ weight.T).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    >>> torch.allclose(token_log_probs(hidden, weight, tokens, chunk=4), direct, atol=1e-5)
    True
    """
    return _of_tokens(hidden, weight, tokens, temperature, transform, chunk, entropy=False)[:, 0]


def token_scores(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    transform: Transform | None = None,
    chunk: int | None = None,
) -> Scores:
    """`token_log_probs`, and from the same logits the entropy (N,) of the distribution that each token is from.

    >>> scores = token_scores(torch.zeros(1, 8), torch.randn(100, 8), torch.tensor([3]))
    >>> [round(score.item(), 3) for score in scores]
    [-4.605, 4.605]
    """
    both = _of_tokens(hidden, weight, tokens, temperature, transform, chunk, entropy=True)
    return Scores(both[:, 0], both[:, 1].detach())


def _of_tokens(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    temperature: float,
    transform: Transform | None,
    chunk: int | None,
    *,
    entropy: bool,
) -> Tensor:
    """(N, 1) log-probabilities, or (N, 2) with the entropies."""
    _check(hidden, weight, temperature, chunk)
    _check_integers("tokens", tokens, (len(hidden),), len(weight))

    def of_chunk(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
        log_p = _logits(head_scores(hidden, weight), temperature, transform).log_softmax(-1)
        chosen = log_p.gather(-1, tokens[:, None])
        if not entropy:
            return chosen
        return torch.cat((chosen, torch.special.entr(log_p.detach().exp()).sum(-1, keepdim=True)), dim=-1)

    return _in_chunks(of_chunk, chunk or _fitting(len(weight), hidden), hidden, weight, tokens)


def soft_log_probs(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    values: Tensor,
    *,
    form: Form = "paper",
    clamp: tuple[float, float] | None = None,
    temperature: float = 1.0,
    transform: Transform | None = None,
    chunk: int | None = None,
) -> Tensor:
    """The log-density (N,) of soft tokens whose values g = log p + Gumbel noise were stored; see `SoftThinking`.

    Token i of a mixture has the log-density -u - exp(-u) at u = g - log p, with log p as the model has it now.

    - "paper": the sum over the tokens of the mixture, p renormalised over them. It is exact where the noise was not
      clamped.
    - "code", as the authors' code has it: p renormalised over all k tokens, those that top_p dropped included; u is
      clamped; the mean over the tokens with log p > -3.
    - "categorical": log p of the token of largest value, p renormalised as in "paper". Where the noise was not clamped,
      this token is an exact draw from p; the score says nothing of the weights of the mixture.

    In fp32, float64 for float64 inputs; differentiable.

    Args:
        hidden: (N, d).
        weight: (V, d).
        ids: (N, k) tokens of each mixture.
        values: (N, k) their values g; -inf for what top_p dropped.
        clamp: bounds of u; `AUTHORS_CLAMP` for "code" and none for "paper" if None. "categorical" has no u.
        temperature: of p, that of the thinking.
        transform: turns the head's scores into logits, element by element.
        chunk: number of soft tokens that are computed at a time; as many as fill 64 MiB if None, on a GPU 1 GiB.

    >>> weight, ids = torch.eye(3), torch.tensor([[0, 1]])
    >>> soft_log_probs(torch.zeros(1, 3), weight, ids, torch.tensor([[0.5, 0.5]]).log())
    tensor([-2.])
    """
    _check(hidden, weight, temperature, chunk)
    check_form(form)
    if clamp is not None and not clamp[0] < clamp[1]:  # torch would take the higher one for all numbers
        raise ValueError(f"clamp must be None or a lower and a higher bound, got {clamp!r}")
    _check_mixtures(hidden, weight, ids, values)

    def of_chunk(hidden: Tensor, weight: Tensor, ids: Tensor, values: Tensor) -> Tensor:
        logits = _of_mixtures(hidden, weight, ids, temperature, transform)
        values = values.to(logits.dtype)
        if form == "categorical":
            return _kept_log_p(logits, values).gather(-1, values.argmax(-1, keepdim=True))[:, 0]
        if form == "paper":
            return gumbel_log_density(values, _kept_log_p(logits, values), clamp=clamp)
        return _averaged(logits, values, AUTHORS_CLAMP if clamp is None else clamp)

    return _in_chunks(of_chunk, chunk or _fitting(ids.shape[1] * weight.shape[1], hidden), hidden, weight, ids, values)


def check_form(form: object) -> None:
    """Raise unless it is one of `FORMS`."""
    if form not in FORMS:
        raise ValueError(f"form must be {', '.join(FORMS[:-1])} or {FORMS[-1]}, got {form!r}")


def gaussian_log_probs(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    values: Tensor,
    inputs: Tensor,
    *,
    table: Tensor,
    sigma: float,
    temperature: float = 1.0,
    transform: Transform | None = None,
    chunk: int | None = None,
) -> Tensor:
    """The log-density (N,), less a constant, of soft tokens that are mixed embeddings with Gaussian noise.

    It is -|s' - s|^2 / (2 sigma^2), with s' the input that was drawn and s = sum_i p_i E[i] as the model has it now: p
    renormalised over the tokens of the mixture, and E both get gradients (arXiv 2509.19170).

    Args:
        hidden, weight, ids, temperature, transform, chunk: as in `soft_log_probs`.
        values: (N, k) of which only -inf counts, for what top_p dropped.
        inputs: (N, C) s'.
        table: (V, C) embeddings E.
        sigma: standard deviation of the noise.

    >>> weight, ids, table = torch.eye(3), torch.tensor([[0, 1]]), torch.eye(3)
    >>> gaussian_log_probs(torch.zeros(1, 3), weight, ids, torch.zeros(1, 2), torch.ones(1, 3), table=table, sigma=0.5)
    tensor([-3.])
    """
    _check(hidden, weight, temperature, chunk)
    _check_mixtures(hidden, weight, ids, values)
    if inputs.shape != (len(hidden), table.shape[-1]):
        wanted = (len(hidden), table.shape[-1])
        raise ValueError(f"inputs must have shape {wanted}, got {tuple(inputs.shape)}")
    if not sigma > 0:
        raise ValueError(f"sigma must be above 0, got {sigma}")

    def of_chunk(hidden: Tensor, weight: Tensor, ids: Tensor, values: Tensor, inputs: Tensor) -> Tensor:
        p = _kept_log_p(_of_mixtures(hidden, weight, ids, temperature, transform), values).exp()
        return gaussian_log_density(inputs, mixed(table, ids, p), sigma)

    size = ids.shape[1] * max(weight.shape[1], table.shape[1])
    return _in_chunks(of_chunk, chunk or _fitting(size, hidden), hidden, weight, ids, values, inputs)


def _of_mixtures(
    hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float, transform: Transform | None
) -> Tensor:
    """(n, k): the logits of the tokens of each mixture."""
    return _logits((F.embedding(ids, weight) @ hidden[..., None])[..., 0], temperature, transform)


def _kept_log_p(logits: Tensor, values: Tensor) -> Tensor:
    """log p, renormalised over the tokens that top_p kept; -inf for the others."""
    return logits.masked_fill(values == -torch.inf, -torch.inf).log_softmax(-1)


def _averaged(logits: Tensor, values: Tensor, bounds: tuple[float, float]) -> Tensor:
    log_p = logits.log_softmax(-1)
    counted = log_p.detach() > _LEAST_LOG_P
    u = (values - log_p).clamp(*bounds)
    return (-u - (-u).exp()).masked_fill(~counted, 0).sum(-1) / counted.sum(-1).clamp(min=1)


def _logits(scores: Tensor, temperature: float, transform: Transform | None) -> Tensor:
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return (scores if transform is None else transform(scores)) / temperature


def _in_chunks(function: Callable[..., Tensor], chunk: int, hidden: Tensor, weight: Tensor, *others: Tensor) -> Tensor:
    """The function of all of `hidden` and `others`, part by part, and of the whole weight; nothing of it is kept."""
    parts = []
    for start in range(0, max(len(hidden), 1), chunk):
        rows = slice(start, start + chunk)
        inputs = (hidden[rows], weight, *(other[rows] for other in others))
        parts.append(checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(parts)


def _fitting(numbers: int, hidden: Tensor) -> int:
    """How many tokens of so many numbers fit into a chunk."""
    return max(1, _CHUNK_BYTES.get(hidden.device.type, 2**26) // (4 * max(numbers, 1)))


def _check(hidden: Tensor, weight: Tensor, temperature: float, chunk: int | None) -> None:
    for name, x in (("hidden", hidden), ("weight", weight)):
        if x.ndim != 2 or not x.is_floating_point():
            raise ValueError(f"{name} must be a floating-point matrix, got {x.dtype} of shape {tuple(x.shape)}")
    if hidden.shape[1] != weight.shape[1]:
        raise ValueError(f"weight must have the {hidden.shape[1]} features of hidden, got {weight.shape[1]}")
    if not is_real(temperature) or not temperature > 0:
        raise ValueError(f"temperature must be a number above 0, got {temperature!r}")
    if chunk is not None and not (is_integral(chunk) and chunk >= 1):
        raise ValueError(f"chunk must be None or an integer and at least 1, got {chunk!r}")


def _check_mixtures(hidden: Tensor, weight: Tensor, ids: Tensor, values: Tensor) -> None:
    _check_integers("ids", ids, (len(hidden), None), len(weight))
    if values.shape != ids.shape or not values.is_floating_point():
        raise ValueError(
            f"values must be floating-point of the shape of ids, {tuple(ids.shape)}, "
            f"got {values.dtype} of shape {tuple(values.shape)}"
        )


def _check_integers(name: str, x: Tensor, shape: tuple[int | None, ...], vocabulary: int) -> None:
    fits = x.ndim == len(shape) and all(want in (None, got) for want, got in zip(shape, x.shape, strict=True))
    if not fits or x.dtype != torch.int64:
        wanted = ", ".join("k" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must be int64 of shape ({wanted}), got {x.dtype} of shape {tuple(x.shape)}")
    if x.device.type == "cpu" and x.numel():  # elsewhere the host would wait for it, and the device says so itself
        least, most = (int(bound) for bound in x.aminmax())
        if least < 0 or most >= vocabulary:
            raise ValueError(f"{name} must be from 0 to {vocabulary - 1}, got values from {least} to {most}")
