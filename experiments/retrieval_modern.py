"""Do the plans of `reach-modern` retrieve as well as full attention, and as soon?

As `retrieval`, with the models of `reach-modern`, and for twice as long: in `retrieval` most models had not learned
recall after 1,000 steps, and which did was a matter of the seed.

    python -m experiments reach-modern --data DATA --seeds 0,1,2 --variants NAMES
    python -m experiments retrieval-modern --data DATA --seeds 0,1,2

`python -m experiments.retrieval_modern RUN/config.json` fine-tunes and asks one model.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from experiments import reach, reach_modern, retrieval
from experiments.engine import answers
from experiments.engine.records import Claim

SOURCE = "reach-modern"
USUAL = ("full", *retrieval.JUDGED, "ls1-w145", "ls2-w64", "interleave-3-1")
"""Run unless others are named."""
LINED = ("full", *retrieval.JUDGED, "ladder-nope", "ls1-w64-nope")
"""Drawn over the steps; the table has all."""
FAR = ("full", "full, YaRN", "ls1-w64, YaRN", "ladder-nope", "ls1-w64-nope")
"""Drawn by length."""
BASE = retrieval.after(SOURCE, retrieval.BASE, reach_modern.BASE["model"], train=64_000)
QUICK_BASE = retrieval.after(SOURCE, retrieval.QUICK_BASE, reach_modern.QUICK_BASE["model"])
_OLD = retrieval.EXPERIMENT
EXPERIMENT = replace(
    _OLD,
    name="retrieval-modern",
    question="Do plans of reaches in a modern block retrieve as well as full attention, and as soon?",
    method=retrieval.method(
        f"The models of `{SOURCE}` (modern-10m, 200M tokens of books)",
        steps=2000,
        far=" (and, but for the first two seeds, 256 at 8,192 and 128 at 16,384)",
        rules="any run of `retrieval` or of this; the last one after three seeds, before any run with YaRN",
    ),
    caption=f"{_OLD.caption} Past 4,096 tokens and with YaRN there are fewer seeds.",
    cost=f"H200: about 7 minutes per seed beyond `{SOURCE}`, nine at a time; CPU --quick: two minutes",
    claims={
        **{name: replace(claim, text=f"in a modern block, {claim.text}") for name, claim in _OLD.claims.items()},
        "slowed": Claim(
            text="at eight times the length the ladder without positions on global heads finds more needles than full "
            "attention and the ladder do with YaRN",
            paper=reach.YARN,
            rule=f"{answers.SLOWED_RULE}: holds if against both, partly if against one",
            judge=partial(answers.farther, names=("ladder-nope",), others=("full", "ladder")),
        ),
    },
    collect=partial(retrieval.collect, plans=tuple(reach_modern.PLANS)),
    figure=partial(answers.figure, lined=LINED, far=FAR),
    variants=reach_modern.variants,
    on_request=tuple(name for name in reach_modern.PLANS if name not in USUAL),
    base=BASE,
    quick_base=QUICK_BASE,
    steps=2000,
    process="experiments.retrieval_modern",
)

if __name__ == "__main__":
    retrieval.main(SOURCE)
