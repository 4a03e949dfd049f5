"""Reinforcement learning: tasks with verifiers, rollouts that can be replayed, and their log-probabilities."""

from longshort.data.problems import Problem, ProblemTask, drawn, open_task
from longshort.rl.log_probs import FORMS, Scores, gaussian_log_probs, soft_log_probs, token_log_probs, token_scores
from longshort.rl.passes import evaluate_problems, pass_at_k
from longshort.rl.rollout import Rollout, kl_estimate, rollout
from longshort.rl.sampler import Sampler

__all__ = [
    "FORMS",
    "Problem",
    "ProblemTask",
    "Rollout",
    "Sampler",
    "Scores",
    "drawn",
    "evaluate_problems",
    "gaussian_log_probs",
    "kl_estimate",
    "open_task",
    "pass_at_k",
    "rollout",
    "soft_log_probs",
    "token_log_probs",
    "token_scores",
]
