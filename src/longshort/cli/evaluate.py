"""`longshort evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="A run's folder (its newest checkpoint) or one checkpoint.")],
    data: Annotated[Path | None, typer.Option(help="Prepared data folder; the run's own if not given.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "validation",
    length: Annotated[int | None, typer.Option(min=1, help="Tokens per window (default: the training length).")] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens between windows (default: half the window).")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most this many windows; of a run of longshort rl, problems.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Answers per problem, for a run of longshort rl (default: as in the run).")
    ] = None,
    bucket: Annotated[int, typer.Option(min=1, help="Positions per line of the table.")] = 256,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON here.")] = None,
) -> None:
    """Measure a checkpoint's perplexity, or its accuracy on a task.

    Text is scored with a sliding window, and the table shows the loss by position. For a run of longshort rl, answers
    are drawn as in the run and verified.

    Example: longshort evaluate runs/mine --split validation
    """
    from rich.console import Console

    from longshort.files import check_replaceable, write_json
    from longshort.rl.evaluation import evaluate_rewards, is_of_rl
    from longshort.train.checkpoint_scores import evaluate_checkpoint, evaluation_table

    given = {"--data": data, "--length": length, "--stride": stride}
    rewarded = is_of_rl(checkpoint)
    if rewarded and (wrong := next((name for name, value in given.items() if value is not None), None)):
        raise ValueError(f"{wrong} is for text; {checkpoint} was trained by reinforcement learning")
    if samples is not None and not rewarded:
        raise ValueError(f"--samples is for runs of longshort rl, got {checkpoint}")
    if out is not None:
        check_replaceable(out, '"checkpoint":')
    console = Console()
    with console.status("evaluating") as status:
        shared: dict[str, Any] = {
            "split": split,
            "device": device,
            "progress": lambda done: status.update(f"evaluating: {done} windows or examples"),
        }
        if rewarded:
            result = evaluate_rewards(checkpoint, problems=limit, samples=samples, **shared)
        else:
            sizes: dict[str, Any] = {"length": length, "stride": stride, "limit": limit, "bucket": bucket}
            result = evaluate_checkpoint(checkpoint, data=data, **sizes, **shared)
    console.print(evaluation_table(result))
    if rewarded:
        console.print(result["text"], highlight=False, markup=False)
    if out is not None:
        typer.echo(f"wrote {write_json(out, result)}")
