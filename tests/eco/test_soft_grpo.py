"""SofT-GRPO in TRL, on our model and on a Llama: three steps, exact ratios, and errors that say what to change."""

from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import GPTJConfig, GPTJForCausalLM, LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

from longshort.generation import SoftThinking
from longshort.hf import LongShortForCausalLM
from longshort.hf.trl import SoftGRPOTrainer, end_mark
from longshort.losses import LossSettings
from longshort.rl import FORMS

from ..hf.small import shell

END = ord("\n")
THINKING = SoftThinking(end=END, tau=0.5)
PROMPTS = ["to be", "or not to be, that is", "?"] * 4


def ours():
    return shell(context=128, tie_embeddings=True)


def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=257, max_position_embeddings=128, initializer_range=0.2, **sizes))


def mean_token(completion_ids, **_):
    return [sum(ids) / len(ids) for ids in completion_ids]


@pytest.fixture
def build(tokenizer, settings):
    """A trainer; settings are those of GRPOConfig unless they are `thinking`, `form` or `peft_config`."""

    def built(model, *, kind=SoftGRPOTrainer, reward=mean_token, prompts=PROMPTS, **more):
        ours = {"thinking": THINKING, "form": "paper", "peft_config": None}
        ours = {name: more.pop(name, value) for name, value in ours.items()}
        args = GRPOConfig(**settings | {"num_generations": 4, "max_completion_length": 16} | more)
        return kind(
            model,
            reward,
            args,
            Dataset.from_dict({"prompt": prompts}),
            processing_class=tokenizer,
            **ours,
        )

    return built


class Watched(SoftGRPOTrainer):
    """Keeps what TRL's loss is given, and the log-probabilities that it asks for."""

    def __init__(self, *args, **options):
        self.scored = []
        super().__init__(*args, **options)

    def _get_per_token_logps_and_entropies(self, *args, **options):
        result = super()._get_per_token_logps_and_entropies(*args, **options)
        self.scored.append(result[0].detach())
        return result


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [ours, llama])
def test_it_trains_in_every_form(make, form, build):
    trainer = build(make(), form=form)
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    after = dict(trainer.model.named_parameters())
    assert all(after[name].isfinite().all() for name in after)
    assert all(not after[name].equal(before[name]) for name in before)
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(steps) == 3
    assert all(0 < entry["thinking/mean_length"] <= 16 and 0 <= entry["thinking/mixed_share"] <= 1 for entry in steps)


@pytest.mark.parametrize("make", [ours, llama])
def test_the_ratio_is_one_before_the_first_update_and_not_after_it(make, build, monkeypatch):
    given, loss = [], GRPOTrainer._compute_loss
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", lambda self, m, x: (given.append(x), loss(self, m, x))[1])
    batches = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "pad_to_multiple_of": 16}
    trainer = build(make(), kind=Watched, num_iterations=2, max_steps=2, **batches)
    trainer.train()
    old, *scored = trainer.scored
    assert [len(part) for part in (old, *scored)] == [4, 2, 2, 2, 2] and old.shape[1] == 16
    for before, after in ((0, 2), (1, 3)):
        assert "old_per_token_logps" not in given[before]  # TRL then divides by what it has just computed
        torch.testing.assert_close(given[after]["old_per_token_logps"], scored[before], rtol=1e-4, atol=1e-4)
        assert (scored[after] - scored[before]).abs().max() > 1e-3


def test_without_mixtures_it_is_trls_own(build, tokenizer):
    """top_k=1 draws the most probable token, which enters alone: the scores of the rest are TRL's."""
    prompt = tokenizer(PROMPTS[0], return_tensors="pt")
    end = ours().generate(**prompt, do_sample=False, max_new_tokens=3, pad_token_id=256)[0, -1].item()
    greedy = SoftThinking(end=end, top_k=1)
    trainer = build(ours(), thinking=greedy, form="categorical", kind=Watched, temperature=0.7)
    batch = trainer._generate_and_score_completions([{"prompt": prompt} for prompt in PROMPTS[:4]])
    inputs = [torch.cat([batch[f"{part}_{kind}"] for part in ("prompt", "completion")], 1) for kind in ("ids", "mask")]
    inputs = (trainer.model, *inputs, batch["completion_ids"].shape[1], None, True)
    found, entropy, _ = trainer._get_per_token_logps_and_entropies(*inputs)
    expected, expected_entropy, _ = GRPOTrainer._get_per_token_logps_and_entropies(trainer, *inputs)
    discrete = batch["completion_mask"].bool() & ~batch["thinking_soft"]
    assert discrete.any() and batch["thinking_soft"].any()
    torch.testing.assert_close(found[discrete], expected[discrete])
    torch.testing.assert_close(entropy[discrete], expected_entropy[discrete])
    assert not found[batch["thinking_soft"]].any()  # log 1


def test_it_finds_more_reward(build):
    trainer = build(
        ours(),
        reward=lambda completion_ids, **_: [sum(token < 128 for token in ids) / len(ids) for ids in completion_ids],
        max_steps=30,
        num_generations=8,
        per_device_train_batch_size=16,
    )
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.15


def test_a_reference_and_cut_completions_are_scored(build, tmp_path):
    ours().save_pretrained(tmp_path / "model")  # TRL loads the reference from where the model came from
    model = LongShortForCausalLM.from_pretrained(tmp_path / "model")
    trainer = build(model, beta=0.1, mask_truncated_completions=True, gradient_checkpointing=True)
    trainer.train()
    kl = [entry["kl"] for entry in trainer.state.log_history if "kl" in entry]
    assert kl[0] == pytest.approx(0, abs=1e-5)


def test_an_evaluation_between_two_updates_leaves_the_rollout_as_it_is(build):
    trainer = build(ours())
    trainer.train()
    drawn = trainer._drawn_at
    assert trainer.evaluate(Dataset.from_dict({"prompt": PROMPTS[:4]}))["eval_thinking/mean_length"] > 0
    assert trainer._drawn_at == drawn == trainer.state.global_step - 1


@pytest.mark.parametrize("make", [ours, llama])
def test_an_adapter_learns_and_the_model_stays(make, build):
    trainer = build(make(), peft_config=LoraConfig(target_modules="all-linear", r=4, task_type="CAUSAL_LM"))
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    for name, weight in trainer.model.named_parameters():
        assert weight.equal(before[name]) != ("lora_B" in name) or "lora_A" in name, name


def test_the_end_mark_is_a_token_of_the_tokenizer(tokenizer):
    assert end_mark(tokenizer, "\n") == END
    with pytest.raises(ValueError, match="text must be one token of the tokenizer, got '</think>', which is 8 of them"):
        end_mark(tokenizer, "</think>")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thinking": None}, "thinking must be a SoftThinking, got NoneType"),
        ({"thinking": replace(THINKING, noise="none")}, "noise must be gumbel"),
        ({"thinking": replace(THINKING, end=257)}, "end must be a token of the tokenizer, below 257 .* got 257"),
        ({"form": "mean"}, "form must be one of paper, code, categorical, got 'mean'"),
        ({"use_transformers_continuous_batching": True}, "use_transformers_continuous_batching must be False"),
        ({"use_vllm": True}, "use_vllm must be False with soft thinking"),
        ({"generation_kwargs": {"num_beams": 2}}, "generation_kwargs must be None"),
        ({"entropy_coef": 0.1}, "entropy_coef must be 0"),
        ({"model": lambda: shell(loss=LossSettings(exponent=0.5))}, r"score_exponent must be None or 1 .* got 0\.5"),
        ({"model": lambda: with_a_bias()}, "head without a bias, got Linear with one"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(options, message, build):
    options = dict(options)
    model = options.pop("model", ours)()
    with pytest.raises(ValueError, match=message):
        build(model, **options)


def with_a_bias():
    return GPTJForCausalLM(GPTJConfig(vocab_size=257, n_positions=64, n_embd=32, n_layer=1, n_head=2, rotary_dim=8))


@pytest.mark.parametrize("prompts", [["", ""], ["to be", ""]], ids=["all", "one"])
def test_an_empty_prompt_is_refused(prompts, build):
    with pytest.raises(ValueError, match="prompts must have at least one token each, got an empty one"):
        build(ours(), prompts=prompts, per_device_train_batch_size=8).train()


def test_tools_are_refused(tokenizer, settings):
    with pytest.raises(ValueError, match="tools must be None with soft thinking"):
        SoftGRPOTrainer(
            ours(), mean_token, GRPOConfig(**settings, num_generations=4), thinking=THINKING, tools=[mean_token]
        )
