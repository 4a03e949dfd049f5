"""The section `rl` of a configuration: reinforcement learning on a task with a verifier.

What its keys mean for rollouts and losses is in `longshort.rl`; here they are a record and its checks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from longshort.model import GPTConfig
from longshort.train.settings.sections import DataConfig, RunConfig, TaskConfig, check_no_text
from longshort.train.settings.values import ConfigError

ALGORITHMS = ("grpo", "dr-grpo", "soft-grpo", "gaussian-soft")
FORMS = ("paper", "code", "categorical")


@dataclass(frozen=True, kw_only=True)
class RLConfig:
    """Reinforcement learning on a task with a verifier, by `longshort rl`."""

    task: str | None = None
    """Task to learn: frontiers, chains, or path/to/file.py:ClassName; no reinforcement learning if None."""
    task_options: dict[str, Any] = field(default_factory=dict, hash=False)
    """Options of the task, as in {operations: 3}; rl.task_options.operations=3 sets one of them."""
    task_seed: int = 0
    """Seed of the validation and test problems; the training problems are drawn from it and run.seed."""
    start: str | None = None
    """Checkpoint or run whose weights the model starts with; new weights if None."""
    supervised_steps: int = 0
    """The first steps of run.steps train on data.batch_size solutions of the task each, by cross-entropy. The model
    after them is the reference, and the optimizer starts anew."""
    supervised_lr: float | None = None
    """Peak learning rate of the supervised steps; optimizer.lr if None. The schedule applies to either part by
    itself."""
    algorithm: str = "soft-grpo"
    """grpo (discrete tokens), dr-grpo (the same without the division by the standard deviation and by lengths),
    soft-grpo (mixtures with Gumbel noise while thinking) or gaussian-soft (mixtures with Gaussian noise)."""
    form: str = "paper"
    """How soft-grpo scores a mixture: paper (sum of Gumbel log-densities), code (their clamped mean, as in the authors'
    code) or categorical (log-probability of the token of largest weight)."""
    prompts: int = 64
    """Problems per step."""
    group: int = 8
    """Sequences drawn for each problem, among which rewards are compared."""
    updates: int = 2
    """Optimizer steps per rollout, each over an equal part of its problems, in run.accumulate micro-batches."""
    clip: float = 0.2
    """A ratio of new to old probability beyond 1 - clip or 1 + clip gives no further gradient."""
    dual_clip: float | None = 3.0
    """Bound, in units of the advantage, of the loss of a token of negative advantage; none if None."""
    kl: float = 0.001
    """Weight of the KL divergence to the reference; with 0 no reference is kept."""
    max_new_tokens: int | None = None
    """Most tokens drawn after a prompt; the task's if None."""
    temperature: float = 1.0
    """Divides the logits, of mixtures as of discrete tokens."""
    top_k: int = 5
    """Tokens of a mixture; also of the distribution from which soft-grpo and gaussian-soft draw their answers, and
    grpo with truncate all tokens."""
    top_p: float = 0.95
    """Of these, only the most probable that together have this share of their probability."""
    tau: float = 0.1
    """Temperature of the mixture: towards 0 it holds a single token."""
    noise_clamp: tuple[float, float] | None = None
    """Bounds of the Gumbel noise ([-1.5, 3] in the authors' code); none if None."""
    sigma: float = 0.33
    """Standard deviation of the Gaussian noise, as a share of the root mean square of the embeddings."""
    truncate: bool = False
    """Draw the tokens of grpo and dr-grpo from the distribution that top_k and top_p leave, and score them on it."""
    failed_share: float = 0.1
    """Share of a step's samples whose verifier raises above which the run stops; up to it they count as 0."""
    eval_problems: int = 64
    """Validation problems per evaluation, the same ones every time."""
    eval_samples: int = 1
    """Sequences drawn for each of them."""


def check_rl(rl: RLConfig, run: RunConfig, data: DataConfig, task: TaskConfig, model: GPTConfig) -> None:
    """Raise where keys of `rl` and of other sections exclude each other."""
    if rl.task is None:
        given = [key for key, value in asdict(rl).items() if value != getattr(RLConfig(), key)]
        if given:
            raise ConfigError(f"rl.{given[0]} needs rl.task, such as rl.task=chains")
        return
    if task.name is not None:
        raise ConfigError(f"task.name must not be set with rl.task={rl.task}, got {task.name!r}")
    check_no_text(data, "rl.task; use rl.task_options")
    if model.dropout:
        raise ConfigError(f"model.dropout must be 0 with rl.task, got {model.dropout}")
    if run.cuda_graphs is True or (run.compile is True and run.compile_scope == "model"):
        raise ConfigError("run.compile must come with run.compile_scope=block and without run.cuda_graphs with rl.task")
    if rl.supervised_steps > run.steps:
        raise ConfigError(f"rl.supervised_steps must be at most run.steps={run.steps}, got {rl.supervised_steps}")
    if rl.prompts % rl.updates:
        raise ConfigError(f"rl.prompts must be a multiple of rl.updates={rl.updates}, got {rl.prompts}")
    if rl.prompts // rl.updates * rl.group % run.accumulate:
        raise ConfigError(
            f"run.accumulate must divide the {rl.prompts // rl.updates * rl.group} sequences of an update "
            f"(rl.prompts * rl.group / rl.updates), got {run.accumulate}"
        )
    if rl.truncate and rl.algorithm not in ("grpo", "dr-grpo"):
        raise ConfigError(f"rl.truncate is for grpo and dr-grpo; {rl.algorithm} always draws from top_k and top_p")
