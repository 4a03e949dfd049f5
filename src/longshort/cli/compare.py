"""`longshort compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longshort.cli.train import CONFIG_HELP, OVERRIDES_HELP


def compare(
    config: Annotated[
        str, typer.Argument(help=f"{CONFIG_HELP} Its plan is the variant ls; the other variants replace it.")
    ],
    overrides: Annotated[list[str] | None, typer.Argument(help=OVERRIDES_HELP)] = None,
    variants: Annotated[str, typer.Option(help="Comma-separated names from the list below, or `all`.")] = "plain,ls",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from run.seed on.")] = 1,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time (default: 2, which share the CPU threads; all on Slurm).")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs, the table and the report.")] = Path("runs/compare"),
    slurm: Annotated[
        list[str] | None,
        typer.Option(help="Train in jobs of Slurm: an option of sbatch, as time=240 (minutes); repeatable."),
    ] = None,
) -> None:
    """Train attention variants on the same data, seeds and steps. Ends in a table and a report. Resumable.

    Example: longshort compare tiny data.path=data/mine --variants plain,ls,softcap --seeds 3

    Without data.path it trains on the text of Python's standard library.
    """
    from rich.console import Console

    from longshort.cli.prose import say
    from longshort.report import write_report
    from longshort.report.live import live_table, result_table
    from longshort.report.page import PAGE
    from longshort.report.summary import SUMMARY, check_results, save_summary
    from longshort.runs import Reader, load_run
    from longshort.train import ConfigError, TrainConfig
    from longshort.train.evaluation.answers import draw_tasks
    from longshort.train.sweeps.announcement import Forecast, announce_data, announce_runs
    from longshort.train.sweeps.processes import run_all
    from longshort.train.sweeps.slurm import FOLDER, Slurm, parse_settings
    from longshort.train.sweeps.trials import check_steps, plan_trials
    from longshort.train.sweeps.variants import every

    if any(override.startswith("run.out=") for override in overrides or []):
        raise ConfigError("run.out must not be set, since a comparison has many runs; use --out FOLDER")
    console, settings = Console(), TrainConfig.load(config, overrides or [], typer.echo)
    names = every(settings) if variants == "all" else [name.strip() for name in variants.split(",")]
    trials = plan_trials(settings, names, range(settings.run.seed, settings.run.seed + seeds), out)
    check_results(out)
    check_steps(trials)
    unfinished = [trial for trial in trials if not trial.is_finished]
    left = [trial.config for trial in unfinished]
    sbatch = parse_settings(slurm) if slurm else None
    start = Slurm(out / FOLDER, sbatch) if sbatch and left else None
    jobs = jobs or (max(1, len(left)) if slurm else 2)
    if left:
        say(announce_data(settings))
        say(announce_runs(left, len(trials) - len(left), jobs))
    draw_tasks(left, typer.echo)
    forecast = Forecast(left, jobs, lambda text: console.print(text, highlight=False, soft_wrap=True))
    with live_table(unfinished, console) as table:

        def watch(readers: dict[str, Reader]) -> None:
            table(readers)
            forecast(readers)

        finished = not left or run_all(left, jobs=min(jobs, len(left)), watch=watch, start=start)
    if not finished:
        typer.echo("interrupted; run the same command again to resume")
        raise typer.Exit(130)
    rows = save_summary(trials, out)
    console.print(result_table(rows))
    for trial in trials:
        if (step := load_run(trial.out).diverged_at) is not None:
            typer.echo(f"{trial.variant} seed {trial.seed} diverged at step {step:,}")
    typer.echo(f"wrote {out / SUMMARY}")
    files = write_report([trial.out for trial in trials], out / PAGE, title="Comparison of attention variants")
    typer.echo(f"wrote {files.html}")
