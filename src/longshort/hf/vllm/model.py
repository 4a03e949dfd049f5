"""Our `GPT` as a model of vLLM: its own modules, with vLLM's attention and paged cache in the place of the op.

vLLM gives the tokens of all requests in one row, and its attention layers know which is whose.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import CacheConfig, VllmConfig
from vllm.model_executor.layers.attention import Attention

from longshort.hf.vllm.sublayers import Sublayer, divide
from longshort.model import GPT
from longshort.nn import LSAttention, SigmaLinear
from longshort.ops.heads import of_heads


class PagedAttention(nn.Module):
    """The projections and positions of an `LSAttention`, and vLLM's attention for each of its sublayers."""

    def __init__(self, layer: LSAttention, sublayers: tuple[Sublayer, ...], cache: CacheConfig, prefix: str) -> None:
        super().__init__()
        self.layer, self.sublayers = layer, sublayers
        self.attend = nn.ModuleList([self._attention(sub, cache, prefix) for sub in sublayers])
        order = [head for sub in sublayers for head in sub.heads]
        self.order = None if order == sorted(order) else [order.index(head) for head in range(len(order))]

    def _attention(self, sub: Sublayer, cache: CacheConfig, prefix: str) -> Attention:
        layer, slopes = self.layer, self.layer.plan.slopes
        more: dict[str, Any] = {}
        if layer.sinks is not None:
            more["sinks"] = torch.empty(len(sub.heads))
        attention = Attention(
            len(sub.heads),
            layer.head_dim,
            layer.head_dim**-0.5,
            num_kv_heads=len(sub.kv_heads),
            alibi_slopes=None if slopes is None else [slopes[head] for head in sub.heads],
            cache_config=cache,
            logits_soft_cap=layer.softcap,
            per_layer_sliding_window=sub.window,
            prefix=f"{prefix}.{sub.name}",
            kv_sharing_target_layer_name=None if sub.reads is None else f"{prefix}.{sub.reads}",
            **more,
        )
        if not attention.attn_backend.supports_head_size(layer.head_dim):
            right = ", ".join(map(str, attention.attn_backend.get_supported_head_sizes()))
            raise ValueError(f"head_dim must be one of {right} for vLLM's attention here, got {layer.head_dim}")
        return attention

    def fill_sinks(self) -> None:
        """Give vLLM's attention layers their part of the learned sinks."""
        if self.layer.sinks is not None:
            for attention, sub in zip(self.attend, self.sublayers, strict=True):
                attention.impl.sinks.copy_(self.layer.sinks[list(sub.heads)])  # type: ignore[union-attr,operator]

    def forward(self, x: Tensor, *, positions: Tensor, **_: Any) -> Tensor:
        """Attend within x (1, tokens, width), and to what vLLM's cache holds."""
        q, k, v = (heads[0].transpose(0, 1) for heads in self.layer.heads(x, positions))
        parts = []
        for attention, sub in zip(self.attend, self.sublayers, strict=True):
            keys, values = (of_heads(x, sub.kv_heads).flatten(1) for x in (k, v))
            out = attention(of_heads(q, sub.heads).flatten(1), keys, values)
            parts.append(out.unflatten(-1, (-1, self.layer.head_dim)))
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if self.order is not None:
            out = out[:, self.order]
        return self.layer.out(out.flatten(1))[None]


@support_torch_compile(dynamic_arg_dims={"input_ids": 0, "positions": 0, "inputs_embeds": 0})
class Stack(nn.Module):
    """All but the head: what vLLM compiles."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config.to_gpt()
        layers = divide(config)
        with torch.device("meta"):
            self.gpt = GPT(config).eval()
        self.gpt.to_empty(device=vllm_config.device_config.device)
        for i, (block, sublayers) in enumerate(zip(self.gpt.blocks, layers, strict=True)):
            name = f"{prefix}.blocks.{i}.attention"
            layer: Any = block.attention
            block.attention = PagedAttention(layer, sublayers, vllm_config.cache_config, name)

    def forward(self, input_ids: Tensor | None, positions: Tensor, inputs_embeds: Tensor | None) -> Tensor:
        tokens = None if input_ids is None else input_ids[None]
        embeddings = None if inputs_embeds is None else inputs_embeds[None]
        # Not `hidden`, which checks the tokens on the host.
        return self.gpt._hidden(tokens, embeddings, None, positions, None, False)[0][0]


class ServedModel(nn.Module):
    """What vLLM runs for `LongShortForCausalLM`."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.stack = Stack(vllm_config=vllm_config, prefix=prefix or "model")

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.stack.gpt.embedding(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """The normalised last hidden states (tokens, width)."""
        return self.stack(input_ids if inputs_embeds is None else None, positions, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """(tokens, vocabulary)."""
        return self.stack.gpt._logits(hidden_states)

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Take in the weights of an exported folder and return the names of the parameters that they filled."""
        own = dict(self.named_parameters()) | dict(self.named_buffers())
        filled = set()
        for name, weight in weights:
            mine = "stack.gpt." + name.removeprefix("model.").replace(".attention.", ".attention.layer.")
            if mine not in own:
                raise ValueError(f"weights must be those of the model in config.json, got {name!r}, which it lacks")
            own[mine].copy_(weight)
            filled.add(mine)
        for module in list(self.modules()):
            if isinstance(module, PagedAttention):
                module.fill_sinks()
            for name, child in module.named_children():
                if isinstance(child, SigmaLinear):
                    setattr(module, name, _plain(child))
        return filled


def _plain(layer: SigmaLinear) -> nn.Linear:
    """The same layer with its effective weight, which no longer changes."""
    plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    plain.weight = nn.Parameter(layer.effective_weight(), requires_grad=False)
    plain.bias = layer.bias
    return plain
