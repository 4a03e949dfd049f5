"""`python -m benchmarks`, from a checkout: one command per subject, which imports what it needs when it runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from longshort.cli import one_line_errors

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Rounds = Annotated[int | None, typer.Option(min=1, help="Rounds in which entrants take turns; results are medians.")]
Shapes = Annotated[str | None, typer.Option(help="Only these shapes, by number from 0, e.g. 0,3.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads (default: torch's choice).")]
Out = Annotated[Path | None, typer.Option(help="JSON file for the results, resumed if unfinished, with its page.")]


@app.callback(invoke_without_command=True)
def main(
    listed: Annotated[bool, typer.Option("--list", help="List the benchmarks and exit.")] = False,
    build: Annotated[
        bool, typer.Option("--build", help="Build docs/results pages and picture from benchmarks/results and exit.")
    ] = False,
) -> None:
    """Speed and memory on this machine; every result is checked for correctness first."""
    if listed:
        for page in _pages():
            typer.echo(f"{page.name:20} {page.title}\n{'':20} {page.command}")
    if build:
        from benchmarks import decoding_page, pages

        with one_line_errors():
            for page in _pages():
                built = page.build()
                typer.echo(f"not measured yet: {page.command}" if built is None else f"wrote {built}")
            picture = decoding_page.draw_cache(pages.RESULTS / "decoding-cpu.json", pages.PAGES / "cache-memory.png")
            typer.echo(f"wrote {picture}")


@app.command()
def attention(
    context: typer.Context,
    device: Device = "cpu",
    rounds: Rounds = None,
    shapes: Shapes = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smallest shape, two rounds: not a measurement.")] = False,
    las: Annotated[bool, typer.Option("--las", help="Measure LaS's decay and smoothing by length instead.")] = False,
    slopes: Annotated[bool, typer.Option("--slopes", help="Measure ALiBi's slopes by length instead.")] = False,
    others: Annotated[
        bool, typer.Option("--others", help="Measure shapes that nobody tuned for, and other plans, instead (cuda).")
    ] = False,
    sharded: Annotated[
        bool, typer.Option("--sharded", help="Measure the work of each rank of a shared sequence instead.")
    ] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search tile shapes for this GPU and write them to --out as a table.")
    ] = False,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """LS-attention against its peers, forward and backward; on cuda with its own shapes and peers, in bf16.

    Example: python -m benchmarks attention --quick
    """
    from benchmarks import attention as subject
    from benchmarks import forms, other_shapes
    from benchmarks import shapes as known
    from benchmarks import sharded as ranks

    with one_line_errors():
        if tune:
            _tune(shapes, out)
            return
        record = _recorder(context, out, threads)
        if others:
            picked = known.chosen(known.OTHER_SHAPES, shapes)
            results = other_shapes.run(record, shapes=picked, rounds=rounds or 3)
        elif sharded:
            results = ranks.run(record, device=device, rounds=rounds or 3)
        elif las or slopes:
            kind = "las" if las else "slopes"
            results = forms.run(record, kind, device=device, repeats=rounds or forms.REPEATS)
        else:
            among = known.SHAPES.get(device, ())
            few = known.chosen(among, "0" if quick else shapes) if among else None
            results = subject.run(record, shapes=few, device=device, rounds=rounds or (2 if quick else None))
    typer.echo(record.page.tables(results))


def _tune(shapes: str | None, out: Path | None) -> None:
    from benchmarks import tune
    from benchmarks.shapes import GPU_SHAPES, chosen
    from longshort.files import write_json

    if out is None:
        raise ValueError("--out must name a file for the table (LONGSHORT_TILES=FILE then uses it), got none")
    table = tune.run(shapes=chosen(GPU_SHAPES, shapes), progress=typer.echo)
    typer.echo(f"wrote {write_json(out, table)}; LONGSHORT_TILES={out} uses it")


@app.command()
def decoding(
    context: typer.Context,
    device: Device = "cpu",
    parts: Annotated[
        str | None, typer.Option(help="Some of cache,speed,batch,prefill,compiled (default: all; cpu: cache,speed).")
    ] = None,
    attention: Annotated[
        bool, typer.Option("--attention", help="Only the attention of one step, and the best tiles for it (cuda).")
    ] = False,
    shapes: Annotated[str | None, typer.Option(help="With --attention: only these, by number, e.g. 0,3.")] = None,
    rounds: Rounds = None,
    minutes: Annotated[float, typer.Option(help="Start no new row after this long (not with --attention).")] = 9.0,
    note: Annotated[str, typer.Option(help="What a reader should know about this run.")] = "",
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Decoding: bytes of the cache, tokens per second against transformers, the largest batch, and prefill.

    Example: python -m benchmarks decoding --parts cache
    """
    from benchmarks import decode_step
    from benchmarks import decoding as subject
    from benchmarks.shapes import chosen

    with one_line_errors():
        record = _recorder(context, out, threads, minutes=math.inf if attention else minutes)
        if attention:
            picked = chosen(decode_step.SHAPES, shapes)
            results = decode_step.run(record, shapes=picked, device="cuda", rounds=rounds or 3)
        else:
            asked = None if parts is None else parts.split(",")
            results = subject.run(record, device=device, parts=asked, rounds=rounds or 7, note=note)
    typer.echo(record.page.tables(results))


@app.command()
def rollouts(
    context: typer.Context,
    device: Device = "cpu",
    parts: Annotated[str | None, typer.Option(help="Some of short,long,batch (default: all).")] = None,
    rounds: Rounds = None,
    minutes: Annotated[float, typer.Option(help="Start no new piece after this long.")] = 9.0,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Rollouts, soft and discrete, against transformers' `generate`; long ones with LS heads and with plain heads.

    On a CPU the sizes are tiny: that shows that it runs.

    Example: python -m benchmarks rollouts --device cuda
    """
    from benchmarks import rollouts as subject

    with one_line_errors():
        record = _recorder(context, out, threads, minutes=minutes)
        asked = None if parts is None else parts.split(",")
        results = subject.run(record, device=device, parts=asked, rounds=rounds or 5)
    typer.echo(record.page.tables(results))


@app.command()
def training(
    context: typer.Context,
    parts: Annotated[
        str | None,
        typer.Option(help="Some of step,vocabulary,small,models,host,loss,trainer,start, or one piece, as step:4096."),
    ] = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Measure the cost of logit statistics per step instead.")
    ] = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Measure what run.deterministic=true gives and costs instead.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cuda; with --statistics cpu if not given. cpu is tiny.")] = None,
    rounds: Rounds = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of a deterministic run (150).")] = None,
    minutes: Annotated[float, typer.Option(help="Start no new piece after this long.")] = math.inf,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Whole training steps against a nanoGPT-style peer, host time, the trainer, its start, and the loss.

    Parts that are measured one at a time, at one commit, add to the same --out.

    Example: python -m benchmarks training --parts step:4096,host
    """
    from benchmarks import deterministic as bits
    from benchmarks import telemetry
    from benchmarks import training as subject

    with one_line_errors():
        record = _recorder(context, out, threads, minutes=minutes)
        if statistics:
            results = telemetry.run(record, device=device or "cpu", rounds=rounds or 15)
        elif deterministic:
            results = bits.run(record, device=device or "cuda", steps=steps or 150, rounds=rounds or 2)
        else:
            asked = None if parts is None else parts.split(",")
            results = subject.run(record, device=device or "cuda", parts=asked, rounds=rounds or 5)
    typer.echo(record.page.tables(results))


@app.command()
def memory(
    context: typer.Context,
    only: Annotated[str | None, typer.Option(help="Only these cases, e.g. loss-chunked,attention-local.")] = None,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Peak memory of the loss and of attention, forward and backward, on a CPU; loss-full needs 10 GB.

    Example: python -m benchmarks memory --only loss-chunked
    """
    from benchmarks import memory as subject

    with one_line_errors():
        record = _recorder(context, out, threads)
        cases = list(subject.CASES) if only is None else only.split(",")
        for name in cases:
            if name not in subject.CASES:
                raise ValueError(f"--only must be some of {', '.join(subject.CASES)}, got {name!r}")
        results = subject.run(record, cases)
    typer.echo(record.page.tables(results))


def _pages() -> list[Any]:
    from benchmarks import (
        attention_page,
        decode_step,
        decoding_page,
        deterministic,
        forms,
        memory,
        other_shapes,
        rollouts_page,
        sharded,
        telemetry,
        training_page,
    )

    attention = (
        attention_page.CPU_PAGE,
        attention_page.ARM_PAGE,
        attention_page.GPU_PAGE,
        other_shapes.PAGE,
        sharded.PAGE,
        *forms.PAGES.values(),
    )
    decoding = (*decoding_page.PAGES.values(), decode_step.PAGE, rollouts_page.PAGE)
    return [*attention, *decoding, training_page.PAGE, telemetry.PAGE, deterministic.PAGE, memory.PAGE]


def _recorder(context: typer.Context, out: Path | None, threads: int | None, **options: Any) -> Any:
    """A recorder with the command as it was given; also sets the threads."""
    import torch

    from benchmarks.harness import Recorder

    if threads is not None:
        torch.set_num_threads(threads)
    return Recorder(out, command=_command(context), progress=typer.echo, **options)


def _command(context: typer.Context) -> str:
    words = ["python -m benchmarks", str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            value = context.params[name]
            words += [parameter.opts[0]] if value is True else [parameter.opts[0], str(value)]
    return " ".join(words)


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
