"""`longshort import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_(
    source: Annotated[Path, typer.Argument(help="Folder that transformers wrote; or the author's .pt file.")],
    out: Annotated[Path, typer.Option(help="Folder of the run that is made; it must be new or empty.")],
    tokenizer: Annotated[
        str | None, typer.Option(help="tokenizer.json or its folder, or bytes (default: the one beside SOURCE).")
    ] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="For a .pt file that does not say: heads per layer.")] = None,
    global_heads: Annotated[
        int | None, typer.Option(min=0, help="For such a .pt file: global heads per layer.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=1, help="For such a .pt file: keys that a local head sees, its own included.")
    ] = None,
    span: Annotated[
        int | None,
        typer.Option(min=0, help="For such a .pt file, instead of --window: keys that it sees before its own."),
    ] = None,
    activation: Annotated[
        str | None, typer.Option(help="For a .pt file: gelu (default), or gelu_tanh for older code.")
    ] = None,
) -> None:
    """Import third-party weights as a run, at step 0. Use it with generate, evaluate, train and export.

    Dense Hugging Face models: Llama, Mistral, Qwen 2 and 3, Gemma 2 and 3 (text), Olmo 2 and 3, SmolLM3, EXAONE 4,
    GPT-2; and the checkpoints of the paper's author.

    Example: longshort import qwen3/ --out runs/qwen3 && longshort generate runs/qwen3 --prompt "Once"
    """
    from longshort.hf.importers.run import import_as_run

    made = import_as_run(
        source,
        out,
        tokenizer=tokenizer,
        n_heads=heads,
        n_global=global_heads,
        window=window,
        span=span,
        activation=activation,
    )
    typer.echo(f"{made.model.n_parameters():,} parameters, {made.model.config.layer_plans[0]}")
    typer.echo(
        f"wrote {made.checkpoint}\nwrote {made.config}; to train from it: longshort train {made.config} data.path=..."
    )
    if made.tokenizer is None:
        typer.echo("no tokenizer found; generate, export and train need one: import again with --tokenizer", err=True)
