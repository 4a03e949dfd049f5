"""What differs between the variants of a report, in words: one row for each setting, one column for each variant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from longshort.report.comparison import Variant, flatten
from longshort.report.seen import Sees, Windows
from longshort.runs import Run
from longshort.runs.settings import MAY_CHANGE

_NAMES = {
    "data.batch_size": "sequences per batch",
    "loss.z_loss": "weight of the z-loss",
    "model.context": "context, in tokens",
    "model.n_heads": "heads",
    "model.n_layers": "layers",
    "model.plan": "reach of the heads",
    "model.plan.decays": "decays and slopes of the heads",
    "model.positions": "positions",
    "model.qk_norm": "QK-norm",
    "model.reach": "positions of the heads",
    "model.sigma_reparam": "sigma-reparametrization",
    "model.smoothing": "smoothing, in keys",
    "model.softcap": "softcap of the logits",
    "model.width": "width",
    "optimizer.kind": "optimizer",
    "optimizer.lr": "learning rate",
    "optimizer.muon_lr": "learning rate of Muon",
    "run.precision": "precision",
    "run.steps": "steps",
    "stability.clip": "gradient clipping",
    "stability.qk_clip": "QK-clip threshold",
}
_NOT_SET = "\N{EN DASH}"
_SAID_ELSEWHERE = ("run.out", "run.variant", "run.seed", "run.name")
_REACH = ("model.n_global", "model.window", "model.plan", "model.plans", "model.reach")
_OF_HEADS = ("model.plan", "model.plan.decays", "model.reach")
"""Settings that every log has, in one form or another."""
_PLAN = ("model.plan.windows", "model.plan.firsts", "model.plan.decays", "model.plan.slopes")


class Difference(NamedTuple):
    """A setting and its value in each variant."""

    name: str
    key: str
    values: list[str]


def differences(variants: Sequence[Variant]) -> list[Difference]:
    """The settings in which runs differ, between variants or within one; the reach of the heads comes first.

    Within a variant, a setting that a log does not have, since it was written before that existed, is no difference.
    """
    told = [[_told(run) for run in variant.runs] for variant in variants]
    rows = []
    for key in dict.fromkeys(key for runs in told for settings in runs for key in settings):
        found = [
            {
                settings.get(key, _NOT_SET): None
                for run, settings in zip(variant.runs, runs, strict=True)
                if _has(run, key)
            }
            for variant, runs in zip(variants, told, strict=True)
        ]
        values = [" / ".join(each) or _NOT_SET for each in found]
        if len(set(values)) > 1 or any(len(each) > 1 for each in found):
            rows.append(Difference(_name(key), key, values))
    return rows


def _has(run: Run, key: str) -> bool:
    """Whether the run's log has the setting, if only by a section of it that is not set."""
    section, _, rest = key.partition(".")
    return key in _OF_HEADS or rest.partition(".")[0] in run.config.get(section, {})


def _told(run: Run) -> dict[str, str]:
    """The settings of a run in words."""
    of_heads = (reach(run.header.sees), _rates(run.config), _positions(run.config))
    apart = (*_REACH, *_PLAN, *_SAID_ELSEWHERE)
    return dict(zip(_OF_HEADS, of_heads, strict=True)) | {
        key: _shown(value) for key, value in flatten(run.config).items() if key not in apart
    }


def not_only_seeds(variants: Sequence[Variant]) -> tuple[str, ...]:
    """Where the runs of a variant are not one run for each of its seeds, as the page would have it."""
    notes = []
    for variant in variants:
        rows = [row.key for row in differences([variant])]
        settings = [key for key in rows if key.partition(".")[2] not in MAY_CHANGE.get(key.partition(".")[0], ())]
        if settings:
            notes.append(
                f"{variant.name}: its runs differ in {', '.join(settings)}, so what is said of its seeds is said of "
                "these settings too"
            )
        seeds = [run.seed for run in variant.runs]
        if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            notes.append(f"{variant.name}: more than one of its runs has seed {', '.join(map(str, twice))}")
    return tuple(notes)


def reach(plans: Windows) -> str:
    """What the heads see.

    >>> reach([[None, 16, 16, (4, 16)]] * 2)
    '1 global, 2 with window 16, 1 with the first 4 keys and window 16'
    >>> reach([[16, 16], [None, None]])
    'layer 0: 2 with window 16; layer 1: 2 global'
    """
    return _by_layer([", ".join(f"{n} {_seen(sees)}" for sees, n in Counter(layer).items()) for layer in plans])


def _seen(sees: Sees) -> str:
    if sees is None:
        return "global"
    return f"with window {sees}" if isinstance(sees, int) else f"with the first {sees[0]} keys and window {sees[1]}"


def _rates(config: dict[str, Any]) -> str:
    """How the logits of the heads fall with distance, where plans say so."""
    model = config.get("model", {})
    plans = [layer["plan"] for layer in model.get("reach") or []] or model.get("plans") or [model.get("plan") or {}]
    said = [[f"{name} {_shown(plan[name])}" for name in ("decays", "slopes") if plan.get(name)] for plan in plans]
    return _by_layer([", ".join(parts) or _NOT_SET for parts in said])


def _by_layer(said: Sequence[str]) -> str:
    """What is said of each layer, once for all layers that are alike."""
    layers: dict[str, list[int]] = {}
    for layer, words in enumerate(said):
        layers.setdefault(words, []).append(layer)
    if len(layers) == 1:
        return next(iter(layers))
    return "; ".join(
        f"layer{'s' if len(places) > 1 else ''} {', '.join(map(str, places))}: {words}"
        for words, places in layers.items()
    )


def _positions(config: dict[str, Any]) -> str:
    """What the layers of `model.reach` say beside their plans, such as rotary bases."""
    layers = config.get("model", {}).get("reach") or []
    said = [[_option(key, value) for key, value in layer.items() if key != "plan"] for layer in layers]
    return "; ".join(dict.fromkeys(", ".join(parts) for parts in said if parts)) or _NOT_SET


def _option(key: str, value: Any) -> str:
    kind, _, what = key.partition("_")
    return f"{kind} heads not rotated" if what == "share" and value == 0 else f"{key} {_shown(value)}"


def _name(key: str) -> str:
    section, _, last = key.rpartition(".")
    return _NAMES.get(key) or f"{section.replace('.', ' ')}: {last.replace('_', ' ')}".lstrip(": ")


def _shown(value: Any) -> str:
    if value is None:
        return _NOT_SET
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(_shown(part) for part in value) or _NOT_SET
    return str(value)
