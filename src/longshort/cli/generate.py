"""`longshort generate`."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer


def generate(
    checkpoint: Annotated[Path, typer.Argument(help="A run's folder, one checkpoint in it, or an exported folder.")],
    prompt: Annotated[str, typer.Option(help="Text to continue; - reads standard input.")] = "\n",
    tokens: Annotated[int, typer.Option(min=1, help="Number of tokens to write.")] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the most probable token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw from the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the most probable tokens that sum to this probability.")
    ] = 0.95,
    min_p: Annotated[
        float | None, typer.Option(help="Leave out tokens less probable than this share (0 to 1) of the most probable.")
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 makes tokens that occurred before less probable.")
    ] = 1.0,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens that the model sees (default: as in training).")
    ] = None,
    yarn: Annotated[
        bool, typer.Option("--yarn", help="Slow the rotary angles of global heads for a longer --context.")
    ] = False,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; repeatable.")] = None,
    thinking: Annotated[
        str | None, typer.Option(help="soft: think in mixtures of tokens first, until --thinking-end.")
    ] = None,
    thinking_end: Annotated[str | None, typer.Option(help="Text of the token that ends the thinking.")] = None,
    thinking_top_k: Annotated[int | None, typer.Option(min=1, help="Tokens of a mixture (default 5).")] = None,
    thinking_top_p: Annotated[
        float | None, typer.Option(help="Only the most probable of them that sum to this probability (default 0.95).")
    ] = None,
    thinking_temperature: Annotated[
        float | None, typer.Option(help="Temperature of their probabilities (default 1).")
    ] = None,
    thinking_tau: Annotated[
        float | None, typer.Option(help="Temperature of the mixture; towards 0 it holds one token (default 0.1).")
    ] = None,
    thinking_noise: Annotated[str | None, typer.Option(help="gumbel (the default), gaussian or none.")] = None,
    thinking_clamp: Annotated[
        tuple[float, float] | None, typer.Option(help="Lower and upper bound of the noise (default none).")
    ] = None,
    thinking_sigma: Annotated[float | None, typer.Option(help="Standard deviation of Gaussian noise.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed, for the same text every time.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Generate text from a checkpoint. Tokens/s go to standard error.

    Example: longshort generate runs/mine --prompt "def " --tokens 100
    """
    from longshort.files import is_of_transformers
    from longshort.generation.sample import stream_of, text_stream

    fields = {
        "end": thinking_end,
        "top_k": thinking_top_k,
        "top_p": thinking_top_p,
        "temperature": thinking_temperature,
        "tau": thinking_tau,
        "noise": thinking_noise,
        "clamp": thinking_clamp,
        "sigma": thinking_sigma,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    _check_thinking(thinking, given)
    if yarn and context is None:
        raise ValueError("--yarn must come with --context N, got --yarn alone")
    if prompt == "-":
        prompt = _read_prompt()
    options: dict[str, Any] = {
        "stop_strings": stop or (),
        "max_new_tokens": tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "context": context,
        "yarn": yarn,
        "seed": seed,
        "thinking": given if thinking else None,
    }
    if is_of_transformers(checkpoint):
        from longshort.data.ends import read_ends
        from longshort.hf.opened import open_language_model
        from longshort.train.machine.distributed import choose_device

        opened = open_language_model(checkpoint, choose_device(device))
        around: dict[str, Any] = {"beginning": opened.beginning, "stop": read_ends(checkpoint, opened.tokenizer)}
        stream = stream_of(opened.model, opened.tokenizer, prompt, **around, **options)
    else:
        stream = text_stream(checkpoint, prompt, device=device, **options)
    for piece in chain((prompt,), stream, ("\n",)):
        typer.echo(piece, nl=False)
    typer.echo(f"{stream.n_tokens} tokens, {stream.tokens_per_second:.0f} tokens/s", err=True)


def _read_prompt() -> str:
    """What stands on standard input, in the encoding of the terminal."""
    stream = typer.get_text_stream("stdin")
    try:
        return stream.read()
    except UnicodeDecodeError as error:
        found = error.object[error.start : error.end]
        raise ValueError(f"prompt must be text in {stream.encoding.upper()}, got the bytes {found!r}") from None


def _check_thinking(thinking: str | None, given: dict[str, Any]) -> None:
    if thinking not in (None, "soft"):
        raise ValueError(f"thinking must be soft, got {thinking!r}")
    if thinking and "end" not in given:
        raise ValueError("thinking-end must be given with --thinking, got none")
    if given and not thinking:
        raise ValueError(f"thinking must be soft with --thinking-{next(iter(given)).replace('_', '-')}, got none")
