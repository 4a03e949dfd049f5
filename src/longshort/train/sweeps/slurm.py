"""Trains runs as jobs of Slurm, through the package `submitit`; `Slurm` starts them for `processes.run_all`.

A job is the same process that `processes` starts here, with the same files: output.txt and metrics.jsonl in the run's
folder, which must be on a file system that all machines share.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longshort.train.folder import OUTPUT
from longshort.train.settings.config import ConfigError, TrainConfig
from longshort.train.sweeps.processes import MODULE, RunFailed, launch, write_config

FOLDER = "slurm"
"""Where submitit keeps its files, beside the runs."""

_OURS = ("array", "error", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "signal")
_REQUEUES = 100
"""How often a run that did not fit into its time may be queued again."""
_SAVE_SECONDS = 75.0
"""How long a run may take to save; Slurm signals it 90 seconds before it ends it."""
_LOOK_SECONDS = 0.2
_ACCOUNT_SECONDS = 20.0
"""Between questions to Slurm's accounting, which is slow. A job that ends by itself leaves a file, which is not."""


def parse_settings(texts: Sequence[str]) -> dict[str, str | bool]:
    """Options of sbatch, as KEY=VALUE or, for those without a value, KEY.

    >>> parse_settings(["time=60", "gpus_per_node=1", "exclusive"])
    {'time': '60', 'gpus-per-node': '1', 'exclusive': True}
    """
    settings: dict[str, str | bool] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.strip().removeprefix("--").replace("_", "-")
        if not name.replace("-", "").isalnum() or (equals and not value):
            raise ConfigError(f"--slurm must be KEY=VALUE, an option of sbatch such as partition=gpu, got {text!r}")
        if name in _OURS:
            raise ConfigError(f"--slurm {name} must not be set: each run is one task on one node, with its own output")
        settings[name] = value if equals else True
    minutes = settings.get("time")
    if not isinstance(minutes, str) or not minutes.isdecimal() or int(minutes) < 1:
        came = "nothing" if minutes is None else repr(minutes)
        raise ConfigError(f"--slurm time must be a whole number of minutes, such as time=240, got {came}")
    return settings


class Slurm:
    """Starts each run as a job of its own.

    Args:
        folder: For submitit's files, on a file system that all machines share.
        settings: Options of sbatch; see `parse_settings`.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str | bool], module: str = MODULE) -> None:
        self._executor = _executor(folder)
        self._module = module
        self._asked = time.monotonic()
        others = {key: value for key, value in settings.items() if key != "time"}
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._executor.update_parameters(
            time=int(settings["time"]),
            additional_parameters=others,
            setup=[
                f"export PYTHONPATH={shlex.quote(path)}",
                # Since Slurm 22.05, srun does not take it from sbatch.
                '[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK',
            ],
        )

    def __call__(self, config: TrainConfig) -> SlurmRun:
        out = write_config(config)
        self._executor.update_parameters(job_name=out.name)
        try:
            job = self._executor.submit(RunJob(out, self._module))
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:  # FailedJobError quotes sbatch
            raise RunFailed(f"the run {out} could not be submitted to Slurm: {' '.join(str(error).split())}") from None
        return SlurmRun(job, out, self)

    def asks_now(self) -> bool:
        """Whether it is time to ask Slurm's accounting again; one question is about all jobs."""
        if (now := time.monotonic()) - self._asked < _ACCOUNT_SECONDS:
            return False
        self._asked = now
        return True


class SlurmRun:
    """A run in a job of Slurm, as `run_all` follows it."""

    def __init__(self, job: Any, out: Path, slurm: Slurm) -> None:
        self._job, self._out, self._slurm = job, out, slurm
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code of the run's process; 1 if the job ended without one. None while it runs or is queued."""
        if self._code is None and self._job.done(force_check=self._slurm.asks_now()):
            self._code = self._result()
        return self._code

    def terminate(self) -> None:
        """Cancel the job. Slurm sends SIGTERM, on which the run saves and ends."""
        if self.poll() is None:
            self._job.cancel(check=False)

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(_LOOK_SECONDS)
        return code

    def _result(self) -> int:
        try:
            return int(self._job.result())
        except RuntimeError:  # of submitit: the node failed, memory ran out, someone cancelled it
            paths = self._job.paths
            # The last line of the run's output is what `run_all` reports.
            with (self._out / OUTPUT).open("a", encoding="utf-8") as output:
                output.write(
                    f"\nits job {self._job.job_id} ended without a result, {self._job.state}: {paths.stderr}\n"
                )
            return 1


class RunJob:
    """What the node executes: the run, in a process of its own, which gets signals of its own."""

    def __init__(self, out: Path, module: str) -> None:
        self.out, self.module = out, module
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        threads = int(os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE") or 1)
        self._process = launch(self.out, threads, self.module, preexec_fn=_ignore_preemption)
        try:
            while (code := self._process.poll()) is None:
                time.sleep(_LOOK_SECONDS)
            return code
        finally:
            self._end()

    def checkpoint(self) -> Any:
        """Let the run save; submitit then queues it again. Called when its time is nearly up or its node is taken."""
        from submitit.helpers import DelayedSubmission

        self._end()
        return DelayedSubmission(RunJob(self.out, self.module))

    def _end(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        latest = time.monotonic() + _SAVE_SECONDS
        # Not `wait`: a signal may have come while it held the lock that it would wait for.
        while self._process.poll() is None and time.monotonic() < latest:
            time.sleep(_LOOK_SECONDS)


def _ignore_preemption() -> None:
    """In the run's process: Slurm sends the signal that submitit asks for to every process of the job."""
    signal.signal(getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}"), signal.SIG_IGN)


def _executor(folder: Path) -> Any:
    try:
        import submitit
    except ModuleNotFoundError:
        raise ConfigError("--slurm needs the package submitit: pip install 'longshort[slurm]'") from None
    try:
        return submitit.SlurmExecutor(folder=folder, max_num_timeout=_REQUEUES)
    except RuntimeError:
        raise ConfigError(
            "--slurm needs a machine from which jobs can be submitted, but srun was not found; "
            "call it on a login node, or leave --slurm out to train on this machine"
        ) from None
