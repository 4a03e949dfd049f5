"""Training on text or a task: a loop whose steps take batches of a stream.

Randomness has no state of its own: weights come from the seed, batches from (seed, batch number), dropout from (seed,
batch number, rank). So a resumed run equals one that was never stopped: bit for bit on a CPU, and on a GPU as closely
as any two runs agree there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from longshort.data.ahead import BatchesAhead
from longshort.data.stream import Batch
from longshort.data.tasks.example_stream import ExampleStream
from longshort.model import GPT
from longshort.nn import update_sigma
from longshort.nn.modes import evaluating
from longshort.ops.options import Stats
from longshort.stability import qk_clip
from longshort.stability.clipping import gradient_norm, layer_norms
from longshort.train.checkpoints.start import load_start
from longshort.train.evaluation.answers import TaskData, answer_scores
from longshort.train.evaluation.held_out import eagerly, validation_scores
from longshort.train.late import Late, Mark, Numbers, Ready, Step
from longshort.train.loop import Loop, run_loop
from longshort.train.machine.distributed import World
from longshort.train.machine.flops import flops_per_token
from longshort.train.machine.precision import autocast
from longshort.train.parts import part_weights
from longshort.train.progress import Reporter
from longshort.train.settings.config import ConfigError, TrainConfig
from longshort.train.state import RunResult
from longshort.train.text import TextData

WORSE = 1.0
"""Nats above the best validation loss at which a warning is printed."""


def train(config: TrainConfig, reporter: Reporter | None = None) -> RunResult:
    """Train, or resume the run in `config.run.out`; under torchrun, together with the other processes.

    A run that diverges ends in `TrainingStopped`; its log and its last finite checkpoints remain.
    """
    if not isinstance(config, TrainConfig):
        raise ConfigError(
            f"config must be a TrainConfig, as TrainConfig.load or from_dict makes, got {type(config).__name__}"
        )
    if config.rl.task is not None:
        raise ConfigError(
            f"rl.task must be null to train on text or examples, got {config.rl.task!r}; run longshort rl"
        )
    return run_loop(Trainer, config, reporter)


class Trainer(Loop):
    """One run of one model on batches of text or of a task's examples."""

    def __init__(self, config: TrainConfig, world: World, reporter: Reporter) -> None:
        readers, cp = config.parallel.sizes(world.size).readers, config.parallel.cp
        if config.data.batch_size % (readers * config.run.accumulate):
            raise ConfigError(
                f"data.batch_size must be a multiple of {readers} {f'groups of {cp} ' if cp > 1 else ''}processes "
                f"times run.accumulate={config.run.accumulate}, got {config.data.batch_size}"
            )
        if config.run.cuda_graphs is True and world.size > 1:
            raise ConfigError(f"run.cuda_graphs must be false with several processes, got {world.size}")
        kind = TextData if config.task.name is None else TaskData
        self.data: TextData | TaskData = kind.open(config, message=reporter.message)
        self.stream = self.data.stream("train", seed=config.run.seed)
        self.validation = self.data.stream("validation", seed=0)
        super().__init__(config, world, reporter, self.data)
        self.batches = BatchesAhead(self._batch, pinned=world.device.type == "cuda")
        self.late = Late(world.device)
        self._waits = config.stability.guard == "skip" and _changes_more_than_weights(config)
        self._met: set[Stats] = set()
        """The kinds of statistics that steps have had: the first of each may compile, which takes long, so it is timed
        by itself."""
        self._flops = flops_per_token(self.model, config.length)
        if world.size > 1 and not self.is_sharded:
            self.parallel = DistributedDataParallel(self.parallel)

    def _prepare(self, *, resumed: bool) -> None:
        if not resumed and self.config.task.start is not None and isinstance(self.data, TaskData):
            found = load_start(self.config, self.model, section="task")
            self.data.check_start(found)
            self.reporter.message(f"starting with the weights of {found.path}")
        if self.compilation.cuda_graphs:
            self._fill_tables()

    def _fill_tables(self) -> None:
        """Run one sequence forward and backward eagerly, so that tables which kernels cache on the device are not
        allocated in a CUDA graph's memory.
        """
        with evaluating(self.model):  # leaves running means unchanged
            for with_stats in (False, True):
                batch = [None if x is None else x[:1].to(self.world.device) for x in self.stream.batch(0)[:3]]
                with eagerly(), autocast(self.config.run.precision, self.world.device):
                    self.model(batch[0], batch[1], segments=batch[2], stats=with_stats).loss.backward()
        self.optimizer.zero_grad(set_to_none=True)

    def _batch(self, number: int) -> Batch:
        return self._own_positions(self.stream.batch(number, **self._reader))

    @property
    def _reader(self) -> dict[str, int]:
        """Which sequences are those of this process."""
        return {"rank": self.world.rank // self.sizes.cp, "world_size": self.sizes.readers}

    def _own_positions(self, batch: Batch) -> Batch:
        """Those of this process, where processes share sequences."""
        return batch.shard(self.world.rank % self.sizes.cp, self.sizes.cp)

    def _step(self) -> None:
        with_stats = self._wants_logits()
        compiles = with_stats not in self._met
        if compiles and not self._catch_up():
            return
        self._met.add(with_stats)
        progress, config, start = self.progress, self.config, Mark(self.world.device)
        while progress.batch in progress.dropped:
            progress.batch += 1
        batch = self.batches.take(progress.batch)
        rate = self._set_rate(progress.step, peak=config.optimizer.lr, steps=config.run.steps)
        step = Step(
            number=progress.step + 1,
            batch=progress.batch,
            indices=batch.indices,
            start=start,
            rate=rate,
            numbers=self._gradients(batch, with_stats),
        )
        ready = self.late.exchange(step, wait=self._waits or compiles)
        action = None if ready is None else self._judged(ready)
        if action == "rollback":
            return
        if ready is None or ready.step is not step:
            self._apply(step.numbers, unless_a_spike=config.stability.guard == "skip")
        elif action is None:
            self._apply(step.numbers)
        self._count_step()
        step.entropy = self._entropy()
        if self.late.holds:  # the GPU is at work on it
            self.batches.prepare(progress.batch)
        if ready is not None and action is None:
            self._finish_step(ready)

    def _gradients(self, batch: Batch, with_stats: Stats) -> Numbers:
        """Compute the gradients of the step, reading nothing from the device."""
        if self.compilation.cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # the last step's outputs may be overwritten
        loss = self._forward_backward(batch, with_stats)
        return Numbers(
            loss=loss,
            norm=gradient_norm(self.model.parameters()),
            logits=self.meter.read(across_ranks=self.world.size > 1) if with_stats else None,
            layers=layer_norms(self.model.blocks) if self.config.telemetry.layer_gradients else None,
        )

    def _judged(self, ready: Ready) -> str | None:
        """See `_judge`; a rollback is made here."""
        step, numbers = ready.step, ready.numbers
        loss, norm = numbers.loss.item(), numbers.norm.item()
        self._count_nonfinite(step.number, loss, norm)
        action = self._judge(step.number, step.batch, loss, norm, numbers.logits, indices=step.indices)
        if action == "rollback":
            self.late.forget()
            self._roll_back(step.number, step.batch)
        return action

    def _apply(self, numbers: Numbers, *, unless_a_spike: bool = False) -> None:
        """Make the update; `unless_a_spike` lets the device judge the loss, just as the guard will judge it later."""
        spike = self.guard.spikes(numbers.loss + 0 * numbers.norm) if unless_a_spike else None  # 0 * inf is NaN
        self.optimizer.found_inf = None if spike is None else spike.float()  # type: ignore[attr-defined]
        self._clip(numbers.norm)
        self.optimizer.step()  # a fused one leaves everything as it is where found_inf is 1
        update_sigma(self.model)
        if self.config.stability.qk_clip is not None and numbers.logits is not None:
            qk_clip(self.model, numbers.logits[0], threshold=self.config.stability.qk_clip)

    def _finish_step(self, ready: Ready) -> None:
        """Record the step."""
        step, numbers = ready.step, ready.numbers
        layers = {} if numbers.layers is None else {"layer_gradients": _by_number(numbers.layers)}
        self._record_step(
            step.number,
            seconds=ready.seconds(),
            tokens=self.config.data.batch_size * self.config.length,
            loss=numbers.loss.item(),
            norm=numbers.norm.item(),
            rate=step.rate,
            logits=numbers.logits,
            entropy=step.entropy,
            flops=self._flops,
            **layers,
        )

    def _catch_up(self) -> bool:
        ready = self.late.last()
        action = None if ready is None else self._judged(ready)
        if ready is not None and action is None:
            self._finish_step(ready)
        return action != "rollback"

    def _forward_backward(self, batch: Batch, with_stats: Stats) -> Tensor:
        """Compute the gradients of the whole step; returns its mean loss over all ranks."""
        accumulate, device = self.config.run.accumulate, self.world.device
        seed = (self.config.run.seed << 40) + (self.progress.batch << 12) + self.world.rank
        torch.manual_seed(seed % 2**63)  # torch takes at most 63 bits
        pieces = [None if x is None else x.to(device, non_blocking=True).chunk(accumulate) for x in batch[:3]]
        assert pieces[1] is not None
        weights = self._weights(pieces[1])
        total = torch.zeros((), device=device)
        for i in range(accumulate):
            tokens, targets, segments = (None if piece is None else piece[i] for piece in pieces)
            with self._gradient_sync(last=i == accumulate - 1), autocast(self.config.run.precision, device):
                output = self.parallel(tokens, targets, segments=segments, stats=with_stats)
                (output.loss * weights[i]).backward()
            total += output.loss.detach() * weights[i]
            if with_stats:
                self.meter.update(output.stats)
        return self.world.mean(total)

    def _weights(self, targets: Sequence[Tensor]) -> Sequence[float] | Tensor:
        """What each part counts for; parts of text have equally many targets."""
        if isinstance(self.data, TaskData):
            return part_weights(targets, self.world, self.model.group if isinstance(self.model, GPT) else None)
        return [1 / len(targets)] * len(targets)

    def _gradient_sync(self, *, last: bool) -> Any:
        if isinstance(self.parallel, DistributedDataParallel) and not last:
            return self.parallel.no_sync()
        return nullcontext()

    def _evaluate(self) -> bool:
        """Record the validation loss, and for a task the accuracy; True if the loss is the lowest so far."""
        scores, progress = self._validation_scores(self.config.run.eval_batches), self.progress
        loss = scores["loss"]
        best = math.isfinite(loss) and (progress.best_loss is None or loss < progress.best_loss)
        if best:
            progress.best_loss, progress.best_step = loss, progress.step
        elif progress.best_loss is not None and loss > progress.best_loss + WORSE:
            above = f"{loss - progress.best_loss:.4g} nats above the best, of step {progress.best_step}"
            self.reporter.message(f"warning: step {progress.step}: the validation loss is {above}")
        values = scores | {"perplexity": math.exp(min(loss, 700.0)), "tokens": progress.tokens}
        self._record("eval", step=progress.step, split="validation", seconds=progress.seconds, **values)
        return best

    def _validation_scores(self, count: int) -> dict[str, Any]:
        where: dict[str, Any] = {"world": self.world, "precision": self.config.run.precision}
        with self._apart():
            if isinstance(self.validation, ExampleStream):
                own = map(self._own_positions, self.validation.once(count, **self._reader))
                return answer_scores(self.model, own, kinds=self.validation.task.kinds, **where)
            batches = (self.validation.batch(number, **self._reader) for number in range(count))
            return validation_scores(self.model, map(self._own_positions, batches), **where)

    def _validation_loss(self) -> float:
        return self._validation_scores(1)["loss"]

    def _one_sequence(self) -> dict[str, Tensor]:
        device = self.world.device
        batch = self._own_positions(self.validation.batch(0))
        inputs = {} if batch.segments is None else {"segments": batch.segments[:1].to(device)}
        return {"tokens": batch.tokens[:1].to(device)} | inputs


def _changes_more_than_weights(config: TrainConfig) -> bool:
    """Whether an update changes more than the optimizer does, which then cannot leave everything as it is."""
    return config.stability.clip == "tensor" or config.stability.qk_clip is not None or config.model.sigma_reparam


def _by_number(values: Tensor) -> dict[str, float]:
    return {str(number): value for number, value in enumerate(values.tolist())}
