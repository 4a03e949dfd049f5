"""Reinforcement learning: rollouts that can be replayed, and the log-probabilities of what they drew."""

from longshort.data.problems import Problem, ProblemTask, drawn, open_task
from longshort.rl.log_probs import FORMS, soft_log_probs, token_log_probs
from longshort.rl.rollout import Rollout, rollout

__all__ = [
    "FORMS",
    "Problem",
    "ProblemTask",
    "Rollout",
    "drawn",
    "open_task",
    "rollout",
    "soft_log_probs",
    "token_log_probs",
]
