"""`longshort evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="A run's folder (its newest checkpoint) or one checkpoint.")],
    data: Annotated[Path | None, typer.Option(help="Prepared data folder; the run's own if not given.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "validation",
    length: Annotated[int | None, typer.Option(min=1, help="Tokens per window (default: the training length).")] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens between windows (default: half the window).")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many windows.")] = None,
    bucket: Annotated[int, typer.Option(min=1, help="Positions per line of the table.")] = 256,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON here.")] = None,
) -> None:
    """Measure a checkpoint's perplexity, or its accuracy on a task.

    Text is scored with a sliding window, and the table shows the loss by position.

    Example: longshort evaluate runs/mine --split validation
    """
    from rich.console import Console

    from longshort.files import check_replaceable, write_json
    from longshort.train.checkpoint_scores import evaluate_checkpoint, evaluation_table

    if out is not None:
        check_replaceable(out, '"checkpoint":')
    console = Console()
    with console.status("evaluating") as status:
        result = evaluate_checkpoint(
            checkpoint,
            data=data,
            split=split,
            length=length,
            stride=stride,
            limit=limit,
            bucket=bucket,
            device=device,
            progress=lambda done: status.update(f"evaluating: {done} windows or examples"),
        )
    console.print(evaluation_table(result))
    if out is not None:
        typer.echo(f"wrote {write_json(out, result)}")
