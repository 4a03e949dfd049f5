"""`accelerate` with FSDP2 on two CPU processes: the steps and the saved folder are those of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ..hf.small import shell

SCRIPT = Path(__file__).with_name("sharded_steps.py")


def losses(source, out, processes):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), str(SCRIPT), str(source), str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"processes {processes} sharded {processes > 1}" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    return sorted({float(words[1]) for words in lines if words[:1] == ["loss"]})


@pytest.mark.parametrize("options", [{}, {"tie_embeddings": True, "n_kv_heads": 2, "n_global": 2}], ids=["", "tied"])
def test_sharded_steps_are_those_of_one_process(options, tmp_path):
    shell(**options).save_pretrained(tmp_path / "start")
    one, two = (losses(tmp_path / "start", tmp_path / str(n), n) for n in (1, 2))
    assert len(one) == 3 and two == pytest.approx(one, rel=1e-6)
    alone, sharded = (AutoModelForCausalLM.from_pretrained(tmp_path / str(n)) for n in (1, 2))
    begun = AutoModelForCausalLM.from_pretrained(tmp_path / "start").state_dict()
    for name, weight in alone.state_dict().items():
        torch.testing.assert_close(sharded.state_dict()[name], weight, rtol=1e-5, atol=1e-6)
    assert any(not begun[name].equal(weight) for name, weight in sharded.state_dict().items())
