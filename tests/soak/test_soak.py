"""The soak itself still works, on a few kills, damaged files and full disks. `make soak` runs many more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs LD_PRELOAD")
def test_a_few_kills_damaged_files_and_full_disks(tmp_path):
    command = [sys.executable, "-m", "tests.soak", "--tiny", "--jobs", "1", "--keep", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 cases, 0 problems" in done.stdout
