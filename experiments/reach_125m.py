"""Which plan of reaches at GPT-2's size? The plans of `reach-30m` in modern-125m, undertrained, with one seed.

`python -m experiments.reach_125m RUN/config.json` runs one training; see `reach`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from experiments import reach, reach_30m, reach_modern
from experiments.engine.records import Claim
from experiments.reach_modern import Spec, short

PLANS: dict[str, Spec] = {
    "full": "full",
    "ls3-w128": short(3, 128),
    "ls3-w128-nope": short(3, 128, nope=True),
    **{name: reach_30m.PLANS[name] for name in ("ladder-nope", "interleave-5-1-nope")},
}
"""As `model.reach` has them; three query heads share a KV head, so LS-attention has three global ones at least."""
MIXED = tuple(name for name in PLANS if name != "full")
BASE: dict[str, Any] = {
    **reach_modern.BASE,
    "model": {"preset": "modern-125m", "vocab_size": 8192},  # as large as that of the data
    "optimizer": {**reach_modern.BASE["optimizer"], "lr": 1e-3},
}
QUICK_BASE: dict[str, Any] = {
    **reach_30m.QUICK_BASE,
    "model": {**reach_30m.QUICK_BASE["model"], "preset": "modern-125m"},
}

EXPERIMENT = replace(
    reach_30m.EXPERIMENT,
    name="reach-125m",
    question="Which plan of reaches should a modern transformer of 88M parameters have, and at what cost?",
    method=(
        "modern-125m: 12 layers of 12 heads of width 64 with 4 KV heads, RMSNorm, SwiGLU, rotary positions, QK-norm "
        "per head; with a BPE of 8,192 it has 88M parameters. AdamW at 1e-3 with a warm-up of 200 steps and a cosine "
        "to 5 %; 3,050 steps of 32 sequences of 2,048 tokens: 200M tokens, four epochs of 409 books. That is 2.3 "
        "tokens per parameter, so the models are undertrained, and there is one seed: what is seen here is seen once. "
        "The loss is that of the whole validation text (26 books, 3.9M tokens) with the weights of the last step. "
        "Windows of local heads are 128; ls3-w128 and the ladder have one global KV head, which three query heads "
        "share, and the ladder's others have windows of 512, 128 and 32; interleave-5-1 has five local layers before a "
        "global one; -nope does not rotate global heads. Cache and "
        "visible keys are computed, in bf16. The plans, the claim and its rule were written before any of these runs."
    ),
    cost="H200: about 5 minutes per plan and seed, three at a time, by estimate; CPU --quick: 12 seconds per run",
    claims={
        "mixed": Claim(
            text="with 88M parameters too, every plan that mixes reaches is ahead of full attention, undertrained",
            paper="`reach`: seven of ten plans with 8.4M parameters",
            rule=f"{reach.RULE}: holds if for all {len(MIXED)} plans, partly if for some; the one seed planned can at "
            "most be seen once",
            judge=partial(reach.mixed, names=MIXED),
        ),
    },
    collect=partial(reach_modern.collect, plans=tuple(PLANS)),
    figure=partial(reach.losses_and_curves, strong=tuple(PLANS)),
    variants=partial(reach_modern.variants, plans=PLANS),
    base=BASE,
    quick_base=QUICK_BASE,
    steps=3050,
    process="experiments.reach_125m",
)

if __name__ == "__main__":
    reach.main()
