"""Heads measured on a GPU: the numbers are those of the CPU, and a model can be converted there."""

import os
import signal
from copy import deepcopy

import pytest
import torch

pytest.importorskip("transformers")

from longshort.hf.inspection.calls import make_observable
from longshort.hf.inspection.convert import convert
from longshort.hf.inspection.measure import copying, measure
from longshort.hf.inspection.opened import open_folder
from longshort.hf.inspection.propose import Budget
from longshort.hf.inspection.uptraining import Interrupted
from tests.hf.inspection.models import folder_of, model_of

CLOSE = {"atol": 2e-3, "rtol": 1e-2}


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_measured_is_that_of_the_cpu(name):
    ids = torch.randint(1, 256, (2, 300), generator=torch.Generator().manual_seed(1))
    model, found = model_of(name), []
    for one in (model, deepcopy(model).cuda()):
        make_observable(one)
        asked = [(row, [200, 299], [3, 150]) for row in ids]
        found.append((measure(one, ids.to(one.device)), copying(one, asked)))
    (cpu, pairs), (gpu, pairs_gpu) = found
    for field in ("mass", "first_mass", "entropy", "largest_logit"):
        torch.testing.assert_close(getattr(gpu, field), getattr(cpu, field), **CLOSE)
    torch.testing.assert_close(pairs_gpu, pairs, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_is_converted_on_the_gpu(dtype, tmp_path):
    source = folder_of(model_of("llama").to(dtype), tmp_path / "source")
    opened = open_folder(source, torch.device("cuda"), trained=True)
    record = convert(opened, tmp_path / "out", budget=Budget(share=0.3), length=256, rows=4, steps=30, rate=3e-3)
    assert record["loss"]["after"] < record["loss"]["planned"] - 0.3
    found = open_folder(tmp_path / "out", torch.device("cuda"))
    assert found.model.dtype == dtype


def test_a_conversion_on_the_gpu_is_resumed(tmp_path):
    source, seen = folder_of(model_of("llama"), tmp_path / "source"), []

    def begin(out, progress=lambda what, done, total: None):
        opened = open_folder(source, torch.device("cuda"), trained=True)
        return convert(opened, out, budget=Budget(share=0.3), length=256, rows=4, steps=6, rate=1e-3, progress=progress)

    def stopping(what, done, total):
        if what.startswith("training") and done == 3:
            os.kill(os.getpid(), signal.SIGINT)

    whole = begin(tmp_path / "whole")
    with pytest.raises(Interrupted, match="interrupted at step 3 of 6"):
        begin(tmp_path / "out", stopping)
    resumed = begin(tmp_path / "out", lambda what, done, total: seen.append(done))
    assert seen == [4, 5, 6] and resumed["plans"] == whole["plans"]
    assert resumed["training"]["losses"] == pytest.approx(whole["training"]["losses"], rel=1e-2)
