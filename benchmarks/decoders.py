"""Whole models that decode token by token: ours with LS heads and with plain heads, and transformers' GPT-2.

All have the same weights. A decoder is given a prompt and then one token per step; before it is timed, its logits are
compared with an uncached forward pass in fp32 by code that is not its own.

Shapes: B sequences, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.harness import OURS, WrongResult
from longshort.generation.graphs import DecodingStep
from longshort.heads import HeadPlan
from longshort.hf.importers import from_gpt2
from longshort.model import GPT, GPTConfig
from longshort.nn import KVCache

_CHUNK = {"cpu": 512, "cuda": 1024}
"""Tokens of the prompt that go through a model at once."""
_CHECKED, FED = 480, 8
"""Length of the check's sequences (several windows), and how many of their tokens are fed one by one."""
_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 0.6}
"""Largest accepted error of a logit. The logits' standard deviation is about 1.6, the two plans differ by 4 to 7, and
twelve layers in bf16 were off by 0.1 over a vocabulary of 200."""
_NEARER = 4.0
"""A decoder must be this many times nearer to its own plan's logits than to the other's, or its mask may be wrong."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A model's sizes, how much it has read, and how many sequences decode together."""

    batch: int
    context: int
    """Tokens read before decoding is timed."""
    window: int = 128
    sizes: dict[str, int] = field(
        default_factory=lambda: {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50_257}
    )
    """Fields of transformers' GPT2Config; the default is gpt2-small's."""

    def __str__(self) -> str:
        return f"batch {self.batch}, context {self.context}"

    @property
    def plan(self) -> HeadPlan:
        """The plan of the LS heads."""
        return HeadPlan.long_short(self.sizes["n_head"], 1, self.window)


class Models:
    """The same random weights in transformers' GPT-2 and in ours, with plain heads and with LS heads."""

    def __init__(self, setting: Setting, *, room: int, device: str, dtype: torch.dtype) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        length = max(setting.context, _CHECKED) + room
        # Large enough to make attention far from uniform: a wrong mask must show in the logits.
        fields: dict[str, Any] = {"n_positions": length, "initializer_range": 0.06, **setting.sizes}
        fields |= {"bos_token_id": None, "eos_token_id": None}
        config = GPT2Config(**fields)
        self.gpt2: Any = GPT2LMHeadModel(config).eval()
        plain = from_gpt2(self.gpt2)
        self.ours = {"plain": plain, "ls": _with_plan(plain, setting.plan)}
        self.device, self.dtype = device, dtype

    def place(self) -> None:
        """Move the models to the device and dtype that are timed."""
        for model in (self.gpt2, *self.ours.values()):
            model.to(self.device, self.dtype)

    @torch.no_grad()
    def expected(self, tokens: Tensor, heads: str) -> Tensor:
        """(B, FED, V): plain heads by transformers, LS heads by the definition of the op; uncached, before `place`."""
        if heads == "plain":
            return self.gpt2(tokens, use_cache=False).logits[:, -FED:]
        plan = self.ours["ls"].config.plan
        assert plan is not None
        logits = _with_plan(self.ours["plain"], plan, backend="reference")(tokens).logits
        return logits[:, -FED:]


def _with_plan(model: GPT, plan: HeadPlan, **changes: Any) -> GPT:
    """The same weights under another plan; plans have no weights."""
    config = GPTConfig.from_dict(model.config.to_dict() | {"plan": plan} | changes)
    with torch.device("meta"):
        other = GPT(config).eval()
    other.load_state_dict(model.state_dict(), assign=True)
    return other


class Decoder(Protocol):
    """A model with a cache."""

    @property
    def mode(self) -> str:
        """How its steps run: eager, CUDA graph, or compiled."""

    def begin(self, prompt: Tensor, room: int) -> Tensor:
        """Read the prompt (B, T) into an empty cache with `room` for more tokens; return the last logits (B, V)."""

    def feed(self, token: Tensor) -> Tensor:
        """Append a token (B,) and return the logits (B, V) of the next."""


class Ours:
    """Our model and cache; on a GPU a step is a replay of a CUDA graph over a static cache, as in `generate`."""

    def __init__(self, model: GPT, device: str) -> None:
        self.model, self.device = model, device
        self._replayed: DecodingStep | None = None

    @property
    def mode(self) -> str:
        return "CUDA graph" if self._replayed is not None and self._replayed.captured else "eager"

    @torch.no_grad()
    def begin(self, prompt: Tensor, room: int) -> Tensor:
        options: dict[str, Any] = {"max_length": prompt.shape[1] + room, "rollback": 0}
        if self.device == "cuda":
            self.cache: KVCache = self.model.new_cache(len(prompt), static=True, **options)
            self._replayed = DecodingStep(self.model, self.cache, graph=True, required=True)  # type: ignore[arg-type]
        else:
            self.cache = self.model.new_cache(len(prompt), **options)
        for part in prompt[:, :-1].split(_CHUNK[self.device], dim=1):
            self.model(part, cache=self.cache, return_logits=False)
        return self.feed(prompt[:, -1])

    @torch.no_grad()
    def feed(self, token: Tensor) -> Tensor:
        if self._replayed is not None:
            return self._replayed(token[:, None])
        logits = self.model(token[:, None], cache=self.cache).logits
        assert logits is not None
        return logits[:, -1]


class TransformersDynamic:
    """transformers' GPT-2 with its default cache, which grows by concatenation."""

    mode = "eager"

    def __init__(self, model: Any, device: str) -> None:
        self.model, self.device = model, device

    @torch.no_grad()
    def begin(self, prompt: Tensor, room: int) -> Tensor:
        from transformers import DynamicCache

        self.cache = DynamicCache(config=self.model.config)
        for part in prompt.split(_CHUNK[self.device], dim=1):
            logits = self._step(part)
        return logits

    def feed(self, token: Tensor) -> Tensor:
        return self._step(token[:, None])

    @torch.no_grad()
    def _step(self, tokens: Tensor) -> Tensor:
        output = self.model(tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        return output.logits[:, -1]


class TransformersStatic:
    """transformers' GPT-2 with a static cache and, on a GPU, a compiled step; the prompt is read eagerly, as in
    `generate`."""

    def __init__(self, model: Any, device: str) -> None:
        self.model, self.device = model, device
        self.mode = "compiled" if device == "cuda" else "eager"

    @torch.no_grad()
    def begin(self, prompt: Tensor, room: int) -> Tensor:
        from transformers import StaticCache

        self.cache = StaticCache(config=self.model.config, max_cache_len=prompt.shape[1] + room)
        self.position = torch.zeros(1, 1, dtype=torch.long, device=prompt.device)
        self.call: Any = self.model
        for part in prompt.split(_CHUNK[self.device] // 2, dim=1):  # its masks are (B, 1, T, S)
            logits = self._step(part)
        if self.mode == "compiled":
            self.call = torch.compile(self.model, mode="reduce-overhead", dynamic=False)
        return logits

    def feed(self, token: Tensor) -> Tensor:
        if self.mode == "compiled":
            torch.compiler.cudagraph_mark_step_begin()
        return self._step(token[:, None])

    @torch.no_grad()
    def _step(self, tokens: Tensor) -> Tensor:
        places = self.position + torch.arange(tokens.shape[1], device=tokens.device)
        output = self.call(tokens, past_key_values=self.cache, position_ids=places, use_cache=True, logits_to_keep=1)
        self.position += tokens.shape[1]
        return output.logits[:, -1]


@dataclass(frozen=True, kw_only=True)
class DecoderKind:
    """One way to decode."""

    name: str
    heads: str
    """ls or plain."""
    build: Callable[[Models], Decoder]
    required: bool = False
    """Ours: if it fails, the error is raised."""


LS = DecoderKind(name=OURS, heads="ls", build=lambda m: Ours(m.ours["ls"], m.device), required=True)
PLAIN = DecoderKind(name=OURS, heads="plain", build=lambda m: Ours(m.ours["plain"], m.device), required=True)
DYNAMIC = DecoderKind(
    name="transformers, dynamic cache", heads="plain", build=lambda m: TransformersDynamic(m.gpt2, m.device)
)
STATIC = DecoderKind(
    name="transformers, static cache, compiled",
    heads="plain",
    build=lambda m: TransformersStatic(m.gpt2, m.device),
)


def greedy_step(decoder: Decoder, prompt: Tensor, room: int) -> Callable[[], None]:
    """Read the prompt (B, T); the step that decodes one more token of each sequence, at most `room` times."""
    token = decoder.begin(prompt, room).argmax(-1)

    def step() -> None:
        nonlocal token
        token = decoder.feed(token).argmax(-1)

    return step


@torch.no_grad()
def last_logits(decoder: Decoder, tokens: Tensor) -> Tensor:
    """(B, FED, V) in fp32, on the CPU: what a decoder gives at the end of tokens (B, T), the last fed one by one."""
    start = tokens.shape[1] - FED + 1
    found = [decoder.begin(tokens[:, :start], FED).clone()]
    found += [decoder.feed(tokens[:, i]).clone() for i in range(start, tokens.shape[1])]
    return torch.stack(found, dim=1).float().cpu()


class Expectation:
    """Sequences of tokens and the logits that decoders of each plan must give at their end."""

    def __init__(self, models: Models, vocab_size: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(vocab_size, (2, _CHECKED), generator=generator)
        self.logits = {heads: models.expected(self.tokens, heads) for heads in ("ls", "plain")}

    def check(self, kind: DecoderKind, decoder: Decoder, models: Models) -> float:
        """The largest error of a logit; raises `WrongResult` if it is too large, or nearer to the other plan's."""
        logits = last_logits(decoder, self.tokens.to(models.device))
        own, other = (
            (logits - self.logits[heads]).abs().max().item()
            for heads in (kind.heads, "plain" if kind.heads == "ls" else "ls")
        )
        if not (own <= _TOLERANCE[models.dtype] and _NEARER * own <= other):
            raise WrongResult(
                f"{kind.name} ({kind.heads}): logits are off by {own:.1e} (allowed: {_TOLERANCE[models.dtype]:.1e}), "
                f"and by {other:.1e} from the other plan's (at least {_NEARER:g} times as much expected)"
            )
        return own
