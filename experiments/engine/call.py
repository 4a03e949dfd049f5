"""One call of `python -m experiments`: find the recipe, run what is left, say what came out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments.engine import published, sweep
from experiments.engine.catalogue import RECIPES
from experiments.engine.pack import pack as write_pack
from experiments.engine.pack import unpack as read_pack
from experiments.engine.recipe import Options, Recipe
from longshort.files import write_atomically
from longshort.runs.log import METRICS
from longshort.train import ConfigError

Message = Callable[[str], None]
SUMMARY = "summary.md"


def find(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in RECIPES:
        raise ConfigError(f"NAME must be one of {', '.join(RECIPES)}, got {name!r}")
    return RECIPES[name]


def numbers(text: str) -> tuple[int, ...]:
    """
    >>> numbers("0,1,5")
    (0, 1, 5)
    """
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise ConfigError(f"--seeds must be numbers separated by commas, as in 0,1,2; got {text!r}") from None


def show_list(message: Message) -> None:
    """Every experiment: what it asks and what it costs."""
    message("Costs are guesses from the speed of earlier runs; `--plan` counts the runs that are left.")
    for recipe in RECIPES.values():
        message(f"{recipe.name}\n    {recipe.question}\n    {recipe.cost}")


def show_plan(recipe: Recipe, options: Options, message: Message) -> None:
    """What a call would run."""
    if recipe.arms is None:
        message(f"{recipe.name} is one measurement, not a sweep. {recipe.cost}")
        return
    for line in sweep.describe(recipe, options):
        message(line)


def run(recipe: Recipe, options: Options, message: Message, *, time_steps: bool, pack: Path | None) -> bool:
    """Run what is left, or time steps, and pack; False if it was stopped before the end, with what there is packed."""
    done = True
    if recipe.measure is not None:
        recipe.measure(options, message)
    elif time_steps:
        message(f"wrote {sweep.time_steps(recipe, options, message)}")
    else:
        done = _sweep(recipe, options, message, pack)
    if pack is not None:
        size = write_pack(options.out, pack).stat().st_size
        message(f"wrote {pack}, {size / 1e6:.2f} MB")
    if not time_steps:
        _say(recipe, options.out, message)
    return done


def _sweep(recipe: Recipe, options: Options, message: Message, pack: Path | None) -> bool:
    try:
        return sweep.run_sweep(recipe, options, message)
    except sweep.RunFailed:
        if pack is not None:  # what the other runs brought must not be lost
            write_pack(options.out, pack)
        raise


def read_results(
    recipe: Recipe, options: Options, message: Message, *, unpack: Path | None, results: Path | None
) -> None:
    """Take in a pack, and write what a reader gets."""
    if unpack is not None and unpack.suffix == ".json":
        message(f"wrote {published.take(unpack, options.out, recipe.name)}: its runs count beside those of the folder")
    elif unpack is not None:
        kept = read_pack(unpack, options.out)
        message(f"unpacked {unpack} into {options.out}")
        if kept:
            message(f"left as they are, since they came farther than the pack's: {', '.join(kept)}")
    if results is not None:
        from experiments.engine.publish import publish

        for path in publish(recipe, options.out, results):
            message(f"wrote {path}")
    _say(recipe, options.out, message)


def _say(recipe: Recipe, out: Path, message: Message) -> None:
    """The table and the sentences; the report page of the runs where its packages are."""
    from longshort.report import ReportError, write_report
    from longshort.runs import RunError

    try:
        summary = recipe.summarise(out)
    except RunError as error:  # stopped before the first step of any run
        message(str(error))
        return
    message(summary.table)
    for sentence in summary.sentences:
        message(sentence)
    for key, found in summary.findings.items():
        verdict = "--quick decides nothing" if summary.is_quick else found.verdict
        message(f"{recipe.claims[key].text}: {verdict} ({found.ours})")
    write_atomically(out / SUMMARY, summary.table + "\n" + "\n".join(summary.sentences) + "\n")
    runs = sorted(path.parent for path in out.glob(f"*/{METRICS}") if path.stat().st_size)
    if not runs:
        return
    try:
        message(f"wrote {write_report(runs, out / 'report.html', title=recipe.question, png=False).html}")
    except (ReportError, RunError) as error:
        message(f"no report page: {error}")
