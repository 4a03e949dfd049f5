"""The page on clusters: its scripts run, with stand-ins for what a cluster has."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longshort.cli import app
from longshort.data.tokens import TokenFile

from ..train.tiny import losses

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "cluster.md").read_text(encoding="utf-8")
TWO_MACHINES, TRAIN, AGAIN, PARTS, JOIN, ONE_MACHINE = re.findall(r"```bash\n(.*?)```", PAGE, re.S)

COMMANDS = {
    # What the scripts call, reduced to what the test asks of it.
    "scontrol": 'printf "a01\\na02\\n"',
    "srun": 'while [[ $1 == --* ]]; do shift; done; "$@"',
    "sbatch": 'echo "sbatch $*" >&2; echo 77',
    "torchrun": 'printf "%s\\n" "$@"',
    "longshort": 'printf "%s\\n" "$@"',
}
SLURM = {
    "SLURM_JOB_NODELIST": "a[01-02]",
    "SLURM_JOB_ID": "77",
    "SLURM_NNODES": "2",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURM_CPUS_PER_TASK": "32",
    "SLURM_ARRAY_TASK_ID": "3",
}


@pytest.fixture
def shell(tmp_path):
    """Runs a script of the page; returns what it printed and what it submitted."""
    for name, body in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)

    def run(script):
        environment = os.environ | SLURM | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["bash", "-euc", script]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path)
        return done.stdout.splitlines(), done.stderr.splitlines()

    return run


def test_the_script_for_training_starts_one_torchrun_per_node(shell):
    started, _ = shell(TRAIN)
    assert started == [
        *("--nnodes=2", "--nproc-per-node=8", "--rdzv-backend=c10d", "--rdzv-endpoint=a01:29500", "--rdzv-id=77"),
        *("-m", "longshort", "train", "gpt2-small", "data.path=data/books", "run.out=runs/books"),
    ]
    assert shell(TWO_MACHINES)[0][:4] == [*started[:3], "--rdzv-endpoint=node1:29500"]


def test_scripts_that_submit_wait_for_the_job_before(shell):
    assert [line.split()[1:3] for line in shell(AGAIN)[1]] == [
        ["--parsable", "train.sh"],
        *[["--parsable", "--dependency=afterany:77"]] * 3,
    ]
    assert shell(JOIN)[1][1].startswith("sbatch --dependency=afterok:77 ")


def test_the_array_prepares_the_part_of_its_number_of_as_many_as_it_has(shell):
    arguments, _ = shell(PARTS)
    tasks, parts = re.search(r"--array=1-(\d+)", PARTS)[1], arguments[-1]
    assert parts == f"3/{tasks}" and f"--join {tasks}" in JOIN


def test_the_commands_for_one_machine_prepare_the_corpus(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("web").mkdir()
    for number in range(60):
        Path("web", f"{number}.txt").write_text(f"Page {number} of the web, for the guide.")
    part, join = (shlex.split(line) for line in ONE_MACHINE.strip().splitlines())
    command = part[part.index("longshort") + 1 :]
    calls = [[word.replace("{}", str(number)) for word in command] for number in range(1, 5)]
    for call in (*calls, join[1:]):
        shown = CliRunner().invoke(app, [word if word != "4" else "1" for word in call[:-1]] + call[-1:])
        assert shown.exit_code == 0, shown.output
    files = [TokenFile.open(Path("data", "web", f"{split}.tokens")) for split in ("train", "validation", "test")]
    assert sum(file.documents for file in files) == 60


@pytest.mark.slow
def test_the_command_for_two_machines_trains_with_both(corpus, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = TWO_MACHINES.replace("\\\n", " ").replace("node1:29500", address).replace("node=8", "node=1")
    words = shlex.split(command)
    words = words[1 : words.index("train") + 1]
    run = [
        "tiny",
        f"data.path={corpus}",
        "run.steps=3",
        "run.device=cpu",
        "run.eval_every=0",
        f"run.out={tmp_path / 'run'}",
    ]
    started = [sys.executable, "-m", "torch.distributed.run", *words, *run]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    machines = [subprocess.Popen(started, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [machine.communicate(timeout=200)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said
    assert len(losses(tmp_path / "run")) == 3
