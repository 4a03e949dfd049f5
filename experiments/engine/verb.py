"""`python -m experiments`: its options. What it needs is imported when it runs, as for every verb."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    name: Annotated[str | None, typer.Argument(help="The experiment; --list shows them.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value ... of the base config.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show every experiment and what it costs.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs (default: runs/NAME).")] = None,
    data: Annotated[Path | None, typer.Option(help="Token folder, made by `longshort data`.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of each run (default: the recipe's).")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, as in 0,1,2; later calls may add some.")] = "0",
    arms: Annotated[str | None, typer.Option(help="Only these: names or patterns, as in 'ls-*,plain-6e-4'.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    parallel: Annotated[int, typer.Option(min=1, help="Runs that share the device.")] = 1,
    minutes: Annotated[float | None, typer.Option(min=0.0, help="Stop cleanly after so long; resumable.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="CPU-sized: shows that it runs, decides nothing.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show the runs and a guess of the time; run nothing.")] = False,
    time_steps: Annotated[bool, typer.Option("--time-steps", help="Time a step of each arm alone.")] = False,
    pack: Annotated[Path | None, typer.Option(help="Pack the results, without weights, into this .tar.gz.")] = None,
    unpack: Annotated[Path | None, typer.Option(help="Add the results of a pack, or of a page's JSON.")] = None,
    results: Annotated[Path | None, typer.Option(help="Write page, figure and claims here; train nothing.")] = None,
) -> None:
    """Run one of the paper's experiments. Resumable: what is done is not done again, arms and seeds may be added.

    Example: python -m experiments explosion --data data/books --parallel 6 --minutes 8 --pack explosion.tar.gz
    """
    from experiments.engine import call
    from experiments.engine.recipe import Options

    if list_ or name is None:
        call.show_list(typer.echo)
        return
    recipe = call.find(name)
    options = Options(
        out=out or Path("runs") / name,
        data=data,
        steps=steps,
        seeds=call.numbers(seeds),
        arms=None if arms is None else tuple(arm.strip() for arm in arms.split(",")),
        device=device,
        parallel=parallel,
        minutes=minutes,
        quick=quick,
        overrides=tuple(overrides or ()),
    )
    if plan:
        call.show_plan(recipe, options, typer.echo)
    elif unpack is not None or results is not None:
        call.read_results(recipe, options, typer.echo, unpack=unpack, results=results)
    elif not call.run(recipe, options, typer.echo, time_steps=time_steps, pack=pack):
        typer.echo("stopped; the same command goes on from here")
        raise typer.Exit(0 if minutes is not None else 130)
