"""Do the plans of `reach-30m` retrieve as well as full attention, and as soon?

As `retrieval`, with the models of `reach-30m`:

    python -m experiments reach-30m --data DATA --seeds 0,1,2
    python -m experiments retrieval-30m --data DATA --seeds 0,1,2

`python -m experiments.retrieval_30m RUN/config.json` fine-tunes and asks one model.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from experiments import reach, reach_30m, reach_modern, retrieval
from experiments.engine import answers
from experiments.engine.records import Claim

SOURCE = "reach-30m"
LONG_SHORT, CHAINS = ("ls1-w128-nope",), (answers.CHAINED,)
FAR = ("full", "full, YaRN", "ls1-w128, YaRN", *reach_30m.UNTURNED)
"""Drawn by length."""
BASE = retrieval.after(SOURCE, retrieval.BASE, reach_30m.BASE["model"])
QUICK_BASE = retrieval.after(SOURCE, retrieval.QUICK_BASE, reach_30m.QUICK_BASE["model"])
EXPERIMENT = replace(
    retrieval.EXPERIMENT,
    name="retrieval-30m",
    question="Do plans of reaches in a transformer of 30M parameters retrieve as well as full attention, and as soon?",
    method=retrieval.method(
        f"The models of `{SOURCE}` (modern-30m, 300M tokens of books)",
        far=", 256 at 8,192 and 128 at 16,384, past 2,048 also with YaRN, untrained",
    )
    + " From seed 1 on, models and books are of newly tokenized text, as in `reach-30m`.",
    cost=f"H200: about 10 minutes per seed beyond `{SOURCE}`; CPU --quick: two minutes",
    claims={
        "distance": Claim(
            text="with 30M parameters, plans that mix reaches recall within 2 points of full attention at any distance",
            paper="none; ours to find out",
            rule=answers.RULE,
            judge=partial(answers.distance, judged=reach_30m.MIXED),
        ),
        "kinds": Claim(
            text="with 30M parameters, plans that mix reaches are within 2 points of full attention at needles and "
            "variables",
            paper="none; ours to find out",
            rule=answers.RULE,
            judge=partial(answers.every_kind, judged=reach_30m.MIXED),
        ),
        "sooner": Claim(
            text="with 30M parameters, recall emerges sooner in plans that mix reaches than with full attention",
            paper="arXiv 2606.15378: larger windows delay it",
            rule=answers.SOONER,
            judge=partial(answers.sooner, judged=reach_30m.MIXED),
        ),
        "far": Claim(
            text="with 30M parameters, plans whose global heads are not rotated find needles at eight times the length "
            "of their training",
            paper="arXiv 2501.18795: models with whole layers of them do",
            rule=f"at most {100 * answers.NEARLY:.0f} points below the same model at the length, in each kind of "
            "needle, if the paired 95 % intervals over at least 3 seeds all lie above that, not if one lies below, "
            "undecided otherwise: holds if for all three plans, partly if for some",
            judge=partial(answers.holds_out, judged=reach_30m.UNTURNED),
        ),
        "slowed": Claim(
            text="with 30M parameters, at eight times the length LS-attention whose global heads are not rotated "
            "answers more chains of variables than full attention and rotated LS-attention do with YaRN",
            paper=f"{reach.YARN}; `retrieval-modern`: 98 against 55 and 96 %, one seed",
            rule=f"chains answered at 16,384 tokens, the others' with their rotary angles slowed for that: "
            f"{answers.FAR_RULE}: holds if against both, partly if against one",
            judge=partial(answers.farther, names=LONG_SHORT, others=reach_30m.TURNED, kinds=CHAINS),
        ),
        "windows": Claim(
            text="with 30M parameters, at eight times the length it answers more of them than the ladder whose global "
            "heads are not rotated",
            paper="`retrieval-modern`: 98 against 40 %, one seed",
            rule=f"chains answered at 16,384 tokens: {answers.FAR_RULE}",
            judge=partial(answers.farther, names=LONG_SHORT, others=("ladder-nope",), kinds=CHAINS, slowed=False),
        ),
    },
    collect=partial(retrieval.collect, plans=tuple(reach_30m.PLANS)),
    figure=partial(answers.figure, lined=tuple(reach_30m.PLANS), far=FAR),
    variants=partial(reach_modern.variants, plans=reach_30m.PLANS),
    on_request=(),
    base=BASE,
    quick_base=QUICK_BASE,
    process="experiments.retrieval_30m",
)

if __name__ == "__main__":
    retrieval.main(SOURCE)
