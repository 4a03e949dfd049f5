"""Where a run stands, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Progress:
    """Where a run stands; together with the weights and the optimizer, its whole state."""

    step: int = 0
    """Optimizer steps taken or skipped."""
    batch: int = 0
    """Number of the next batch of the stream."""
    dropped: list[int] = field(default_factory=list)
    """Batches that rollbacks dropped."""
    tokens: int = 0
    seconds: float = 0.0
    """Time spent in steps, without evaluation, checkpoints and start-up."""
    best_loss: float | None = None
    best_step: int | None = None
    best_reward: float | None = None
    """In reinforcement learning, the highest validation reward, which `best_step` is then the step of."""
    judged_from: int = 0
    """Last step of a rollback's cool-down; later ones are judged again, and those that are not finite always are."""
    nonfinite: int = 0
    """Consecutive steps, up to this one, whose loss or gradient was not finite."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    status: str
    """finished or interrupted."""
    step: int
    best_validation_loss: float | None
    out: Path
    best_validation_reward: float | None = None
    """Of reinforcement learning alone."""
