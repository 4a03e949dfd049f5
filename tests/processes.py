"""Starts several processes of one script, joined by gloo, as torchrun would but without its own start-up."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path


def in_processes(world, script, *arguments, killed=None, timeout=250):
    """Run the script once per rank and wait. A rank that fails is an error with what it wrote, unless all fail because
    the rank `killed` was.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    shared = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "WORLD_SIZE": str(world)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [sys.executable, str(script), *map(str, arguments)]
    ranks = [
        subprocess.Popen(command, env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, **options)
        for rank in range(world)
    ]
    try:
        said = [rank.communicate(timeout=timeout)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    ends = [rank.returncode for rank in ranks]
    if killed is not None:
        assert ends[killed] == -signal.SIGKILL and all(ends), ends
        return said
    failed = [f"rank {i} of {world} ended with {end}:\n{said[i]}" for i, end in enumerate(ends) if end]
    assert not failed, "\n".join(failed)
    return said
