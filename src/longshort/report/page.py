"""Write the report: one HTML file with numbers, charts, texts and scripts, and the charts as PNG files beside it."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from longshort.files import check_replaceable, write_atomically
from longshort.report import comparison, datasets, theme
from longshort.report.charts import LOSSES, X_AXES, Charts, ReportError, drawing, with_data
from longshort.report.differences import differences, not_only_seeds
from longshort.report.pictures import vegalite, write_picture
from longshort.report.plan import plan_chart
from longshort.report.seen import Sees
from longshort.runs import Run, Sample, load_runs

MORE_SAMPLES = 6
MOST_CELLS = 2000
"""Heads of a plan that the page draws."""
PAGE = "report.html"


@dataclass(frozen=True)
class ReportFiles:
    html: Path
    pngs: tuple[Path, ...]
    notes: tuple[str, ...] = ()
    """What is odd about the runs' files, and how runs diverged; the page shows them too."""


def write_report(
    runs: Sequence[Path | str], out: Path | str, *, title: str | None = None, png: bool = True, remark: str = ""
) -> ReportFiles:
    """Write the page about `runs` (run folders) to `out` and, with `png`, its charts to the folder `<out>-figures`.

    The page needs nothing but itself: no network, no file beside it. A `remark` follows its summary.
    """
    out = Path(out)
    check_page(out)
    loaded = load_runs(runs)
    drawing()
    data = datasets.build(loaded)
    title = title or _title(loaded)
    html = write_atomically(out, render(loaded, data, title, out, remark))
    pngs = write_pictures(loaded, data, out.with_name(f"{out.stem}-figures")) if png else ()
    return ReportFiles(html, tuple(pngs), _notes(loaded))


def check_page(out: Path) -> None:
    """Raise if a file that is not such a page would be overwritten."""
    if out.is_dir():
        raise ReportError(f"{out}: is a folder; give the name of an HTML file, such as {out / PAGE}")
    check_replaceable(out, "data-variant=")  # in the table of every page


def _title(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(run.variant for run in runs))
    return "Training report: " + (", ".join(names) if len(names) <= 3 else f"{len(names)} variants")


def write_pictures(runs: Sequence[Run], data: datasets.Datasets, folder: Path) -> list[Path]:
    """The charts as PNG, light. A chart without data is left out, and so is its picture of an earlier report."""
    charts = Charts(runs, data, legend=True)
    specs = {quantity: charts.loss(quantity, "step") for quantity in LOSSES}
    specs |= {datasets.MEASURES[measure][0].lower(): charts.learning(measure, "step") for measure in _measured(runs)}
    if data.logit_range:
        specs |= {"logits": charts.logits("step"), "heatmap": charts.heat_maps()}
    every = {*LOSSES, *(word.lower() for word, _ in datasets.MEASURES.values()), "logits", "heatmap"}
    pictures = [write_picture(with_data(spec, data), folder / f"{name}.png") for name, spec in specs.items()]
    for name in every - specs.keys():
        (folder / f"{name}.png").unlink(missing_ok=True)
    return pictures


def render(runs: Sequence[Run], data: datasets.Datasets, title: str, out: Path, remark: str = "") -> str:
    environment = page_environment()
    environment.filters |= {"number": comparison.number, "count": lambda value: f"{value:,}", "moment": _moment}
    variants = comparison.group(runs)
    names = [variant.name for variant in variants]
    strongest = theme.method_styles(names, theme.LIGHT, strong=theme.MOST_STRONG)
    answers = any(run.final_accuracy is not None for run in runs)
    rewards = any(run.final_reward is not None for run in runs)
    return environment.get_template("page.html.j2").render(
        title=title,
        runs=runs,
        variants=variants,
        places={variant.name: i for i, variant in enumerate(variants)},
        remark=remark,
        summary=comparison.summary(variants),
        table=[_table_row(variant, answers=answers, rewards=rewards) for variant in variants],
        answers=answers,
        rewards=rewards,
        measures=[(measure, datasets.MEASURES[measure][0]) for measure in _measured(runs)],
        notes=_notes(runs),
        data=data,
        unfinished=any(run.status != "finished" for run in runs),
        samples=[chosen for variant in variants if (chosen := _samples(variant)) is not None],
        differences=differences(variants),
        plans=[", ".join(names) for _, names in _plans(runs)],
        configs=[(run, _yaml(run.config)) for run in runs],
        train_commands=[f"longshort {_verb(run)} {shlex.quote(config_name(run))}" for run in runs],
        report_command=shlex.join(["longshort", "report", *(str(run.path) for run in runs), "--out", str(out)]),
        config_name=config_name,
        as_link=lambda text: f"data:text/yaml;charset=utf-8,{quote(text)}",
        aside=[style.color == theme.LIGHT["aside"] for style in strongest],
        themes=[(colors, theme.method_styles(names, colors)) for colors in (theme.LIGHT, theme.DARK)],
        not_finite=theme.NOT_FINITE,
        font=theme.FONT,
        payload=script_json(_payload(runs, data)),
        vega=vega_script(),
    )


def page_environment() -> Any:
    """Where pages are written: values are escaped, and one that is missing is an error."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("longshort.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _notes(runs: Sequence[Run]) -> tuple[str, ...]:
    return (*not_only_seeds(comparison.group(runs)), *comparison.notes(runs))


def config_name(run: Run) -> str:
    """A file name for the run's config, taken from its label."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in run.label).strip("-.") + ".yaml"


def _verb(run: Run) -> str:
    section = run.config.get("rl")
    return "rl" if isinstance(section, dict) and section.get("task") else "train"


def _measured(runs: Sequence[Run]) -> list[str]:
    """The measures of reinforcement learning that some run has."""
    return [name for name in datasets.MEASURES if any(np.isfinite(run.learning[name]).any() for run in runs)]


def _plans(runs: Sequence[Run]) -> list[tuple[tuple[tuple[Sees, ...], ...], list[str]]]:
    """The plans of the runs, each with the variants that have it; those with too many heads to draw are left out."""
    found: dict[tuple[tuple[Sees, ...], ...], dict[str, None]] = {}
    for run in runs:
        if run.header.plans and sum(map(len, run.header.plans)) <= MOST_CELLS:
            found.setdefault(run.header.sees, {})[run.variant] = None
    return [(plan, list(names)) for plan, names in found.items()]


def _payload(runs: Sequence[Run], data: datasets.Datasets) -> dict[str, Any]:
    charts = Charts(runs, data, legend=False)
    specs = {f"{quantity}-{x}": charts.loss(quantity, x) for quantity in LOSSES for x in X_AXES}
    specs |= {f"{measure}-{x}": charts.learning(measure, x) for measure in _measured(runs) for x in X_AXES}
    if data.logit_range:
        specs |= {f"logits-{x}": charts.logits(x) for x in X_AXES}
        specs |= {f"heat-{i}": charts.heat(i) for i, rows in enumerate(data.heat) if rows}
    specs |= {f"plan-{i}": plan_chart(plan) for i, (plan, _) in enumerate(_plans(runs))}
    themes = {name: _theme(colors, charts.variants) for name, colors in (("light", theme.LIGHT), ("dark", theme.DARK))}
    return {"specs": specs, "variants": charts.variants, "tables": data.tables, "heat": data.heat, "themes": themes}


def _theme(colors: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The configuration of the charts, and the grey for variants beyond the first six."""
    category = [style.color for style in theme.method_styles(names, colors)]
    return {"config": theme.vega_config(colors, category), "aside": colors["aside"]}


def _table_row(variant: comparison.Variant, *, answers: bool, rewards: bool) -> dict[str, Any]:
    """What a variant reached; `answers` says that some run has a task, and so an accuracy, `rewards` the like."""
    accuracy = (("final accuracy", "final_accuracy", 4),) if answers else ()
    reward = (("final reward", "final_reward", 3),) if rewards else ()
    measures = (
        *reward,
        *accuracy,
        ("final loss", "final_loss", 4),
        ("final perplexity", "final_perplexity", 4),
        ("best loss", "best_loss", 4),
        ("best perplexity", "best_perplexity", 4),
        ("training loss", "training_loss", 4),
        ("max |logit|", "largest_logit", 3),
        ("tokens/s", "speed", 3),
    )
    spreads = [(label, variant.spread(measure), digits) for label, measure, digits in measures]
    return {"variant": variant, "spreads": spreads}


def _samples(variant: comparison.Variant) -> tuple[Run, Sample, list[tuple[Run, Sample]]] | None:
    """The last sample of the first run that has one, and some others that a click opens."""
    with_text = [run for run in variant.runs if run.samples]
    if not with_text:
        return None
    first = with_text[0]
    more = [(run, run.samples[-1]) for run in with_text[1:]]
    more += [(first, sample) for sample in reversed(first.samples[:-1])]
    return first, first.samples[-1], more[:MORE_SAMPLES]


def _moment(text: str) -> str:
    """
    >>> _moment("2026-01-02T03:04:05+00:00"), _moment("yesterday")
    ('2026-01-02 03:04 UTC', 'yesterday')
    """
    return f"{text[:10]} {text[11:16]} UTC" if text.endswith("+00:00") else text


@functools.cache
def vega_script() -> str:
    """Vega, Vega-Lite and vega-embed as one script that sets `vegaEmbed`."""
    import vl_convert

    # The stub asks for a snippet that the function does not need.
    script = vl_convert.javascript_bundle(vl_version=vegalite())  # type: ignore[call-arg]
    return script.replace("</script", "<\\/script")


def _yaml(config: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=100)


def script_json(value: Any) -> str:
    """JSON in which no HTML parser finds the end of the script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
