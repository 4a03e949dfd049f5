"""Do plans that mix reaches retrieve as well as full attention, and as soon?

Perplexity is nearly blind to the pattern of reaches, and retrieval is not. The models of `reach`, pretrained on books,
are all fine-tuned alike on a mixture of retrieval tasks (needles in noise and in books, variable tracking, recall), and
then asked at several lengths, and by the distance back to what was said.

Weights are not packed, so both experiments run in one place, one after the other:

    python -m experiments reach --data DATA --seeds 0,1,2 --variants NAMES
    python -m experiments retrieval --data DATA --seeds 0,1,2

`python -m experiments.retrieval RUN/config.json` fine-tunes and asks one model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments import reach
from experiments.engine import answers, child, measures
from experiments.engine.answers import LEARNED, OTHER_LENGTHS, RECALL
from experiments.engine.base import PAPER, QUICK_ON_TASKS
from experiments.engine.evidence import FEWEST_SEEDS
from experiments.engine.measures import Outcome, Row
from experiments.engine.records import Claim, Data, Experiment
from longshort.data.tasks.retrieval import KINDS
from longshort.files import write_json
from longshort.model import GPT, lengthened, meets_new_angles
from longshort.runs import load_run, read_log
from longshort.train import ConfigError, TrainConfig, load_model
from longshort.train.checkpoints.checkpoint import CHECKPOINTS
from longshort.train.checkpoints.tokenizer import checkpoint_tokenizer
from longshort.train.evaluation.retrieval import evaluate_retrieval
from longshort.train.machine.distributed import choose_device

JUDGED = ("ls1-w64", "one-full-8", "ladder")
"""Plans with 8 global heads of 64, which are compared with full attention."""
ANSWERS = "answers.json"
"""Of a model that is being asked, as far as it came."""
USUAL = ("full", *JUDGED, "ls2-w64", "all-local-w64")
"""Run unless others are named."""
BASE: dict[str, Any] = {
    "task": {
        "name": "retrieval",
        "start": "runs/reach",
        "length": 2048,
        "train": 32_000,
        "validation": 512,
        "test": 512,
    },
    "model": {**reach.BASE["model"], "vocab_size": None},
    "data": {"batch_size": 32},
    "optimizer": {"lr": 5e-4, "betas": [0.9, 0.95], "weight_decay": 0.1},
    "schedule": {"kind": "cosine", "warmup": 50, "floor": 0.05},
    "run": {**PAPER["run"], "eval_batches": 16, "precision": "bf16"},
    "telemetry": {"logits_every": 10},
}
QUICK_BASE: dict[str, Any] = {
    **BASE,
    **QUICK_ON_TASKS,
    "task": {**BASE["task"], "length": 256, "train": 48, "validation": 8, "test": 8},
    "model": {**reach.QUICK_BASE["model"], "vocab_size": None},
}


def after(source: str, base: Mapping[str, Any], model: Mapping[str, Any], **task: Any) -> dict[str, Any]:
    """The base of fine-tuning the models of another experiment."""
    task = {**base["task"], "start": f"runs/{source}", **task}
    return {**base, "task": task, "model": {**model, "vocab_size": None}}


def start_of(config: TrainConfig, source: str = "reach") -> Path:
    """The run of the same plan and seed by the experiment that pretrains, if that has ended."""
    name, seed = config.run.variant, config.run.seed
    found = Path(config.task.start or "") / f"{name}-seed{seed}"
    command = f"python -m experiments {source} --variants {name} --seeds {seed}, with the same --data"
    if not (found / CHECKPOINTS).is_dir():
        raise ConfigError(
            f"{found}: holds no weights to start with; first run {command}, or set task.start to the folder of its runs"
        )
    pretrained = load_run(found)
    if not pretrained.is_finished(steps := pretrained.config["run"]["steps"]):
        raise ConfigError(
            f"{found}: has not ended (step {pretrained.last_step:,} of {steps:,}), so its model cannot be compared; "
            f"first run {command}, until it is done"
        )
    return found


def asked(config: TrainConfig, out: Path) -> dict[str, Any]:
    """The retrieval suite from half the length of the fine-tuning to eight times, past the context also with YaRN if
    global heads are rotated; and recall as the pretrained model has it. Beyond twice the length there are fewer
    examples: as many tokens as there. What was answered before an interruption is not asked again."""
    length, device = config.length, choose_device(config.run.device)
    model, loaded = load_model(out, device)
    options: dict[str, Any] = {
        "books": None if config.task.path is None else Path(config.task.path),
        "seed": config.task.seed,
        "precision": config.run.precision,
        "past_context": True,
    }
    tokenizer, most = checkpoint_tokenizer(loaded), config.task.test or 1
    known = _answered_before(out, config.run.steps)

    def answered(name: str, model: Callable[[], GPT], times: float = 1, **kinds: Any) -> dict[str, Any]:
        if name not in known:
            sizes: dict[str, Any] = {"lengths": (int(times * length),), "examples": _examples(most, times)}
            known[name] = evaluate_retrieval(model(), tokenizer, **sizes, **kinds, **options)
            write_json(out / ANSWERS, {"step": config.run.steps, "answers": known})
        return known[name]

    def slowed(times: float) -> dict[str, Any]:
        return answered(f"{times:g} yarn", lambda: lengthened(model, int(times * length)), times)

    found = [answered(f"{times:g}", lambda: model, times) for times in (1, *OTHER_LENGTHS)]
    longer = [times for times in OTHER_LENGTHS if times * length > model.config.context]
    with_yarn = [slowed(times) for times in longer] if meets_new_angles(model.config) else []
    before = answered("before", lambda: load_model(Path(config.task.start or ""), device)[0], kinds=(RECALL,))
    return {
        "vocabulary": tokenizer.fingerprint,
        "pretrained_steps": load_run(Path(config.task.start or "")).last_step,
        "retrieval": {key: [one for part in found for one in part[key]] for key in ("rows", "skipped")},
        "before": before,
        "yarn": {"rows": [one for part in with_yarn for one in part["rows"]]},
    }


def _answered_before(out: Path, step: int) -> dict[str, Any]:
    """Answers of the same model that an interrupted process left; none of a model with fewer steps."""
    left = measures.read_json(out / ANSWERS) if (out / ANSWERS).is_file() else {}
    found: dict[str, Any] = left.get("answers", {}) if left.get("step") == step else {}
    return found


def _examples(most: int, times: float) -> int:
    """
    >>> [_examples(512, times) for times in (0.5, 1, 2, 4, 8)]
    [512, 512, 512, 256, 128]
    """
    return max(1, int(most / max(1, times / 2)))


def main(source: str = "reach") -> None:
    """Fine-tune one pretrained model and ask it."""
    config = reach.as_planned()
    task = replace(config.task, start=str(start_of(config, source)))
    child.train_and_look(replace(config, task=task), also=asked)


def collect(folder: Path, plans: Sequence[str] = tuple(reach.PLANS)) -> Data:
    """Rows by plan: right answers by kind and length, recall by distance, and when each kind is half right."""
    return measures.data_of(measures.outcomes(folder), folder, plans, row=_row, curve=_curve)


def _row(variant: str, runs: Sequence[Outcome]) -> Row:
    answered = [outcome for outcome in runs if "retrieval" in outcome.after]
    slowed = [outcome for outcome in answered if outcome.after.get("yarn", {}).get("rows")]
    length = runs[0].run.config["task"]["length"]
    peaks = [peak for outcome in runs if (peak := outcome.largest_logit) is not None]
    shares = _shares(answered, "retrieval", "shares")
    distances: dict[str, list[float]] = {}
    before: dict[str, list[float]] = {}
    for outcome in answered:
        for row in outcome.after["retrieval"]["rows"]:
            for part in row.get("by_distance", ()) if row["length"] == length else ():
                distances.setdefault(part["distance"], []).append(part["accuracy"])
        for row in outcome.after.get("before", {}).get("rows", ()):
            for part in row["by_distance"]:
                before.setdefault(part["distance"], []).append(part["accuracy"])
    return {
        "variant": variant,
        "seeds": [outcome.run.seed for outcome in answered],
        "steps": [outcome.run.last_step for outcome in runs],
        "pretrained_steps": [outcome.after.get("pretrained_steps") for outcome in answered],
        "length": length,
        **shares,
        **(_shares(slowed, "yarn", "shares_yarn") if slowed else {}),
        "distances": distances,
        "distances_before": before,
        "half_at": {kind: [_half_at(outcome, kind) for outcome in answered] for kind in shares["shares"]},
        "max_logit": max(peaks, default=None),
        "diverged": sum(outcome.diverged for outcome in runs),
    }


def _shares(runs: Sequence[Outcome], key: str, name: str) -> Row:
    """Right answers by kind and length, run by run, and the seeds of those that were asked at a length."""
    shares: dict[str, dict[str, list[float]]] = {}
    seeds: dict[str, list[int]] = {}
    for outcome in runs:
        rows = outcome.after[key]["rows"]
        for row in rows:
            shares.setdefault(row["kind"], {}).setdefault(str(row["length"]), []).append(row["accuracy"])
        for length in dict.fromkeys(str(row["length"]) for row in rows):
            seeds.setdefault(length, []).append(outcome.run.seed)
    return {name: shares, f"seeds_of_{name}": seeds}


def _evaluations(outcome: Outcome) -> dict[int, dict[str, float]]:
    records = [record for record in read_log(outcome.run.path) if record["kind"] == "eval"]
    return {record["step"]: record.get("by_kind", {}) for record in records}


def _half_at(outcome: Outcome, kind: str) -> int:
    """The first evaluated step with half of the answers right, or twice the last one if there is none."""
    found = _evaluations(outcome)
    return next((step for step, shares in found.items() if shares.get(kind, 0.0) >= LEARNED), 2 * max(found))


def _curve(outcome: Outcome) -> Row:
    """Right answers over the steps of the fine-tuning, by kind."""
    found = _evaluations(outcome)
    curves = {
        kind: [[step, round(shares[kind], 4)] for step, shares in found.items() if kind in shares] for kind in KINDS
    }
    return {"variant": outcome.variant, "seed": outcome.run.seed, "kinds": curves}


def method(models: str, *, steps: int = 1000, far: str = "", rules: str = "any of these runs") -> str:
    """How it is done: with which models, trained for how many steps, asked how far, and before what the rules were."""
    return (
        f"{models} fine-tuned alike for {steps:,} steps of 32 sequences of 2,048 tokens, each seen once: the six "
        "kinds of the task [retrieval](../howto/retrieval.md) take turns, and only the tokens of answers count. AdamW "
        f"at 5e-4, warm-up 50, a cosine to 5 %. Then 512 examples of each kind at 1,024, 2,048 and 4,096 tokens{far}, "
        "none of them seen in training, their books those of the test text. An answer is right if greedy decoding "
        "would write it, every token of it; that of variable tracking is a chain of five names. The table is at 2,048 "
        f"tokens. The rules were written before {rules}."
    )


EXPERIMENT = Experiment(
    name="retrieval",
    question="Do plans that mix reaches retrieve as well as full attention, and as soon?",
    method=method(
        "Models as in `reach` (8 layers of 8 heads, 8.4M parameters, 144M tokens of books), trained again for this and"
    ),
    cost="H200: about 3 minutes per seed beyond `reach`, six at a time; CPU --quick: two minutes",
    caption=(
        "Right answers of recall by plan, seed and the distance back to the pair (left); over the steps of the "
        "fine-tuning, for variable tracking (top); by length after it, for one of four needles in books and for "
        "variable tracking (below). Lines are means over the seeds that were asked, with their range."
    ),
    claims={
        "distance": Claim(
            text="with 8 global heads of 64, recall is within 2 points of full attention at every distance",
            paper="none; ours to find out",
            rule=answers.RULE,
            judge=partial(answers.distance, judged=JUDGED),
        ),
        "kinds": Claim(
            text="with 8 global heads of 64, needles and variables are within 2 points of full attention",
            paper="none; ours to find out",
            rule=answers.RULE,
            judge=partial(answers.every_kind, judged=JUDGED),
        ),
        "two": Claim(
            text="one global head in each layer is behind two at recall",
            paper="none; our expectation",
            rule=f"behind if the paired 95 % interval over at least {FEWEST_SEEDS} seeds lies below 0, undecided if it "
            f"contains 0; only where one of them has {LEARNED:.0%} right",
            judge=partial(answers.one_behind_two, one="ls1-w64", two="ls2-w64"),
        ),
        "sooner": Claim(
            text="with 8 global heads of 64, recall emerges sooner than with full attention",
            paper="arXiv 2606.15378: larger windows delay it",
            rule=answers.SOONER,
            judge=partial(answers.sooner, judged=JUDGED),
        ),
    },
    collect=collect,
    table=answers.table,
    more=answers.more,
    figure=partial(answers.figure, lined=USUAL),
    variants=reach.variants,
    on_request=tuple(name for name in reach.PLANS if name not in USUAL),
    base=BASE,
    quick_base=QUICK_BASE,
    steps=1000,
    process="experiments.retrieval",
)

if __name__ == "__main__":
    main()
