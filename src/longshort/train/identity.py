"""What identifies a run: its first record, its logging sinks, and whether a checkpoint belongs to it."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from longshort.runs import METRICS, RunLog, difference, read_log
from longshort.runs.log import Sink, TensorBoardSink, WandbSink, rewind_log
from longshort.train.checkpoints.checkpoint import (
    CHECKPOINTS,
    Checkpoint,
    CheckpointError,
    checkpoint_names,
    discard_after,
    prune_checkpoints,
    state_of,
)
from longshort.train.compilation import Compilation
from longshort.train.folder import check_is_a_run_folder
from longshort.train.machine.distributed import World
from longshort.train.machine.precision import matmul_precision
from longshort.train.settings.config import ConfigError, TrainConfig
from longshort.train.state import Progress
from longshort.train.text import texts_of
from longshort.version import __version__


def open_log(config: TrainConfig, out: Path, *, resumed_at: int | None) -> RunLog:
    """The run's log, with the sinks that the configuration asks for; `resumed_at` is None for a run that begins."""
    sinks: list[Sink] = []
    if config.run.tensorboard:
        sinks.append(TensorBoardSink(out, -1 if resumed_at is None else resumed_at))
    if config.run.wandb is not None:
        sinks.append(WandbSink(out, config.run.wandb, config.to_dict(), resumed=resumed_at is not None))
    return RunLog(out, sinks)


def run_description(config: TrainConfig, model: nn.Module, world: World, compilation: Compilation) -> dict[str, Any]:
    """The fields of the record of kind "run"."""
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else platform.machine()
    return {
        "format": 1,
        "name": Path(config.run.out).name,
        "config": config.to_dict(),
        "seed": config.run.seed,
        "device": f"{world.device.type} ({device})",
        "world_size": world.size,
        "threads": torch.get_num_threads(),
        "matmul_precision": matmul_precision(config.run.matmul, config.run.precision, world.device),
        "compilation": compilation._asdict(),
        "versions": {"longshort": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "git": git_revision(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": config.model.n_layers,
        "heads": config.model.n_heads,
        "plans": [list(plan.windows) for plan in config.model.layer_plans],
        **_firsts(config),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _firsts(config: TrainConfig) -> dict[str, Any]:
    """First keys of streaming heads, if there are any."""
    plans = config.model.layer_plans
    if all(plan.firsts is None for plan in plans):
        return {}
    return {"firsts": [list(plan.first_keys) for plan in plans]}


def different_setting(config: TrainConfig, recorded: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first key in which the `recorded` configuration is a different run, with its value there and here."""
    # Read through the class, so that a key missing from an older record has its present default.
    return difference(config.to_dict(), TrainConfig.from_dict(recorded).to_dict())


def check_same_settings(config: TrainConfig, state: Mapping[str, Any]) -> None:
    """Raise if this is the state of another run; imported weights need only the same model."""
    recorded = state["config"]
    if "imported" in state:
        recorded = config.to_dict() | {"model": recorded["model"]}
    different = different_setting(config, recorded)
    if different is not None:
        key, found, value = different
        raise ConfigError(
            f"{config.run.out}: holds a run with {key}={found!r}, "
            f"not {value!r}; set it back to resume, or choose another run.out"
        )


def check_folder_is_free(config: TrainConfig) -> None:
    """Raise if the run's folder holds something else, or checkpoints of another run; a checkpoint that cannot be read
    is for the run itself to judge."""
    out = Path(config.run.out)
    check_is_a_run_folder(out)
    for name in checkpoint_names(out / CHECKPOINTS)[-1:]:
        try:
            state = state_of(out / CHECKPOINTS / name)
        except (CheckpointError, PermissionError):
            return
        check_same_settings(config, state)
        if state.get("texts"):
            check_same_texts(config, state, texts_of(config))


def check_same_run(config: TrainConfig, checkpoint: Checkpoint, fingerprint: str, tokenizer: str | None = None) -> None:
    """Raise if the checkpoint in the run's folder belongs to another run; imported weights need only the same model.

    Args:
        fingerprint: Fingerprint of the vocabulary of the data.
        tokenizer: Checksum of its tokenizer, if known.
    """
    check_same_settings(config, checkpoint.state)
    imported, recorded = "imported" in checkpoint.state, checkpoint.state["config"]
    vocabulary = checkpoint.state["vocabulary"]
    if tokenizer is not None and checkpoint.state.get("tokenizer") not in (None, tokenizer):
        vocabulary = None  # the same vocabulary, but another tokenizer
    if vocabulary != fingerprint and not (imported and vocabulary is None):
        raise ConfigError(_other_vocabulary(config, recorded))


def check_same_texts(config: TrainConfig, recorded: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Raise if the state or the log of a run says that it was trained on other texts; one that says nothing goes on."""
    known = recorded.get("texts") or {}
    for split in known.keys() & texts.keys():
        if known[split] != texts[split]:
            before, path = recorded["config"]["data"]["path"], config.data.path
            back = "" if before in (path, None) else f"set data.path={before} again, or "
            raise ConfigError(
                f"{config.run.out}: trained with another {split} text than that of "
                f"data.path={'null' if path is None else path}; {back}choose another run.out"
            )


def _other_vocabulary(config: TrainConfig, recorded: Mapping[str, Any]) -> str:
    out, task, path, before = config.run.out, config.task.name, config.data.path, recorded["data"]["path"]
    if config.rl.task is not None:
        return (
            f"{out}: trained on another version of {config.rl.task}; set the file back to resume, or choose another "
            "run.out"
        )
    if task is not None:
        return f"{out}: trained on other examples than the task {task} gives here; choose another run.out"
    back = "" if before in (path, None) else f"set data.path={before} again, or "
    return (
        f"{out}: trained on another vocabulary than that of data.path={'null' if path is None else path}; "
        f"{back}prepare the data with the run's own tokenizer: longshort data TEXT --out FOLDER --tokenizer {out}"
    )


def rewind_run(config: TrainConfig, progress: Progress, *, resumed: bool, message: Callable[[str], None]) -> None:
    """Remove from the run's folder all traces of steps that will be repeated: every step, if it is not resumed.

    The log's description gets the configuration that the run goes on with.
    """
    out, step = Path(config.run.out), progress.step
    records = read_log(out) if (out / METRICS).is_file() else []
    if resumed:
        check_log(config, records, step, message)
        if records and step <= config.run.steps:  # which may have changed, as other keys
            records[0]["config"] = config.to_dict()
    rewind_log(out, step if resumed else -1, dropped=progress.dropped, records=records)
    discard_after(out / CHECKPOINTS, step)
    if resumed:  # a run stopped right after a save may not have pruned
        prune_checkpoints(out / CHECKPOINTS, keep=config.run.keep, best=progress.best_step)


def check_log(
    config: TrainConfig, records: Sequence[Mapping[str, Any]], step: int, message: Callable[[str], None]
) -> None:
    """Raise if the log beside a checkpoint of `step` belongs to another run; report the steps that it lacks."""
    out = Path(config.run.out)
    different = different_setting(config, records[0]["config"]) if records else None
    if different is not None:
        key, found, value = different
        raise ConfigError(
            f"{out / METRICS}: from a run with {key}={found!r}, but the checkpoints beside it are from one with "
            f"{value!r}; put the right log back, or remove this one to resume without it"
        )
    recorded = {record["step"] for record in records if record["kind"] in ("train", "spike")}
    lacking = [number for number in range(1, step + 1) if number not in recorded]
    if lacking:
        message(
            f"{out / METRICS}: damaged; it lacks {len(lacking)} of the {step} steps so far, from {lacking[0]} to "
            f"{lacking[-1]}, and reports will not show them"
        )


def check_nothing_is_lost(out: Path) -> None:
    """Raise if there is no complete checkpoint and starting over would lose something: damaged checkpoints, or the log
    of a run that ended (unpacked results, or a run whose weights are gone).
    """
    if checkpoint_names(out / CHECKPOINTS):
        raise ConfigError(
            f"{out}: no complete checkpoint to resume from; choose another folder, or remove {out / CHECKPOINTS} to "
            "start over"
        )
    ends = [record for record in read_log(out) if record["kind"] == "end"] if (out / METRICS).is_file() else []
    if ends:
        raise ConfigError(
            f"{out}: holds the log of a run up to step {ends[-1]['step']}, but no complete checkpoint to resume from; "
            f"choose another folder, or remove {out / METRICS} to start over"
        )


def git_revision() -> str | None:
    """Git revision of the running code, if it is a checkout."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
