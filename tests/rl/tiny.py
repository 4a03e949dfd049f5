"""A task and a model small enough for a run of reinforcement learning in a second."""

from longshort.train import TrainConfig

MODEL = {"context": 16, "n_layers": 1, "width": 16, "n_heads": 2, "n_global": 1, "window": 4, "positions": "rotary"}

TINY_OPTIONS = {"modulus": 5, "operations": 2, "constants": 2}


def tiny_rl(out, *overrides, **model):
    """Three supervised steps and three of reinforcement learning, with `section.key=value` changes."""
    config = TrainConfig.from_dict(
        {
            "model": MODEL | model,
            "data": {"batch_size": 4},
            "optimizer": {"lr": 1e-2},
            "schedule": {"warmup": 0},
            "rl": {
                "task": "chains",
                "task_options": TINY_OPTIONS,
                "supervised_steps": 3,
                "prompts": 4,
                "group": 4,
                "eval_problems": 4,
            },
            "run": {"out": str(out), "steps": 6, "device": "cpu", "eval_every": 0, "save_every": 2, "keep": 9},
        }
    )
    return config.with_overrides(overrides)
