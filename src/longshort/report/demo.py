"""The effect on a laptop: plain attention and LS-attention of equal size, trained side by side on the same bytes.

The setting, with sequences much longer than the model is wide, was found by experiment: docs/results/demo-setting.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from longshort.data import default_data
from longshort.generation.sample import text_stream
from longshort.report.live import Watch
from longshort.report.page import PAGE
from longshort.report.summary import check_results, save_summary
from longshort.runs import RunLog, load_run
from longshort.train import TrainConfig
from longshort.train.sweeps.processes import run_all
from longshort.train.sweeps.trials import Trial

VARIANTS = ("plain", "ls")
PROMPT = "def "
EXPLODED = 100.0
"""Logits have exploded where the largest |logit| is at least this; the paper reports over 200 for plain attention."""


class DemoResult(NamedTuple):
    """What the demo leaves behind."""

    rows: list[dict[str, Any]]
    samples: dict[str, str]
    """Text that each variant wrote, unless it diverged."""
    report: Path | None
    """None where the packages for it are missing."""
    remark: str
    """Which of the paper's claims the numbers show, and which they do not."""


def demo_config(device: str = "cpu", *, steps: int | None = None) -> TrainConfig:
    """The laptop setting, or the paper's model on a GPU."""
    on_gpu = device.split(":")[0] == "cuda"
    config = TrainConfig.from_dict(_PAPER if on_gpu else _LAPTOP)
    run = replace(config.run, device=device, steps=steps or config.run.steps)
    return replace(config, run=run)


def run_demo(trials: list[Trial], out: Path, *, watch: Watch, message: Callable[[str], None]) -> DemoResult | None:
    """Train all trials at the same time, sample from each and write the report; None if interrupted."""
    from longshort.report import ReportError, write_report

    check_results(out)
    default_data()  # once, or two processes would both prepare it
    left = [trial.config for trial in trials if not trial.is_finished]
    if left and not run_all(left, jobs=len(left), watch=watch):
        return None
    rows = save_summary(trials, out)
    said = remark(rows)
    # A run that diverged may have no checkpoint, and what it has is not its end.
    samples = {trial.variant: _sample(trial) for trial in trials if load_run(trial.out).diverged_at is None}
    message("writing the report")
    try:
        title = "Plain attention and LS-attention"
        report = write_report([trial.out for trial in trials], out / PAGE, title=title, remark=said).html
    except ReportError as error:  # the numbers are saved all the same
        message(f"no report: {error}")
        report = None
    return DemoResult(rows, samples, report, said)


def _sample(trial: Trial) -> str:
    """Text from the trained model, kept in its log for the report."""
    drawn = load_run(trial.out).samples
    if drawn and drawn[-1].step >= trial.config.run.steps:
        return drawn[-1].text
    written = text_stream(trial.out, PROMPT, max_new_tokens=200, temperature=0.8, top_p=0.95, seed=0)
    text = PROMPT + "".join(written)
    log = RunLog(trial.out)
    log.write("sample", step=trial.config.run.steps, text=text)
    log.close()
    return text


def remark(rows: list[dict[str, Any]]) -> str:
    """What the demo shows and what it does not, from the rows of its table."""
    by_name = {row["variant"]: row for row in rows}
    plain, ls = by_name["plain"], by_name["ls"]
    if None in (plain["max_logit"], ls["max_logit"], plain["validation_loss"], ls["validation_loss"]):
        return "Some logits or losses are not finite; the table says which."
    logits = f"{plain['max_logit']:.1f} for plain and {ls['max_logit']:.1f} for ls"
    losses = f"{ls['validation_loss']:.3f} for ls and {plain['validation_loss']:.3f} for plain"
    speeds = f"{ls['tokens_per_second']:,.0f} and {plain['tokens_per_second']:,.0f} tokens/s"
    cost = f"the validation loss ({losses}) and the cost ({speeds})"
    if max(plain["max_logit"], ls["max_logit"]) >= EXPLODED:
        return f"The largest |logit| reaches {logits}; compare also {cost}."
    return (
        f"At this size and length, logits do not explode: the largest |logit| is {logits}. "
        f"What the demo shows is {cost}. The explosion "
        "needs the paper's model and longer training: see docs/results/explosion.md in the repository."
    )


def introduction(config: TrainConfig) -> str:
    """What the demo is about to train."""
    model = config.model
    return (
        f"Training two models for {config.run.steps:,} steps, each with {model.n_layers} layers, width {model.width} "
        f"and {model.n_heads} heads, on sequences of {config.length:,} bytes:\n"
        f"  plain: every head sees all earlier bytes\n"
        f"  ls:    {model.n_global} head sees all earlier bytes, the other {model.n_heads - (model.n_global or 0)} see "
        f"{model.window} bytes each\n"
        "The text is the source code of this Python's standard library."
    )


_LAPTOP: dict[str, Any] = {
    "model": {
        "vocab_size": 257,
        "context": 1024,
        "n_layers": 2,
        "width": 64,
        "n_heads": 4,
        "n_global": 1,
        "window": 16,
    },
    "data": {"batch_size": 2},
    "optimizer": {"lr": 3e-3},
    "schedule": {"kind": "constant", "warmup": 50},
    "run": {"steps": 800, "eval_every": 100, "eval_batches": 8, "save_every": 0, "precision": "fp32"},
    "telemetry": {"logits_every": 10},
}
_PAPER: dict[str, Any] = {
    "model": {"preset": "paper-6m", "vocab_size": 257},
    "data": {"batch_size": 16},
    "optimizer": {"lr": 3e-3},
    "schedule": {"kind": "constant", "warmup": 200},
    "run": {"steps": 3000, "eval_every": 250, "eval_batches": 16, "save_every": 1000, "precision": "bf16"},
    "telemetry": {"logits_every": 10},
}
