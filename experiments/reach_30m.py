"""Which plan of reaches in a larger modern transformer? The finalists of `reach-modern` in modern-30m.

They are full attention; LS-attention as its paper has it; and, since global heads that are not rotated lowered the
loss in each of four plans, LS-attention and the ladder with such heads, and whole layers of them, as published models
have.

`python -m experiments.reach_30m RUN/config.json` runs one training; see `reach`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from experiments import reach, reach_modern
from experiments.engine.records import Claim
from experiments.reach_modern import Spec, layers, short

PLANS: dict[str, Spec] = {
    "full": "full",
    "ls1-w128": short(1, 128),
    "ls1-w128-nope": short(1, 128, nope=True),
    "ladder-nope": {"pattern": "ladder", "smallest": 32, "nope": True},
    "interleave-5-1-nope": layers("LLLLLG", 128, nope=True),
}
"""As `model.reach` has them."""
MIXED = tuple(name for name in PLANS if name != "full")
UNTURNED = tuple(name for name in PLANS if name.endswith("-nope"))
TURNED = tuple(name for name in PLANS if name not in UNTURNED)
BASE: dict[str, Any] = {**reach_modern.BASE, "model": {"preset": "modern-30m"}, "data": {"batch_size": 64}}
QUICK_BASE: dict[str, Any] = {
    **reach_modern.QUICK_BASE,
    "model": {"preset": "modern-30m", "context": 256, "width": 48, "ff_width": 48, "vocab_size": 257},
}

EXPERIMENT = replace(
    reach_modern.EXPERIMENT,
    name="reach-30m",
    question="Which plan of reaches should a modern transformer of 30M parameters have, and at what cost?",
    method=(
        "modern-30m: 12 layers of 6 heads of width 64, RMSNorm, SwiGLU, rotary positions, QK-norm per head, a BPE of "
        "8,192; AdamW at 2e-3 with a warm-up of 200 steps and a cosine to 5 %; 2,290 steps of 64 sequences of 2,048 "
        "tokens: 300M tokens, six epochs of 409 books. The loss is that of the whole validation text (26 books, 3.9M "
        "tokens) with the weights of the last step. Windows of local heads are 128; the ladder has one global head and "
        "windows of 512 to 32 in each layer; interleave-5-1 has five local layers before a global one; -nope does not "
        "rotate global heads. Past the context, losses are also measured with YaRN, without training, where global "
        "heads are rotated. Cache and visible keys are computed, in bf16. The plans were chosen by four seeds of "
        "`reach-modern` and one of `retrieval-modern` past its training; they, the claims and their rules were "
        "written before any of these runs. From seed 1 on, the text is tokenized anew ([how](../howto/experiments.md"
        "#the-books)), with a slightly different vocabulary; plans are compared within a seed."
    ),
    cost="H200: 18 minutes per seed, four plans together under MPS, then the fifth; CPU --quick: 12 seconds per run",
    caption=f"{reach.CAPTION}: means over seeds, with their range where there are several.",
    claims={
        "mixed": Claim(
            text="with 30M parameters too, every plan that mixes reaches is ahead of full attention",
            paper="`reach-modern`: four of nine rotated plans and four of four that are not",
            rule=f"{reach.RULE}: holds if for all {len(MIXED)} plans, partly if for some",
            judge=partial(reach.mixed, names=MIXED),
        ),
        "nope": Claim(
            text="with 30M parameters too, LS-attention is ahead if its global heads are not rotated",
            paper="`reach-modern`: 0.031 to 0.076 nats, four seeds",
            rule=reach.RULE,
            judge=partial(reach_modern.with_and_without, names=("ls1-w128-nope",), words="ahead without positions"),
        ),
        "beyond": Claim(
            text="with 30M parameters, past the context the loss of plans whose global heads are not rotated rises "
            "less than that of full attention and of LS-attention",
            paper="arXiv 2501.18795: models with whole layers of such heads go on past it",
            rule=f"{reach.PAST_RULE}: holds if against both with all three plans, partly if in some cases",
            judge=partial(reach.keeps_on, names=UNTURNED, others=TURNED),
        ),
        "slowed": Claim(
            text="with 30M parameters, it also rises less than that of full attention and of LS-attention with YaRN",
            paper=reach.YARN,
            rule="as above, the others' at 8,193 to 16,384 with the rotary angles of global heads slowed for 16,384 "
            "tokens",
            judge=partial(reach.keeps_on, names=UNTURNED, others=TURNED, slowed=True),
        ),
    },
    collect=partial(reach_modern.collect, plans=tuple(PLANS)),
    figure=partial(reach.losses_and_curves, strong=tuple(PLANS)),
    variants=partial(reach_modern.variants, plans=PLANS),
    base=BASE,
    quick_base=QUICK_BASE,
    steps=2290,
    process="experiments.reach_30m",
)

if __name__ == "__main__":
    reach.main()
