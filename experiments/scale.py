"""Does it hold at GPT-2's size and sequences of 4,096 tokens?

Most experiments here are on the paper's model of 6 million parameters. This is one pair, plain against LS-attention, in
a model of GPT-2 small's shape, for as many steps as the GPU time allows.
"""

from __future__ import annotations

from experiments.endurance import CAPTION, collect, figure, pair, speed_table, variants
from experiments.engine import comparison, measures, tables
from experiments.engine.evidence import verdict_of
from experiments.engine.records import Claim, Data, Experiment, Finding
from experiments.engine.tables import shown


def larger(data: Data) -> Finding | None:
    both = pair(data)
    if both is None or not comparison.equal_steps(*both):
        return None
    plain, ls = both
    ours = f"perplexity {shown(ls['final_perplexity'])} against {shown(plain['final_perplexity'])} and largest |logit| "
    ours += f"{shown(ls['max_logit'], 3)} against {shown(plain['max_logit'], 3)} after {max(plain['steps']):,} steps"
    lower = [comparison.is_lower(ls, plain), comparison.has_lower_peak(ls, plain)]
    return Finding(ours=ours, verdict=verdict_of(lower), seeds=comparison.seeds_of(ls, plain))


def table(data: Data) -> str:
    """With the gap step by step, which shows whether it is still opening at the last one."""
    seeds = min((len(row["seeds"]) for row in data["rows"]), default=0)
    lines = [(step, seeds, f"{gap:.3f}") for step, gap in measures.gaps(data, "ls", "plain").items()]
    gaps = tables.markdown(("step", "seeds", "LS ahead of plain by (nats of validation loss)"), lines)
    return f"{tables.losses(data)}\n{gaps}"


EXPERIMENT = Experiment(
    name="scale",
    question="Does it hold at GPT-2's size and sequences of 4,096 tokens?",
    method=(
        "GPT-2 small (12 layers, width 768, 12 heads) with the vocabulary of the data, on 8 sequences of 4,096 tokens "
        "per step at a learning rate of 6e-4; LS has one global head and a window of 128. It trains for as many steps "
        "as the GPU time allows."
    ),
    cost="H200: about 20 minutes for both, two at a time; CPU --quick: seconds",
    caption=CAPTION,
    claims={
        "scale": Claim(
            text="the effect holds in a larger model",
            paper="12 layers of width 768, window 100; numbers unknown to us",
            rule="LS lower than plain, after equal steps, in final perplexity and in largest |logit| (the whole paired "
            "interval of each): holds if in both, partly if in one",
            judge=larger,
        ),
    },
    collect=collect,
    table=table,
    more=speed_table,
    figure=figure,
    variants=variants,
    settings={
        "model.preset": "gpt2-small",
        "model.context": 4096,
        "data.batch_size": 8,
    },
    steps=2000,
)
