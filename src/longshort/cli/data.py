"""`longshort data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SPLIT = (0.9, 0.05, 0.05)


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
        tuple[float, float, float],
        typer.Option(help="Shares of train, validation and test, if no source is given for them."),
    ] = SPLIT,
    workers: Annotated[int | None, typer.Option(help="Processes (default: 1 for bytes, every core for BPE).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split of the documents.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace what is in the folder.")] = False,
    part: Annotated[
        str | None, typer.Option(help="NUMBER/COUNT, from 1/8 to 8/8: prepare only this part, for --join.")
    ] = None,
    join: Annotated[
        int | None, typer.Option(help="Join this many finished parts into one folder; give only --out with it.")
    ] = None,
) -> None:
    """Turn text into token files for training. Without SOURCES it uses the source of Python's standard library.

    Example: longshort data --out data/books books/ --vocab-size 8192
    """
    from rich.console import Console

    from longshort.data.errors import DataError
    from longshort.data.show import join_and_show, prepare_and_show

    if join is not None:
        others = {"SOURCES": sources, "--part": part, "--tokenizer": tokenizer, "--vocab-size": vocab_size}
        others |= {"--validation": validation, "--test": test, "--split": split != SPLIT, "--seed": seed}
        if given := [name for name, value in others.items() if value]:
            raise DataError(f"--join must come with --out alone, since the parts say the rest, got {', '.join(given)}")
        join_and_show(out, join, console=Console(), force=force)
        return
    prepare_and_show(
        sources or [],
        out,
        console=Console(),
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        validation=validation or None,
        test=test or None,
        split=split,
        workers=workers,
        seed=seed,
        force=force,
        part=part,
    )
