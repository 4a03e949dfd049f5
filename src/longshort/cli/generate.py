"""`longshort generate`."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer


def generate(
    checkpoint: Annotated[Path, typer.Argument(help="A run's folder (its newest checkpoint) or one checkpoint.")],
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "\n",
    tokens: Annotated[int, typer.Option(min=1, help="Number of tokens to write.")] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the most probable token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the most probable tokens that sum to this probability.")
    ] = 0.95,
    min_p: Annotated[
        float | None, typer.Option(help="Draw from tokens at least this many times as probable as the top one.")
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 makes tokens that occurred before less probable.")
    ] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; repeatable.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed, for the same text every time.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Generate text from a checkpoint. Tokens/s go to standard error.

    Example: longshort generate runs/mine --prompt "def " --tokens 100
    """
    from longshort.generation.sample import text_stream

    stream = text_stream(
        checkpoint,
        prompt,
        device=device,
        stop_strings=stop or (),
        max_new_tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    for piece in chain((prompt,), stream, ("\n",)):
        typer.echo(piece, nl=False)
    typer.echo(f"{stream.n_tokens} tokens, {stream.tokens_per_second:.0f} tokens/s", err=True)
