"""How much attention the heads of a transformers model pay beyond one window: `python -m longshort.hf reach`.

A head that pays almost none there can be made local; the model's loss shows what that costs. `longshort inspect`
measures all windows at once, and more.

Shapes: B batch, H query heads, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from longshort.files import write_json
from longshort.heads import HeadPlan
from longshort.hf.head_plans import ATTENTION_NAME, LayerCall, observed_by, use_head_plan
from longshort.hf.inspection.measure import check_all_layers
from longshort.hf.inspection.opened import read_pretrained
from longshort.ops import attention

SHARES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 1.0)
"""Shares of a head's attention beyond the window; the table makes heads up to each of them local."""


def far_mass(model: PreTrainedModel, input_ids: Tensor, *, window: int) -> Tensor:
    """(layers, H): the share of each head's attention beyond `window` keys, in sequences (B, T) without padding, as a
    mean over the queries that have keys beyond it.

    No matrix of probabilities is formed: the sum within the window divided by the whole sum is exp of the difference of
    their log-sum-exps, so it takes one more call of the op per layer.
    """
    if input_ids.ndim != 2 or input_ids.shape[1] <= window:
        shape = tuple(input_ids.shape)
        raise ValueError(f"input_ids must be sequences (B, T) of more than window={window} tokens, got shape {shape}")
    if model.config.get_text_config()._attn_implementation != ATTENTION_NAME:
        raise ValueError(f"model must use the attention {ATTENTION_NAME!r}, got another: call use_head_plan first")
    sums: dict[int, Tensor] = {}

    def observe(call: LayerCall) -> None:
        near = attention(call.q, call.k, call.v, call.plan.within(window), **call.options)
        within = torch.exp(near.lse - call.result.lse)[:, :, window:].mean(dim=2).sum(dim=0)
        sums[call.layer] = sums.get(call.layer, 0) + within

    with observed_by(observe), torch.no_grad():
        for row in input_ids:
            model(row[None], use_cache=False)
    check_all_layers(model, len(sums))
    within = torch.stack([sums[layer] for layer in sorted(sums)]) / len(input_ids)
    return (1 - within).clamp(min=0).float().cpu()


def plans_by_mass(mass: Tensor, *, window: int, most: float) -> list[HeadPlan]:
    """A plan for each layer of `mass` (layers, H): heads with at most `most` beyond the window are local.

    >>> plans_by_mass(torch.tensor([[0.5, 0.01], [0.02, 0.0]]), window=64, most=0.05)[0].windows
    (None, 64)
    """
    if not 0 <= most <= 1:
        raise ValueError(f"most must be a share from 0 to 1, got {most!r}")
    return [HeadPlan(windows=tuple(None if far else window for far in row)) for row in (mass > most).tolist()]


def costs(
    model: PreTrainedModel, input_ids: Tensor, mass: Tensor, *, window: int, shares: Sequence[float] = SHARES
) -> list[dict[str, Any]]:
    """How many heads each share makes local, and the model's loss on the sequences. The model keeps the last plan."""
    rows = []
    for most in shares:
        plans = plans_by_mass(mass, window=window, most=most)
        use_head_plan(model, plans)
        with torch.no_grad():
            losses = [model(row[None], labels=row[None], use_cache=False).loss for row in input_ids]
        local = sum(plan.n_heads - plan.n_global for plan in plans)
        rows.append({"most": most, "local": local, "heads": mass.numel(), "loss": torch.stack(losses).mean().item()})
    return rows


def command(
    folder: Annotated[Path, typer.Argument(help="Folder of a transformers model and its tokenizer.")],
    text: Annotated[Path, typer.Option(help="Plain text to measure the model on.")],
    window: Annotated[int, typer.Option(min=1, help="Keys that a local head sees, the current one included.")] = 64,
    length: Annotated[int, typer.Option(min=2, help="Tokens per sequence.")] = 512,
    rows: Annotated[int, typer.Option(min=1, help="Number of sequences, from the start of the text.")] = 16,
    out: Annotated[Path | None, typer.Option(help="JSON file for the result.")] = None,
) -> None:
    """Show how much attention each head pays beyond a window, and the loss when heads with little become local.

    longshort inspect FOLDER measures all windows at once, and proposes plans.
    """
    tokenizer = _loaded(AutoTokenizer, folder, "tokenizer")
    tokens = tokenizer(_text(text), return_tensors="pt", verbose=False).input_ids[0]
    if length <= window or len(tokens) < rows * length:
        raise typer.BadParameter(
            f"--text must have at least {rows} sequences of --length {length} tokens, more than --window {window} "
            f"each, got {len(tokens)} tokens"
        )
    input_ids = tokens[: rows * length].view(rows, length)
    model = _loaded(AutoModelForCausalLM, folder, "language model").eval()
    try:
        use_head_plan(model, HeadPlan.full(model.config.get_text_config().num_attention_heads))
    except ValueError as error:
        raise _Refused(f"{folder}: {error}; longshort inspect also reads exported folders") from None
    mass = far_mass(model, input_ids, window=window)
    typer.echo(f"share of attention beyond {window} keys, one line per layer:")
    for layer, own in enumerate(mass.tolist()):
        typer.echo(f"{layer:3}  " + "  ".join(f"{share:6.1%}" for share in own))
    found = costs(model, input_ids, mass, window=window)
    typer.echo("\nshare up to which a head is made local, number of local heads, loss:")
    for row in found:
        typer.echo(f"{row['most']:6.0%}  {row['local']:4} of {row['heads']}  {row['loss']:.4f}")
    if out is not None:
        options = {"window": window, "length": length, "rows": rows}
        typer.echo(f"wrote {write_json(out, options | {'mass': mass.tolist(), 'costs': found})}")


def _loaded(kind: Any, folder: Path, what: str) -> Any:
    try:
        return read_pretrained(kind, folder, what)
    except ValueError as error:
        raise _Refused(str(error)) from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _Refused(f"--text must be a UTF-8 text file, got {path}: {error}") from None


class _Refused(typer.Exit):
    """Ends the command with a one-line error."""

    def __init__(self, reason: str) -> None:
        typer.echo(f"error: {reason}", err=True)
        super().__init__(1)
