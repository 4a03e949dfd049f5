"""Which plan of reaches should a modern transformer have, and at what cost?

`reach` compares places of global heads in a small model of LayerNorm and GELU. Here the block is that of today
(RMSNorm, SwiGLU, rotary positions, QK-norm), and beside the plans stand what published models add to them: learned
sinks, no positions on global heads, whole layers that are global in turn. `ls1-w145` sees as many keys as the ladder.

`python -m experiments.reach_modern RUN/config.json` runs one training; see `reach`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments import reach
from experiments.engine import comparison, measures, tables
from experiments.engine.base import QUICK
from experiments.engine.evidence import Difference
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import Claim, Data, Experiment, Finding, Variants
from longshort.model import GPTConfig
from longshort.reach.costs import costs
from longshort.train import TrainConfig

Spec = str | dict[str, Any]
LONG = 32_768
"""Context at which caches are compared."""


def layers(letters: str, window: int = 64, **options: Any) -> Spec:
    """Whole layers, local (L) or global (G)."""
    return {"pattern": "interleave", "layers": letters, "window": window, **options}


def short(n_global: int, window: int, **options: Any) -> Spec:
    """LS-attention."""
    return {"pattern": "long_short", "n_global": n_global, "window": window, **options}


def _ladder(**options: Any) -> Spec:
    return {"pattern": "ladder", **options}


PLANS: dict[str, Spec] = {
    "full": "full",
    "ls1-w64": short(1, 64),
    "ls1-w145": short(1, 145),
    "ls2-w64": short(2, 64),
    "one-full-6": layers("LLLLLGLL"),
    "one-full-8": layers("LLLLLLLG"),
    "interleave-5-1": layers("LLLLLG", last_global=True),
    "interleave-3-1": layers("LLLG"),
    "interleave-1-1": layers("LG"),
    "ladder": _ladder(),
    "full-sinks": {"pattern": "full", "sinks": True},
    "ls1-w64-sinks": short(1, 64, sinks=True),
    "one-full-8-sinks": layers("LLLLLLLG", sinks=True),
    "ladder-sinks": _ladder(sinks=True),
    "one-full-8-nope": layers("LLLLLLLG", nope=True),
    "interleave-3-1-nope": layers("LLLG", nope=True),
    "ladder-nope": _ladder(nope=True),
    "ls1-w64-nope": short(1, 64, nope=True),
    "full-nope": {"pattern": "full", "nope": True},
    "ls1-w2048-nope": short(1, 2048, nope=True),
}
"""As `model.reach` has them; layers are counted from 1."""
LATER = ("ls1-w64-nope", "full-nope", "ls1-w2048-nope")
"""Added when the first seed had shown what heads without positions gain; the last one when four had. Its windows are as
wide as the context, so it is full attention with one head of eight that is not rotated."""
OF_EIGHT = ("ls1-w64", "ls1-w145", "one-full-6", "one-full-8", "ladder")
"""Plans with 8 global heads of 64, rotated and without sinks."""
MIXED = tuple(name for name in PLANS if not name.startswith("full") and not name.endswith(("-sinks", "-nope")))
SUNK = tuple(name for name in PLANS if name.endswith("-sinks"))
UNTURNED = tuple(name for name in PLANS if name.endswith("-nope") and name not in LATER)
STRONG = ("ls1-w64", "full", "ladder", "ladder-nope", "ls1-w64-nope", "one-full-8-nope")

BASE: dict[str, Any] = {**reach.BASE, "model": {"preset": "modern-10m"}}
QUICK_BASE: dict[str, Any] = {
    **QUICK,
    "model": {"preset": "modern-10m", "context": 256, "width": 64, "ff_width": 64, "vocab_size": 257},
}


def variants(base: TrainConfig, plans: Mapping[str, Spec] = PLANS) -> Variants:
    """Every plan of the model; a quick model has shorter ladders, and no window is wider than the context."""
    found = {}
    for name, spec in plans.items():
        if base.model.context < 512 and "ladder" in name and isinstance(spec, dict):
            spec = {**spec, "largest": base.model.context // 2, "smallest": 2}
        if isinstance(spec, dict) and spec.get("window", 0) > base.model.context:
            spec = {**spec, "window": base.model.context}
        model = replace(base.model, reach=spec, n_global=None, window=None)
        found[name] = replace(base, model=model)
    return found


def collect(folder: Path, plans: Sequence[str] = tuple(PLANS)) -> Data:
    """Rows by plan, as in `reach`, and what the plan costs."""
    return measures.data_of(measures.outcomes(folder), folder, plans, parts=_parts)


def _parts(variant: str, runs: Sequence[Outcome]) -> Row:
    model = GPTConfig.from_dict(runs[0].run.config["model"])
    spent = costs(model.layer_reaches, context=LONG, n_kv_heads=model.n_kv_heads, head_dim=model.head_features)
    return reach.parts(variant, runs) | {
        "n_heads": model.n_layers * model.n_heads,
        "cache_bytes": spent.cache_bytes * LONG,
        "flops_share": spent.share,
    }


def table(data: Data, against: str = "full") -> str:
    rows = measures.by_name(data)
    lines = []
    for row in reach.ordered(data):
        is_other = against in rows and row["variant"] != against
        found = comparison.difference(row, rows[against]) if is_other else None
        lines.append(
            (
                row["variant"],
                len(row["seeds"]),
                f"{row['n_global']} of {row['n_heads']}",
                f"{row['cache_bytes'] / 2**20:.1f}",
                f"{100 * row['flops_share']:.1f}",
                "not finite" if row["final_loss"] is None else f"{row['final_loss']:.4f}",
                *(("", "") if found is None else (f"{found.mean:+.4f}", comparison.interval_of(found))),
                tables.shown(row["max_logit"], 3),
            )
        )
    header = ("plan", "seeds", "global heads", "cache at 32k, MiB", "keys at 32k, % of full", "loss", "minus full's")
    return tables.markdown((*header, "95 % interval", "max abs logit"), lines)


def with_and_without(data: Data, names: Sequence[str], words: str) -> Finding | None:
    """Plans with an option against the same plans without it."""
    pairs: Mapping[str, Difference] = {
        name: pair for name in names for pair in comparison.against(data, name, (name.rpartition("-")[0],)).values()
    }
    return comparison.judged(pairs, len(names), words, lower=True)


def mixed_unturned(data: Data) -> Finding | None:
    names = (*UNTURNED, "ls1-w64-nope")
    return comparison.against_each(data, "full-nope", names, "full-nope is behind", lower=False)


EXPERIMENT = Experiment(
    name="reach-modern",
    question="Which plan of reaches should a modern transformer have, and at what cost?",
    method=(
        "modern-10m: 8 layers of 8 heads of width 32, RMSNorm, SwiGLU, rotary positions, QK-norm per head, a BPE of "
        "8,192; AdamW at 2e-3 with a warm-up of 200 steps and a cosine to 5 %; 3,050 steps of 32 sequences of 2,048 "
        "tokens: 200M tokens, four epochs of 409 books. The loss is that of the whole validation text (26 books, 3.9M "
        "tokens) with the weights of the last step. Windows of local heads are 64 unless the name says another; "
        "interleave-5-1 has five local layers before a global one, and the last layer global; -sinks has a learned "
        "sink in every head, -nope does not rotate global heads. Cache and visible keys are computed, in bf16. The "
        "plans, the claims and their rules were written before any of these runs, with these exceptions: ls1-w64-nope "
        "and full-nope were added after the first seed, and the claims on them and on YaRN after three seeds of the "
        "others, before any run of those two plans or with YaRN. ls1-w2048-nope, full attention with one head of eight "
        "unrotated, and its claim came after four seeds of the others, before any run of it."
    ),
    cost="H200: about 20 minutes per seed, nine at a time under MPS; CPU --quick: 12 seconds per run",
    caption=(
        f"{reach.CAPTION}: the mean and range over seeds for six plans, the first seed of the others in grey; "
        "full-nope, far above them, is left out there. ls1-w64 has one global head per layer and windows of 64; "
        "one-full-8 has all global heads in layer 8; interleave-3-1 has three local layers before each full one; "
        "ladder has one global head per layer and windows of 512 to 8; -nope leaves global heads unrotated, -sinks "
        "adds learned sinks."
    ),
    claims={
        "mixed": Claim(
            text="in a modern block too, every plan that mixes reaches is ahead of full attention",
            paper="`reach`: seven of ten plans, in a block of LayerNorm and GELU",
            rule=f"{reach.RULE}: holds if for all {len(MIXED)} plans, partly if for some",
            judge=partial(reach.mixed, names=MIXED),
        ),
        "ladder": Claim(
            text="in a modern block too, the ladder is ahead of every other plan with 8 global heads",
            paper="`reach`: see its table",
            rule=f"{reach.RULE}: holds if against all, partly if against some",
            judge=partial(reach.ladder, names=OF_EIGHT),
        ),
        "sinks": Claim(
            text="learned sinks lower the loss",
            paper="MiMo-V2-Flash: windows of 128 need them",
            rule=f"{reach.RULE}: holds if for all {len(SUNK)} plans, partly if for some",
            judge=partial(with_and_without, names=SUNK, words="ahead with sinks"),
        ),
        "nope": Claim(
            text="global heads without positions lower the loss",
            paper="Command A, Llama 4 and others have them",
            rule=f"{reach.RULE}: holds if for all {len(UNTURNED)} plans, partly if for some",
            judge=partial(with_and_without, names=UNTURNED, words="ahead without positions on global heads"),
        ),
        "nope-mixed": Claim(
            text="where no global head is rotated, every plan that mixes reaches is ahead of full attention",
            paper="none; ours to find out",
            rule=f"{reach.RULE}: holds if for all {len(UNTURNED) + 1} plans, partly if for some",
            judge=mixed_unturned,
        ),
        "nope-full": Claim(
            text="one head of eight that is not rotated lowers the loss of full attention too",
            paper="none; ours to find out",
            rule=reach.RULE,
            judge=partial(reach.mixed, names=("ls1-w2048-nope",)),
        ),
        "slowed": Claim(
            text="past the context the loss of the ladder without positions on global heads rises less than that of "
            "full attention and of the ladder with YaRN",
            paper=reach.YARN,
            rule=f"{reach.PAST_RULE}, the others' at 8,193 to 16,384 with the rotary angles of global heads slowed for "
            "16,384 tokens: holds if against both, partly if against one",
            judge=partial(reach.keeps_on, names=("ladder-nope",), others=("full", "ladder"), slowed=True),
        ),
    },
    collect=collect,
    table=table,
    more=reach.more,
    figure=partial(reach.losses_and_curves, strong=STRONG, but_for=("full-nope",)),
    variants=variants,
    base=BASE,
    quick_base=QUICK_BASE,
    steps=3050,
    process="experiments.reach_modern",
)

if __name__ == "__main__":
    reach.main()
