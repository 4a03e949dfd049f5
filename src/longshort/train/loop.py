"""What every run does, whatever it trains on: resume, save, log, guard, roll back, measure, end.

A `Loop` takes the steps that its subclass defines. Every step is a function of (config, state), and a checkpoint holds
the whole state.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from longshort.ops.options import Stats
from longshort.parallel.sharding import gathered_only_within
from longshort.runs.log import METRICS, RunLog
from longshort.stability import LogitMeter, TensorClip, attention_entropy
from longshort.stability.clipping import clip_by_global_norm
from longshort.stability.entropy import check_entropy
from longshort.stability.qk_clip import check_qk_clip
from longshort.train.checkpoints.checkpoint import CHECKPOINTS, Checkpoint, prune_checkpoints
from longshort.train.checkpoints.together import Saver, newest_together
from longshort.train.compilation import announce_compilation, choose_compilation
from longshort.train.divergence import TrainingStopped, nonfinite_weight, told
from longshort.train.evaluation.held_out import eagerly
from longshort.train.folder import run_folder
from longshort.train.identity import (
    check_nothing_is_lost,
    check_same_run,
    check_same_texts,
    open_log,
    rewind_run,
    run_description,
)
from longshort.train.late import Logits
from longshort.train.machine.determinism import equal_bits
from longshort.train.machine.distributed import World, joined
from longshort.train.machine.flops import peak_flops
from longshort.train.machine.precision import autocast, matmul_precision, matmuls
from longshort.train.machine.signals import told_to_stop
from longshort.train.memory import within_memory
from longshort.train.models import Model, build_model, compiled, shard_model, share_sequences
from longshort.train.optimizer import OptimizerState, build_guard, build_optimizer, describe_optimizer
from longshort.train.progress import Reporter, Silent
from longshort.train.schedule import learning_rate
from longshort.train.settings.config import TrainConfig
from longshort.train.state import Progress, RunResult


class RunData(Protocol):
    """What a loop asks of the data of its run."""

    @property
    def fingerprint(self) -> str:
        """Identifies the vocabulary."""

    @property
    def tokenizer_checksum(self) -> str | None:
        """Identifies the tokenizer, if there is one."""

    @property
    def texts(self) -> dict[str, str]:
        """Checksums that identify the texts of the splits, if the data are text."""

    def keep_tokenizer(self, out: Path) -> None:
        """Copy the tokenizer beside the checkpoints, if there is one."""


def run_loop(
    make: Callable[[TrainConfig, World, Reporter], Loop], config: TrainConfig, reporter: Reporter | None
) -> RunResult:
    """Make the loop and run it; under torchrun, together with the other processes."""
    with ExitStack() as stack:
        if config.run.deterministic:
            stack.enter_context(equal_bits())
        world = stack.enter_context(joined(config.run.device))
        if world.device.type == "cuda":
            stack.enter_context(matmuls(matmul_precision(config.run.matmul, config.run.precision, world.device)))
        stack.enter_context(within_memory(config, world))
        if world.is_writer:
            stack.enter_context(run_folder(Path(config.run.out)))
        return make(config, world, reporter if world.is_writer and reporter is not None else Silent()).run()


class Loop(ABC):
    """One run of one model."""

    def __init__(self, config: TrainConfig, world: World, reporter: Reporter, data: RunData) -> None:
        self.config, self.world, self.reporter, self._run_data = config, world, reporter, data
        self.out = Path(config.run.out)
        self.checkpoints = self.out / CHECKPOINTS
        torch.manual_seed(config.run.seed)
        self.sizes = config.parallel.sizes(world.size)
        with torch.device("meta") if self.is_sharded else nullcontext():  # no process ever holds all of it
            self.model: Model = build_model(config)
        if not self.is_sharded:
            self.model.to(world.device)
        self.model.gradient_checkpointing = config.run.checkpoint_activations
        if self.sizes.cp > 1:
            share_sequences(self.model, config, world)
        if config.stability.qk_clip is not None:
            check_qk_clip(self.model)
        if config.telemetry.entropy_every:
            check_entropy(self.model)
        self.compilation = choose_compilation(config, world, self.model)
        self.parallel: nn.Module = self.model
        if self.compilation.compile:
            graphs = self.compilation.cuda_graphs
            self.parallel = compiled(self.model, self.compilation.scope, cuda_graphs=graphs)
        if self.is_sharded:
            shard_model(self.model, config, world)
        self._saver = Saver(self.checkpoints, self.model, world)
        self.meter = LogitMeter()
        self.progress = Progress()
        self._new_optimizer()
        self._peak = peak_flops(world.device)
        self._interrupted = False
        self._saved_at: int | None = None
        self._given_up: str | None = None
        """Why the run must stop, if for a reason other than the number of non-finite steps."""
        self._log: RunLog

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds a part of the model only."""
        return self.sizes.shards > 1

    @abstractmethod
    def _step(self) -> None:
        """Take one step, count it in `progress` and record it, at the latest in `_catch_up`; after a rollback, nothing
        of these.
        """

    @abstractmethod
    def _evaluate(self) -> bool:
        """Record an evaluation on the validation split; True if it is the best so far."""

    @abstractmethod
    def _validation_loss(self) -> float:
        """A loss on held-out data, quickly, which is finite if the model is usable."""

    @abstractmethod
    def _one_sequence(self) -> dict[str, Tensor]:
        """One held-out sequence as arguments of the model, whose attention is measured."""

    @abstractmethod
    def _prepare(self, *, resumed: bool) -> None:
        """Do what must precede the first step of this process, after a resumed run was restored."""

    def _catch_up(self) -> bool:
        """Judge and record the steps that were taken and not recorded yet; False if that ended in a rollback."""
        return True

    def _own_state(self) -> dict[str, Any]:
        """Numbers of the subclass for the checkpoint, ready for JSON."""
        return {}

    def _new_optimizer(self) -> None:
        """Start with an optimizer, a clip and a guard that have seen nothing."""
        clip, limit = self.config.stability.clip, self.config.stability.clip_norm
        self.optimizer = build_optimizer(self.model, self.config.optimizer, self.world.device)
        self.tensor_clip = TensorClip(self.model.parameters(), limit=limit) if clip == "tensor" else None
        self.guard = build_guard(self.config.stability)
        self._state = OptimizerState(self.model, self.optimizer, self.guard, self.tensor_clip)

    def run(self) -> RunResult:
        """Take the steps that are left."""
        steps = self.config.run.steps
        if self.compilation.reason:
            self.reporter.message(announce_compilation(self.compilation))
        if self.config.optimizer.kind != "adamw":
            self.reporter.message(describe_optimizer(self.optimizer))
        resumed = self._resume()
        self._prepare(resumed=resumed)
        with self._saver, self._logging(resumed), told_to_stop(self._interrupt):
            while self.progress.step < steps and not self._interrupted and not self._is_lost():
                before = self.progress.step
                self._step()
                if self.progress.step > before:  # after a rollback there is nothing new to evaluate or save
                    self._after_step(last=self.progress.step == steps)
                self._interrupted = self.world.agree(self._interrupted)
                self._saver.check()
            self._catch_up()
            if self._interrupted and self._given_up is None and self._saved_at != self.progress.step:
                self._save()
            self._saver.wait()
            status, story = self._ending()
            self._record("end", step=self.progress.step, seconds=self.progress.seconds, status=status, **story)
        if status == "diverged":
            self.world.wait()  # if one process fails, torchrun ends the others: write the log first
            raise TrainingStopped(story["reason"])
        progress = self.progress
        return RunResult(status, progress.step, progress.best_loss, self.out, progress.best_reward)

    def _interrupt(self) -> None:
        if not self._interrupted:
            with suppress(RuntimeError):  # the signal came while something was printed
                self.reporter.message("stopping after this step; Ctrl-C again stops at once")
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

    def _set_rate(self, step: int, *, peak: float, steps: int) -> float:
        """Give the optimizer the learning rate of step `step` of `steps`, counted from 0; see `build_optimizer`."""
        rate = learning_rate(step, peak=peak, steps=steps, schedule=self.config.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("lr_ratio", 1.0)
        return rate

    def _count_step(self) -> None:
        """The step is taken or skipped: the next one begins with new gradients and the next batch."""
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step, self.progress.batch = self.progress.step + 1, self.progress.batch + 1

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Run the model eagerly, for something other than a step."""
        with eagerly(), gathered_only_within(self.model):
            yield

    def _entropy(self) -> Tensor | None:
        """The attention entropy (L, H) after the newest step, if it is due."""
        every = self.config.telemetry.entropy_every
        if not every or self.progress.step % every:
            return None
        with self._apart(), autocast(self.config.run.precision, self.world.device):
            return attention_entropy(self.model, **self._one_sequence())

    def _record_step(
        self,
        step: int,
        *,
        seconds: float,
        tokens: int,
        loss: float,
        norm: float,
        rate: float,
        logits: Logits | None,
        entropy: Tensor | None,
        flops: float | None = None,
        **more: Any,
    ) -> None:
        """Record a step that was counted, which took in so many tokens of `flops` each."""
        progress = self.progress
        progress.tokens, progress.seconds = progress.tokens + tokens, progress.seconds + seconds
        speed = tokens / seconds
        values: dict[str, Any] = {"loss": loss, "lr": rate, "grad_norm": norm, "tokens": progress.tokens}
        values |= {"seconds": progress.seconds, "tokens_per_second": speed}
        values["mfu"] = flops * speed / (self._peak * self.world.size) if self._peak and flops else None
        values |= more
        if logits is not None and logits[1] is not None:  # both, or the record is not due
            values |= {"logit_max": logits[0], "logit_min": logits[1]}
        if entropy is not None:
            values["entropy"] = entropy
        self._record("train", step=step, **values)

    def _count_nonfinite(self, step: int, loss: float, norm: float) -> None:
        progress, stability = self.progress, self.config.stability
        progress.nonfinite = 0 if math.isfinite(loss + norm) else progress.nonfinite + 1
        if progress.nonfinite == 1 and stability.guard in ("off", "warn"):
            what = f"the gradient norm is {norm}" if math.isfinite(loss) else f"the loss is {loss}"
            cap = stability.nonfinite_cap
            end = f"the run stops after {cap} consecutive such steps" if cap else "the run continues (nonfinite_cap=0)"
            self.reporter.message(f"warning: step {step}: {what}; {end}")

    def _wants_logits(self) -> Stats:
        """Both extremes where they are recorded; the largest, which QK-clip and the guard read, at the other steps."""
        every, stability = self.config.telemetry.logits_every, self.config.stability
        first = self.progress.step == 0 and not self.compilation.compile  # compiling for statistics would delay step 2
        if every and (first or (self.progress.step + 1) % every == 0):
            return True
        return "max" if stability.qk_clip is not None or stability.guard != "off" else False

    def _clip(self, norm: Tensor) -> None:
        """Clip the gradients; only steps that are taken enter the running means of the tensors' norms."""
        if self.tensor_clip is not None:
            self.tensor_clip.clip()
        elif self.config.stability.clip == "global":
            clip_by_global_norm(self.model.parameters(), norm, self.config.stability.clip_norm)

    def _judge(
        self, step: int, batch: int, loss: float, norm: float, logits: Logits | None, **evidence: Any
    ) -> str | None:
        """Judge an update of a step; skip or rollback if it must not be made. All ranks see the same numbers, so they
        agree.
        """
        progress, action = self.progress, self.config.stability.guard
        if action == "off" or (step <= progress.judged_from and math.isfinite(loss + norm)):
            return None
        verdict = self.guard.judge(loss if math.isfinite(norm) else math.nan)
        if not verdict.spike:
            return None
        reason = verdict.reason if not math.isfinite(loss) or math.isfinite(norm) else f"the gradient norm is {norm}"
        found: dict[str, Any] = {"loss": loss, "reason": reason, "action": action, "threshold": verdict.threshold}
        found |= {"batch": batch, "grad_norm": norm} | evidence
        if logits is not None:
            found |= {name: x for name, x in zip(("logit_max", "logit_min"), logits, strict=True) if x is not None}
        self._record("spike", step=step, **found)
        return None if action == "warn" else action

    def _roll_back(self, step: int, batch: int) -> None:
        """Undo the step, and any after it, and drop its batch."""
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step, self.progress.batch = step - 1, batch
        dropped = [*self.progress.dropped, batch]
        if len(dropped) > self.config.stability.guard_cap:
            self._given_up = (
                f"stopped at step {self.progress.step}: {len(dropped)} rollbacks, and stability.guard_cap is "
                f"{self.config.stability.guard_cap}"
            )
            return
        self._saver.wait()
        self.world.wait()
        newest = newest_together(self.checkpoints, self.model, self.world, self.reporter.message)
        assert newest is not None, "a run with guard=rollback saves before its first step"
        self._restore(newest)
        self.progress.dropped, self._saved_at = dropped, None
        self.progress.judged_from = self.progress.step + self.config.stability.guard_cooldown
        if self.world.is_writer:
            self._log.rewind(self.progress.step, dropped=dropped)

    def _after_step(self, *, last: bool) -> None:
        run, step = self.config.run, self.progress.step
        evaluates = last or (run.eval_every > 0 and step % run.eval_every == 0)
        saves = last or (run.save_every > 0 and step % run.save_every == 0)
        if (evaluates or saves) and not self._catch_up():
            return
        best = evaluates and self._evaluate()
        if saves or (best and run.save_best):
            self._save()

    def _not_finite(self) -> str | None:
        """What in the model is not finite; None if the model is usable, whatever a single batch gave."""
        lost = nonfinite_weight(self.model.state_dict())
        if self.world.agree(lost is not None):  # buffers may differ between ranks
            return lost or "a weight of another process"
        if not self.progress.nonfinite:
            return None
        return None if math.isfinite(self._validation_loss()) else "the validation loss"

    def _save(self) -> None:
        """Start to write a checkpoint, unless the model is not finite: that would be useless and displace good ones."""
        lost = self._not_finite()
        if lost is not None:
            self.progress.nonfinite = max(1, self.progress.nonfinite)
            self.reporter.message(f"warning: step {self.progress.step}: not saved, since {lost} is not finite")
            return
        tensors, numbers = self._state.packed()
        state = {"config": self.config.to_dict(), "progress": asdict(self.progress), **numbers}
        state |= self._own_state() | {
            "vocabulary": self._run_data.fingerprint,
            "tokenizer": self._run_data.tokenizer_checksum,
            "texts": self._run_data.texts,
        }
        self._saver.save(step=self.progress.step, trainer=tensors, state=state, then=self._tidy(self.progress))
        self._saved_at = self.progress.step

    def _tidy(self, progress: Progress) -> Callable[[], None]:
        """What follows a checkpoint that was saved at this progress, when it is written."""
        step, best = progress.step, progress.best_step

        def tidy() -> None:
            prune_checkpoints(self.checkpoints, keep=self.config.run.keep, best=best)
            if not (self.out / METRICS).exists():
                self.reporter.message(f"warning: the log of {self.out} is gone (was it moved?); step {step} is in it")
                self._run_data.keep_tokenizer(self.out)

        return tidy

    def _resume(self) -> bool:
        """Load the newest complete checkpoint, if any; True if it continues a run, False for imported weights."""
        newest = newest_together(self.checkpoints, self.model, self.world, self.reporter.message)
        if newest is None:
            check_nothing_is_lost(self.out)
            return False
        check_same_run(self.config, newest, self._run_data.fingerprint, self._run_data.tokenizer_checksum)
        check_same_texts(self.config, newest.state, self._run_data.texts)
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
            self._log = open_log(self.config, self.out, resumed_at=self.progress.step if resumed else None)
            if self._log.is_empty:  # also if a resumed run lost its log: the description comes first
                about = run_description(self.config, self.model, self.world, self.compilation)
                about |= {"texts": self._run_data.texts} if self._run_data.texts else {}
                self._record("run", **about, optimizer=describe_optimizer(self.optimizer))
            self._run_data.keep_tokenizer(self.out)
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
