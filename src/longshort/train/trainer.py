"""The training loop. Every step is a function of (config, state), and a checkpoint holds the whole state.

Randomness has no state of its own: weights come from the seed, batches from (seed, batch number), dropout from (seed,
batch number, rank). So a resumed run equals one that was never stopped: bit for bit on a CPU, and on a GPU as closely
as any two runs agree there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from longshort.data.stream import Batch
from longshort.nn import update_sigma
from longshort.runs.log import METRICS, RunLog
from longshort.stability import LogitMeter, TensorClip, attention_entropy, qk_clip
from longshort.stability.clipping import clip_by_global_norm, gradient_norm, layer_norms
from longshort.stability.entropy import check_entropy
from longshort.stability.qk_clip import check_qk_clip
from longshort.train.answers import TaskData, answer_scores
from longshort.train.checkpoint import CHECKPOINTS, Checkpoint, newest_checkpoint, prune_checkpoints, save_checkpoint
from longshort.train.config import ConfigError, TrainConfig
from longshort.train.determinism import equal_bits
from longshort.train.distributed import World, joined
from longshort.train.divergence import TrainingStopped, nonfinite_weight, told
from longshort.train.flops import flops_per_token, peak_flops
from longshort.train.folder import run_folder
from longshort.train.held_out import eagerly, validation_scores
from longshort.train.identity import check_nothing_is_lost, check_same_run, open_log, rewind_run, run_description
from longshort.train.memory import within_memory
from longshort.train.models import Model, build_model, compiled
from longshort.train.optimizer import OptimizerState, build_guard, build_optimizer
from longshort.train.precision import autocast
from longshort.train.progress import Reporter, Silent
from longshort.train.schedule import learning_rate
from longshort.train.signals import told_to_stop
from longshort.train.state import Progress, RunResult
from longshort.train.text import TextData

WORSE = 1.0
"""Nats above the best validation loss at which a warning is printed."""


def train(config: TrainConfig, reporter: Reporter | None = None) -> RunResult:
    """Train, or resume the run in `config.run.out`; under torchrun, together with the other processes.

    A run that diverges ends in `TrainingStopped`; its log and its last finite checkpoints remain.
    """
    with ExitStack() as stack:
        if config.run.deterministic:
            stack.enter_context(equal_bits())
        world = stack.enter_context(joined(config.run.device))
        stack.enter_context(within_memory(config, world))
        if world.is_writer:
            stack.enter_context(run_folder(Path(config.run.out)))
        return Trainer(config, world, reporter if world.is_writer and reporter is not None else Silent()).run()


class Trainer:
    """One run of one model."""

    def __init__(self, config: TrainConfig, world: World, reporter: Reporter) -> None:
        self.config, self.world, self.reporter = config, world, reporter
        if config.data.batch_size % (world.size * config.run.accumulate):
            raise ConfigError(
                f"data.batch_size must be a multiple of {world.size} processes times "
                f"run.accumulate={config.run.accumulate}, got {config.data.batch_size}"
            )
        if config.run.cuda_graphs and world.size > 1:
            raise ConfigError(f"run.cuda_graphs must be false with several processes, got {world.size}")
        self.out = Path(config.run.out)
        self.checkpoints = self.out / CHECKPOINTS
        kind = TextData if config.task.name is None else TaskData
        self.data: TextData | TaskData = kind.open(config, message=reporter.message)
        self.stream = self.data.stream("train", seed=config.run.seed)
        self.validation = self.data.stream("validation", seed=0)
        torch.manual_seed(config.run.seed)
        self.model: Model = build_model(config).to(world.device)
        self.model.gradient_checkpointing = config.run.checkpoint_activations
        if config.stability.qk_clip is not None:
            check_qk_clip(self.model)
        if config.telemetry.entropy_every:
            check_entropy(self.model)
        self.parallel = compiled(self.model, config.run)
        if world.size > 1:
            self.parallel = DistributedDataParallel(self.parallel)
        self.optimizer = build_optimizer(self.model, config.optimizer, world.device)
        clip, limit = config.stability.clip, config.stability.clip_norm
        self.tensor_clip = TensorClip(self.model.parameters(), limit=limit) if clip == "tensor" else None
        self.guard = build_guard(config.stability)
        self._state = OptimizerState(self.model, self.optimizer, self.guard, self.tensor_clip)
        self.meter = LogitMeter()
        self.progress = Progress()
        self._flops = flops_per_token(self.model, config.length)
        self._peak = peak_flops(world.device)
        self._interrupted = False
        self._saved_at: int | None = None
        self._given_up: str | None = None
        """Why the run must stop, if for a reason other than the number of non-finite steps."""
        self._log: RunLog

    def run(self) -> RunResult:
        """Take the steps that are left."""
        steps = self.config.run.steps
        resumed = self._resume()
        if self.config.run.cuda_graphs:
            self._fill_tables()
        with self._logging(resumed), told_to_stop(self._interrupt):
            while self.progress.step < steps and not self._interrupted and not self._is_lost():
                before = self.progress.step
                self._step()
                if self.progress.step > before:  # after a rollback there is nothing new to evaluate or save
                    self._after_step(last=self.progress.step == steps)
                self._interrupted = self.world.agree(self._interrupted)
            if self._interrupted and self._saved_at != self.progress.step:  # not if this step is already saved
                self._save()
            status, story = self._ending()
            self._record("end", step=self.progress.step, seconds=self.progress.seconds, status=status, **story)
        if status == "diverged":
            self.world.wait()  # if one process fails, torchrun ends the others: write the log first
            raise TrainingStopped(story["reason"])
        return RunResult(status, self.progress.step, self.progress.best_loss, self.out)

    def _interrupt(self) -> None:
        self._interrupted = True

    def _is_lost(self) -> bool:
        cap = self.config.stability.nonfinite_cap
        return self._given_up is not None or 0 < cap <= self.progress.nonfinite

    def _ending(self) -> tuple[str, dict[str, Any]]:
        """The final status and, for a run that diverged, since when and why."""
        progress, steps = self.progress, self.config.run.steps
        if self._interrupted and progress.step < steps and not self._is_lost():
            return "interrupted", {}
        if not self._is_lost() and (not progress.nonfinite or self._not_finite() is None):
            return "finished", {}
        if progress.step < steps and progress.nonfinite:
            self._evaluate()  # so that the last loss in the log belongs to the final weights
        since = progress.step + 1 if self._given_up is not None else progress.step - progress.nonfinite + 1
        reason = self._given_up or f"the run diverged at step {since}"
        if self.world.is_writer:
            reason = f"{reason}: {told(self.config, self.out)}"
        return "diverged", {"since": since, "reason": reason}

    def _fill_tables(self) -> None:
        """Run one sequence forward and backward eagerly, so that tables which kernels cache on the device are not
        allocated in a CUDA graph's memory.
        """
        self.model.eval()  # leaves running means unchanged
        for with_stats in (False, True):
            batch = [None if x is None else x[:1].to(self.world.device) for x in self.stream.batch(0)[:3]]
            with eagerly(), autocast(self.config.run.precision, self.world.device):
                self.model(batch[0], batch[1], segments=batch[2], stats=with_stats).loss.backward()
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)

    def _step(self) -> None:
        progress, config = self.progress, self.config
        start = time.perf_counter()
        while progress.batch in progress.dropped:
            progress.batch += 1
        batch = self.stream.batch(progress.batch, rank=self.world.rank, world_size=self.world.size)
        rate = learning_rate(progress.step, peak=config.optimizer.lr, steps=config.run.steps, schedule=config.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with_stats = self._wants_logits()
        if config.run.cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # the last step's outputs may be overwritten
        loss = self._forward_backward(batch, with_stats).item()
        layers = layer_norms(self.model.blocks) if config.telemetry.layer_gradients else {}
        norm = gradient_norm(self.model.parameters())
        logits = self.meter.read(across_ranks=self.world.size > 1) if with_stats else None
        self._count_nonfinite(loss, norm.item())
        if self._is_spike(loss, norm.item(), batch, logits):
            return
        self._clip(norm)
        self.optimizer.step()
        update_sigma(self.model)
        if config.stability.qk_clip is not None and logits is not None:
            qk_clip(self.model, logits[0], threshold=config.stability.qk_clip)
        self._finish_step(start, loss, norm.item(), rate, logits, layers)

    def _count_nonfinite(self, loss: float, norm: float) -> None:
        progress, stability = self.progress, self.config.stability
        progress.nonfinite = 0 if math.isfinite(loss + norm) else progress.nonfinite + 1
        if progress.nonfinite == 1 and stability.guard in ("off", "warn"):
            what = f"the gradient norm is {norm}" if math.isfinite(loss) else f"the loss is {loss}"
            cap = stability.nonfinite_cap
            end = f"the run stops after {cap} consecutive such steps" if cap else "the run continues (nonfinite_cap=0)"
            self.reporter.message(f"warning: step {progress.step + 1}: {what}; {end}")

    def _finish_step(
        self,
        start: float,
        loss: float,
        norm: float,
        rate: float,
        logits: tuple[Tensor, Tensor] | None,
        layers: dict[str, float],
    ) -> None:
        """Count the step and record it."""
        progress = self.progress
        self.optimizer.zero_grad(set_to_none=True)
        progress.step, progress.batch = progress.step + 1, progress.batch + 1
        tokens = self.config.data.batch_size * self.config.length
        seconds = time.perf_counter() - start
        progress.tokens, progress.seconds = progress.tokens + tokens, progress.seconds + seconds
        speed = tokens / seconds
        values: dict[str, Any] = {"loss": loss, "lr": rate, "grad_norm": norm, "tokens": progress.tokens}
        values |= {"seconds": progress.seconds, "tokens_per_second": speed}
        values["mfu"] = self._flops * speed / (self._peak * self.world.size) if self._peak else None
        if logits is not None:
            values |= {"logit_max": logits[0], "logit_min": logits[1]}
        if layers:
            values["layer_gradients"] = layers
        every = self.config.telemetry.entropy_every
        if every and progress.step % every == 0:
            values["entropy"] = self._entropy()
        self._record("train", step=progress.step, **values)

    def _forward_backward(self, batch: Batch, with_stats: bool) -> Tensor:
        """Compute the gradients of the whole step; returns its mean loss over all ranks."""
        accumulate, device = self.config.run.accumulate, self.world.device
        seed = (self.config.run.seed << 40) + (self.progress.batch << 12) + self.world.rank
        torch.manual_seed(seed % 2**63)  # torch takes at most 63 bits
        pieces = [None if x is None else x.to(device).chunk(accumulate) for x in batch[:3]]
        total = torch.zeros((), device=device)
        for i in range(accumulate):
            tokens, targets, segments = (None if piece is None else piece[i] for piece in pieces)
            with self._gradient_sync(last=i == accumulate - 1), autocast(self.config.run.precision, device):
                output = self.parallel(tokens, targets, segments=segments, stats=with_stats)
                (output.loss / accumulate).backward()
            total += output.loss.detach() / accumulate
            if with_stats:
                self.meter.update(output.stats)
        return self.world.mean(total)

    def _gradient_sync(self, *, last: bool) -> Any:
        if isinstance(self.parallel, DistributedDataParallel) and not last:
            return self.parallel.no_sync()
        return nullcontext()

    def _wants_logits(self) -> bool:
        every, stability = self.config.telemetry.logits_every, self.config.stability
        if stability.qk_clip is not None or stability.guard != "off":
            return True
        return bool(every) and ((self.progress.step + 1) % every == 0 or self.progress.step == 0)

    def _clip(self, norm: Tensor) -> None:
        """Clip the gradients; only steps that are taken enter the running means of the tensors' norms."""
        if self.tensor_clip is not None:
            self.tensor_clip.clip()
        elif self.config.stability.clip == "global":
            clip_by_global_norm(self.model.parameters(), norm, self.config.stability.clip_norm)

    def _is_spike(self, loss: float, norm: float, batch: Batch, logits: tuple[Tensor, Tensor] | None) -> bool:
        """Judge the step; True if it must not be taken. All ranks see the same numbers, so they agree."""
        progress, action = self.progress, self.config.stability.guard
        if action == "off" or (progress.step < progress.judged_from and math.isfinite(loss + norm)):
            return False
        verdict = self.guard.judge(loss if math.isfinite(norm) else math.nan)
        if not verdict.spike:
            return False
        reason = verdict.reason if not math.isfinite(loss) or math.isfinite(norm) else f"the gradient norm is {norm}"
        evidence: dict[str, Any] = {"loss": loss, "reason": reason, "action": action, "threshold": verdict.threshold}
        evidence |= {"batch": progress.batch, "indices": batch.indices, "grad_norm": norm}
        if logits is not None:
            evidence |= {"logit_max": logits[0], "logit_min": logits[1]}
        self._record("spike", step=progress.step + 1, **evidence)
        if action == "warn":
            return False
        self.optimizer.zero_grad(set_to_none=True)
        if action == "skip":
            progress.step, progress.batch = progress.step + 1, progress.batch + 1
        else:
            self._roll_back()
        return True

    def _roll_back(self) -> None:
        dropped = [*self.progress.dropped, self.progress.batch]
        if len(dropped) > self.config.stability.guard_cap:
            self._given_up = (
                f"stopped at step {self.progress.step}: {len(dropped)} rollbacks, and stability.guard_cap is "
                f"{self.config.stability.guard_cap}"
            )
            return
        self.world.wait()
        newest = newest_checkpoint(self.checkpoints, self.reporter.message)
        assert newest is not None, "a run with guard=rollback saves before its first step"
        self._restore(newest)
        self.progress.dropped, self._saved_at = dropped, None
        self.progress.judged_from = self.progress.step + self.config.stability.guard_cooldown
        if self.world.is_writer:
            self._log.rewind(self.progress.step, dropped=dropped)

    def _after_step(self, *, last: bool) -> None:
        run, step = self.config.run, self.progress.step
        best = False
        if last or (run.eval_every and step % run.eval_every == 0):
            best = self._evaluate()
        if last or (run.save_every and step % run.save_every == 0) or (best and run.save_best):
            self._save()

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

    def _validation_scores(self, count: int) -> dict[str, float]:
        batches = (
            self.validation.batch(number, rank=self.world.rank, world_size=self.world.size) for number in range(count)
        )
        judge = validation_scores if self.config.task.name is None else answer_scores
        with eagerly():
            return judge(self.model, batches, world=self.world, precision=self.config.run.precision)

    def _not_finite(self) -> str | None:
        """What in the model is not finite; None if the model is usable, whatever a single batch gave."""
        lost = nonfinite_weight(self.model.state_dict())
        if self.world.agree(lost is not None):  # buffers may differ between ranks
            return lost or "a weight of another process"
        if not self.progress.nonfinite:
            return None
        return None if math.isfinite(self._validation_scores(1)["loss"]) else "the validation loss"

    def _entropy(self) -> Tensor:
        batch, device = self.validation.batch(0), self.world.device
        inputs = {} if batch.segments is None else {"segments": batch.segments[:1].to(device)}
        with eagerly(), autocast(self.config.run.precision, device):
            return attention_entropy(self.model, batch.tokens[:1].to(device), **inputs)

    def _save(self) -> None:
        """Write a checkpoint, unless the model is not finite: that would be useless and displace good checkpoints."""
        lost = self._not_finite()
        if lost is not None:
            self.progress.nonfinite = max(1, self.progress.nonfinite)
            self.reporter.message(f"warning: step {self.progress.step}: not saved, since {lost} is not finite")
            return
        if self.world.is_writer:
            tensors, numbers = self._state.packed()
            state = {"config": self.config.to_dict(), "progress": asdict(self.progress), **numbers}
            state |= {"vocabulary": self.data.fingerprint, "tokenizer": self.data.tokenizer_checksum}
            weights = self.model.state_dict()
            save_checkpoint(self.checkpoints, step=self.progress.step, model=weights, trainer=tensors, state=state)
            prune_checkpoints(self.checkpoints, keep=self.config.run.keep, best=self.progress.best_step)
            if not (self.out / METRICS).exists():
                step = self.progress.step
                self.reporter.message(f"warning: the log of {self.out} is gone (was it moved?); step {step} is in it")
                self.data.keep_tokenizer(self.out)
        self._saved_at = self.progress.step
        self.world.wait()

    def _resume(self) -> bool:
        """Load the newest complete checkpoint, if any; True if it continues a run, False for imported weights."""
        newest = newest_checkpoint(self.checkpoints, self.reporter.message)
        if newest is None:
            check_nothing_is_lost(self.out)
            return False
        check_same_run(self.config, newest, self.data.fingerprint, self.data.tokenizer_checksum)
        self._restore(newest)
        self.progress.nonfinite = 0  # steps skipped before the restart do not count
        imported = newest.state.get("imported")
        self.reporter.message(f"resuming {self.out} at step {newest.step}" if imported is None else f"from {imported}")
        return imported is None

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.model.load_state_dict(checkpoint.model)
        self._state.restore(checkpoint.trainer, checkpoint.state)
        self.progress = Progress(**checkpoint.state["progress"])

    @contextmanager
    def _logging(self, resumed: bool) -> Iterator[None]:
        if self.world.is_writer:
            rewind_run(self.config, self.progress, resumed=resumed, message=self.reporter.message)
            self._log = open_log(self.config, self.out)
            if self._log.is_empty:  # also if a resumed run lost its log: the description comes first
                self._record("run", **run_description(self.config, self.model, self.world))
            self.data.keep_tokenizer(self.out)
        if resumed:
            self._record("resume", step=self.progress.step)
        if not resumed and self.config.stability.guard == "rollback":
            self._save()
        try:
            yield
        finally:
            if self.world.is_writer:
                self._log.close()

    def _record(self, kind: str, **values: Any) -> None:
        if self.world.is_writer:
            record = self._log.write(kind, **values)
            self.reporter.record(record, steps=self.config.run.steps)
