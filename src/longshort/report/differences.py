"""What differs between the variants of a report, in words: one row for each setting, one column for each variant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from longshort.report.comparison import Variant, flatten
from longshort.report.seen import Sees, Windows

_NAMES = {
    "data.batch_size": "sequences per batch",
    "loss.z_loss": "weight of the z-loss",
    "model.context": "context, in tokens",
    "model.n_heads": "heads",
    "model.n_layers": "layers",
    "model.positions": "positions",
    "model.qk_norm": "QK-norm",
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
_SAID_ELSEWHERE = ("run.out", "run.variant", "run.seed", "run.name")
_REACH = ("model.n_global", "model.window", "model.plan", "model.plans", "model.reach")
_PLAN = ("model.plan.windows", "model.plan.firsts", "model.plan.decays", "model.plan.slopes")


class Difference(NamedTuple):
    """A setting and its value in each variant."""

    name: str
    key: str
    values: list[str]


def differences(variants: Sequence[Variant]) -> list[Difference]:
    """The settings in which the variants differ; the reach of the heads comes first."""
    reaches = [_joined(reach(run.header.sees) for run in variant.runs) for variant in variants]
    rates = [_joined(_rates(run.config) for run in variant.runs) for variant in variants]
    flats = [[flatten(run.config) for run in variant.runs] for variant in variants]
    keys = dict.fromkeys(key for runs in flats for flat in runs for key in flat)
    placed = [_joined(_positions(run.config) for run in variant.runs) for variant in variants]
    rows = [Difference("reach of the heads", "model.plan", reaches)]
    rows.append(Difference("decays and slopes of the heads", "model.plan.decays", rates))
    rows.append(Difference("positions of the heads", "model.reach", placed))
    for key in keys:
        if key not in (*_REACH, *_PLAN, *_SAID_ELSEWHERE):
            values = [_joined(_shown(flat.get(key)) for flat in runs) for runs in flats]
            rows.append(Difference(_name(key), key, values))
    return [row for row in rows if len(set(row.values)) > 1]


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
    return _by_layer([", ".join(parts) or "\N{EN DASH}" for parts in said])


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
    return "; ".join(dict.fromkeys(", ".join(parts) for parts in said if parts)) or "\N{EN DASH}"


def _option(key: str, value: Any) -> str:
    kind, _, what = key.partition("_")
    return f"{kind} heads not rotated" if what == "share" and value == 0 else f"{key} {_shown(value)}"


def _name(key: str) -> str:
    section, _, last = key.rpartition(".")
    return _NAMES.get(key) or f"{section.replace('.', ' ')}: {last.replace('_', ' ')}".lstrip(": ")


def _shown(value: Any) -> str:
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return ", ".join(_shown(part) for part in value) or "\N{EN DASH}"
    return str(value)


def _joined(values: Any) -> str:
    return " / ".join(dict.fromkeys(values))
