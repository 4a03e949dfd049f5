"""Reinforcement learning on a GPU: captured rollouts, constant shapes, and what they leave."""

import math

import pytest
import torch

from longshort.rl import reinforce
from longshort.rl.trainer import RLTrainer
from longshort.train.machine.distributed import World
from longshort.train.progress import Silent

from ..rl.tiny import tiny_rl
from ..train.tiny import records

ALGORITHMS = ["grpo", "dr-grpo", "soft-grpo", "gaussian-soft"]
MODEL = {"width": 64, "n_heads": 2}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_runs_and_stays_near_what_drew(algorithm, precision, tmp_path):
    changes = ["run.device=cuda", f"run.precision={precision}", "telemetry.logits_every=1", f"rl.algorithm={algorithm}"]
    assert reinforce(tiny_rl(tmp_path / "run", *changes, **MODEL)).status == "finished"
    for record in records(tmp_path / "run", "train")[3:]:
        assert math.isfinite(record["loss"]) and record["grad_norm"] >= 0
        assert abs(record["rollout_kl"]) < (1e-4 if precision == "fp32" else 0.1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rollouts_have_one_shape_and_the_ratio_is_1_before_the_first_update(precision, tmp_path):
    config = tiny_rl(tmp_path, "run.device=cuda", f"run.precision={precision}", **MODEL)
    trainer = RLTrainer(config, World(0, 1, torch.device("cuda")), Silent())
    for first in (0, 4):
        drawn, rewards, _ = trainer._roll_out(trainer.data.training(first, 4))
        assert drawn.prompts.shape == (16, 6) and drawn.tokens.shape == (16, 5)
        experience, *_ = trainer._experience(drawn, rewards)
        measured = trainer._update(experience, 0)
        assert measured.isfinite()[:4].all() and measured[2] == 0  # nothing is clipped
        trainer.optimizer.zero_grad(set_to_none=True)


def test_a_resumed_run_continues_its_captured_rollouts(tmp_path):
    reinforce(tiny_rl(tmp_path / "run", "run.device=cuda", "run.steps=5", **MODEL))
    assert reinforce(tiny_rl(tmp_path / "run", "run.device=cuda", **MODEL)).step == 6
