"""`longshort rl`."""

from __future__ import annotations

from typing import Annotated

import typer

from longshort.cli.train import CONFIG_HELP, OVERRIDES_HELP


def rl(
    config: Annotated[str, typer.Argument(help=CONFIG_HELP.replace("tiny", "rl-tiny"))],
    overrides: Annotated[list[str] | None, typer.Argument(help=OVERRIDES_HELP)] = None,
) -> None:
    """Train on the rewards of a verifier: GRPO, SofT-GRPO.

    If run.out holds a run, it is resumed.

    Example: longshort rl rl-tiny

    Another algorithm: longshort rl rl-tiny rl.algorithm=soft-grpo run.steps=250 run.out=runs/soft-grpo
    """
    from longshort.rl import reinforce
    from longshort.train import TrainConfig
    from longshort.train.progress import ConsoleReporter

    settings = TrainConfig.load(config, overrides or [], typer.echo)
    with ConsoleReporter() as reporter:
        result = reinforce(settings, reporter)
    typer.echo(f"{result.status} at step {result.step}; metrics and checkpoints are in {result.out}")
    if result.status == "interrupted":
        typer.echo("run the same command again to resume")
        raise typer.Exit(130)
