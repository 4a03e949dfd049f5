"""`python -m benchmarks`: its options. What it needs is imported when it runs, as for every verb."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench(
    device: Annotated[str, typer.Option(help="cpu, or cuda for the GPU's own shapes and peers, in bf16.")] = "cpu",
    quick: Annotated[bool, typer.Option(help="Smallest shape, two rounds: a look, not a measurement.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rows are medians over them (default: 5; cuda: 3).")] = None,
    shapes: Annotated[str | None, typer.Option(help="Only these, by number from 0, as in 0,3.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: torch's own choice).")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the results as JSON here, and a .md table beside it.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search tile shapes for this GPU and write them to --out as a table.")
    ] = False,
) -> None:
    """Time LS-attention against its peers on this machine; every row passes a correctness check first.

    Example: python -m benchmarks --out docs/results/attention-cpu.json
    """
    import torch
    from rich.console import Console
    from rich.markdown import Markdown

    from benchmarks import attention as benchmark
    from benchmarks import registry

    if tune:
        _tune(shapes, out)
        return
    if device != "cpu":
        _bench_gpu(device, quick=quick, rounds=rounds, shapes=shapes, out=out)
        return
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        chosen = registry.chosen(registry.CPU_SHAPES, "0" if quick else shapes)
        results = benchmark.run(shapes=chosen, rounds=2 if quick else rounds or 5, progress=typer.echo)
    except (RuntimeError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    Console().print(Markdown(benchmark.table(results)))
    if out is not None:
        only = "" if shapes is None else f" --shapes {shapes}"
        results["command"] = (
            f"python -m benchmarks --rounds {results['rounds']}{only} --threads {torch.get_num_threads()} --out {out}"
        )
        for path in benchmark.save(results, out):
            typer.echo(f"wrote {path}")


def _tune(shapes: str | None, out: Path | None) -> None:
    from benchmarks import registry, tune
    from longshort.files import write_json

    if out is None:
        raise ValueError("--tune needs --out, the file for the table (LONGSHORT_TILES=FILE then uses it)")
    table = tune.run(shapes=registry.chosen(registry.GPU_SHAPES, shapes), progress=typer.echo)
    typer.echo(f"wrote {write_json(out, table)}; LONGSHORT_TILES={out} uses it")


def _bench_gpu(device: str, *, quick: bool, rounds: int | None, shapes: str | None, out: Path | None) -> None:
    """Bad input and a wrong result end in one line; where a kernel of ours breaks, its traceback is wanted."""
    from benchmarks import gpu, gpu_report, registry
    from benchmarks.gpu_check import WrongResult

    shapes, rounds = "0" if quick else shapes, 2 if quick else rounds or 3
    options = {"--device": device, "--rounds": rounds, "--shapes": shapes, "--out": out}
    command = " ".join(f"{name} {value}" for name, value in options.items() if value is not None)
    try:
        results = gpu.run(
            shapes=registry.chosen(registry.GPU_SHAPES, shapes),
            device=device,
            rounds=rounds,
            command=f"python -m benchmarks {command}",
            progress=typer.echo,
            keep=lambda results: out and gpu_report.save(results, out),
        )
    except (ValueError, WrongResult) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(gpu_report.table(results))
    if out is not None:
        typer.echo(f"wrote {out} and {out.with_suffix('.md')}")
