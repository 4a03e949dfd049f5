"""Benchmark of rollouts: sequences per second, soft and discrete, against transformers' `generate`; and long rollouts,
with LS heads and with plain heads.

Everything that draws is checked first: by the model's own probabilities, computed without a cache, what it drew must be
as surprising as such draws are. `rollouts_page` draws the conclusions.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.decoders import Models, Setting
from benchmarks.harness import DTYPES, OURS, Entrant, Recorder, WrongResult, require, take_turns
from benchmarks.memory import largest_batches
from benchmarks.pages import Results
from benchmarks.rollouts_page import DISCRETE, GPT2, HF, PAGE, PLACES, SOFT, goals
from benchmarks.timing import clocked, free, warmed
from longshort.generation import Sampling, SoftThinking
from longshort.generation.decoder import Decoder
from longshort.generation.draws import Draws
from longshort.heads import HeadPlan
from longshort.model import GPT, GPTConfig
from longshort.rl import Rollout, Sampler

PARTS = ("short", "long", "batch")
_EXPECTED = -1 - 0.5772156649015329
"""Mean of the log-density of Gumbel noise at its own draws."""
_ERRORS, _ROUNDING = 5.0, {torch.float32: 1e-3, torch.bfloat16: 0.03}
"""How far a mean surprise may be off: standard errors, and nats."""
_WARM_UP = 4
"""Steps of a long rollout before it is timed, in which the step is captured."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured on a device."""

    model: dict[str, int]
    """Layers, width, heads and vocabulary, in the names of transformers' GPT2Config."""
    window: int
    batch: int
    prompt: int
    new_tokens: int
    long: tuple[tuple[int, int], ...]
    """Length and batch of the long rollouts."""
    steps: int = 16
    """Steps of a long rollout that are timed at a time."""
    memory: int | None = None
    """Bytes for the caches of the largest batch; what is free if None."""

    @property
    def fields(self) -> dict[str, Any]:
        """The sizes in the names of `GPTConfig`."""
        names = {"n_layer": "n_layers", "n_embd": "width", "n_head": "n_heads", "vocab_size": "vocab_size"}
        return {names[name]: value for name, value in self.model.items()}


SIZES = {
    "cuda": Sizes(
        model={"n_layer": 6, "n_embd": 256, "n_head": 8, "vocab_size": 1024},
        window=64,
        batch=1024,
        prompt=64,
        new_tokens=128,
        long=((8192, 64), (8192, 512), (32768, 64), (32768, 512)),
    ),
    # Shows that it runs; a CPU is not where rollouts are drawn.
    "cpu": Sizes(
        model={"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 64},
        window=8,
        batch=8,
        prompt=8,
        new_tokens=32,
        long=((256, 2),),
        steps=2,
        memory=2**24,
    ),
}


def run(
    record: Recorder,
    *,
    device: str = "cpu",
    parts: Sequence[str] | None = None,
    sizes: Sizes | None = None,
    rounds: int = 5,
) -> Results:
    """Measure the parts."""
    require(device)
    chosen = PARTS if parts is None else tuple(parts)
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        raise ValueError(f"parts must be some of {', '.join(PARTS)}, got {', '.join(unknown)}")
    sizes, dtype = sizes or SIZES[device], DTYPES[device]

    kept = {"batch": sizes.batch, "prompt": sizes.prompt, "new_tokens": sizes.new_tokens, "window": sizes.window}
    record.begin(PAGE, device, conclude=lambda results: {"goals": goals(results)}, sizes=sizes.model | kept)
    timing: dict[str, Any] = {"device": device, "dtype": dtype, "rounds": rounds}
    pieces: dict[str, list[tuple[str, Callable[[], list[dict[str, Any]]]]]] = {
        "short": [("short", partial(short_rollouts, sizes, **timing))],
        "long": [
            (f"{length} tokens, batch {batch}", partial(long_rollouts, sizes, length, batch, **timing))
            for length, batch in sizes.long
        ],
        "batch": [
            (f"largest batch at {length} tokens", partial(_largest, sizes, length, device, dtype))
            for length in dict.fromkeys(length for length, _ in sizes.long)
        ],
    }
    for part in chosen:
        for name, measure in pieces[part]:
            record.piece(part, name, measure, lenient=True)  # the other rows are still worth having
    return record.end()


def check_drawn(drawn: Rollout, model: GPT, name: str) -> float:
    """How far the mean surprise of what was drawn is from what it should be, in nats; too far is a `WrongResult`.

    A token is as surprising as the entropy says, and the noise of a mixture has the mean log-density of Gumbel noise.
    """
    with torch.no_grad():
        log_probs, entropy = drawn.scores(model, entropy=True)
    assert entropy is not None
    kept = (drawn.values > -torch.inf).sum(-1)
    off = torch.where(drawn.soft, _EXPECTED * kept - log_probs, -log_probs - entropy)[drawn.mask].double()
    mean, error = off.mean().item(), off.std().item() / len(off) ** 0.5
    allowed = _ERRORS * error + _ROUNDING[model.embedding.weight.dtype]
    if not abs(mean) <= allowed:
        raise WrongResult(f"{name}: what it draws is off by {mean:.3f} nats per token (allowed: {allowed:.3f})")
    return mean


def of_tokens(prompts: Tensor, tokens: Tensor) -> Rollout:
    """A rollout of discrete tokens (B, T) that something else drew after prompts (B, P)."""
    none = torch.empty(*tokens.shape, 0, device=tokens.device)
    return Rollout(
        prompts=prompts,
        padding=torch.zeros(len(prompts), dtype=torch.long, device=prompts.device),
        tokens=tokens,
        thinking=None,
        soft=torch.zeros_like(tokens, dtype=torch.bool),
        ids=none.long(),
        values=none,
        temperature=1.0,
    )


@dataclass
class _Short:
    """One way of drawing short rollouts."""

    name: str
    heads: str
    how: str
    draw: Callable[[], Rollout] = field(repr=False)
    required: bool = False


def short_rollouts(sizes: Sizes, *, device: str, dtype: torch.dtype, rounds: int) -> list[dict[str, Any]]:
    """Rows of all ways of drawing, ready for JSON."""
    setting = Setting(batch=sizes.batch, context=sizes.prompt, window=sizes.window, sizes=sizes.model)
    models = Models(setting, room=sizes.new_tokens, device=device, dtype=dtype)
    models.place()
    size = (sizes.batch, sizes.prompt)
    prompts = torch.randint(sizes.model["vocab_size"], size, generator=torch.Generator().manual_seed(1))
    ways = [*_our_ways(sizes, models, prompts), *_their_ways(sizes, models, prompts.to(device))]
    entrants = [Entrant(way.name, f"{way.heads}, {way.how}", required=way.required) for way in ways]

    def begin(way: _Short, entrant: Entrant) -> None:
        drawn = way.draw()
        if drawn.tokens.shape != (sizes.batch, sizes.new_tokens):
            raise WrongResult(f"{way.name}: drew {tuple(drawn.tokens.shape)} tokens")
        entrant.facts["off"] = check_drawn(drawn, models.ours[way.heads], way.name)
        entrant.sample = clocked(warmed(way.draw), device)

    for way, entrant in zip(ways, entrants, strict=True):
        entrant.attempt(partial(begin, way, entrant))
        free(device)
    take_turns(entrants, rounds)
    rows = []
    for way, entrant in zip(ways, entrants, strict=True):
        row = {"name": way.name, "heads": way.heads, "how": way.how, **entrant.row()}
        if entrant.failed is None:
            row["sequences_per_second"] = 1e3 * sizes.batch / entrant.median
        rows.append(row)
    return rows


def _our_ways(sizes: Sizes, models: Models, prompts: Tensor) -> list[_Short]:
    # No sequence stops, so that all have the same length. Some end their thinking, which saves no time.
    ways = []
    for heads, how in (("ls", SOFT), ("ls", DISCRETE), ("plain", DISCRETE)):
        sampler = Sampler(
            models.ours[heads],
            SoftThinking(end=0) if how == SOFT else None,
            batch_size=sizes.batch,
            max_prompt=sizes.prompt,
            max_new_tokens=sizes.new_tokens,
        )
        ways.append(_Short(OURS, heads, how, partial(sampler.draw, prompts, seed=0), required=True))
    return ways


def _their_ways(sizes: Sizes, models: Models, prompts: Tensor) -> list[_Short]:
    from longshort.hf import LongShortForCausalLM

    count = sizes.new_tokens
    settings: dict[str, Any] = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "pad_token_id": 0}
    settings |= {"max_new_tokens": count, "min_new_tokens": count, "attention_mask": torch.ones_like(prompts)}

    def draw(model: Any) -> Rollout:
        with torch.no_grad():
            return of_tokens(prompts, model.generate(prompts, **settings)[:, prompts.shape[1] :])

    ours = LongShortForCausalLM.from_gpt(models.ours["ls"]).eval()
    return [
        _Short(GPT2, "plain", DISCRETE, partial(draw, models.gpt2)),
        _Short(HF, "ls", DISCRETE, partial(draw, ours)),
    ]


def long_rollouts(
    sizes: Sizes, length: int, batch: int, *, device: str, dtype: torch.dtype, rounds: int
) -> list[dict[str, Any]]:
    """Rows of LS heads and of plain heads, one after the other since their caches fill the memory."""
    rows = []
    for heads in ("ls", "plain"):
        row: dict[str, Any] = {"name": f"{length} tokens, batch {batch}, {heads}"}
        row |= {"length": length, "batch": batch, "heads": heads}
        try:
            times = _step_times(sizes, heads, length, batch, device=device, dtype=dtype, rounds=rounds)
            row["milliseconds"] = times
            row["tokens_per_second"] = 1e3 * batch / statistics.fmean(map(statistics.median, times))
        except torch.OutOfMemoryError as problem:
            row["failed"] = str(problem).splitlines()[0][:300]
        rows.append(row)
        free(device)
    return rows


def _step_times(
    sizes: Sizes, heads: str, length: int, batch: int, *, device: str, dtype: torch.dtype, rounds: int
) -> list[list[float]]:
    """Milliseconds of a step at each place of a rollout, in rounds."""
    plan = HeadPlan.full(sizes.model["n_head"])
    if heads == "ls":
        plan = HeadPlan.long_short(sizes.model["n_head"], 1, sizes.window)
    torch.manual_seed(0)
    config = GPTConfig(**sizes.fields, plan=plan, context=length, positions="rotary", init_std=0.06)
    model = GPT(config).to(device, dtype).eval()
    generator = torch.Generator(device).manual_seed(0)
    prompt = torch.randint(sizes.model["vocab_size"], (batch, length), generator=torch.Generator().manual_seed(1))
    _check_model(model, prompt[:2, : min(256, length // 2)])
    draws = Draws(
        batch,
        length,
        sampling=Sampling(),
        thinking=None,
        stops=(),
        vocabulary=config.vocab_size,
        device=torch.device(device),
        generator=generator,
    )
    graph = True if device == "cuda" else None
    decoder = Decoder(model, draws, max_prompt=length, padded=False, graph=graph, generator=generator)
    times = []
    for eighth in PLACES:
        draws.reset()
        decoder.start(list(prompt[:, : eighth * length // 8]))
        sample = clocked(warmed(decoder.step, _WARM_UP), device, calls=sizes.steps)
        times.append([sample() for _ in range(rounds)])
    return times


def _check_model(model: GPT, prompts: Tensor) -> None:
    new = min(128, model.config.context - prompts.shape[1])
    sampler = Sampler(model, batch_size=len(prompts), max_prompt=prompts.shape[1], max_new_tokens=new)
    check_drawn(sampler.draw(prompts, seed=0), model, "long rollouts")


def _largest(sizes: Sizes, length: int, device: str, dtype: torch.dtype) -> list[dict[str, Any]]:
    chosen: dict[str, Any] = {"length": length, "window": sizes.window, "memory": sizes.memory}
    return [largest_batches(device=device, dtype=dtype, sizes=sizes.fields, **chosen)]
