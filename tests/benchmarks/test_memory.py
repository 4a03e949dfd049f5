"""Peak memory is measured above the inputs."""

import subprocess
import sys

from benchmarks import memory

MEASURE = """
import torch
from benchmarks import memory
memory.CASES = {
    "nothing": ("", lambda: lambda: None),
    "96 MiB": ("", lambda: lambda: torch.ones(96 << 18).sum()),  # 4 bytes each
}
print(memory.measure("nothing"), memory.measure("96 MiB"))
"""


def test_a_step_that_allocates_more_shows_a_higher_peak():
    # In a process of its own: a peak is that of the whole life of a process, other tests included.
    answer = subprocess.run([sys.executable, "-c", MEASURE], check=True, capture_output=True, text=True)
    nothing, much = map(float, answer.stdout.split())
    assert nothing < 24 and much > 48


def test_every_case_says_what_it_is():
    assert all(what for what, _ in memory.CASES.values())
