"""torchrun's agent with workers that start at once: forked from a process that has loaded torch and never used it."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from typing import Any


def launch(
    worker: Callable[..., Any],
    *arguments: Any,
    processes: int = 2,
    restarts: int = 0,
    machines: int = 1,
    endpoint: str = "localhost:0",
) -> None:
    """Run worker(*arguments) in several processes, as torchrun runs a command; raises if they fail too often.

    Agent, rendezvous and environment are those of torchrun. Only the workers' processes are made by fork instead of
    exec.
    """
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    options = [f"--nproc-per-node={processes}", f"--max-restarts={restarts}", f"--nnodes={machines}"]
    options += ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=test"]
    with tempfile.TemporaryDirectory() as logs:
        config, _, _ = config_from_args(parse_args([*options, f"--log-dir={logs}", "the worker"]))
        config.start_method = "fork"
        elastic_launch(config, _begin)(worker, *arguments)


def _begin(worker: Callable[..., Any], *arguments: Any) -> None:
    import torch

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the agent's handler, which a new program would not have
    torch.set_num_threads(1)  # a new program would read OMP_NUM_THREADS; this one loaded torch before it was set
    worker(*arguments)
