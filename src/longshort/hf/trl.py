"""SofT-GRPO (arXiv 2511.06411) in TRL: a `GRPOTrainer` whose model thinks in mixtures of tokens.

Rewards, advantages, clipping, the divergence from a reference and the loop are TRL's; what is drawn and how probable it
is are `longshort.hf.soft`'s. `pip install 'longshort[trl]'` brings TRL.
"""

from __future__ import annotations

import functools
import types
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from longshort.generation import Sampling, SoftThinking
from longshort.hf.soft import bare, check_head, soft_rollout, soft_scores
from longshort.nn.modes import evaluating
from longshort.rl import FORMS, Rollout
from longshort.rl.log_probs import Form

try:
    from trl import GRPOConfig, GRPOTrainer
    from trl.models import unwrap_model_for_generation
except ImportError as error:
    raise ImportError("longshort.hf.trl needs trl >= 1.16: pip install 'longshort[trl]'") from error

_STORED = ("soft", "ids", "values")
"""What a rollout holds beyond what TRL keeps of it; in TRL's batches the names begin with `thinking_`."""


class SoftGRPOTrainer(GRPOTrainer):
    """TRL's `GRPOTrainer` with soft thinking, for any causal language model of transformers.

    Every completion begins with thinking: mixtures of tokens until the end mark, then tokens, drawn as `args` say. The
    reward functions see a mixture as the token of largest weight. `args.temperature`, `top_k`, `top_p` and `min_p` are
    those of the discrete tokens; `thinking` has its own.

    Args:
        model: as in `GRPOTrainer`, like all arguments that are not named here.
        thinking: how the mixtures are drawn; `end_mark` finds its `end`.
        form: how they are scored: "paper", "code" or "categorical", see `longshort.rl.soft_log_probs`.
    """

    def __init__(
        self, model: Any, *positional: Any, thinking: SoftThinking, form: Form = "paper", **options: Any
    ) -> None:
        if not isinstance(thinking, SoftThinking):
            raise ValueError(f"thinking must be a SoftThinking, got {type(thinking).__name__}")
        if thinking.noise != "gumbel":
            raise ValueError(f"noise must be gumbel, the only one that is scored here, got {thinking.noise}")
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(get_args(Form))}, got {form!r}")
        for name in ("tools", "rollout_func", "environment_factory"):
            if options.get(name) is not None:
                raise ValueError(f"{name} must be None with soft thinking, which draws the completions, got one")
        args = next((x for x in (*positional, *options.values()) if isinstance(x, GRPOConfig)), None)
        if args is not None:
            _check_settings(args)
        self.thinking, self.form = thinking, form
        self._drawn: dict[str, Tensor] = {}
        self._drawn_at = 0
        super().__init__(model, *positional, **options)
        _check_model(self.model, self._tokenizer, thinking)
        if self.aux_loss_enabled:
            raise ValueError(
                f"router_aux_loss_coef must be 0 with soft thinking, got {self.router_aux_loss_coef} (the model's own "
                "if it was not given)"
            )
        for part in (self.model, self.ref_model):
            if part is not None:
                _add_soft_scores(bare(self.accelerator.unwrap_model(part)))

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], images: Any, multimodal_fields: Any, num_generations: int, *more: Any
    ) -> tuple[list[list[int]], None]:
        if images is not None:
            raise ValueError("prompts must be text alone with soft thinking, got images")
        if not all(prompt_ids):
            raise ValueError("prompts must have at least one token each, got an empty one")
        device, longest = self.accelerator.device, max(map(len, prompt_ids))
        prompts = torch.tensor([[self._tokenizer.pad_token_id] * (longest - len(p)) + p for p in prompt_ids])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompt_ids])
        settings = {"gather_deepspeed3_params": self.args.ds3_gather_for_generation}
        settings["gradient_checkpointing_kwargs"] = self.args.gradient_checkpointing_kwargs
        with (
            unwrap_model_for_generation(self.model_wrapped, self.accelerator, **settings) as model,
            self._dist.summon_full_params(self.model_wrapped, recurse=False),
        ):
            was_training = model.training
            with evaluating(model):
                drawn = soft_rollout(
                    model,
                    prompts.to(device),
                    mask.to(device),
                    self.thinking,
                    max_new_tokens=self.max_completion_length,
                    sampling=Sampling(
                        temperature=self.temperature,
                        top_k=self.top_k or None,
                        top_p=self.top_p,
                        min_p=self.min_p,
                        repetition_penalty=self.repetition_penalty,
                    ),
                    stops=self.eos_token_ids,
                )
        self._note(drawn, "train" if was_training else "eval")
        self._drawn = {name: getattr(drawn, name) for name in _STORED}
        if was_training:
            self._drawn_at = self.state.global_step
        return [tokens[tokens >= 0].tolist() for tokens in drawn.tokens.cpu()], None

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        batch = super()._generate_and_score_completions(inputs)
        return batch | {f"thinking_{name}": stored for name, stored in self._drawn.items()}

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        self._drawn = {name: inputs[f"thinking_{name}"] for name in _STORED}
        if self.state.global_step == self._drawn_at:
            # TRL then takes what it computes now for the old one: the ratio is exactly 1 before the first update, which
            # other sequences beside these in the batch, as there were when the old one was computed, would not ensure.
            inputs = {name: value for name, value in inputs.items() if name != "old_per_token_logps"}
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None, None]:
        drawn = self._rollout(input_ids, attention_mask, logits_to_keep)
        size, scores = batch_size or len(input_ids), []
        for start in range(0, len(input_ids), size):
            with self.accelerator.autocast():
                scores.append(model(soft_thinking=drawn.part(slice(start, start + size)), form=self.form))
        log_probs, entropies = (torch.cat(parts) for parts in zip(*scores, strict=True))
        return log_probs, entropies if compute_entropy else None, None

    def _rollout(self, input_ids: Tensor, attention_mask: Tensor, new: int) -> Rollout:
        """What was drawn last, with the prompts and tokens as TRL padded them."""
        masked = attention_mask[:, -new:] == 0
        columns = new - self._drawn["soft"].shape[1]  # TRL may pad to a multiple
        soft = F.pad(self._drawn["soft"], (0, columns)) & ~masked
        return Rollout(
            prompts=input_ids[:, :-new],
            padding=(attention_mask[:, :-new] == 0).sum(1),
            tokens=input_ids[:, -new:].masked_fill(masked, -1),
            thinking=self.thinking,
            soft=soft,
            ids=F.pad(self._drawn["ids"], (0, 0, 0, columns)),
            values=F.pad(self._drawn["values"], (0, 0, 0, columns)),
            temperature=self.temperature,
        )

    def _note(self, drawn: Rollout, mode: str) -> None:
        """Log how the rollout thought, beside TRL's own metrics."""
        ended = (drawn.soft & (drawn.tokens == self.thinking.end)).any(1)
        found = {
            "thinking/mean_length": drawn.soft.sum(1).float().mean(),
            "thinking/ended_share": ended.float().mean(),
            "thinking/mixed_share": drawn.mixed_share(),
        }
        for name, value in found.items():
            self._metrics[mode][name].append(self.accelerator.gather(value).mean().item())


def end_mark(tokenizer: Any, text: str) -> int:
    """The token that `SoftThinking.end` needs: this text must be a single token of the tokenizer."""
    tokens = tokenizer.encode(text, add_special_tokens=False)
    if len(tokens) != 1 or tokens[0] == tokenizer.unk_token_id:
        came = "is unknown to it" if tokenizer.unk_token_id in tokens else f"is {len(tokens)} of them"
        raise ValueError(
            f"text must be one token of the tokenizer, got {text!r}, which {came}: take another, or add it with "
            "tokenizer.add_tokens and model.resize_token_embeddings"
        )
    return tokens[0]


def _check_settings(args: GRPOConfig) -> None:
    for name in ("use_vllm", "use_transformers_continuous_batching"):
        if getattr(args, name):
            raise ValueError(f"{name} must be False with soft thinking, whose inputs are not tokens, got True")
    if args.generation_kwargs:
        raise ValueError(f"generation_kwargs must be None with soft thinking, got {args.generation_kwargs}")
    if args.entropy_coef or args.use_adaptive_entropy:
        raise ValueError(
            "entropy_coef must be 0 and use_adaptive_entropy False with soft thinking, whose entropies are measured "
            f"without gradients, got {args.entropy_coef} and {args.use_adaptive_entropy}"
        )
    if not args.temperature > 0:
        raise ValueError(f"temperature must be above 0, got {args.temperature}")


def _check_model(model: Any, tokenizer: Any, thinking: SoftThinking) -> None:
    if thinking.end >= len(tokenizer) or thinking.end == tokenizer.unk_token_id:
        raise ValueError(
            f"end must be a token of the tokenizer, below {len(tokenizer)} and not the unknown one, got {thinking.end}"
        )
    check_head(model)


def _add_soft_scores(model: Any) -> None:
    """Let `model(soft_thinking=rollout, form=...)` return its scores: wrappers such as DDP need the model called."""
    forward = model.forward

    @functools.wraps(type(model).forward)
    def scoring(
        self: Any, *args: Any, soft_thinking: Rollout | None = None, form: Form = "paper", **kwargs: Any
    ) -> Any:
        if soft_thinking is None:
            return forward(*args, **kwargs)
        return tuple(soft_scores(self, soft_thinking, form=form))

    model.forward = types.MethodType(scoring, model)
