"""What do LS-attention and windows by whole layers gain with each positional encoding, over three seeds?

`positions` has one seed and 1,500 steps, and plain and LS-attention alone. Here the encodings that people use are
trained for four times as long, with windows by whole layers beside them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from experiments import positions
from experiments.engine import comparison, measures, tables
from experiments.engine.evidence import FEWEST_SEEDS, Difference, verdict_of
from experiments.engine.records import Claim, Data, Finding, Variants
from longshort.train import TrainConfig
from longshort.train.sweeps.variants import VARIANTS

ENCODINGS = ("learned", "rotary", "alibi")
GAINING = ("ls", "layer-wise")
KINDS = ("plain", *GAINING)
NAMES = tuple(f"{kind}-{encoding}" for encoding in ENCODINGS for kind in KINDS)


def variants(base: TrainConfig) -> Variants:
    """Every kind of heads with every encoding."""
    encoded = {name: replace(base, model=replace(base.model, positions=name)) for name in ENCODINGS}
    return {f"{kind}-{name}": VARIANTS[kind](config) for name, config in encoded.items() for kind in KINDS}


def gains(data: Data, kind: str) -> dict[str, Difference]:
    """The loss of plain attention less that of this kind, by encoding, where both have run with the same steps."""
    rows = measures.by_name(data)
    found: dict[str, Difference] = {}
    for encoding in ENCODINGS:
        plain, mine = rows.get(f"plain-{encoding}"), rows.get(f"{kind}-{encoding}")
        if plain is not None and mine is not None and comparison.equal_steps(plain, mine):
            pair = comparison.difference(plain, mine)
            found |= {} if pair is None else {encoding: pair}
    return found


def more(data: Data) -> str:
    header = ("gain of", "with", "nats", "95 % interval", "seeds")
    lines = [
        (kind, encoding, f"{pair.mean:+.3f}", comparison.interval_of(pair), pair.seeds)
        for kind in GAINING
        for encoding, pair in gains(data, kind).items()
    ]
    return f"Loss of plain attention less that of the other:\n\n{tables.markdown(header, lines)}"


def lowers(data: Data, *, kind: str) -> Finding | None:
    found = gains(data, kind)
    if not found:
        return None
    ours = "; ".join(f"{pair.mean:+.3f} nats with {encoding}" for encoding, pair in found.items())
    cases = [pair.is_above() for pair in found.values()]
    seeds = tuple(pair.seeds for pair in found.values())
    return Finding(ours=ours, verdict=verdict_of(cases, of=len(ENCODINGS)), seeds=seeds)


_RULE = (
    f"final loss below plain attention's by the whole paired 95 % interval over at least {FEWEST_SEEDS} seeds: holds "
    "if with all three encodings, partly if with some"
)
_SHORT = positions.EXPERIMENT
EXPERIMENT = replace(
    _SHORT,
    name="positions-long",
    question="What do LS-attention and windows by whole layers gain with each positional encoding?",
    method=(
        "The author's model on 16 sequences of 2,048 tokens per step, at 5 times the author's learning rate, 6,000 "
        "steps: learned positions as in the paper, rotary and ALiBi ones, each with plain attention, LS-attention, and "
        "windows by whole layers. The claims and their rules were written before any of these runs."
    ),
    cost="H200: about 8 minutes per seed, nine at a time under MPS; CPU --quick: a minute",
    caption="Largest |logit| (top) and validation perplexity (bottom) over steps, with one column per encoding.",
    claims={
        kind: Claim(
            text=f"{words} the loss with learned, rotary and ALiBi positions",
            paper=paper,
            rule=_RULE,
            judge=partial(lowers, kind=kind),
        )
        for kind, words, paper in (
            ("ls", "LS-attention lowers", "learned positions alone; reviewers missed the others"),
            ("layer-wise", "windows by whole layers lower", "none; published models have them with rotary positions"),
        )
    },
    collect=lambda folder: measures.data_of(measures.outcomes(folder), folder, NAMES),
    more=more,
    figure=partial(positions.figure, encodings=ENCODINGS, kinds=KINDS),
    variants=variants,
    steps=6000,
)
