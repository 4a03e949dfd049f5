"""`longshort inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BUDGET_HELP = (
    "What a plan may cost: a share of full attention's keys (0.25), cache_bytes=NUMBER of cache per token, or both "
    "with a comma between them."
)


def inspect(
    model: Annotated[Path, typer.Argument(help="Folder of a Hugging Face causal language model, with its tokenizer.")],
    text: Annotated[
        Path | None, typer.Option(help="Text to measure on (default: the source of Python's standard library).")
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=16, help="Tokens per sequence (default: 1,024, or the model's context).")
    ] = None,
    rows: Annotated[int, typer.Option(min=2, max=65_536, help="Sequences: half to measure, half for the loss.")] = 16,
    budget: Annotated[str | None, typer.Option(help=f"Propose a plan. {BUDGET_HELP}")] = None,
    first: Annotated[
        bool, typer.Option(help="Try plans whose local heads also see the first four keys of the sequence.")
    ] = True,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="The record; the page goes beside it, as .html.")] = Path("inspect.json"),
    page: Annotated[bool, typer.Option(help="Write the page.")] = True,
) -> None:
    """Measure how far each head of a model looks.

    For every head: where its attention goes, the smallest window that keeps 99 % and 99.9 % of it, sinks, entropy,
    largest logits, and how much it copies (induction, retrieval). With a budget, a plan and the loss that it costs.

    Example: longshort inspect qwen3/ --text book.txt --budget 0.25
    """
    import shlex

    from rich.console import Console

    from longshort.files import check_replaceable, write_json

    try:
        from longshort.hf.inspection.opened import open_folder
        from longshort.hf.inspection.propose import Budget
        from longshort.hf.inspection.record import MARK, inspect_model
    except ImportError as error:
        raise ValueError(f"inspect needs transformers >= 5.17 ({error}): pip install 'longshort[hf]'") from None
    from longshort.report.heads import check_heads_page, summary, write_heads_page
    from longshort.train.machine.distributed import choose_device

    wanted = None if budget is None else Budget.parse(budget)
    if out.suffix != ".json":
        raise ValueError(f"--out must end in .json, got {str(out)!r}")
    check_replaceable(out, MARK)
    html = out.with_suffix(".html")
    if page:
        check_heads_page(html)
    console = Console(stderr=True)
    with console.status("reading the model") as status:
        opened = open_folder(model, choose_device(device))
        record = inspect_model(
            opened,
            text=text,
            length=length,
            rows=rows,
            budget=wanted,
            first=first,
            progress=lambda what, done, total: status.update(f"{what}: {done} of {total}"),
        )
    typer.echo(summary(record))
    typer.echo(f"wrote {write_json(out, record)}")
    if page:
        given = {"--text": text, "--length": length, "--budget": budget}
        options = [str(part) for name, value in given.items() if value is not None for part in (name, value)]
        options += [] if first else ["--no-first"]
        command = shlex.join(["longshort", "inspect", str(model), *options, "--rows", str(rows), "--out", str(out)])
        typer.echo(f"wrote {write_heads_page(record, html, command=command)}")
