"""Does the ladder of `reach-modern` stay ahead if each plan has the learning rate that suits it?

All plans of `reach-modern` were trained at one rate, tuned for none of them, and full attention is behind in the first
positions too, where windows hide nothing: it might only be trained less well. Here full attention and the two plans of
lowest loss are trained at that rate, half of it and twice it, and the best runs of each are compared.

`python -m experiments.reach_rates RUN/config.json` runs one training; see `reach`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from experiments import reach, reach_modern
from experiments.engine import comparison, measures
from experiments.engine.measures import Row
from experiments.engine.records import Claim, Data, Finding, Variants
from experiments.explosion import at_rate
from longshort.train import TrainConfig

RATES = (1e-3, 2e-3, 4e-3)
MIXED = ("ladder-nope", "ls1-w64-nope")
PLANS = {name: reach_modern.PLANS[name] for name in ("full", *MIXED)}
NAMES = tuple(at_rate(name, rate) for name in PLANS for rate in RATES)


def variants(base: TrainConfig) -> Variants:
    """Every plan at every rate."""
    return {
        at_rate(name, rate): replace(config, optimizer=replace(config.optimizer, lr=rate))
        for name, config in reach_modern.variants(base, PLANS).items()
        for rate in RATES
    }


def best(data: Data, plan: str) -> Row | None:
    """The plan at the rate at which its mean loss is lowest; None before it has run at all of them."""
    rows = measures.by_name(data)
    found = [rows[name] for rate in RATES if (name := at_rate(plan, rate)) in rows]
    if len(found) < len(RATES) or not comparison.equal_steps(*found):
        return None
    return min(found, key=lambda row: float("inf") if row["final_loss"] is None else row["final_loss"])


def ahead(data: Data) -> Finding | None:
    """Each plan at its best rate against full attention at its own."""
    full, pairs = best(data, "full"), {}
    for name in MIXED:
        mine = best(data, name)
        if mine is None or full is None or (pair := comparison.difference(mine, full)) is None:
            return None
        pairs[f"{mine['variant']} and {full['variant']}"] = pair
    return comparison.judged(pairs, len(MIXED), "the first is lower", lower=True)


EXPERIMENT = replace(
    reach_modern.EXPERIMENT,
    name="reach-rates",
    question="Is full attention behind because of its learning rate?",
    method=(
        "As `reach-modern` (modern-10m, 10.6M parameters, 3,050 steps of 32 sequences of 2,048 tokens, four epochs of "
        "409 books), with peak rates of 1e-3, 2e-3 (that of `reach-modern`) and 4e-3. The plans, the claim and its "
        "rule were written before any of these runs. The rate of a plan is chosen by the losses that are compared, for "
        "all plans alike."
    ),
    cost="H200: about 10 minutes per seed, nine at a time under MPS, by estimate; CPU --quick: 12 seconds per run",
    caption=f"{reach.CAPTION}: means over seeds, with their range where there are several.",
    claims={
        "ahead": Claim(
            text="with the best of three learning rates for each, plans whose global heads are not rotated are ahead "
            "of full attention",
            paper="`reach-modern`, at one rate: by 0.077 and 0.064 nats",
            rule=f"{reach.RULE}: holds if for both plans, partly if for one; rates by the mean loss over seeds",
            judge=ahead,
        ),
    },
    collect=partial(reach_modern.collect, plans=NAMES),
    figure=partial(reach.losses_and_curves, strong=NAMES, against=at_rate("full", RATES[1])),
    more=partial(reach.more, against=at_rate("full", RATES[1])),
    table=partial(reach_modern.table, against=at_rate("full", RATES[1])),
    variants=variants,
    process="experiments.reach_rates",
)

if __name__ == "__main__":
    reach.main()
