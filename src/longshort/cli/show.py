"""`longshort show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longshort.cli.train import CONFIG_HELP, OVERRIDES_HELP


def show(
    config: Annotated[str, typer.Argument(help=CONFIG_HELP)],
    overrides: Annotated[list[str] | None, typer.Argument(help=OVERRIDES_HELP)] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens at which the costs are counted (default: model.context).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Draw it into a .png, .svg or .html file as well.")] = None,
) -> None:
    """Draw what each head sees, and what it costs.

    Example: longshort show tiny

    Example: longshort show paper-6m 'model.reach={like: gemma-3, window: 128}' model.positions=rotary --out plan.svg
    """
    import os

    from longshort.files import check_replaceable
    from longshort.report.plan import FORMATS, TITLE, plan_text, write_plan
    from longshort.train import TrainConfig
    from longshort.train.settings.values import is_text
    from longshort.train.sweeps.variants import is_two_sided

    if out is not None and (not is_text(str(out)) or out.suffix not in FORMATS):
        raise ValueError(f"--out must be a file that ends in {', '.join(FORMATS)}, got {str(out)!r}")
    if out is not None:
        check_replaceable(out, TITLE)
    settings = TrainConfig.load(config, overrides or [], typer.echo)
    model, causal = settings.model, not is_two_sided(settings)
    # echo drops colours in a file
    typer.echo(plan_text(model, context, color="NO_COLOR" not in os.environ, causal=causal))
    if out is not None:
        title = f"{TITLE}: {Path(config).stem}"
        typer.echo(f"wrote {write_plan(model, out, title=title, context=context, causal=causal)}")
