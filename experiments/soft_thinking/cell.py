"""One cell of `soft-thinking`: a training, then what its model solves. `python -m experiments.soft_thinking.cell
RUN/config.json` runs it in a process of its own; all that is kept of it goes to RUN/cell.json.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from experiments.engine.measures import read_json
from experiments.soft_thinking.settings import FULL, GOAL, QUICK, RATE, START, TOP_K, TOP_P, VARIANTS, Sizes
from longshort.data.problems import ProblemTask, drawn, open_task
from longshort.files import write_json
from longshort.generation import SoftThinking
from longshort.model import GPT
from longshort.rl import FORMS, Sampler, evaluate_problems, group_advantages, reinforce, score_signal
from longshort.rl.answers import sequences, thinking_of
from longshort.rl.reference import REFERENCE
from longshort.rl.rewards import verified
from longshort.runs import METRICS, read_log
from longshort.train import TrainConfig, TrainingStopped, load_model
from longshort.train.checkpoints.checkpoint import CHECKPOINTS, load_checkpoint, save_checkpoint
from longshort.train.machine.distributed import choose_device
from longshort.train.progress import Silent
from longshort.train.sweeps.processes import named_config

CELL, SIZES, WEIGHTS = "cell.json", "sizes.json", "weights"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def written(counts: Sequence[int]) -> str:
    """Counts of right samples as one character for each problem, so that data stay small.

    >>> written([0, 3, 32]), counted("03w")
    ('03w', [0, 3, 32])
    """
    return "".join(DIGITS[count] for count in counts)


def counted(text: str) -> list[int]:
    """The inverse of `written`."""
    return [DIGITS.index(digit) for digit in text]


def sizes_of(out: Path) -> Sizes:
    """The sizes of the call that this run belongs to."""
    return QUICK if read_json(out.parent / SIZES)["quick"] else FULL


def kept_settings(config: TrainConfig) -> dict[str, Any]:
    """What a finished cell must have in common with a wanted one: not where it ran, nor where its start lies."""
    values = config.to_dict()
    run = {key: value for key, value in values["run"].items() if key not in ("out", "device")}
    return values | {"run": run, "rl": values["rl"] | {"start": values["rl"]["start"] is not None}}


class UntilGoal(Silent):
    """Ends a supervised run, as a signal from outside would, once enough of its validation samples are right."""

    reached = False

    def record(self, record: dict[str, Any], *, steps: int) -> None:
        if is_enough(record) and not self.reached:
            self.reached = True
            os.kill(os.getpid(), signal.SIGTERM)


def is_enough(record: Mapping[str, Any]) -> bool:
    """Is this an evaluation at which supervised training may end?"""
    return bool(record["kind"] == "eval" and record["reward"] >= GOAL)


def run_cell(config: TrainConfig) -> None:
    """Train and read one cell; if it is stopped before its end, nothing is kept but its checkpoint."""
    out, kind = Path(config.run.out), (config.run.variant or "").split("-")[1]
    try:
        step = _trained(config, out, kind)
    except TrainingStopped as stopped:
        print(stopped)
        found: dict[str, Any] = {"diverged": True, "step": config.run.steps}
    else:
        if step is None:
            return
        found = {"diverged": False, "step": step} | _looked_into(config, out, kind)
    curve = [round(record["reward"], 4) for record in read_log(out) if record["kind"] == "train" and "reward" in record]
    write_json(out / CELL, found | {"settings": kept_settings(config), "rewards": curve, "log": _header(out)})
    for folder in (CHECKPOINTS, REFERENCE):  # nothing reads them any more, and dozens of cells fill a disk
        shutil.rmtree(out / folder, ignore_errors=True)


def _trained(config: TrainConfig, out: Path, kind: str) -> int | None:
    """The step at which the training ended; None if it was stopped before. A start that is there already is kept."""
    reached = _reached(out) if kind == START else None
    if reached is not None and (there := load_checkpoint(out).step) >= reached:
        return there
    reporter = UntilGoal() if kind == START else Silent()
    result = reinforce(config, reporter)
    ended = result.status == "finished" or (isinstance(reporter, UntilGoal) and reporter.reached)
    return result.step if ended else None


def _reached(out: Path) -> int | None:
    """The step of the first evaluation that was enough."""
    records = read_log(out) if (out / METRICS).is_file() else []
    return next((int(record["step"]) for record in records if is_enough(record)), None)


def _header(out: Path) -> dict[str, Any]:
    header = read_log(out)[0]
    return {key: header[key] for key in ("device", "versions", "git", "started") if key in header}


def _looked_into(config: TrainConfig, out: Path, kind: str) -> dict[str, Any]:
    sizes, device = sizes_of(out), choose_device(config.run.device)
    if kind == START:
        _keep_weights(out)
    model, checkpoint = load_model(out / WEIGHTS if kind == START else out, device)
    task = open_task(config.rl.task or "", config.rl.task_options)
    soft = own_thinking(config, task, checkpoint.state.get("sigma"))
    if kind == RATE:
        own: dict[str, SoftThinking | None] = {"hard": None} if config.rl.algorithm == "grpo" else {"soft": soft}
        return {"readings": _readings(model, task, own, sizes, "validation")}
    found: dict[str, Any] = {"readings": _readings(model, task, {"soft": soft, "hard": None}, sizes, "test")}
    if kind == START:
        found["signal"] = signals(model, task, soft, sizes)
    return found


def signals(model: GPT, task: ProblemTask, thinking: SoftThinking, sizes: Sizes) -> dict[str, float | None]:
    """Signal to noise of the policy gradient for each way of scoring mixtures, on the same rollouts.

    None where all gradients are alike, as where no sample is right.
    """
    count = sizes.signal_parts * sizes.prompts // 2
    problems = [drawn(task, "validation", 1, index) for index in range(count) for _ in range(sizes.group)]
    lengths: dict[str, Any] = {"max_prompt": task.max_prompt, "max_new_tokens": task.max_new_tokens}
    sampler = Sampler(model, thinking, batch_size=len(problems), stop=task.stop, top_k=TOP_K, top_p=TOP_P, **lengths)
    rollout = sampler.draw([problem.prompt for problem in problems], seed=1)
    rewards = verified(task, problems, sequences(rollout)).values
    advantages = group_advantages(rewards, sizes.group).to(rollout.tokens.device)
    found = {form: score_signal(model, rollout, advantages, form=form, parts=sizes.signal_parts) for form in FORMS}
    return {form: one.ratio if one.noise else None for form, one in found.items()}


def own_thinking(config: TrainConfig, task: ProblemTask, sigma: float | None = None) -> SoftThinking:
    """How the variant thinks; for one that was trained on discrete tokens, as the paper has it."""
    rl = config.rl
    if rl.algorithm == "grpo":
        rl = replace(rl, **VARIANTS["soft-paper"], truncate=False)
    found = thinking_of(rl, task, sigma)
    assert found is not None
    return found


def _keep_weights(out: Path) -> None:
    """Keep the weights alone, in bf16: the starts of all seeds are then small enough to move to another machine."""
    found = load_checkpoint(out)
    weights = {name: tensor.bfloat16() for name, tensor in found.model.items()}
    state = {key: found.state[key] for key in ("config", "vocabulary", "tokenizer")}
    save_checkpoint(out / WEIGHTS, step=found.step, model=weights, trainer={}, state=state)


def _readings(
    model: GPT, task: ProblemTask, ways: Mapping[str, SoftThinking | None], sizes: Sizes, split: str
) -> dict[str, str]:
    """Counts of right samples, in each way of reading."""
    many, samples = (sizes.problems, sizes.samples) if split == "test" else (sizes.rate_problems, sizes.rate_samples)
    problems = [drawn(task, split, 0, index) for index in range(many)]
    return {
        name: written(
            evaluate_problems(model, task, thinking, problems, samples, batch=sizes.batch, top_k=TOP_K, top_p=TOP_P)
        )
        for name, thinking in ways.items()
    }


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    run_cell(named_config())
