"""`longshort train`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from longshort.train import RunResult

CONFIG_HELP = (
    "A YAML file, or the name of a configuration that comes with the package, such as tiny; if both exist, the file."
)
OVERRIDES_HELP = "section.key=value ..., or task=NAME; `longshort config` lists the keys."


def train(
    config: Annotated[str, typer.Argument(help=CONFIG_HELP)],
    overrides: Annotated[list[str] | None, typer.Argument(help=OVERRIDES_HELP)] = None,
) -> None:
    """Train a model, or resume the run in run.out. Under torchrun, on several processes.

    Example: longshort train tiny data.path=data/mine optimizer.lr=3e-3 run.out=runs/mine

    On a task instead of text: longshort train recall
    """
    from longshort.train import train as run_training

    run_and_tell(run_training, config, overrides)


def run_and_tell(run: Callable[..., RunResult], config: str, overrides: list[str] | None) -> None:
    """Run a training, and say how it ended and where things are. Exits with 130 if it was interrupted."""
    from longshort.train import TrainConfig
    from longshort.train.progress import ConsoleReporter

    speaks = os.environ.get("RANK", "0") == "0"  # under torchrun, only rank 0 prints
    settings = TrainConfig.load(config, overrides or [], typer.echo if speaks else lambda text: None)
    with ConsoleReporter() if speaks else nullcontext() as reporter:
        result = run(settings, reporter)
    if speaks:
        typer.echo(f"{result.status} at step {result.step}; metrics and checkpoints are in {result.out}")
        if result.status == "interrupted":
            typer.echo("run the same command again to resume")
    if result.status == "interrupted":
        raise typer.Exit(130)
