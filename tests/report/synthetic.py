"""Run folders as the trainer writes them, made up: curves with spikes, nulls, several seeds, resumes, gaps."""

import json
import math
import random
from pathlib import Path

import numpy as np

DEFAULT_CONFIG = {"model": {"d_model": 64, "window": 16}, "optim": {"lr": 3e-3, "betas": [0.9, 0.95]}}


def write_lines(folder: Path, records: list[dict], *, torn: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
    (folder / "metrics.jsonl").write_text(text + torn)
    return folder


def run_record(name="ls", *, variant=None, seed=0, layers=2, heads=4, plans=None, **changes) -> dict:
    section = {"name": name, "seed": seed} | ({"variant": variant} if variant else {})
    return {
        "kind": "run",
        "format": 1,
        "name": name,
        "config": {"run": section, **DEFAULT_CONFIG},
        "seed": seed,
        "device": "cpu",
        "versions": {"python": "3.12.1", "torch": "2.13.0", "longshort": "0.1.0"},
        "git": "0c6454a",
        "parameters": 123_456,
        "layers": layers,
        "heads": heads,
        "plans": plans or [[None, *[16] * (heads - 1)]] * layers,
        "started": "2026-01-02T03:04:05+00:00",
        **changes,
    }


def train_record(step: int, loss: float | None, **changes) -> dict:
    fixed = {"lr": 1e-3, "grad_norm": 1.0, "tokens_per_second": 4096.0, "mfu": None}
    return {"kind": "train", "step": step, "loss": loss, "tokens": 4096 * step, "seconds": 1.0 * step} | fixed | changes


def eval_record(step: int, loss: float | None) -> dict:
    perplexity = None if loss is None else math.exp(loss)
    base = {"kind": "eval", "step": step, "split": "validation", "loss": loss, "perplexity": perplexity}
    return base | {"tokens": 65536, "seconds": 1.5}


def spike_record(step: int, loss: float | None, action="skip") -> dict:
    reason = "loss is not finite" if loss is None else "loss above threshold"
    return {"kind": "spike", "step": step, "loss": loss, "reason": reason, "action": action} | {
        "threshold": 4.2,
        "indices": [step, step + 1],
    }


def logits_of(top: float, layers=2, heads=4) -> dict:
    """Telemetry in which the last head of the last layer reaches `top`, downwards, and no other does."""
    high = [[top / 2] * heads for _ in range(layers)]
    low = [[-top / 3] * heads for _ in range(layers)]
    low[-1][-1] = -top
    return {"logit_max": high, "logit_min": low}


def realistic(folder: Path, variant: str, seed: int, *, steps=1500, layers=3, heads=6, every=10, explode=False) -> Path:
    """A run that learns; with `explode` its logits grow, it spikes, and for a moment it is not finite."""
    noise = random.Random(f"{variant}{seed}")
    window = None if explode else 16
    plans = [[None, *[window] * (heads - 1)]] * layers
    floor, rate = (2.38, 900) if explode else (2.03, 420)
    tilt = np.array([[noise.uniform(0.3, 1.0) for _ in range(heads)] for _ in range(layers)])
    spikes = set(noise.sample(range(steps // 3, steps), 4)) if explode else set()
    nulls = {steps * 3 // 40 * 10} if explode else set()
    records = [run_record(f"{variant}-s{seed}", variant=variant, seed=seed, layers=layers, heads=heads, plans=plans)]
    records[0]["config"]["model"] = {"d_model": 64, "n_global": heads if explode else 1, "window": window}
    for step in range(1, steps + 1):
        calm = floor + 0.02 * seed + 3.3 * math.exp(-step / rate * 4) + 0.3 * math.exp(-step / rate)
        loss = calm + noise.gauss(0, 0.05) + (noise.uniform(1.0, 2.6) if step in spikes else 0)
        tokens = 4096 * step
        pace = (50_000 if explode else 70_000) * noise.uniform(0.97, 1.03)
        record = train_record(
            step, loss, seconds=tokens / pace, tokens_per_second=pace, grad_norm=noise.uniform(0.3, 1)
        )
        if step in nulls:
            record |= {"loss": None, "grad_norm": None}
        if step % every == 0:
            growth = 4 + 400 * (step / steps) ** 3 if explode else 4 + 9 * (1 - math.exp(-step / rate))
            top = growth * tilt * np.array([[noise.uniform(0.9, 1.1) for _ in range(heads)] for _ in range(layers)])
            record |= {"logit_max": top.tolist(), "logit_min": (-0.8 * top).tolist()}
            if step in nulls:
                record["logit_max"][-1][0] = None
        records.append(record)
        if step in spikes | nulls:
            records.append(spike_record(step, record["loss"], "rollback" if step in nulls else "skip"))
        if step % (steps // 10) == 0:
            records.append(eval_record(step, calm + 0.03 + noise.gauss(0, 0.01)))
        if step % (steps // 3) == 0:
            text = f"def read_{variant}(self, path):\n    if not path <{step}> & done:\n        return self._value\n"
            records.append({"kind": "sample", "step": step, "text": text * 2})
    records.append({"kind": "end", "step": steps, "seconds": records[-2].get("seconds", 0), "status": "finished"})
    return write_lines(folder, records)
