"""The sections of a configuration that are plain records; `config` puts them together and checks them."""

from __future__ import annotations

from dataclasses import dataclass

from longshort.data.tasks import TaskSettings
from longshort.train.settings.values import ConfigError


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where tokens come from and how they are cut into batches."""

    path: str | None = None
    """Folder made by `longshort data`; if None, the text of Python's standard library, as bytes."""
    length: int | None = None
    """Tokens per sequence; the model's context if None."""
    batch_size: int = 16
    """Sequences per optimizer step, over all processes and micro-batches."""
    segments: bool = False
    """Keep attention within each document, so that documents packed into one sequence do not see each other."""
    corruption: float = 0.0
    """Share of the training tokens replaced by random ones, the same in every epoch; validation text stays clean."""
    share: float = 1.0
    """Share of the training text that is read, from its beginning; a small one is read more often in as many steps."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig(TaskSettings):
    """Train on questions with answers instead of text. `task: listops` is short for `task: {name: listops}`."""

    name: str | None = None
    """Task to train on; text if None. `task=listops` on the command line sets it."""
    causal: bool = False
    """Classifiers only: no token sees what follows it. Tasks without classes train a causal language model anyway."""
    norm: str = "layer"
    """Classifiers only: layer norm or batch norm."""
    start: str | None = None
    """Checkpoint or run whose weights the model starts with, to fine-tune it; new weights if None."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW or Muon. Weight decay acts on tensors of two or more dimensions, embeddings included, as in the author's
    code.
    """

    kind: str = "adamw"
    """adamw, or muon: Muon for the matrices of the blocks (queries, keys and values each by themselves) and AdamW for
    embeddings, head, norms and biases."""
    lr: float = 6e-4
    """Peak learning rate, reached at the end of the warm-up."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of Adam's running means of the gradient and its square."""
    eps: float = 1e-8
    """Added to the denominator of Adam's update."""
    weight_decay: float = 0.1
    """Decoupled weight decay of matrices and embeddings; biases and norms have none."""
    muon_scale: str = "match_rms"
    """Size of Muon's updates of n x m matrices: match_rms (0.2 * sqrt(max(n, m)), for the learning rate and weight
    decay of AdamW, arXiv 2502.16982) or spectral (sqrt(max(1, n / m)), for a muon_lr of about 0.02)."""
    muon_lr: float | None = None
    """Peak learning rate of the matrices that Muon trains; lr if None."""
    muon_momentum: float = 0.95
    """Decay rate of Muon's running mean of the gradient; the momentum is Nesterov's."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate over steps: a linear warm-up, then `kind`."""

    kind: str = "constant"
    """Learning rate after the warm-up: constant, cosine (falls to floor * lr at the last step) or wsd (constant, then
    a linear decay to floor * lr)."""
    warmup: int = 100
    """Steps over which the learning rate rises linearly to its peak."""
    floor: float = 0.1
    """Final learning rate of cosine and wsd, as a fraction of lr."""
    decay: float = 0.2
    """Share of all steps, at the end of the run, over which wsd decays."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How long to train, on what device, and where to write."""

    out: str = "runs/default"
    """Folder for the run's metrics and checkpoints. A run found there is resumed."""
    variant: str | None = None
    """Name under which comparisons and reports group the seeds of one setting."""
    steps: int = 1000
    """Number of optimizer steps."""
    seed: int = 0
    """Seed of the weights, the data order and dropout."""
    device: str = "auto"
    """auto (CUDA if there is a GPU, else cpu), cpu, cuda, or one GPU by its number, as in cuda:1."""
    precision: str = "auto"
    """bf16 (autocast), fp32, or auto (bf16 on CUDA, fp32 on the CPU)."""
    deterministic: bool = False
    """Make two runs on the same kind of GPU equal bit for bit; an operation that PyTorch cannot make deterministic is
    an error."""
    accumulate: int = 1
    """Micro-batches per optimizer step; more of them need less memory."""
    matmul: str = "auto"
    """Precision of fp32 matrix products on CUDA: high (TF32), highest (fp32), or auto (high in a run in bf16, highest
    in a run in fp32)."""
    compile: bool | str = "auto"
    """Compile the model with torch.compile: true, false, or auto, which compiles on CUDA if the steps will take about
    two minutes or more, and not on the CPU or for reinforcement learning."""
    compile_scope: str = "auto"
    """model compiles the whole model, for the fastest step; block compiles one block and reuses its code for the
    others, for the fastest start; auto takes block for sharded runs, for reinforcement learning, and on CUDA for runs
    that will take less than about 200 s for each layer that is like another one, without CUDA graphs and
    checkpoint_activations."""
    cuda_graphs: bool | str = "auto"
    """Replay the compiled step as CUDA graphs: true, false, or auto, which does so for small models, whose steps
    otherwise wait for Python: under about 20 ms of computing per step, in one process, without dropout, segments and
    checkpoint_activations. Needs compile and accumulate=1."""
    checkpoint_activations: bool | str = False
    """Recompute each block in the backward pass instead of keeping its activations: slower, but needs less memory;
    attention recomputes all but the outputs of attention."""
    eval_every: int = 100
    """Steps between evaluations on the validation split; 0 means only at the end."""
    eval_batches: int = 8
    """Batches per evaluation, the same ones every time."""
    save_every: int = 500
    """Steps between checkpoints; 0 means only the last and the best."""
    save_best: bool = True
    """Also save whenever the validation loss is the lowest so far."""
    keep: int = 2
    """How many of the newest checkpoints to keep; the best one, if saved, is kept as well."""
    tensorboard: bool = False
    """Also write TensorBoard events."""
    wandb: str | None = None
    """Also log to this Weights & Biases project."""


@dataclass(frozen=True, kw_only=True)
class TelemetryConfig:
    """What is measured besides the loss."""

    logits_every: int = 10
    """Steps between recordings of every head's largest and smallest logit; 0 means never. QK-clip and the guard read
    the largest at every step regardless."""
    entropy_every: int = 0
    """Steps between recordings of every head's attention entropy, on one sequence; 0 means never."""
    layer_gradients: bool = False
    """Record the gradient norm of every layer."""


@dataclass(frozen=True, kw_only=True)
class StabilityConfig:
    """What acts against loss spikes, large gradients and large logits."""

    guard: str = "off"
    """What to do on a loss spike: off (nothing), warn, skip (drop the step) or rollback (return to the last checkpoint
    and drop that batch). On a GPU, losses are read one step late: rollback then also undoes the step after the spike,
    and skip decides on the GPU, except with clip=tensor, qk_clip or sigma_reparam, where it waits for every loss."""
    guard_threshold: float = 8.0
    """A spike is this many robust standard deviations above the median of the accepted losses."""
    guard_window: int = 200
    """Accepted steps over which the median is taken."""
    guard_warmup: int = 50
    """Accepted steps before a finite loss can count as a spike."""
    guard_cap: int = 10
    """Consecutive spikes after which the new loss level is accepted; with rollback, the number of rollbacks after which
    the run stops."""
    guard_cooldown: int = 20
    """Steps after a rollback during which every finite loss is accepted."""
    nonfinite_cap: int = 10
    """Consecutive steps with a non-finite loss or gradient after which the run stops as diverged; 0 means never."""
    clip: str = "global"
    """Gradient clipping: global (by the norm of all gradients), tensor (each tensor by its past norms, as in AdaGC) or
    none."""
    clip_norm: float = 1.0
    """Largest gradient norm that global clipping allows."""
    qk_clip: float | None = None
    """Bound on every head's largest logit, enforced on its weights after each step (100 in Kimi K2); off if None."""


def check_no_text(data: DataConfig, instead: str) -> None:
    """Raise if a key of `data` that is for text is set; `instead` is what the run trains on, and which keys say how."""
    for name in ("path", "length", "segments", "corruption", "share"):
        if getattr(data, name) != getattr(DataConfig(), name):
            raise ConfigError(f"data.{name} must not be set with {instead}")
