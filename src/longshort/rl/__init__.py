"""Reinforcement learning: tasks with verifiers, rollouts that can be replayed, their log-probabilities, and GRPO."""

from longshort.data.problems import Problem, ProblemTask, drawn, open_task
from longshort.rl.log_probs import FORMS, Scores, gaussian_log_probs, soft_log_probs, token_log_probs, token_scores
from longshort.rl.objective import Objective, clipped_objective, group_advantages, kl_estimate
from longshort.rl.passes import evaluate_problems, pass_at_k
from longshort.rl.rollout import Rollout
from longshort.rl.sampler import Sampler, rollout
from longshort.rl.signal import Signal, score_signal, signal_of
from longshort.rl.trainer import reinforce

__all__ = [
    "FORMS",
    "Objective",
    "Problem",
    "ProblemTask",
    "Rollout",
    "Sampler",
    "Scores",
    "Signal",
    "clipped_objective",
    "drawn",
    "evaluate_problems",
    "gaussian_log_probs",
    "group_advantages",
    "kl_estimate",
    "open_task",
    "pass_at_k",
    "reinforce",
    "rollout",
    "score_signal",
    "signal_of",
    "soft_log_probs",
    "token_log_probs",
    "token_scores",
]
