"""`longshort show`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshort.cli.prose import say
from longshort.cli.train import CONFIG_HELP, OVERRIDES_HELP

if TYPE_CHECKING:
    from longshort.model import GPTConfig
    from longshort.reach import Choice


def show(
    config: Annotated[str, typer.Argument(help=CONFIG_HELP)],
    overrides: Annotated[list[str] | None, typer.Argument(help=OVERRIDES_HELP)] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens at which the costs are counted (default: model.context).")
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Choose a plan within this budget: attention FLOPs as a share of full attention's, above 0.",
        ),
    ] = None,
    cache_bytes: Annotated[
        float | None,
        typer.Option(min=0.0, help="Choose a plan within this budget: bytes of cache per token in bf16, above 0."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also save the drawing, as .png, .svg or .html.")] = None,
) -> None:
    """Draw what each head sees, and what it costs.

    With --share or --cache-bytes it shows the plan that our experiments support best within that budget.

    Example: longshort show tiny

    Example: longshort show modern-10m --share 0.2

    Example: longshort show paper-6m 'model.reach={like: gemma-3, window: 128}' model.positions=rotary --out plan.svg
    """
    import os
    from dataclasses import replace

    from longshort.files import check_replaceable
    from longshort.model.config import WAYS_OF_REACH
    from longshort.report.plan import FORMATS, TITLE, plan_text, write_plan
    from longshort.train import TrainConfig
    from longshort.train.settings.values import is_text
    from longshort.train.sweeps.variants import is_two_sided

    if out is not None and (not is_text(str(out)) or out.suffix not in FORMATS):
        raise ValueError(f"--out must be a file that ends in {', '.join(FORMATS)}, got {str(out)!r}")
    if out is not None:
        check_replaceable(out, TITLE)
    given, choosing = overrides or [], share is not None or cache_bytes is not None
    if choosing:  # whatever plan there is, the chosen one takes its place
        ways = tuple(f"model.{field}=" for fields in WAYS_OF_REACH.values() for field in fields)
        given = [*(item for item in given if not item.startswith(ways)), "model.reach=full"]
    settings = TrainConfig.load(config, given, typer.echo)
    model, causal = settings.model, not is_two_sided(settings)
    chosen = None
    if choosing:
        if not causal:
            raise ValueError("--share and --cache-bytes choose causal plans, and this configuration is two-sided")
        chosen = _within(model, context, share=share, cache_bytes=cache_bytes)
        widest = max((w for layer in chosen.layers for w in layer.plan.windows if w is not None), default=0)
        if widest > model.context:
            raise ValueError(
                f"--context must be at most {model.context}, which is model.context: the plan for {context} tokens has "
                f"windows of up to {widest}; or set model.context too"
            )
        model = replace(model, reach=chosen.reach)
    # echo drops colours in a file
    typer.echo(plan_text(model, context, color="NO_COLOR" not in os.environ, causal=causal))
    if chosen is not None:
        typer.echo("")
        say(chosen.reason)
        typer.echo(f"\n'model.reach={_written(chosen.reach)}'")
    if out is not None:
        title = f"{TITLE}: {Path(config).stem}"
        typer.echo(f"wrote {write_plan(model, out, title=title, context=context, causal=causal)}")


def _within(model: GPTConfig, context: int | None, *, share: float | None, cache_bytes: float | None) -> Choice:
    """The plan of `reach.budget` for a model."""
    from longshort import reach

    return reach.budget(
        n_layers=model.n_layers,
        n_heads=model.n_heads,
        n_kv_heads=model.n_kv_heads,
        head_dim=model.head_features,
        context=model.context if context is None else context,
        share=share,
        cache_bytes=cache_bytes,
        rotary=model.positions == "rotary" and not _scales_global_heads(model),
    )


def _scales_global_heads(model: GPTConfig) -> bool:
    """Whether the rotary angles of global heads are scaled, for which they must be rotated."""
    return model.rope_scaling is not None and model.rope_scaling.heads == "global"


def _written(reach: Mapping[str, Any]) -> str:
    """As a configuration has it, on one line."""
    import yaml

    return yaml.safe_dump(reach, sort_keys=False, default_flow_style=True, width=1000).strip()
