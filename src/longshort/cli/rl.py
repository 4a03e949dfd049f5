"""`longshort rl`."""

from __future__ import annotations

from typing import Annotated

import typer

from longshort.cli.train import CONFIG_HELP, OVERRIDES_HELP, run_and_tell


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

    run_and_tell(reinforce, config, overrides)
