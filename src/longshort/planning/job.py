"""What is planned: a model with the tokens of a step, and how it is spread over GPUs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

from longshort.heads import HeadPlan
from longshort.model import GPTConfig
from longshort.nn.block import GATED
from longshort.ops.shares import check_firsts, largest_group
from longshort.ops.smoothing import Smoothing


@dataclass(frozen=True, kw_only=True)
class Job:
    """A language model and the tokens of its optimizer step."""

    model: GPTConfig
    length: int
    """Tokens per sequence."""
    batch: int
    """Sequences per step, over all GPUs."""
    optimizer: str = "adamw"
    segments: bool = False
    """Does no document of a sequence see another?"""

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    @property
    def span(self) -> int:
        """Tokens that attention takes for a sequence."""
        return min(self.length, self.model.attention_chunk or self.length)

    @cached_property
    def plans(self) -> tuple[tuple[HeadPlan, int], ...]:
        """Each kind of layer with the number of such layers."""
        return tuple(Counter(self.model.layer_plans).items())

    @property
    def head_dim(self) -> int:
        return self.model.head_features

    @property
    def kv_heads(self) -> int:
        return self.model.n_kv_heads or self.model.n_heads

    @cached_property
    def products(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of the matrices of a block, as they are multiplied by."""
        model, heads = self.model, self.model.n_heads * self.head_dim
        up = model.mlp_width * (2 if model.mlp in GATED else 1)
        return (
            (model.width, heads + 2 * self.kv_heads * self.head_dim),
            (heads, model.width),
            (model.width, up),
            (model.mlp_width, model.width),
        )

    @cached_property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of the matrices of a block, those that one product multiplies by taken apart."""
        model, heads = self.model, self.model.n_heads * self.head_dim
        keys, up = (model.width, self.kv_heads * self.head_dim), (model.width, model.mlp_width)
        ups = (up, up) if model.mlp in GATED else (up,)
        return ((model.width, heads), keys, keys, (heads, model.width), *ups, (model.mlp_width, model.width))

    @cached_property
    def block_matrices(self) -> int:
        """Weights of the matrices of one block."""
        return sum(inputs * outputs for inputs, outputs in self.products)

    @cached_property
    def block_parameters(self) -> int:
        """Weights of the largest block: matrices, biases, norms, sinks."""
        return max(self._block(sinks) for sinks in self._sinks)

    @cached_property
    def root_parameters(self) -> int:
        """Weights outside the blocks: embeddings, head, last norm."""
        model = self.model
        tables = model.vocab_size * (1 if model.tie_embeddings else 2) + model.context * (model.positions == "learned")
        return model.width * tables + self._norm

    @cached_property
    def parameters(self) -> int:
        """All weights.

        >>> Job(model=GPTConfig.preset("gpt2-small"), length=1024, batch=1).parameters
        124439808
        """
        return self.root_parameters + sum(count * self._block(sinks) for sinks, count in self._sinks.items())

    @cached_property
    def _sinks(self) -> Counter[bool]:
        """How many layers have sinks, and how many have none."""
        return Counter(layer.sink != "none" for layer in self.model.layer_reaches)

    @property
    def _norm(self) -> int:
        return self.model.width * (2 if self.model.bias and self.model.norm == "layer" else 1)

    @property
    def norms(self) -> int:
        """Norms of the residual stream in a block."""
        return 4 if self.model.norm_placement == "sandwich" else 2

    def _block(self, sinks: bool) -> int:
        model = self.model
        biases = sum(outputs for _, outputs in self.products) if model.bias else 0
        gains = {"head": 2 * self.head_dim, "width": (model.n_heads + self.kv_heads) * self.head_dim}
        extra = gains.get(model.qk_norm or "", 0) + (model.n_heads if sinks else 0)
        if (
            model.sigma_reparam
        ):  # a gain for each of queries, keys, values, output, one or two of the MLP, and its output
            extra += 5 + (2 if model.mlp in GATED else 1)
        return self.block_matrices + biases + self.norms * self._norm + extra

    @property
    def smoothing(self) -> Smoothing | None:
        """How values or keys are averaged."""
        model = self.model
        if model.smoothing in (None, 1):
            return None
        return Smoothing(width=model.smoothing, side=model.smoothing_side, stage=model.smoothing_stage)

    @cached_property
    def largest_cp(self) -> int:
        """Over how many ranks a sequence can be sharded.

        >>> sizes = {"vocab_size": 8, "context": 64, "n_layers": 1, "width": 8, "n_heads": 2}
        >>> Job(model=GPTConfig(**sizes, plan=HeadPlan.streaming(2, 4, 16)), length=64, batch=1).largest_cp
        2
        """
        return min(largest_group(plan, self.kv_heads, self.length, self.smoothing) for plan, _ in self.plans)

    def as_plain(self) -> Job:
        """The same with full attention in every head, over whole sequences."""
        whole = replace(self.model, attention_chunk=None)
        plan = HeadPlan.full(self.model.n_heads)
        return replace(self, model=replace(whole, plan=plan, n_global=None, window=None, plans=None, reach=None))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a job is spread over GPUs, in the names of the sections `parallel` and `run`."""

    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    reshard: bool = True
    reduce: str = "fp32"
    accumulate: int = 1
    checkpoint_activations: bool = False

    @property
    def gpus(self) -> int:
        return self.dp_replicate * self.dp_shard * self.cp

    @property
    def shards(self) -> int:
        """Ranks among which weights, gradients and moments are divided."""
        return self.dp_shard * self.cp

    @property
    def copies(self) -> int:
        """Ranks, or groups of `cp` ranks, that train on different sequences."""
        return self.dp_replicate * self.dp_shard

    @property
    def stream_bytes(self) -> int:
        """Of a number of the residual stream: bf16 if the gathered weights are, fp32 if autocast alone rounds."""
        return 2 if self.shards > 1 else 4

    def overrides(self) -> list[str]:
        """For the command line of `longshort train`."""
        words = [f"parallel.{name}={getattr(self, name)}" for name in ("dp_replicate", "dp_shard", "cp")]
        if self.shards > 1:
            words += [f"parallel.reshard={str(self.reshard).lower()}"]
        if self.reduce != "fp32":
            words += [f"parallel.reduce={self.reduce}"]
        words += [f"run.accumulate={self.accumulate}"]
        return [*words, f"run.checkpoint_activations={str(self.checkpoint_activations).lower()}"]


def check(job: Job, settings: Settings) -> str | None:
    """Why the job cannot be spread so; None if it can."""
    if job.batch % settings.copies:
        return f"data.batch_size={job.batch} is not a multiple of dp_replicate x dp_shard = {settings.copies}"
    if (job.batch // settings.copies) % settings.accumulate:
        share = job.batch // settings.copies
        return f"the {share} sequences per rank are not a multiple of run.accumulate={settings.accumulate}"
    if settings.cp > 1:
        if job.model.attention_chunk is not None:
            return f"model.attention_chunk={job.model.attention_chunk} needs cp of 1, got {settings.cp}"
        if job.length % settings.cp:
            return f"{job.length:,} tokens are not a multiple of cp={settings.cp}"
        if settings.cp > job.largest_cp:
            most = f"cp must be at most {job.largest_cp} for sequences of {job.length:,} tokens, got {settings.cp}"
            return f"{most}: a window must not reach past the rank before"
        for plan, _ in job.plans:
            try:
                check_firsts(plan, job.kv_heads, job.length, job.smoothing, segments=job.segments)
            except ValueError as error:
                return f"cp must be 1, got {settings.cp}: {error}"
    return None
