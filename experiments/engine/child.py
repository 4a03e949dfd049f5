"""The process of one run: train, then look into the trained model while it is there, since weights do not travel.

`python -m experiments.engine.child RUN/config.json` writes `RUN/after.json` beside the metrics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.attention import SDPBackend

from benchmarks.gpu_peers import sdpa
from benchmarks.training import attending
from experiments import corrupted_tokens
from experiments.engine.anatomy import anatomy
from experiments.engine.measures import AFTER, count_spikes
from experiments.engine.step_clock import StepClock
from longshort.files import write_json
from longshort.heads import HeadPlan
from longshort.ops import AttentionResult, attention
from longshort.runs.log import largest_logit, read_log
from longshort.train import TrainConfig, load_model, train
from longshort.train.calibration import calibrated_losses
from longshort.train.checkpoint_scores import evaluate_task
from longshort.train.distributed import choose_device
from longshort.train.precision import autocast
from longshort.train.processes import named_config
from longshort.train.text import TextData

FLASH_ARM = "plain-flash"
"""Its layers call PyTorch's FlashAttention. A configuration cannot say so, since the op has no such backend."""
ROWS = 2
"""Of the validation split, to look at the attention of."""


def flash_attention(q: Tensor, k: Tensor, v: Tensor, plan: HeadPlan, **options: Any) -> AttentionResult:
    """PyTorch's FlashAttention for plain attention; logit statistics, where asked for, by our op on the same inputs."""
    if plan.n_global != plan.n_heads or options.get("softcap") or options.get("segments") is not None:
        raise ValueError(f"the flash arm serves plain attention only, got {plan} and {options}")
    wants_stats = options.pop("stats", False)
    out = sdpa(SDPBackend.FLASH_ATTENTION)(q, k, v)
    logits = None
    if wants_stats:
        logits = attention(q.detach(), k.detach(), v.detach(), plan, stats=True, **options).stats
    return AttentionResult(out, q.new_empty(0), logits)


def train_and_look(config: TrainConfig) -> None:
    """Train one arm; if that came to its end, and is no mere timing, write what is to be known of the model."""
    kernel: Callable[..., AttentionResult] | None = flash_attention if config.run.variant == FLASH_ARM else None
    timing = not config.telemetry.logits_every
    clock = StepClock(Path(config.run.out), choose_device(config.run.device)) if timing else None
    with attending(kernel) if kernel is not None else contextlib.nullcontext():
        result = train(config, clock)
    if result.status == "finished" and not timing:
        write_json(result.out / AFTER, {"step": result.step} | look(config, result.out))


def look(config: TrainConfig, out: Path) -> dict[str, Any]:
    """The anatomy of the newest checkpoint's attention, or with a task its test scores; spikes and the largest |logit|
    of the whole log, before it is thinned to travel. Where the loss is what is compared, also the losses on clean text
    by a fitted temperature.
    """
    device, run = choose_device(config.run.device), config.run
    records = read_log(out)
    steps = [record for record in records if record["kind"] == "train"]
    peaks = [peak for record in steps if (peak := largest_logit(record)) is not None]
    found: dict[str, Any] = {"largest_logit": max(peaks, default=None)}
    recorded = sum(record["kind"] == "spike" for record in records)  # by a guard, which may have skipped their steps
    found["spikes"] = recorded or count_spikes(record["loss"] for record in steps)
    if config.task.name is not None:
        return found | {"test": evaluate_task(out, split="test", device=device)}
    model, _ = load_model(out, device)
    stream = TextData.open(config).stream("validation", seed=0)
    with autocast(run.precision, device):
        found["anatomy"] = anatomy(model, stream.batch(0).tokens[:ROWS].to(device))
    if run.variant in corrupted_tokens.NAMES:
        options: dict[str, Any] = {"batches": run.eval_batches, "device": device, "precision": run.precision}
        found["clean"] = calibrated_losses(model, stream, **options)
    return found


if __name__ == "__main__":
    train_and_look(named_config())
