"""Which plan of reaches where no text is read twice?

`reach-modern` and `reach-30m` read their text four and six times. There, plans that mix reaches are further ahead of
full attention on the text that they were trained on than on the validation text. Large models are mostly trained on
text that they read once; these runs end before the second pass.

`python -m experiments.reach_once RUN/config.json` runs one training; see `reach`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from experiments import reach, reach_modern
from experiments.engine import course
from experiments.engine.records import Claim

TURNED = ("ls1-w64", "ladder", "interleave-3-1")
UNTURNED = tuple(f"{name}-nope" for name in TURNED)
PLANS = {name: reach_modern.PLANS[name] for name in ("full", *TURNED, *UNTURNED)}
MIXED = (*TURNED, *UNTURNED)
NEARLY = 0.01
"""Nats by which a gain may be smaller on the validation text and still count as carried over."""

EXPERIMENT = replace(
    reach_modern.EXPERIMENT,
    name="reach-once",
    question="Which plan of reaches is ahead where no text is read twice?",
    method=(
        "As `reach-modern` (modern-10m, 10.6M parameters), but 730 steps of 32 sequences of 2,048 tokens: 48M tokens, "
        "one pass over 409 books, with the cosine ending there. That is 4.5 tokens per parameter, so the models are "
        "undertrained. Training losses, too, are of text that the model has not read before, though of books that it "
        "has read other parts of. The plans, the claims and their rules were written before any of these runs, and "
        "after four seeds of `reach-modern` and one of `reach-30m`, whose training losses they come from."
    ),
    cost="H200: about 3 minutes per seed, seven at a time under MPS, by estimate; CPU --quick: two minutes",
    caption=(
        "Final loss of each plan, with a dot for each seed and a bar at their mean (left); validation loss over steps "
        "(right): means over seeds, with their range where there are several, for six plans; the others in grey."
    ),
    claims={
        "mixed": Claim(
            text="where no text is read twice, every plan that mixes reaches is ahead of full attention",
            paper="`reach-modern`, at its first quarter: 0.06 to 0.09 nats, on part of the text",
            rule=f"{reach.RULE}: holds if for all {len(MIXED)} plans, partly if for some",
            judge=partial(reach_modern.mixed, names=MIXED),
        ),
        "nope": Claim(
            text="where no text is read twice, global heads without positions lower the loss",
            paper="`reach-modern`: 0.030 to 0.053 nats after four passes, little at the end of the first",
            rule=f"{reach.RULE}: holds if for all {len(UNTURNED)} plans, partly if for some",
            judge=partial(reach_modern.with_and_without, names=UNTURNED, words="ahead without positions"),
        ),
        "carried": Claim(
            text="where no text is read twice, plans that mix reaches gain as much on the validation text as on the "
            "training text",
            paper="`reach-modern`: rotated plans gain 0.013 to 0.046 nats less on it",
            rule="what a plan gains over full attention on the training text, less what it gains on the validation "
            f"text: at most {NEARLY} nats by the paired 95 % interval over at least three seeds; holds if for all "
            f"{len(MIXED)} plans, partly if for some",
            judge=partial(course.carried_over, other="full", names=MIXED, bound=NEARLY),
        ),
    },
    collect=partial(reach_modern.collect, plans=tuple(PLANS)),
    figure=partial(reach.losses_and_curves, strong=("full", "ls1-w64", "ladder", *UNTURNED)),
    variants=partial(reach_modern.variants, plans=PLANS),
    steps=730,
    process="experiments.reach_once",
)

if __name__ == "__main__":
    reach_modern.main()
