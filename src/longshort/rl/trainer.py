"""Reinforcement learning: a loop whose steps draw answers to problems, have them verified, and learn from the rewards.

A step is one rollout of `rl.prompts` problems times `rl.group` sequences, then `rl.updates` optimizer steps over equal
parts of it. Problems and draws depend on (seed, batch number), and state exists only between steps, so a resumed run
equals one that was never stopped: bit for bit on a CPU. The first `rl.supervised_steps` steps learn the solutions.

Shapes: B sequences, T new tokens.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longshort.data.problems import Problem
from longshort.model import GPT
from longshort.nn import update_sigma
from longshort.rl.answers import Answerer, form_of, lengths, rollout_seed, sequences
from longshort.rl.evaluation import answered, solution_loss
from longshort.rl.objective import Objective, clipped_objective, group_advantages, kl_estimate, signal_share
from longshort.rl.problem_data import ProblemData
from longshort.rl.reference import load_reference, save_reference
from longshort.rl.rewards import Rewards, check_failures, verified
from longshort.rl.rollout import Rollout
from longshort.rl.signal import signal_and_noise
from longshort.stability import qk_clip, watch_logits
from longshort.stability.clipping import gradient_norm, layer_norms
from longshort.train.checkpoints.checkpoint import Checkpoint
from longshort.train.checkpoints.start import load_start
from longshort.train.divergence import nonfinite_weight
from longshort.train.loop import Logits, Loop, run_loop
from longshort.train.machine.distributed import World
from longshort.train.machine.precision import autocast
from longshort.train.parts import part_weights
from longshort.train.progress import Reporter
from longshort.train.settings.config import ConfigError, TrainConfig
from longshort.train.state import RunResult


def reinforce(config: TrainConfig, reporter: Reporter | None = None) -> RunResult:
    """Learn the task `config.rl.task`, or resume the run in `config.run.out`.

    A run that diverges ends in `TrainingStopped`, one whose verifier fails too often in `VerifierError`; the log and
    the last checkpoints remain.
    """
    if not isinstance(config, TrainConfig):
        raise ConfigError(f"config must be a TrainConfig, such as TrainConfig.load('rl-tiny'), got {config!r:.100}")
    if config.rl.task is None:
        raise ConfigError("rl.task must name a task, got null; run longshort train for text and examples")
    return run_loop(RLTrainer, config, reporter)


@dataclass(frozen=True)
class Experience:
    """A rollout and all that its updates need besides the model."""

    drawn: Rollout
    advantages: Tensor
    """(B,)"""
    old: Tensor
    """(B, T) log-probabilities of the model that drew, recomputed."""
    reference: Tensor | None
    """(B, T) of the reference, if there is one."""


class RLTrainer(Loop):
    """One run of reinforcement learning."""

    def __init__(self, config: TrainConfig, world: World, reporter: Reporter) -> None:
        if world.size > 1:
            raise ConfigError(f"longshort rl must run in one process, got {world.size}")
        self.data = ProblemData.open(config)
        super().__init__(config, world, reporter, self.data)
        assert isinstance(self.model, GPT)
        self.policy: GPT = self.model
        try:
            self.policy.new_cache()
        except ValueError as error:
            raise ConfigError(f"model: rollouts need a model with a cache of its keys; {error}") from None
        self.answerer = self._new_answerer()
        self.form = form_of(config.rl)
        self.reference: GPT | None = None

    def _new_answerer(self, sigma: float | None = None) -> Answerer:
        return Answerer(self.policy, self.data.task, self.config, sigma)

    def _own_state(self) -> dict[str, Any]:
        """The Gaussian noise is that of the embeddings at the start, so that it stays the same."""
        return {"sigma": self.answerer.sigma}

    def _restore(self, checkpoint: Checkpoint) -> None:
        super()._restore(checkpoint)
        self.answerer = self._new_answerer(checkpoint.state.get("sigma"))

    def _prepare(self, *, resumed: bool) -> None:
        if not resumed and self.config.rl.start is not None:
            found = load_start(self.config, self.policy, section="rl")
            self.reporter.message(f"starting with the weights of {found.path}")
        if self.config.rl.kl and self.progress.step > self.config.rl.supervised_steps:
            self.reference = self._new_model()
            load_reference(self.out, self.reference)

    def _new_model(self) -> GPT:
        with torch.random.fork_rng(devices=[]):
            return GPT(self.config.model).to(self.world.device).eval().requires_grad_(False)

    def _step(self) -> None:
        while self.progress.batch in self.progress.dropped:
            self.progress.batch += 1
        if self.progress.step < self.config.rl.supervised_steps:
            self._supervised_step()
            return
        if self.progress.step == self.config.rl.supervised_steps:
            self._begin()
        self._reinforcement_step()

    def _begin(self) -> None:
        """Make the model the reference, and start with a new optimizer: what came before had another loss."""
        self._new_optimizer()
        self.answerer = self._new_answerer()
        if self.config.rl.kl:
            weights = self.policy.state_dict()
            self.reference = self._new_model()
            self.reference.load_state_dict(weights)
            state = {"config": self.config.to_dict(), "vocabulary": self.data.fingerprint, "tokenizer": None}
            save_reference(self.out, self.progress.step, weights, state)

    def _supervised_step(self) -> None:
        config, progress, start = self.config, self.progress, time.perf_counter()
        count = config.data.batch_size
        problems = self.data.training(progress.batch * count, count)
        peak = config.rl.supervised_lr or config.optimizer.lr
        rate = self._set_rate(progress.step, peak=peak, steps=config.rl.supervised_steps)
        tokens, targets = self.data.solutions(problems, self.world.device)
        with_stats, total = self._wants_logits(), torch.zeros((), device=self.world.device)
        parts, goals = (x.chunk(config.run.accumulate) for x in (tokens, targets))
        for part, goal, weight in zip(parts, goals, part_weights(goals, self.world), strict=True):
            with autocast(config.run.precision, self.world.device):
                output = self.parallel(part, goal, stats=with_stats)
                (output.loss * weight).backward()
            total += output.loss.detach() * weight
            if with_stats:
                self.meter.update(output.stats)
        logits = self.meter.read() if with_stats else None
        norm = gradient_norm(self.policy.parameters())
        loss, size, *layers = torch.cat((torch.stack((total, norm)), self._layer_norms())).tolist()
        step = progress.step + 1
        self._count_nonfinite(step, loss, size)
        action = self._judge(step, progress.batch, loss, size, logits)
        if action == "rollback":
            self._roll_back(step, progress.batch)
            return
        if action is None:
            self._apply(norm)
            self._clip_logits(logits)
        self._count_step()
        if action is None:
            values: dict[str, Any] = {"loss": loss, "norm": size, "rate": rate, "logits": logits}
            values |= {"seconds": time.perf_counter() - start, "tokens": tokens.numel()} | _of_layers(layers)
            self._record_step(step, entropy=self._entropy(), **values)

    def _apply(self, norm: Tensor) -> None:
        self._clip(norm)
        self.optimizer.step()
        update_sigma(self.policy)

    def _clip_logits(self, logits: Logits | None) -> None:
        bound = self.config.stability.qk_clip
        if bound is not None and logits is not None:
            qk_clip(self.policy, logits[0], threshold=bound)

    def _reinforcement_step(self) -> None:
        config, rl, progress, start = self.config, self.config.rl, self.progress, time.perf_counter()
        before = rl.supervised_steps
        number = before * config.data.batch_size + (progress.batch - before) * rl.prompts
        drawn, rewards, metrics = self._roll_out(self.data.training(number, rl.prompts))
        rolled_out = time.perf_counter()
        rate = self._set_rate(progress.step - before, peak=config.optimizer.lr, steps=config.run.steps - before)
        experience, entropy, gap, logits = self._experience(drawn, rewards)
        made: list[Tensor] = []
        for update in range(rl.updates):
            measured = self._update(experience, update)
            action = self._judge_update(measured, experience, logits, update)
            if action == "rollback":
                self._roll_back(progress.step + 1, progress.batch)
                return
            if action is None:
                self._apply(measured[1])
                made.append(measured)
            self.optimizer.zero_grad(set_to_none=True)
        if made:
            self._clip_logits(logits)
        numbers = torch.stack((entropy, gap, drawn.mask.sum(), drawn.mixed_share().to(entropy))).tolist()
        per_update = torch.stack(made or [measured]).tolist()  # the one time that the host waits for the updates
        metrics |= self._metrics(numbers, per_update, drawn)
        self._finish(start, rolled_out, per_update, rate, logits, metrics, skipped=not made)

    def _judge_update(self, measured: Tensor, experience: Experience, logits: Logits | None, update: int) -> str | None:
        """See `_judge`, for which the host has to wait for the update.

        Where no rewards differ, the loss is 0 but for the divergence: after some of these, all others would be spikes.
        """
        if self.config.stability.guard == "off":
            return None
        loss, norm = measured[:2].tolist()
        slices = self._slices()[update]
        if math.isfinite(loss + norm) and not experience.advantages[slices[0].start : slices[-1].stop].any():
            return None
        return self._judge(self.progress.step + 1, self.progress.batch, loss, norm, logits, update=update)

    def _finish(
        self,
        start: float,
        rolled_out: float,
        per_update: list[list[float]],
        rate: float,
        logits: Logits | None,
        metrics: dict[str, Any],
        *,
        skipped: bool,
    ) -> None:
        """Count the step, and record it unless all of its updates were skipped."""
        count, end = len(per_update), time.perf_counter()
        loss, norm = (sum(values[i] for values in per_update) / count for i in (0, 1))
        step = self.progress.step + 1
        self._count_nonfinite(step, loss, norm)
        if self.progress.nonfinite and nonfinite_weight(self.policy.state_dict()) is not None:
            # Nothing can be drawn from such a model.
            self._given_up = f"the run diverged at step {step}"
        metrics["rollouts_per_second"] = self.config.rl.prompts * self.config.rl.group / (end - start)
        metrics["rollout_share"] = (rolled_out - start) / (end - start)
        tokens = metrics.pop("drawn_tokens")
        self._count_step()
        if skipped:
            return
        values: dict[str, Any] = {"loss": loss, "norm": norm, "rate": rate, "logits": logits, **metrics}
        values |= {"seconds": time.perf_counter() - start, "tokens": tokens}
        self._record_step(step, entropy=self._entropy(), **values)

    def _roll_out(self, problems: list[Problem]) -> tuple[Rollout, Rewards, dict[str, Any]]:
        """Draw and verify; a verifier that raises is recorded, and ends the run if it does so too often."""
        rl, progress = self.config.rl, self.progress
        drawn = self.answerer.draw(problems, rl.group, rollout_seed(self.config.run.seed, progress.batch))
        samples = sequences(drawn)
        rewards = verified(self.data.task, [problem for problem in problems for _ in range(rl.group)], samples)
        metrics = {"reward": float(rewards.values.mean()), "signal_share": signal_share(rewards.values, rl.group)}
        metrics["thinking_length"], metrics["answer_length"] = lengths(samples, self.data.task.end_of_thinking)
        if rewards.sample is not None:
            metrics["failed"] = rewards.failed
            evidence = {"prompt": problems[rewards.sample // rl.group].prompt, "tokens": samples[rewards.sample]}
            self._record_failure(progress.step + 1, rewards, evidence)
            check_failures(rewards, rl.failed_share)
        return drawn, rewards, metrics

    def _record_failure(self, step: int, rewards: Rewards, evidence: dict[str, Any]) -> None:
        values = {"count": rewards.failed, "of": len(rewards.values), "error": rewards.error}
        self._record("failure", step=step, **values, **evidence)

    def _slices(self) -> list[list[slice]]:
        """The sequences of each micro-batch of each update.

        Where the logits are recorded, an update has at least two if its problems can be halved, so that the noise of
        its gradient can be measured.
        """
        rl, accumulate = self.config.rl, self.config.run.accumulate
        problems = rl.prompts // rl.updates
        halved = accumulate == 1 and problems % 2 == 0 and self._wants_logits() is True
        pieces = 2 if halved else accumulate
        size = problems * rl.group // pieces
        firsts = range(0, rl.prompts * rl.group, size)
        every = [slice(first, first + size) for first in firsts]
        return [every[i : i + pieces] for i in range(0, len(every), pieces)]

    @torch.no_grad()
    def _experience(self, drawn: Rollout, rewards: Rewards) -> tuple[Experience, Tensor, Tensor, Logits | None]:
        """What the updates learn from, mean entropy and rollout gap per token, and the attention logits if due.

        The model is run on the same micro-batches as in the updates, so that its ratio before the first is exactly 1.
        """
        rl, wanted = self.config.rl, self._wants_logits()
        advantages = group_advantages(rewards.values, rl.group, normalise=rl.algorithm != "dr-grpo")
        old, reference, logits = [], [], None
        entropy = gap = torch.zeros((), device=self.world.device)
        with ExitStack() as stack:
            stack.enter_context(autocast(self.config.run.precision, self.world.device))
            watched = stack.enter_context(watch_logits(self.policy, stats=wanted)) if wanted else None
            for part in (drawn.part(rows) for update in self._slices() for rows in update):
                scores = part.scores(self.policy, form=self.form, entropy=True)
                assert scores.entropy is not None
                old.append(scores.log_probs)
                entropy = entropy + scores.entropy.sum()
                if wanted is True and part.drawn_log_probs is not None:
                    replayed = scores.log_probs if self.form == "paper" else part.log_probs(self.policy)
                    gap = gap + (kl_estimate(part.drawn_log_probs, replayed) * part.mask).sum()
                if self.reference is not None:
                    reference.append(part.log_probs(self.reference, form=self.form))
            if watched is not None:
                largest, smallest = zip(*watched.values(), strict=True)
                logits = (torch.stack(largest), torch.stack(smallest) if wanted is True else None)
        held = torch.cat(reference) if reference else None
        experience = Experience(drawn, advantages.to(self.world.device), torch.cat(old), held)
        tokens = drawn.mask.sum().clamp(min=1)
        return experience, entropy / tokens, gap / tokens, logits

    def _update(self, experience: Experience, update: int) -> Tensor:
        """Compute the gradients of one update; its loss, gradient norm, clipped tokens, KL, signal, noise, tokens and
        gradient norms of the layers.
        """
        rl, slices = self.config.rl, self._slices()[update]
        rows = slice(slices[0].start, slices[-1].stop)
        mask = experience.drawn.mask[rows]
        # Dr. GRPO divides by a constant, all others by the number of tokens.
        constant = float(mask.shape[0] * self.data.max_new_tokens)
        denominator = constant if rl.algorithm == "dr-grpo" else mask.sum().clamp(min=1)
        parts, half = [], None
        for number, micro in enumerate(slices):
            with autocast(self.config.run.precision, self.world.device):
                part = self._objective(experience, micro, denominator)
            part.loss.backward()
            parts.append(torch.stack((part.loss.detach(), part.clipped, part.kl)))
            if 2 * (number + 1) == len(slices) and rl.prompts // rl.updates % 2 == 0:
                half = [gradient.clone() for gradient in self._gradients()]
        loss, clipped, kl = torch.stack(parts).sum(0)
        norm = gradient_norm(self.policy.parameters())
        signal, noise = (norm * math.nan,) * 2 if half is None else signal_and_noise(half, self._gradients())
        return torch.cat((torch.stack((loss, norm, clipped, kl, signal, noise, mask.sum())), self._layer_norms()))

    def _layer_norms(self) -> Tensor:
        """The gradient norm of each block, if these are recorded; else none."""
        wanted = self.config.telemetry.layer_gradients
        return layer_norms(self.policy.blocks) if wanted else torch.zeros(0, device=self.world.device)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.policy.parameters() if p.grad is not None]

    def _objective(self, experience: Experience, rows: slice, denominator: Tensor | float) -> Objective:
        rl, part, reference = self.config.rl, experience.drawn.part(rows), experience.reference
        return clipped_objective(
            part.log_probs(self.policy, form=self.form),
            experience.old[rows],
            experience.advantages[rows],
            part.mask,
            clip=rl.clip,
            dual_clip=rl.dual_clip,
            reference=None if reference is None else reference[rows],
            kl=0.0 if reference is None else rl.kl,
            denominator=denominator,
        )

    def _metrics(self, numbers: list[float], per_update: list[list[float]], drawn: Rollout) -> dict[str, Any]:
        """Means over the tokens of the step, or of its updates; signal and noise are those of the first update."""
        entropy, gap, drawn_tokens, mixed = numbers
        _, _, clipped, kl, _, _, tokens, *layers = (sum(values) for values in zip(*per_update, strict=True))
        metrics: dict[str, Any] = {"drawn_tokens": int(drawn_tokens), "token_entropy": entropy}
        metrics |= {"clip_share": clipped / max(1, tokens)} | _of_layers([x / len(per_update) for x in layers])
        if self.reference is not None:
            metrics["kl"] = kl / max(1, tokens)
        if drawn.drawn_log_probs is not None and self._wants_logits() is True:
            metrics["rollout_kl"] = gap
        if drawn.thinking is not None and not self.config.rl.truncate:
            metrics["mixed_share"] = mixed
        signal, noise = per_update[0][4:6]
        if not math.isnan(signal):
            metrics |= {"gradient_signal": signal, "gradient_noise": noise}
        return metrics

    def _evaluate(self) -> bool:
        """Record the mean reward on validation problems; True if it is the highest so far."""
        if self._given_up is not None:  # nothing can be drawn any more
            return False
        rl, progress = self.config.rl, self.progress
        problems = self.data.held_out(rl.eval_problems)
        found = answered(self.answerer, problems, rl.eval_samples)
        loss = solution_loss(self.policy, self.data, problems, self.config.run.precision)
        best = progress.best_reward is None or found.reward > progress.best_reward
        if best:
            progress.best_reward, progress.best_step, progress.best_loss = found.reward, progress.step, loss
        values = {"reward": found.reward, "loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        if rl.eval_samples > 1:
            values["best_reward"] = found.best_reward
        if found.rewards.sample is not None:
            evidence = {"prompt": problems[found.rewards.sample // rl.eval_samples].prompt}
            self._record_failure(progress.step, found.rewards, evidence)
        counts = {"seconds": progress.seconds, "tokens": progress.tokens}
        self._record("eval", step=progress.step, split="validation", **counts, **values)
        self._record("sample", step=progress.step, text=found.text)
        return best

    def _validation_loss(self) -> float:
        problems = self.data.held_out(min(8, self.config.rl.eval_problems))
        return solution_loss(self.policy, self.data, problems, self.config.run.precision)

    def _one_sequence(self) -> dict[str, Tensor]:
        (problem,) = self.data.held_out(1)
        return {"tokens": torch.tensor([[*problem.prompt, *problem.solution[:-1]]], device=self.world.device)}


def _of_layers(norms: list[float]) -> dict[str, Any]:
    """The record of the layers' gradient norms, if there are any."""
    return {"layer_gradients": {str(layer): norm for layer, norm in enumerate(norms)}} if norms else {}
