"""`longshort evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from longshort.train.checkpoints.checkpoint import Checkpoint


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
    split: Annotated[str | None, typer.Option(help="train, validation or test (default: validation).")] = None,
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
            min=1,
            help="At most this many windows of text, problems of a run of longshort rl, or examples of a suite.",
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
    from longshort.files import check_replaceable, is_of_transformers, write_json
    from longshort.rl.evaluation import is_of_rl
    from longshort.train.checkpoints.checkpoint import load_checkpoint

    of_text: dict[str, object] = {"--data": data, "--length": length, "--stride": stride, "--bucket": bucket}
    of_text["--yarn"] = yarn or None
    sizes: dict[str, Any] = {"data": data, "length": length, "yarn": yarn}
    chosen: dict[str, Any] = {"split": split or "validation", "device": device}
    measure: Callable[[], dict[str, Any]]
    if harness is not None:
        others = {"--suite": suite, "--samples": samples, "--split": split}
        _check_absent(of_text | others, "must not be given with --harness")
        measure = partial(_harness, checkpoint, harness, include=include, limit=limit, device=device)
    elif yarn and length is None:
        raise ValueError("--yarn must come with --length N, got --yarn alone")
    elif include is not None:
        raise ValueError(f"--include must be given with --harness, got {include} alone")
    elif suite is not None:
        others = {"--stride": stride, "--samples": samples, "--bucket": bucket}
        _check_absent(others, "must not be given with --suite")
        if suite != "retrieval":
            raise ValueError(f"--suite must be retrieval, got {suite!r}")
        measure = partial(_suite, checkpoint, examples=limit, **sizes, **chosen)
    else:
        found = None if is_of_transformers(checkpoint) else load_checkpoint(checkpoint)
        if found is not None and is_of_rl(found):
            _check_absent(of_text, f"is for text; {checkpoint} was trained by reinforcement learning")
            measure = partial(_rewards, found, problems=limit, samples=samples, **chosen)
        elif samples is not None:
            raise ValueError(f"--samples is for runs of longshort rl, got {checkpoint}")
        else:
            measure = partial(
                _scores, found or checkpoint, stride=stride, limit=limit, bucket=bucket, **sizes, **chosen
            )
    if out is not None:
        check_replaceable(out, '"checkpoint":')
    result = measure()
    if out is not None:
        typer.echo(f"wrote {write_json(out, result)}")


def _check_absent(options: Mapping[str, object], why: str) -> None:
    """Raise for the first option that was given."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} {why}")


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """A line that says how far it is."""
    from rich.console import Console

    with Console().status("evaluating") as status:
        yield lambda done: status.update(f"evaluating: {done} windows or examples")


def _scores(checkpoint: Path | Checkpoint, **options: Any) -> dict[str, Any]:
    """The scores of a text or a task; a path is that of a folder that transformers reads."""
    from rich.console import Console

    from longshort.train.evaluation.checkpoint_scores import evaluate_checkpoint, evaluation_table

    with _progress() as progress:
        if isinstance(checkpoint, Path):
            from longshort.hf.opened import evaluate_folder  # here, since it loads transformers

            result = evaluate_folder(checkpoint, **options, progress=progress)
        else:
            result = evaluate_checkpoint(checkpoint, **options, progress=progress)
    Console().print(evaluation_table(result))
    return result


def _rewards(checkpoint: Checkpoint, **options: Any) -> dict[str, Any]:
    from rich.console import Console

    from longshort.rl.evaluation import evaluate_rewards
    from longshort.train.evaluation.checkpoint_scores import evaluation_table

    with _progress() as progress:
        result = evaluate_rewards(checkpoint, **options, progress=progress)
    Console().print(evaluation_table(result))
    Console().print(result["text"], highlight=False, markup=False)
    return result


def _suite(checkpoint: Path, **options: Any) -> dict[str, Any]:
    from rich.console import Console

    from longshort.hf.retrieval import evaluate_suite
    from longshort.train.evaluation.retrieval import retrieval_tables, skipped_lines

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
    return result


def _harness(checkpoint: Path, tasks: str, **options: Any) -> dict[str, Any]:
    from longshort.hf.harness import evaluate_harness, harness_numbers, harness_tables

    results = evaluate_harness(checkpoint, tasks, **options)
    for table in harness_tables(results):
        typer.echo(table)
    return {"checkpoint": str(checkpoint), **harness_numbers(results)}
