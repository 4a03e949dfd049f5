"""`longshort demo`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    device: Annotated[str, typer.Option(help="cpu, or cuda for the paper's model.")] = "cpu",
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps (default: the setting's own).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of both runs.")] = 0,
) -> None:
    """Train plain and LS-attention side by side and write a report. Resumable.

    Example: longshort demo
    """
    from rich.console import Console

    from longshort.cli.prose import say
    from longshort.report import demo as effect
    from longshort.report.live import live_table, result_table
    from longshort.train.sweeps.trials import plan_trials

    console = Console()
    trials = plan_trials(effect.demo_config(device, steps=steps), effect.VARIANTS, (seed,), out)
    say(effect.introduction(trials[-1].config))
    message = partial(console.print, highlight=False, markup=False, soft_wrap=True)  # above the live table
    with live_table([trial for trial in trials if not trial.is_finished], console) as watch:
        result = effect.run_demo(trials, out, watch=watch, message=message)
    if result is None:
        typer.echo("interrupted; run the same command again to resume")
        raise typer.Exit(130)
    for variant, text in result.samples.items():
        console.rule(f"a sample from {variant}")
        typer.echo(text)
    console.rule()
    console.print(result_table(result.rows))
    say(result.remark)
    if result.report is not None:
        typer.echo(f"report: {result.report}")
