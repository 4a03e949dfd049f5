"""Every run that an experiment can plan is a valid configuration, for a GPU, a CPU, and the quick version."""

import json

import pytest
import torch

from experiments import NAMES, load
from experiments.engine.records import Options
from experiments.engine.sweep import plan_sweep
from longshort.train import TrainConfig
from longshort.train.models import build_model

SWEEPS = [name for name in NAMES if load(name).variants is not None]


@pytest.mark.parametrize("quick", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.every(3)
def test_every_run_is_a_valid_configuration_in_a_folder_of_its_own(name, quick, tmp_path):
    trials = plan_sweep(load(name), Options(out=tmp_path, seeds=(0, 1), quick=quick, device="cpu"), data=None)
    assert len({trial.out for trial in trials}) == len(trials)
    for trial in trials[: len(trials) // 2]:  # those of the first seed
        assert TrainConfig.from_dict(json.loads(json.dumps(trial.config.to_dict()))) == trial.config
        with torch.device("meta"):
            build_model(trial.config)


def test_a_gpu_run_has_the_kernel_named_and_is_compiled(tmp_path):
    (config,) = (
        t.config for t in plan_sweep(load("scale"), Options(out=tmp_path, device="cuda", variants=("ls",)), data=None)
    )
    assert (config.model.backend, config.run.compile, config.telemetry.logits_every) == ("triton", True, 1)
