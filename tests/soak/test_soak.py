"""The soak itself still works, on a few kills, lost processes, damaged files and full disks. `make soak` runs many."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import page

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs LD_PRELOAD")
def test_a_few_kills_lost_processes_damaged_files_and_full_disks(tmp_path):
    command = [sys.executable, "-m", "tests.soak", "--tiny", "--jobs", "1", "--keep", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 cases, 0 problems" in done.stdout


def test_the_page_is_made_of_its_numbers():
    numbers = [json.loads(path.read_text()) for path in (page.DATA, page.RESTARTS)]
    assert page.PAGE.read_text() == page.page(*numbers)
