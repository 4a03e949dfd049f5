"""Reinforcement learning: rollouts that can be replayed, and the log-probabilities of what they drew."""

from longshort.rl.log_probs import FORMS, Scores, soft_log_probs, token_log_probs, token_scores
from longshort.rl.rollout import Rollout, kl_estimate, rollout

__all__ = [
    "FORMS",
    "Rollout",
    "Scores",
    "kl_estimate",
    "rollout",
    "soft_log_probs",
    "token_log_probs",
    "token_scores",
]
