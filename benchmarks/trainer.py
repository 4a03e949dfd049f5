"""`longshort train` against a bare loop over the same model and step, and how long it takes to its second step.

The trainer runs with its defaults on the device; the bare loop takes the trainer's own model, compiled as the trainer
does it, its optimizer, and batches that are already on the device. Tokens are random, in a temporary folder.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import OURS, Entrant, take_turns
from benchmarks.pages import ROOT
from benchmarks.steps import GRAPHS, NANOGPT, Setting, Trainee, Way
from benchmarks.timing import clocked, free, warmed
from longshort.data.tokenizer import TOKENIZER_FILE, BPETokenizer
from longshort.data.tokens import write_token_file
from longshort.runs.log import METRICS
from longshort.train import TrainConfig, train
from longshort.train.machine.distributed import joined
from longshort.train.machine.precision import autocast
from longshort.train.progress import Silent
from longshort.train.trainer import Trainer

_STEPS = 100_000
"""Length of the runs, which are stopped early: the trainer's defaults are those of a long run."""
_BATCHES = 8
"""Batches that the bare loop has on the device."""
_LIMIT = 240.0
"""Seconds in which a run must come to its second step."""
DEFAULT = "as trained"
"""How the trainer runs a step with its defaults."""


@contextmanager
def random_tokens(vocab_size: int, length: int, *, count: int) -> Iterator[Path]:
    """A data folder of `count` random tokens over the whole vocabulary, as `longshort data` makes it."""
    import tokenizers

    vocabulary = {f"t{i}": i for i in range(vocab_size - 1)} | {"<|endoftext|>": vocab_size - 1}
    tokenizer = BPETokenizer(tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[])))
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(folder / TOKENIZER_FILE)
        for split, size in (("train", count), ("validation", 2 * length), ("test", 2 * length)):
            ids = generator.integers(vocab_size - 1, size=size, dtype=np.uint32)
            write_token_file(folder / f"{split}.tokens", [ids], tokenizer)
        yield folder


def run_config(setting: Setting, heads: str, data: Path, *, device: str) -> TrainConfig:
    """A run of the setting with the trainer's defaults; nothing is evaluated or saved before its end."""
    return TrainConfig.from_dict(
        {
            "model": setting.config(heads).to_dict(),
            "data": {"path": str(data), "batch_size": setting.batch},
            "run": {
                "device": device,
                "steps": _STEPS,
                "eval_every": 0,
                "eval_batches": 1,
                "save_every": 0,
                "out": str(data / "run"),
            },
        }
    )


class BareLoop:
    """The trainer's model and optimizer without the trainer."""

    def __init__(self, config: TrainConfig, *, clip: float | None) -> None:
        with joined(config.run.device) as world:
            trainer = Trainer(config, world, Silent())
            trainer._prepare(resumed=False)
        self.device, self.clip = world.device, clip
        self.model, self.call, self.optimizer = trainer.model, trainer.parallel, trainer.optimizer
        read = (trainer.stream.batch(number) for number in range(_BATCHES))
        self.batches = [(batch.tokens.to(self.device), batch.targets.to(self.device)) for batch in read]
        self.taken = 0

    def step(self) -> Tensor:
        """One step; the loss."""
        tokens, targets = self.batches[self.taken % _BATCHES]
        self.taken += 1
        torch.compiler.cudagraph_mark_step_begin()
        with autocast("auto", self.device):
            loss = self.call(tokens, targets).loss
        loss.backward()
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


@dataclass
class StepClock:
    """A reporter that notes when steps were recorded and then stops the run, as Ctrl-C does."""

    first: int
    last: int
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self.times: dict[int, float] = {}
        self.rates: list[float] = []
        self.said: list[str] = []

    def record(self, record: dict[str, Any], *, steps: int) -> None:
        if record["kind"] != "train" or record["step"] > self.last:
            return
        step = record["step"]
        self.times[step] = self.clock()
        if step > self.first:
            self.rates.append(record["tokens_per_second"])
        if step == self.last:
            signal.raise_signal(signal.SIGINT)

    def message(self, text: str) -> None:
        self.said.append(text)

    @property
    def seconds_per_step(self) -> float:
        return (self.times[self.last] - self.times[self.first]) / (self.last - self.first)


def trainer_against_bare_loop(setting: Setting, *, device: str, first: int, last: int) -> list[dict[str, Any]]:
    """One row: tokens per second of both, one after the other, by the clock.

    The trainer's clock runs from the record of step `first` to that of step `last`.
    """
    with random_tokens(setting.sizes["vocab_size"], setting.context, count=_BATCHES * setting.tokens * 2) as data:
        config = run_config(setting, "ls", data, device=device)
        clock = StepClock(first, last)
        train(config.with_overrides([f"run.out={data / 'trained'}"]), clock)
        free(device)
        bare = BareLoop(config, clip=config.stability.clip_norm)
        seconds = 1e-3 * clocked(warmed(bare.step, min(first, 5)), device, calls=last - first)()
    trainer = clock.seconds_per_step
    rates = {
        "trainer": [setting.tokens / trainer],
        "bare": [setting.tokens / seconds],
        "own": [statistics.median(clock.rates)],
    }
    row = {"tokens": str(setting), "layers": setting.sizes["n_layers"], "width": setting.sizes["width"]}
    return [row | {"tokens_per_second": rates, "ratio": seconds / trainer, "said": clock.said}]


def measure_small(setting: Setting, *, device: str, rounds: int, steps: int) -> list[dict[str, Any]]:
    """Rows of a small model, by the clock: as the trainer runs it by default, and the peer with CUDA graphs."""
    ways = [
        Way(name=OURS, heads="ls", how=DEFAULT),
        Way(name=OURS, heads="plain", how=DEFAULT),
        Way(name=NANOGPT, heads="plain", how=GRAPHS),
    ]
    entrants = [Entrant(way.name, way.heads, required=way.name == OURS) for way in ways]
    compiler = "inductor" if device.startswith("cuda") else "eager"
    with random_tokens(setting.sizes["vocab_size"], setting.context, count=_BATCHES * setting.tokens * 2) as data:

        def begin(way: Way, entrant: Entrant) -> None:
            if way.name == OURS:
                step = BareLoop(run_config(setting, way.heads, data, device=device), clip=None).step
            else:
                step = Trainee(way, setting, device=device, compiler=compiler).step
            entrant.facts["first_loss"] = step().item()
            entrant.sample = clocked(warmed(step, 5), device, calls=steps)

        for way, entrant in zip(ways, entrants, strict=True):
            entrant.attempt(partial(begin, way, entrant))
        take_turns(entrants, rounds)
    return [
        {"tokens": str(setting), "window": setting.window, **way.about, **entrant.row()}
        for way, entrant in zip(ways, entrants, strict=True)
    ]


def measure_start(
    setting: Setting,
    *,
    device: str,
    heads: str = "ls",
    scopes: Sequence[str] = ("model",),
    every_cache: Sequence[str] = ("cold", "warm"),
) -> list[dict[str, Any]]:
    """Seconds from the start of the process to its second step: with empty caches of compiled code, then with full."""
    rows = []
    with random_tokens(setting.sizes["vocab_size"], setting.context, count=_BATCHES * setting.tokens) as data:
        values = run_config(setting, heads, data, device=device).to_dict()
        for scope, caches in product(scopes, every_cache):
            folder = data / scope
            folder.mkdir(exist_ok=True)
            values["run"] |= {"out": str(folder / caches), "compile_scope": scope}
            path = folder / f"{caches}.json"
            path.write_text(json.dumps(values), encoding="utf-8")  # JSON is YAML too
            rows.append({"scope": scope, "caches": caches, **seconds_to_second_step(path, folder)})
    return [{"tokens": str(setting), "layers": setting.sizes["n_layers"], **row} for row in rows]


def seconds_to_second_step(config: Path, folder: Path) -> dict[str, float]:
    """Start `longshort train`, wait for the records of its first two steps, and end it."""
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    log = Path(json.loads(config.read_text(encoding="utf-8"))["run"]["out"]) / METRICS
    said = folder / "said.txt"
    start = time.perf_counter()
    with said.open("w", encoding="utf-8") as output:
        command = [sys.executable, "-m", "longshort", "train", str(config)]
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            found: dict[int, float] = {}
            while 2 not in found:
                now = time.perf_counter() - start
                if process.poll() is not None or now > _LIMIT:
                    told = said.read_text(encoding="utf-8")[-2000:]
                    raise RuntimeError(f"longshort train did not reach step 2 in {now:.0f} s: {told}")
                for number in _recorded(log):
                    found.setdefault(number, now)
                time.sleep(0.02)
        finally:
            process.kill()
            process.wait()
    return {"seconds_to_first": found.get(1, found[2]), "seconds": found[2]}


def _recorded(log: Path) -> list[int]:
    """The steps in a log that is being written."""
    if not log.is_file():
        return []
    lines = log.read_text(encoding="utf-8").split("\n")[:-1]
    return [record["step"] for record in map(json.loads, lines) if record["kind"] == "train"]
