"""The time of one variant's training step: the sum of its kernels on a GPU, wall-clock time on a CPU.

`python -m experiments.engine.timing RUN/config.json` times one variant. A step of a small model waits longer for Python
than for the GPU, so by wall-clock time all variants would look alike. Processes start and compile side by side, sharing
a lock; from its second step on, a run has the lock and the device to itself.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import torch

from longshort.files import write_json
from longshort.train import TrainConfig, train
from longshort.train.machine.distributed import choose_device
from longshort.train.sweeps.processes import named_config

WARMUP_STEPS, TIMED_STEPS = 20, 10
RESULT, LOCK = "step_time.json", "lock"


def for_timing(config: TrainConfig, out: Path) -> TrainConfig:
    """The same training for a few steps, without evaluations or telemetry, whose cost is not the variant's."""
    run = replace(
        config.run,
        out=str(out),
        steps=WARMUP_STEPS + TIMED_STEPS,
        compile_scope="model",
        eval_every=0,
        eval_batches=1,
    )
    return replace(config, run=run, telemetry=replace(config.telemetry, logits_every=0))


class StepClock:
    """A reporter for a run of `WARMUP_STEPS + TIMED_STEPS` steps, which writes `RUN/step_time.json` at the end."""

    def __init__(self, out: Path, device: torch.device) -> None:
        self.out, self.device = out, device
        self._lock = _opened(out.parent / LOCK)
        _wait(self._lock, shared=True)  # while others are timed, nothing of this run is on the device
        self._profile: Any = None
        self._start = 0.0

    def message(self, text: str) -> None:
        """Show nothing."""

    def record(self, record: dict[str, Any], *, steps: int) -> None:
        """Take a record of the log; only those of training steps count."""
        if record["kind"] != "train":
            return
        if record["step"] == 1:  # everything is compiled by now
            _wait(self._lock, shared=False)
        if record["step"] == WARMUP_STEPS:
            self._start = record["seconds"]
            if self.device.type == "cuda":
                torch.cuda.synchronize()  # for the next step, which was launched before this one was recorded
                self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
                self._profile.start()
        if record["step"] == WARMUP_STEPS + TIMED_STEPS:
            self._write((record["seconds"] - self._start) / TIMED_STEPS)

    def _write(self, wall: float) -> None:
        seconds = wall
        if self._profile is not None:
            torch.cuda.synchronize()
            self._profile.stop()
            kernels = sum(event.self_device_time_total for event in self._profile.key_averages())
            seconds = kernels / 1e6 / (TIMED_STEPS - 1)
        write_json(self.out / RESULT, {"seconds": seconds, "wall_seconds": wall, "steps": TIMED_STEPS})
        self._lock.close()  # this unlocks it


def _opened(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8")


def _wait(file: IO[str], *, shared: bool) -> None:
    """Wait for the others; without file locks (not POSIX) runs must be timed one at a time."""
    with contextlib.suppress(ImportError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


if __name__ == "__main__":
    config = named_config()
    train(config, StepClock(Path(config.run.out), choose_device(config.run.device)))
