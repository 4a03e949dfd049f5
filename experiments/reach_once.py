"""Which plan of reaches where no text is read twice, and what does reading it again change?

`reach-modern` and `reach-30m` read their text four and six times, and some plans are further ahead of full attention on
that text than on the validation text. Large models mostly read a text once. Here every plan is trained twice with the
same steps and schedule: on all books, which it reads once, and on the first quarter of them, which it reads four times.

`python -m experiments.reach_once RUN/config.json` runs one training; see `reach`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from experiments import reach, reach_modern
from experiments.engine import comparison, measures
from experiments.engine.evidence import paired
from experiments.engine.measures import Row
from experiments.engine.records import Claim, Data, Finding, Variants
from longshort.train import TrainConfig

TURNED = ("ls1-w64", "ladder")
UNTURNED = tuple(f"{name}-nope" for name in TURNED)
MIXED = (*TURNED, *UNTURNED)
PLANS = {name: reach_modern.PLANS[name] for name in ("full", *MIXED)}
BASE: dict[str, Any] = {
    **reach_modern.BASE,
    "data": {"batch_size": 8},
    "optimizer": {**reach_modern.BASE["optimizer"], "lr": 1e-3},
}
AGAIN, SHARE = "-again", 0.25
"""How the names of the runs end that read this share of the books, and read it again."""


def variants(base: TrainConfig) -> Variants:
    """Every plan, on all of the text and on a share of it."""
    once = reach_modern.variants(base, PLANS)
    again = {f"{name}{AGAIN}": replace(config, data=replace(config.data, share=SHARE)) for name, config in once.items()}
    return once | again


def changed(data: Data, pairs: Sequence[tuple[str, str]], words: str, *, lower: bool) -> Finding | None:
    """Is the loss of the first of each pair, less that of the second, lower (or higher) where text is read again?"""
    rows, found = measures.by_name(data), {}
    for name, other in pairs:
        again, once = (_lead(rows, f"{name}{end}", f"{other}{end}") for end in (AGAIN, ""))
        if (pair := paired(again, once)) is not None:
            found[name] = pair
    return comparison.judged(found, len(pairs), words, lower=lower)


def _lead(rows: dict[str, Row], name: str, other: str) -> dict[int, float]:
    """Loss less the other's, by seed."""
    mine, theirs = (comparison.losses_by_seed(rows[plan]) if plan in rows else {} for plan in (name, other))
    return {seed: loss - theirs[seed] for seed, loss in mine.items() if seed in theirs}


def apart(data: Data, of: Callable[[Data], str]) -> str:
    """What `of` makes of the runs that read all of the text, and of those that read a share of it again."""

    def half(again: bool) -> Data:
        """The runs of one kind, by the names of their plans."""
        parts = {
            key: [
                {**part, "variant": part["variant"].removesuffix(AGAIN)}
                for part in data.get(key, ())
                if part["variant"].endswith(AGAIN) is again
            ]
            for key in ("rows", "curves")
        }
        return {**data, **parts}

    kinds = {"All of the text, read once": half(False), "A quarter of the text, read four times": half(True)}
    return "\n\n".join(f"{words}:\n\n{of(part)}" for words, part in kinds.items() if part["rows"])


EXPERIMENT = replace(
    reach_modern.EXPERIMENT,
    name="reach-once",
    question="Which plan of reaches is ahead where no text is read twice, and what does reading it again change?",
    method=(
        "As `reach-modern` (modern-10m, 10.6M parameters), but 2,920 steps of 8 sequences of 2,048 tokens: 48M tokens, "
        "99 % of one pass over 409 books, with the cosine ending there, at half the rate (1e-3), by the square root of "
        "the batch. That is 4.5 tokens per parameter, so the models are undertrained, in as many steps as there: with "
        "32 sequences per step, 730 steps would end where heads without positions had gained nothing yet. The runs "
        "whose names end in -again differ in one setting: they read the first quarter of the text, four times "
        "(`data.share`). The plans, the claims and their rules were written before any of these runs, and after four "
        "seeds of `reach-modern` and one of `reach-30m`, whose losses on training and validation text they come from."
    ),
    cost="H200: about 6 minutes per seed, ten at a time under MPS, by estimate; CPU --quick: 12 seconds per run",
    caption=f"{reach.CAPTION}, where text is read once: means over seeds, with their range where there are several.",
    claims={
        "mixed": Claim(
            text="where no text is read twice, every plan that mixes reaches is ahead of full attention",
            paper="`reach-modern`: these four by 0.065 to 0.084 nats at step 760 of 3,050",
            rule=f"{reach.RULE}: holds if for all {len(MIXED)} plans, partly if for some",
            judge=partial(reach.mixed, names=MIXED),
        ),
        "nope": Claim(
            text="where no text is read twice, global heads without positions lower the loss",
            paper="`reach-modern`: these two by 0.048 and 0.053 nats after four passes, 0.002 and 0.005 at step 760",
            rule=f"{reach.RULE}: holds if for both plans, partly if for one",
            judge=partial(reach_modern.with_and_without, names=UNTURNED, words="ahead without positions"),
        ),
        "again": Claim(
            text="with as many steps, mixed plans are less far ahead of full attention if the text is read four times",
            paper="none; ours to find out",
            rule="the loss less full attention's, where a quarter of the text is read four times, minus the same where "
            "all of it is read once: less far if the paired 95 % interval over at least three seeds lies above 0; "
            f"holds if for all {len(MIXED)} plans, partly if for some",
            judge=partial(changed, pairs=[(name, "full") for name in MIXED], words="less far ahead", lower=False),
        ),
        "nope-again": Claim(
            text="with as many steps, global heads without positions gain more if the text is read four times",
            paper="none; ours to find out",
            rule="the loss less that of the rotated plan, where a quarter of the text is read four times, minus the "
            "same where all of it is read once: more if the paired 95 % interval over at least three seeds lies below "
            "0; holds if for both plans, partly if for one",
            judge=partial(
                changed, pairs=list(zip(UNTURNED, TURNED, strict=True)), words="more where read again", lower=True
            ),
        ),
    },
    collect=partial(reach_modern.collect, plans=tuple(f"{name}{end}" for end in ("", AGAIN) for name in PLANS)),
    table=partial(apart, of=reach_modern.table),
    more=partial(apart, of=reach.more),
    figure=partial(reach.losses_and_curves, strong=tuple(PLANS), but_for=tuple(f"{name}{AGAIN}" for name in PLANS)),
    variants=variants,
    base=BASE,
    steps=2920,
    process="experiments.reach_once",
)

if __name__ == "__main__":
    reach.main()
