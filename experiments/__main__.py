"""The command line of `python -m experiments`, run from a checkout. Heavy imports happen when a command runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments import NAMES, load, topics
from longshort.cli import one_line_errors

if TYPE_CHECKING:
    from experiments.engine.records import Data, Experiment, Options

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
SUMMARY = "summary.md"
say: Callable[[str], None] = typer.echo


@app.command()
@one_line_errors()
def main(
    name: Annotated[str | None, typer.Argument(help="The experiment; --list shows them.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value ... in the base config.")] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Show every experiment, its cost and how many seeds are published.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs (default: runs/NAME).")] = None,
    data: Annotated[Path | None, typer.Option(help="Token folder, made by `longshort data`.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of each run (default: the experiment's).")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, as in 0,1,2; a later call may add more.")] = "0",
    variants: Annotated[str | None, typer.Option(help="Only these: names or patterns, as in 'ls-*,g1'.")] = None,
    arms: Annotated[str | None, typer.Option(hidden=True, help="The old name of --variants.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    parallel: Annotated[int, typer.Option(min=1, help="How many runs share the device.")] = 1,
    minutes: Annotated[float | None, typer.Option(min=0.0, help="Stop cleanly after this time; resumable.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="CPU-sized: shows that it runs, decides nothing.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show the runs and a rough estimate; run nothing.")] = False,
    time_steps: Annotated[bool, typer.Option("--time-steps", help="Time each variant's step, run alone.")] = False,
    pack: Annotated[Path | None, typer.Option(help="Pack the results, without weights, into this .tar.gz.")] = None,
    unpack: Annotated[
        list[Path] | None, typer.Option(help="Add the results of a pack to the folder; may be repeated; train nothing.")
    ] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Save the folder's data and build the page.")] = False,
    add: Annotated[bool, typer.Option("--add", help="With --publish: add to the published data.")] = False,
    build: Annotated[bool, typer.Option("--build", help="Build the page, or all pages, from saved data.")] = False,
) -> None:
    """Run an experiment. Finished runs are not repeated: run the same command again to resume, or add variants or seeds
    to it.

    Example: python -m experiments explosion --data data/books --parallel 6 --minutes 8 --pack explosion.tar.gz
    """
    from experiments.engine.measures import commands
    from experiments.engine.records import Options
    from longshort.files import check_writable

    if build:
        _build(NAMES if name is None else (name,))
        return
    if list_ or name is None:
        _list()
        return
    chosen = variants or arms
    options = Options(
        out=out or Path("runs") / name,
        data=data,
        steps=steps,
        seeds=numbers(seeds),
        variants=None if chosen is None else tuple(variant.strip() for variant in chosen.split(",")),
        device=device,
        parallel=parallel,
        minutes=minutes,
        quick=quick,
        overrides=tuple(overrides or ()),
    )
    experiment = load(name)
    _check_is_of(experiment, options.out, commands(options.out))
    if add and not publish:
        raise ValueError("--add must come with --publish, to whose data it adds")
    if pack is not None:
        check_writable(pack)  # before hours of work whose results go there
    if plan:
        _plan(experiment, options)
    elif unpack or publish:
        if ignored := [*options.overrides, *(options.variants or ())]:
            raise ValueError(
                f"--unpack and --publish take whole packs and folders, got {ignored[0]!r}; for several packs, repeat "
                "--unpack"
            )
        _take_in(experiment, options.out, unpack=unpack or [], publish=publish, add=add)
        if pack is not None:
            _pack(options.out, pack)
    else:
        this = f"{name} --quick" if quick else name
        _check_sizes(options.out, commands(options.out), [{"command": this}])
        if _run(experiment, options, time_steps=time_steps, pack=pack):
            return
        say("stopped; run the same command again to resume")
        raise typer.Exit(0 if minutes is not None else 130)


def numbers(text: str) -> tuple[int, ...]:
    """
    >>> numbers("0,1,5")
    (0, 1, 5)
    """
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise ValueError(f"--seeds must be numbers separated by commas, as in 0,1,2; got {text!r}") from None


def _check_is_of(experiment: Experiment, source: Path, commands: list[dict[str, str]]) -> None:
    """Raise if the recorded commands of a folder or a pack name another experiment: its runs would be on one page."""
    for words in _calls(commands):
        named = [word for word in words if word in NAMES]
        if experiment.name not in named:
            raise ValueError(
                f"{source}: holds results of {named[0]}, not of {experiment.name}; name that experiment, or another "
                "folder with --out"
            )


def _check_sizes(source: Path, commands: list[dict[str, str]], others: list[dict[str, str]]) -> None:
    """Raise if only one of two lists of commands is of --quick, whose results are not to be mixed with full ones."""
    here, there = ({"--quick" in words for words in _calls(entries)} for entries in (commands, others))
    if here and there and here != there:
        raise ValueError(
            f"{source}: holds results of {'--quick' if True in here else 'full size'}, which are not to be mixed with "
            "others; choose another folder with --out"
        )


def _calls(commands: list[dict[str, str]]) -> list[list[str]]:
    """The words of each recorded command that names an experiment."""
    calls = [shlex.split(entry["command"]) for entry in commands]
    return [words for words in calls if any(word in NAMES for word in words)]


def _list() -> None:
    from experiments.engine.pages import publication

    say("Costs are estimates from the speed of earlier runs; `--plan` counts the runs that are left.")
    for experiment in map(load, NAMES):
        say(f"{experiment.name}\n    {experiment.question}\n    {experiment.cost}\n    {publication(experiment)}")


def _build(names: tuple[str, ...]) -> None:
    """Build pages and figures from saved data, and the table of all claims."""
    from experiments.engine import pages

    experiments = [load(name) for name in names]
    for experiment in experiments:
        if len(experiments) == 1 or pages.load(experiment) is not None:
            for path in pages.build(experiment):
                say(f"wrote {path}")
    say(f"wrote {pages.write_index(topics())}")


def _plan(experiment: Experiment, options: Options) -> None:
    from experiments.engine import sweep

    if experiment.variants is None:
        say(f"{experiment.name} is one measurement, not a sweep. {experiment.cost}")
        return
    for line in sweep.describe(experiment, options):
        say(line)


def _run(experiment: Experiment, options: Options, *, time_steps: bool, pack: Path | None) -> bool:
    """Run what is left, or time steps, then pack what there is; False if it was stopped before the end."""
    from experiments.engine import sweep

    done = True
    try:
        if experiment.measure is not None:
            experiment.measure(options, say)
        elif time_steps:
            say(f"wrote {sweep.time_steps(experiment, options, say)}")
        else:
            done = sweep.run_sweep(experiment, options, say)
    except sweep.RunFailed:
        if pack is not None:  # the results of the other runs must not be lost
            _pack(options.out, pack)
        raise
    if pack is not None:
        _pack(options.out, pack)
    if not time_steps:
        _show(experiment, options.out)
    return done


def _pack(out: Path, archive: Path) -> None:
    from experiments.engine.pack import pack

    say(f"wrote {pack(out, archive)}, {archive.stat().st_size / 1e6:.2f} MB")


def _take_in(experiment: Experiment, out: Path, *, unpack: list[Path], publish: bool, add: bool) -> None:
    """Add packs to the folder, or save the folder's data and page, or both."""
    from experiments.engine import pages
    from experiments.engine.joining import joined
    from experiments.engine.measures import commands
    from experiments.engine.pack import packed_commands
    from experiments.engine.pack import unpack as read_pack

    for archive in unpack:
        packed = packed_commands(archive)
        _check_is_of(experiment, archive, packed)
        _check_sizes(out, commands(out), packed)
        kept = read_pack(archive, out)
        say(f"unpacked {archive} into {out}")
        if kept:
            say(f"kept as they are, since they came farther than those in the pack: {', '.join(kept)}")
    if publish:
        data, published = experiment.collect(out), pages.load(experiment)
        data = (experiment.join or joined)(published, data) if add and published is not None else data
        say(f"wrote {pages.save(experiment, data)}")
        if lost := [] if published is None else sorted(_held(published) - _held(data)):
            say(f"no longer published, since {out} does not hold them: {', '.join(lost)}")
        _build((experiment.name,))
    _show(experiment, out)


def _held(data: Data) -> set[str]:
    """Every variant with each of its seeds; what was measured without seeds, by its experiment."""
    found: set[str] = set()
    for row in data["rows"]:
        if isinstance(row.get("seeds"), list) and "variant" in row:
            found |= {f"{row['variant']} seed {seed}" for seed in row["seeds"]}
        elif "experiment" in row:
            found.add(f"{row['experiment']}/{row['variant']}")
    return found


def _show(experiment: Experiment, out: Path) -> None:
    """Print the table and the findings, and write the report page of the runs where its packages are installed."""
    from experiments.engine.pages import is_quick
    from longshort.files import write_atomically
    from longshort.report import ReportError, write_report
    from longshort.runs import METRICS, RunError

    try:
        data = experiment.collect(out)
    except RunError as error:  # stopped before the first step of any run
        say(str(error))
        return
    lines = [experiment.table(data), *(() if experiment.more is None else (experiment.more(data),))]
    for key, found in experiment.findings(data).items():
        verdict = "--quick decides nothing" if is_quick(data) else found.verdict
        lines.append(f"{experiment.claims[key].text}: {verdict} ({found.ours})")
    for line in lines:
        say(line)
    write_atomically(out / SUMMARY, "\n".join(lines) + "\n")
    runs = sorted(path.parent for path in out.glob(f"*/{METRICS}") if path.stat().st_size)
    if not runs:
        return
    try:
        say(f"wrote {write_report(runs, out / 'report.html', title=experiment.question, png=False).html}")
    except (ReportError, RunError) as error:
        say(f"no report page: {error}")


if __name__ == "__main__":
    app(prog_name="python -m experiments")
