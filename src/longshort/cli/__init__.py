"""The command line: verbs of a few lines that call plain functions.

What a verb needs is imported inside it, so that `longshort --help` answers at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from longshort.cli.export import export
from longshort.cli.importing import import_

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from longshort import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Transformers that train stably and run long, because each attention head has its own reach."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Bad input ends in one line on standard error and exit code 1, not in a traceback."""
    from longshort.train import TrainingStopped
    from longshort.train.processes import RunFailed

    try:
        yield
    except (ValueError, OSError, RunFailed, TrainingStopped) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
    device: Annotated[str, typer.Option(help="cpu, or cuda for the paper-sized setting.")] = "cpu",
    steps: Annotated[int | None, typer.Option(min=1, help="Fewer or more steps than the demo's own.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of both runs.")] = 0,
) -> None:
    """Train plain attention and LS-attention side by side on this machine and write a report. Resumable.

    Example: longshort demo
    """
    from rich.console import Console

    from longshort.report import demo as effect
    from longshort.report.live import live_table, result_table

    console = Console()
    with one_line_errors():
        trials = effect.demo_trials(out, effect.demo_config(device, steps=steps), (seed,))
        typer.echo(effect.introduction(trials[-1].config))
        with live_table(trials, console) as watch:
            result = effect.run_demo(trials, out, watch=watch, message=typer.echo)
    if result is None:
        typer.echo("interrupted; the same command goes on from here")
        raise typer.Exit(130)
    for variant, text in result.samples.items():
        console.rule(f"a sample of {variant}")
        typer.echo(text)
    console.rule()
    console.print(result_table(result.rows))
    if result.report is not None:
        typer.echo(f"report: {result.report}")


@app.command()
def check() -> None:
    """Check the op and the model on this machine against the definition; exits with 1 if a check fails.

    Example: longshort check
    """
    from rich.console import Console
    from rich.progress import track

    from longshort.cli import selfcheck

    console = Console()
    checks = list(track(selfcheck.run_checks(), description="checking", console=console, transient=True, total=None))
    console.print(selfcheck.table(checks))
    failed = [check for check in checks if not check.passed]
    for check in failed:
        reason = check.failure or f"max error {check.error:.1e}, allowed {check.allowed:.1e}"
        typer.echo(f"error: {check.subject}, {check.name}: {reason}", err=True)
    if failed:
        raise typer.Exit(1)


@app.command()
def data(
    out: Annotated[Path, typer.Option(help="Folder for the token files.")],
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="Files or folders of .txt, .jsonl, .gz, .xz, .zst; or hf:OWNER/NAME."),
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="bytes (the default), a tokenizer.json or its folder.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Learn a byte-level BPE of this size from the text.")] = None,
    validation: Annotated[list[str] | None, typer.Option(help="Source of the validation split; repeatable.")] = None,
    test: Annotated[list[str] | None, typer.Option(help="Source of the test split; repeatable.")] = None,
    split: Annotated[
        tuple[float, float, float], typer.Option(help="Shares of train, validation and test, where none is named.")
    ] = (0.9, 0.05, 0.05),
    workers: Annotated[int | None, typer.Option(help="Processes (default: 1 for bytes, every core for BPE).")] = None,
    seed: Annotated[int, typer.Option(help="Chooses which documents go to which split.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace what is in the folder.")] = False,
) -> None:
    """Turn text into token files for training; without SOURCES, the standard library of the running Python.

    Example: longshort data --out data/books books/ --vocab-size 8192
    """
    from rich.console import Console

    from longshort.data.errors import DataError
    from longshort.data.show import prepare_and_show

    named = {"validation": validation or None, "test": test or None}
    learned = {"tokenizer": tokenizer, "vocab_size": vocab_size}
    console = Console()
    try:
        prepare_and_show(
            sources or [],
            out,
            console=console,
            split=split,
            workers=workers,
            seed=seed,
            force=force,
            **named,
            **learned,
        )
    except DataError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="YAML file; see configs/ for examples.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value ..., or task=NAME.")] = None,
) -> None:
    """Train a model, or go on with the run in run.out; under torchrun, on several processes.

    Example: longshort train configs/tiny.yaml optimizer.lr=3e-3 run.out=runs/mine

    With task=NAME, on examples with answers: longshort train configs/listops.yaml
    """
    from longshort.train import TrainConfig
    from longshort.train import train as run_training
    from longshort.train.progress import ConsoleReporter

    with one_line_errors():
        settings = TrainConfig.load(config, overrides or [])
        result = run_training(settings, ConsoleReporter())
    if os.environ.get("RANK", "0") == "0":  # of torchrun's processes one speaks
        typer.echo(f"{result.status} at step {result.step}; metrics and checkpoints are in {result.out}")
        if result.status == "interrupted":
            typer.echo("the same command goes on from here")
    if result.status == "interrupted":
        raise typer.Exit(130)


@app.command()
def compare(
    config: Annotated[Path, typer.Argument(help="YAML file of the variant ls; the others are changes to it.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value ...")] = None,
    variants: Annotated[str, typer.Option(help="Comma-separated names, or `all`.")] = "plain,ls",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from run.seed on.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; CPU threads are shared out among them.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for the runs, the table and the report.")] = Path("runs/compare"),
) -> None:
    """Train several attention variants on the same data, seeds and steps; ends in a table and a report. Resumable.

    Example: longshort compare configs/tiny.yaml --variants plain,ls,qk-norm-head --seeds 3
    """
    from rich.console import Console

    from longshort.report import compare as comparison
    from longshort.report import write_report
    from longshort.report.live import live_table, result_table
    from longshort.train import ConfigError, TrainConfig
    from longshort.train.answers import draw_tasks
    from longshort.train.processes import run_all
    from longshort.train.variants import EXPERIMENTAL, VARIANTS

    console = Console()
    with one_line_errors():
        if any(override.startswith("run.out=") for override in overrides or []):
            raise ConfigError("run.out is the folder of one run; expected --out FOLDER for those of a comparison")
        settings = TrainConfig.load(config, overrides or [])
        every = [name for name in VARIANTS if name not in EXPERIMENTAL]
        names = every if variants == "all" else [name.strip() for name in variants.split(",")]
        trials = comparison.plan_trials(settings, names, range(settings.run.seed, settings.run.seed + seeds), out)
        left = [trial.config for trial in trials if not trial.is_finished]
        draw_tasks(left, typer.echo)
        with live_table(trials, console) as watch:
            finished = not left or run_all(left, jobs=min(jobs, len(left)), watch=watch)
        if not finished:
            typer.echo("interrupted; the same command goes on from here")
            raise typer.Exit(130)
        rows = comparison.save_summary(trials, out)
        files = write_report(
            [trial.out for trial in trials], out / "report.html", title="Comparison of attention variants"
        )
    console.print(result_table(rows))
    typer.echo(f"wrote {out / comparison.SUMMARY}\nwrote {files.html}")


@app.command()
def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="A run's folder (its newest checkpoint) or one checkpoint.")],
    data: Annotated[Path | None, typer.Option(help="Prepared data folder; the run's own if not given.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "validation",
    length: Annotated[int | None, typer.Option(min=1, help="Window; the training length if not given.")] = None,
    stride: Annotated[int | None, typer.Option(min=1, help="Tokens between windows; half the window.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many windows.")] = None,
    bucket: Annotated[int, typer.Option(min=1, help="Positions in one row of the table.")] = 256,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON here.")] = None,
) -> None:
    """Perplexity of a checkpoint over a whole split by a sliding window, and by position; of a task, the accuracy.

    Example: longshort evaluate runs/mine --split validation
    """
    from rich.console import Console

    from longshort.files import write_json
    from longshort.train.checkpoint_scores import evaluate_checkpoint, evaluation_table

    console = Console()
    with one_line_errors(), console.status("evaluating") as status:
        result = evaluate_checkpoint(
            checkpoint,
            data=data,
            split=split,
            length=length,
            stride=stride,
            limit=limit,
            bucket=bucket,
            device=device,
            progress=lambda done: status.update(f"evaluating: {done} windows or rows"),
        )
    console.print(evaluation_table(result))
    if out is not None:
        typer.echo(f"wrote {write_json(out, result)}")


@app.command()
def generate(
    checkpoint: Annotated[Path, typer.Argument(help="A run's folder (its newest checkpoint) or one checkpoint.")],
    prompt: Annotated[str, typer.Option(help="Text to go on from.")] = "\n",
    tokens: Annotated[int, typer.Option(min=1, help="How many to write.")] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the most probable token.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Among the k most probable only.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Among the most probable of this joint probability.")] = 0.95,
    min_p: Annotated[float | None, typer.Option(help="Among tokens so many times as probable as the first.")] = None,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1, what came before is less probable.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; repeatable.")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the text repeatable.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Write text from a checkpoint, as it is drawn; tokens/s go to standard error.

    Example: longshort generate runs/mine --prompt "def " --tokens 100
    """
    from longshort.generation.sample import text_stream

    options = {"max_new_tokens": tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    options |= {"min_p": min_p, "repetition_penalty": repetition_penalty}
    with one_line_errors():
        stream = text_stream(checkpoint, prompt, device=device, stop_strings=stop or (), **options)
        for piece in chain((prompt,), stream, ("\n",)):
            typer.echo(piece, nl=False)
    typer.echo(f"{stream.n_tokens} tokens, {stream.tokens_per_second:.0f} tokens/s", err=True)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, as `longshort train` writes them.")],
    out: Annotated[Path, typer.Option(help="The page; its pictures go to a folder beside it.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Heading of the page (default: names the variants).")] = None,
    png: Annotated[bool, typer.Option(help="Write the charts as PNG too.")] = True,
) -> None:
    """Make one HTML page, which needs no network, from the metrics of runs; charts also as PNG.

    Example: longshort report runs/plain-seed0 runs/ls-seed0 --out runs/report.html
    """
    from longshort.report import write_report

    with one_line_errors():
        files = write_report(runs, out, title=title, png=png)
    for note in files.notes:
        typer.echo(f"warning: {note}", err=True)
    for path in (files.html, *files.pngs):
        typer.echo(f"wrote {path}")


# Their options fill files of their own, which import no more than this one.
app.command()(one_line_errors()(export))
app.command("import")(one_line_errors()(import_))


if __name__ == "__main__":
    app()
