"""The processes that tests start end with the process that started them, however that ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STARTER = """
from tests.ranks import Ranks
from tests.test_ranks import report_and_sleep
Ranks().run(report_and_sleep, size=2)
"""


def report_and_sleep(group):
    print("ready", flush=True)
    time.sleep(300)


@pytest.mark.slow  # imports torch twice
def test_ranks_at_work_end_when_their_starter_is_killed():
    paths = os.pathsep.join([*sys.path, str(ROOT)])
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths}
    )
    assert starter.stdout is not None
    assert [starter.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    starter.send_signal(signal.SIGKILL)
    assert starter.wait() == -signal.SIGKILL
    assert starter.stdout.read() == ""  # it ends when no process holds the other end
    starter.stdout.close()
