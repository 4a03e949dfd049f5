"""Reinforcement learning: tasks with verifiers, rollouts that can be replayed, and their log-probabilities."""

from longshort.data.problems import Problem, ProblemTask, drawn, open_task
from longshort.rl.log_probs import FORMS, Scores, gaussian_log_probs, soft_log_probs, token_log_probs, token_scores
from longshort.rl.rollout import Rollout, kl_estimate, rollout
from longshort.rl.sampler import Sampler
from longshort.rl.signal import Signal, score_signal, signal_of

__all__ = [
    "FORMS",
    "Problem",
    "ProblemTask",
    "Rollout",
    "Sampler",
    "Scores",
    "Signal",
    "drawn",
    "gaussian_log_probs",
    "kl_estimate",
    "open_task",
    "rollout",
    "score_signal",
    "signal_of",
    "soft_log_probs",
    "token_log_probs",
    "token_scores",
]
