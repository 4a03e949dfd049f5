"""`longshort train`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[Path, typer.Argument(help="YAML file; see configs/ for examples.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value ..., or task=NAME.")] = None,
) -> None:
    """Train a model, or resume the run in run.out. Under torchrun, on several processes.

    Example: longshort train configs/tiny.yaml optimizer.lr=3e-3 run.out=runs/mine

    With task=NAME, on examples with answers: longshort train configs/listops.yaml
    """
    from longshort.train import TrainConfig
    from longshort.train import train as run_training
    from longshort.train.progress import ConsoleReporter

    speaks = os.environ.get("RANK", "0") == "0"  # one of torchrun's processes
    settings = TrainConfig.load(config, overrides or [], typer.echo if speaks else lambda text: None)
    result = run_training(settings, ConsoleReporter())
    if speaks:
        typer.echo(f"{result.status} at step {result.step}; metrics and checkpoints are in {result.out}")
        if result.status == "interrupted":
            typer.echo("run the same command again to resume")
    if result.status == "interrupted":
        raise typer.Exit(130)
