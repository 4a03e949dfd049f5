"""`longshort evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer


def evaluate(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="A run's folder (its newest checkpoint), one checkpoint, or an exported folder, with --data."
        ),
    ],
    suite: Annotated[
        str | None, typer.Option(help="retrieval: needles, variables and recall in long sequences.")
    ] = None,
    harness: Annotated[
        str | None,
        typer.Option(metavar="TASKS", help="Tasks of lm-evaluation-harness, separated by commas."),
    ] = None,
    include: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --harness: a folder with YAML files of further tasks.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Prepared data folder; the run's own if not given.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "validation",
    length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens per window (default: the training length; of a suite, 1,024 to the context)."),
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Tokens between windows (default: half the window).")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="At most this many windows; of a run of longshort rl, problems; of suite and task, examples."
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Answers per problem, for a run of longshort rl (default: as in the run).")
    ] = None,
    yarn: Annotated[
        bool, typer.Option("--yarn", help="Slow the rotary angles of global heads for a --length past the context.")
    ] = False,
    bucket: Annotated[
        int | None, typer.Option(min=1, help="Positions per line of the table of a text (default: 256).")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON here.")] = None,
) -> None:
    """Measure a checkpoint's perplexity, or its accuracy on a task.

    Text is scored with a sliding window, and the table shows the loss by position. For a run of longshort rl, answers
    are drawn as in the run and verified.

    Example: longshort evaluate runs/mine --split validation

    Retrieval by length and distance: longshort evaluate runs/mine --suite retrieval

    Public benchmarks: longshort evaluate runs/mine --harness lambada_openai,piqa
    """
    from rich.console import Console

    from longshort.files import check_replaceable, is_of_transformers, write_json
    from longshort.rl.evaluation import evaluate_rewards, is_of_rl
    from longshort.train.evaluation.checkpoint_scores import evaluate_checkpoint, evaluation_table

    given = {"--data": data, "--length": length, "--stride": stride, "--bucket": bucket, "--yarn": yarn or None}
    if harness is not None:
        _check_absent(given | {"--suite": suite, "--samples": samples}, "must not be given with --harness")
        _evaluate_harness(checkpoint, harness, out, include=include, limit=limit, device=device)
        return
    if yarn and length is None:
        raise ValueError("--yarn must be given with --length, got it alone")
    if include is not None:
        raise ValueError(f"--include must be given with --harness, got {include} alone")
    if suite is not None:
        others = {"--stride": stride, "--samples": samples, "--bucket": bucket}
        _check_absent(others, "must not be given with --suite")
        asked: dict[str, Any] = {"data": data, "length": length, "examples": limit, "split": split, "yarn": yarn}
        _evaluate_suite(checkpoint, suite, out, **asked, device=device)
        return
    exported = is_of_transformers(checkpoint)
    rewarded = not exported and is_of_rl(checkpoint)
    if rewarded:
        _check_absent(given, f"is for text; {checkpoint} was trained by reinforcement learning")
    if samples is not None and not rewarded:
        raise ValueError(f"--samples is for runs of longshort rl, got {checkpoint}")
    if out is not None:
        check_replaceable(out, '"checkpoint":')
    console = Console()
    with console.status("evaluating") as status:
        shared: dict[str, Any] = {
            "split": split,
            "device": device,
            "progress": lambda done: status.update(f"evaluating: {done} windows or examples"),
        }
        if rewarded:
            result = evaluate_rewards(checkpoint, problems=limit, samples=samples, **shared)
        else:
            sizes: dict[str, Any] = {
                "length": length,
                "stride": stride,
                "limit": limit,
                "bucket": bucket or 256,
                "yarn": yarn,
            }
            evaluated = _evaluate_folder if exported else evaluate_checkpoint
            result = evaluated(checkpoint, data=data, **sizes, **shared)
    console.print(evaluation_table(result))
    if rewarded:
        console.print(result["text"], highlight=False, markup=False)
    if out is not None:
        typer.echo(f"wrote {write_json(out, result)}")


def _check_absent(options: Mapping[str, object], why: str) -> None:
    """Raise for the first option that was given."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} {why}")


def _evaluate_folder(folder: Path, **options: Any) -> dict[str, Any]:
    from longshort.hf.opened import evaluate_folder  # here, since it loads transformers

    return evaluate_folder(folder, **options)


def _evaluate_suite(checkpoint: Path, suite: str, out: Path | None, **options: Any) -> None:
    from rich.console import Console

    from longshort.files import check_replaceable, write_json
    from longshort.hf.retrieval import evaluate_suite
    from longshort.train.evaluation.retrieval import retrieval_tables, skipped_lines

    if suite != "retrieval":
        raise ValueError(f"--suite must be retrieval, got {suite!r}")
    if out is not None:
        check_replaceable(out, '"checkpoint":')
    console = Console()
    with console.status("evaluating") as status:

        def progress(kind: str, length: int, done: int) -> None:
            status.update(f"evaluating: {kind}, {length:,} tokens, {done} examples")

        result = evaluate_suite(checkpoint, **options, progress=progress)
    for table in retrieval_tables(result):
        console.print(table)
    typer.echo(f"{result['examples']:,} examples of each kind and length; books: {result['data']}")
    for line in skipped_lines(result):
        typer.echo(line)
    if out is not None:
        typer.echo(f"wrote {write_json(out, result)}")


def _evaluate_harness(checkpoint: Path, tasks: str, out: Path | None, **options: Any) -> None:
    from longshort.files import check_replaceable, write_json
    from longshort.hf.harness import evaluate_harness, harness_numbers, harness_tables

    if out is not None:
        check_replaceable(out, '"checkpoint":')
    results = evaluate_harness(checkpoint, tasks, **options)
    for table in harness_tables(results):
        typer.echo(table)
    if out is not None:
        typer.echo(f"wrote {write_json(out, {'checkpoint': str(checkpoint), **harness_numbers(results)})}")
