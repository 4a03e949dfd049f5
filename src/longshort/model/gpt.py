"""The model: a decoder, in the style of GPT-2 or of later models, whose attention heads each have their own reach.

Shapes: B batch, T tokens per sequence, L layers, H heads, V vocabulary.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longshort.losses.head import head_scores
from longshort.model.config import GPTConfig
from longshort.model.inputs import IGNORED_TARGET, check_inputs
from longshort.model.recompute import recomputed
from longshort.model.shared import check_shareable, mean_over_ranks, own_rows, whole_rows
from longshort.nn import (
    MLP,
    Block,
    KVCache,
    LSAttention,
    LSAttentionResult,
    LSCache,
    LSStaticCache,
    RMSNorm,
    SigmaLinear,
    segment_positions,
    sinusoidal,
)
from longshort.nn.block import apply_norm
from longshort.nn.norms import token_norm
from longshort.nn.positions import sharing_tables
from longshort.numeric import is_int
from longshort.ops.options import Stats, extremes_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class GPTOutput(NamedTuple):
    """What `GPT` returns."""

    logits: Tensor | None
    """(B, T, V), or None: see `return_logits` and `last_logits`. The loss is the cross-entropy of their softmax."""
    loss: Tensor | None
    """Mean cross-entropy in nats, fp32; None without targets."""
    stats: Tensor | None
    """(L, H, 2) fp32: largest and smallest attention logit of each head, detached; (L, H, 1), the largest alone, with
    stats="max"; None with stats=False."""


class GPT(nn.Module):
    """A language model.

    `causal=False` lets each token see both sides, for models that do not predict the next token.
    `model.gradient_checkpointing = True` recomputes each block in the backward pass instead of keeping its activations;
    `"attention"` does so but keeps the outputs of attention, which take the longest to recompute in long sequences.
    Loss and logits follow `config.loss`: see `losses.LossSettings`.

    >>> model = GPT(GPTConfig.preset("tiny"))
    >>> tokens = torch.randint(256, (2, 100))
    >>> model(tokens).logits.shape
    torch.Size([2, 100, 257])
    >>> output = model(tokens[:, :-1], tokens[:, 1:], stats=True)
    >>> output.logits is None, output.loss.shape, output.stats.shape
    (True, torch.Size([]), torch.Size([2, 4, 2]))
    """

    def __init__(self, config: GPTConfig, *, causal: bool = True) -> None:
        super().__init__()
        if not isinstance(config, GPTConfig):
            raise ValueError(f"config must be a GPTConfig, got {type(config).__name__}")
        self.config, self.causal = config, causal
        self.gradient_checkpointing: bool | str = False
        self.group: ProcessGroup | None = None
        learned = config.positions == "learned"
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width) if learned else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList([_block(config, layer, causal) for layer in range(config.n_layers)])
        self.norm = token_norm(config.norm, config.width, **_norm_options(config))
        # A tied head has no parameter of its own: `to_empty` would make two parameters of one with two names.
        self.head = None if config.tie_embeddings else nn.Linear(config.width, config.vocab_size, bias=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw the weights: N(0, init_std), or init_std / sqrt(2 L) where a layer writes to the residual stream.

        Gains are 1, biases and sinks 0. Call it after `to_empty` on a model built on the meta device:

        >>> with torch.device("meta"):
        ...     model = GPT(GPTConfig.preset("tiny"))
        >>> model = model.to_empty(device="cpu")
        >>> model.init_weights()
        """
        for name, module in self.named_modules():
            self.init_module(name, module)

    @torch.no_grad()
    def init_module(self, name: str, module: nn.Module) -> None:
        """Draw the weights that one module, called `name` in the model, holds itself."""
        if isinstance(module, nn.Linear):
            into_residual = name.endswith(("attention.out", "mlp.down"))
            shrink = math.sqrt(2 * self.config.n_layers) if into_residual else 1.0
            nn.init.normal_(module.weight, std=self.config.init_std / shrink)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            if isinstance(module, SigmaLinear):
                module.reset_sigma()
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.init_std)
        elif isinstance(module, nn.LayerNorm | RMSNorm):
            module.reset_parameters()
        elif isinstance(module, LSAttention):
            module.reset_sinks()

    def share_sequences(self, group: ProcessGroup | None) -> None:
        """Let the ranks of `group` hold each sequence together: rank i of N the i-th of N equal shards; None undoes it.

        Tokens, targets, segments and positions are then those of a rank's shard, as are the logits. The loss is the
        mean over whole sequences, equal on all ranks, and the gradients are to be averaged over the ranks of the group,
        as in data parallelism. Equal ids on both sides of a cut are one segment. A cache must be empty; on each
        rank it gets what they hold together: see `generation.shared_prefill`.
        """
        check_shareable(self)
        for layer in self.attention_layers():
            layer.share_sequences(group)
        self.group = group

    def n_parameters(self, *, position_table: bool = True) -> int:
        """Number of parameters, with or without the table of learned positions.

        >>> GPT(GPTConfig.preset("paper-6m")).n_parameters(position_table=False)
        6496704
        """
        table = self.position_embedding
        left_out = 0 if position_table or table is None else table.weight.numel()
        return sum(parameter.numel() for parameter in self.parameters()) - left_out

    @property
    def head_weight(self) -> Tensor:
        """(V, width): the matrix that turns the last hidden state into scores; the embedding's if tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    @property
    def exponent(self) -> float:
        """Alias of `config.loss.exponent`."""
        return self.config.loss.exponent

    @property
    def linear_below(self) -> float:
        """Alias of `config.loss.linear_below`."""
        return self.config.loss.linear_below

    def forward(
        self,
        tokens: Tensor | None = None,
        targets: Tensor | None = None,
        *,
        embeddings: Tensor | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
        stats: Stats = False,
        return_logits: bool | None = None,
        last_logits: int | None = None,
    ) -> GPTOutput:
        """Predict the token after each position.

        Args:
            tokens: (B, T) token ids; or give `embeddings`.
            targets: (B, T) the ids to predict, already shifted: targets[:, t] follows tokens[:, t]. -100 is ignored.
            embeddings: (B, T, width) in place of the tokens' embeddings; scaled as those are, positions added to them.
            segments: (B, T) integers; a token sees its own segment only. A negative id is padding.
            positions: (T,) or (B, T) integers; 0, 1, ... if None, counted in each segment with
                `config.restart_positions`. ALiBi and "none" ignore them.
            cache: from `new_cache`: the tokens are appended to it and see what it holds; positions and segments
                continue from the last cached token if None. There are no gradients then.
            stats: also return the extremes of the attention logits; "max" only the largest, which is cheaper.
            return_logits: whether to return logits; if None, only without targets. With targets the loss is computed in
                chunks, and the (B, T, V) logits never exist unless asked for.
            last_logits: return the logits of only this many last positions; of all if None.
        """
        if last_logits is not None and (not is_int(last_logits) or last_logits < 1):
            raise ValueError(f"last_logits must be None or an integer >= 1, got {last_logits!r}")
        check_inputs(
            self.config, self.attention_layers(), self.group, tokens, targets, embeddings, segments, positions, cache
        )
        with nullcontext() if cache is None else torch.no_grad():
            hidden, statistics = self._hidden(tokens, embeddings, segments, positions, cache, stats)
            loss = None if targets is None else self._loss(hidden, targets)
            wanted = targets is None if return_logits is None else return_logits
            kept = hidden if last_logits is None else hidden[:, -last_logits:]
            logits = self._logits(kept) if wanted else None
        return GPTOutput(logits, loss, statistics)

    def hidden(
        self,
        tokens: Tensor | None = None,
        *,
        embeddings: Tensor | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        stats: Stats = False,
    ) -> tuple[Tensor, Any]:
        """The normalised last hidden state (B, T, width), and the statistics or None; see `forward`."""
        check_inputs(
            self.config, self.attention_layers(), self.group, tokens, None, embeddings, segments, positions, None
        )
        return self._hidden(tokens, embeddings, segments, positions, None, stats)

    def new_cache(
        self,
        batch_size: int = 1,
        *,
        max_length: int | None = None,
        rollback: int = 32,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        static: bool = False,
    ) -> KVCache:
        """An empty cache for this model, in the model's dtype and on its device if None; see `LSCache`.

        With `static`, its steps can be captured in a CUDA graph or compiled, see `LSStaticCache`; `max_length` is then
        the model's context if None.

        >>> model = GPT(GPTConfig.preset("tiny"))
        >>> cache = model.new_cache()
        >>> model(torch.randint(256, (1, 20)), cache=cache).logits.shape, cache.length
        (torch.Size([1, 20, 257]), 20)
        """
        layers = self.attention_layers()
        for layer in layers:
            layer.check_cacheable()
        weight, context = self.embedding.weight, self.config.context
        plans = [layer.reach for layer in layers]
        sizes: dict[str, Any] = {"n_kv_heads": layers[0].n_kv_heads, "head_dim": layers[0].head_dim}
        sizes |= {"batch_size": batch_size, "rollback": rollback, "smoothing": layers[0].smoothing}
        sizes |= {"dtype": dtype or weight.dtype, "device": weight.device if device is None else device}
        if not static:
            return LSCache(plans, max_length=max_length, **sizes)
        if self.position_embedding is not None and max_length is not None and max_length > context:
            # A captured step cannot check on the host whether a token is past the table.
            raise ValueError(f"max_length must be at most the {context} learned positions, got {max_length}")
        return LSStaticCache(plans, max_length=context if max_length is None else max_length, **sizes)

    def attention_layers(self) -> list[LSAttention]:
        """The attention of each block."""
        return [block.attention for block in self.blocks]  # type: ignore[misc]

    def _hidden(
        self,
        tokens: Tensor | None,
        embeddings: Tensor | None,
        segments: Tensor | None,
        positions: Tensor | None,
        cache: KVCache | None,
        stats: Stats,
    ) -> tuple[Tensor, Tensor | None]:
        """The normalised last hidden state (B, T, width) and the stacked statistics."""
        extremes_of(stats)  # raises before the cache is written to
        if self.group is not None and segments is not None:
            segments = whole_rows(segments, self.group)
        x = self.embedding(tokens) if embeddings is None else embeddings
        if self.config.embedding_scale is not None:
            x = x * self.config.embedding_scale
        new = x.shape[1] * (1 if self.group is None else self.group.size())
        if cache is not None and self.group is None:
            segments = cache.record(new, segments, positions)
        elif cache is not None and self.group is not None:
            given = None if positions is None else whole_rows(positions.expand(x.shape[:2]), self.group)
            cache.record(new, segments, given)  # it is empty: these are all segments there are
        if positions is None:
            if segments is not None and self.config.restart_positions:
                positions = segment_positions(segments) if cache is None else cache.restarted(segments, new)
                positions = positions if self.group is None else own_rows(positions, self.group)
            elif cache is not None and self.group is None:
                positions = cache.next_positions(new)
            else:
                start = 0 if self.group is None else self.group.rank() * x.shape[1]
                positions = torch.arange(start, start + x.shape[1], device=x.device)
        x = self.dropout(self._with_positions(x, positions))
        statistics = []
        alone = self._recomputes or torch.compiler.is_compiling()  # a recomputed block must do the same again by itself
        with nullcontext() if alone else sharing_tables():
            for layer, block in enumerate(self.blocks):
                options = {} if cache is None else {"cache": cache.layers[layer]}
                result = self._run(block, x, positions=positions, segments=segments, stats=stats, **options)
                if isinstance(result, LSAttentionResult):
                    x = result.out
                    statistics.append(torch.stack([x for x in result.stats if x is not None], dim=-1))
                else:
                    x = result
        if cache is not None:
            cache.advance(new)
        return apply_norm(self.norm, x, segments), torch.stack(statistics).detach() if stats else None

    def _with_positions(self, x: Tensor, positions: Tensor) -> Tensor:
        if self.position_embedding is not None:
            return x + self.position_embedding(positions)
        if self.config.positions == "sinusoidal":
            # At amplitude 1 they would drown embeddings of size init_std; a learned table starts at init_std too.
            return x + math.sqrt(2) * self.config.init_std * sinusoidal(positions, self.config.width, dtype=x.dtype)
        return x

    @property
    def _recomputes(self) -> bool:
        return bool(self.gradient_checkpointing and self.training and torch.is_grad_enabled())

    def _run(self, block: nn.Module, x: Tensor, **options: Any) -> Tensor | LSAttentionResult:
        if self._recomputes:
            return recomputed(block, x, keep_attention=self.gradient_checkpointing == "attention", **options)
        return block(x, **options)

    def scores(self, hidden: Tensor) -> Tensor:
        """(..., V): the head's output for hidden states (..., width); the logits, unless `config.loss` changes them."""
        return head_scores(hidden, self.head_weight.to(hidden.device)) if self.head is None else self.head(hidden)

    def _logits(self, hidden: Tensor) -> Tensor:
        scores, loss = self.scores(hidden), self.config.loss
        return loss.transform(scores).to(scores.dtype) if loss.changes_scores else scores

    def _loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        targets = targets.to(hidden.device)
        loss = self._mean_loss(hidden, targets)
        return loss if self.group is None else mean_over_ranks(loss, (targets != IGNORED_TARGET).sum(), self.group)

    def _mean_loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        if self.head is not None and not _is_its_weight(self.head, hidden.device):
            return self._loss_of_logits(self.config.loss.transform(self.scores(hidden)), targets)
        return self.config.loss.cross_entropy(
            hidden.flatten(0, 1),
            self.head_weight.to(hidden.device),
            targets.flatten(),
            training=self.training,
            ignore_index=IGNORED_TARGET,
        )

    def _loss_of_logits(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss where the head has an adapter or a bias, or is offloaded: it is more than its weight matrix."""
        logits = logits.flatten(0, 1)
        counted = targets.flatten() != IGNORED_TARGET
        total = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED_TARGET, reduction="sum")
        if self.training and self.config.loss.z_loss:
            total = total + self.config.loss.z_loss * logits.logsumexp(-1)[counted].square().sum()
        return total / counted.sum().clamp_min(1)


def _block(config: GPTConfig, layer: int, causal: bool) -> Block:
    attention = LSAttention(
        config.width,
        config.layer_reaches[layer],
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        positions="rotary" if config.positions == "rotary" else "none",  # the plan brings ALiBi's slopes
        qk_norm=config.qk_norm,
        qk_norm_eps=config.qk_norm_eps,
        softcap=config.softcap,
        sigma_reparam=config.sigma_reparam,
        bias=config.bias,
        dropout=config.dropout,
        backend=config.backend,
        rope_theta=config.rope_theta,
        rope_scaling=config.rope_scaling,
        scale=config.attention_scale,
        causal=causal,
        smoothing=config.smoothing,
        smoothing_side=config.smoothing_side,
        smoothing_stage=config.smoothing_stage,
        chunk=config.attention_chunk,
    )
    mlp = MLP(
        config.width,
        config.mlp_width,
        activation=config.mlp,
        bias=config.bias,
        dropout=config.dropout,
        sigma_reparam=config.sigma_reparam,
    )
    norms = {"norm": config.norm, "placement": config.norm_placement, **_norm_options(config)}
    return Block(config.width, attention, mlp, **norms)


def _norm_options(config: GPTConfig) -> dict[str, Any]:
    return {"eps": config.norm_eps, "bias": config.bias, "unit_offset": config.norm_unit_offset}


def _is_its_weight(head: nn.Module, device: torch.device) -> bool:
    """Is it a plain weight matrix on this device?"""
    return type(head) is nn.Linear and head.bias is None and head.weight.device == device
