"""`longshort convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longshort.cli.inspect import BUDGET_HELP


def convert(
    model: Annotated[Path, typer.Argument(help="Folder of a Hugging Face causal language model, with its tokenizer.")],
    out: Annotated[Path, typer.Option(help="The folder to write; it must be new or empty.")],
    plan: Annotated[
        Path | None, typer.Option(help="The plan: a record of longshort inspect with a proposal, or a list of plans.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help=f"Instead of --plan: find one. {BUDGET_HELP}")] = None,
    text: Annotated[
        Path | None, typer.Option(help="Text to train and measure on (default: Python's standard library).")
    ] = None,
    steps: Annotated[int, typer.Option(min=0, max=10**6, help="Steps of training; 0 keeps the weights.")] = 0,
    batch: Annotated[int, typer.Option(min=1, max=65_536, help="Sequences per step.")] = 4,
    lr: Annotated[float, typer.Option(help="Learning rate of AdamW; it falls linearly to 0.")] = 1e-4,
    length: Annotated[
        int | None, typer.Option(min=16, help="Tokens per sequence (default: 1,024, or the model's context).")
    ] = None,
    rows: Annotated[
        int,
        typer.Option(
            min=2, max=65_536, help="Sequences at the start of the text that are kept for measuring, not trained on."
        ),
    ] = 16,
    first: Annotated[
        bool, typer.Option(help="Try plans whose local heads also see the first four keys of the sequence.")
    ] = True,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Give a model's heads shorter reaches, and train it briefly.

    Writes a new folder. transformers opens it with the plan after import longshort.hf; generate, evaluate and import
    open it if they know the architecture. Prints the loss before, with the plan, and after training. Run the same
    command again to resume.

    Example: longshort inspect qwen3/ --text book.txt --budget 0.25

    Example: longshort convert qwen3/ --plan inspect.json --text book.txt --steps 200 --out qwen3-short
    """
    import math

    from rich.console import Console

    try:
        from longshort.hf.inspection.convert import RECORD, read_plans
        from longshort.hf.inspection.convert import convert as converted
        from longshort.hf.inspection.opened import open_folder
        from longshort.hf.inspection.propose import Budget
        from longshort.hf.inspection.uptraining import Interrupted
    except ImportError as error:
        raise ValueError(f"convert needs transformers >= 5.17 ({error}): pip install 'longshort[hf]'") from None
    from longshort.train.machine.distributed import choose_device

    if (plan is None) == (budget is None):
        raise ValueError(f"convert must have either --plan or --budget, got {'neither' if plan is None else 'both'}")
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"--lr must be a number above 0, got {lr}")
    plans = None if plan is None else read_plans(plan)
    wanted = None if budget is None else Budget.parse(budget)
    try:
        with Console(stderr=True).status("reading the model") as status:
            opened = open_folder(model, choose_device(device), trained=steps > 0)
            record = converted(
                opened,
                out,
                plans=plans,
                budget=wanted,
                first=first,
                text=text,
                length=length,
                rows=rows,
                steps=steps,
                batch=batch,
                rate=lr,
                progress=lambda what, done, total: status.update(f"{what}: {done} of {total}"),
            )
    except Interrupted as stopped:
        typer.echo(f"{stopped}; run the same command again to resume", err=True)
        raise typer.Exit(130) from None
    loss, costs = record["loss"], record["costs"]
    typer.echo(f"{costs['share']:.1%} of full attention's keys, {costs['cache_share']:.1%} of its cache")
    typer.echo(f"loss {loss['before']:.4f} before, {loss['planned']:.4f} with the plan", nl=not steps)
    if steps:
        typer.echo(f", {loss['after']:.4f} after {steps} steps")
    typer.echo(f"wrote {out} (the numbers: {out / RECORD})")
