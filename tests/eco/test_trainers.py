"""TRL's own trainers take the model as they take transformers' own."""

import copy
import math

import pytest
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForSequenceClassification
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)

from longshort.hf import LongShortForCausalLM

from ..hf.small import shell

TEXTS = ["to be or not to be", "that is the question", "whether it is", "nobler in the mind to suffer"] * 3


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def model(request, tmp_path):
    """From a folder: TRL loads the reference of DPO from where the model came from."""
    shell(context=256, tie_embeddings=request.param).save_pretrained(tmp_path / "model")
    return LongShortForCausalLM.from_pretrained(tmp_path / "model")


def losses(trainer):
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    trainer.train()
    assert all(math.isfinite(entry.get("loss", 0)) for entry in trainer.state.log_history)
    after = dict(trainer.model.named_parameters())
    assert any(not after[name].equal(weight) for name, weight in before.items())
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_sft_lowers_the_loss(model, tokenizer, settings):
    trainer = SFTTrainer(
        model,
        args=SFTConfig(**settings),
        train_dataset=Dataset.from_dict({"text": TEXTS}),
        processing_class=tokenizer,
    )
    found = losses(trainer)
    assert len(found) == 3 and found[-1] < found[0]


def test_sequences_packed_without_padding_do_not_see_each_other(model, tokenizer, settings):
    found = []
    for packing in ({}, {"padding_free": True, "max_length": None}):
        trainer = SFTTrainer(
            copy.deepcopy(model),
            args=SFTConfig(**settings | packing),
            train_dataset=Dataset.from_dict({"text": TEXTS}),
            processing_class=tokenizer,
        )
        found.append(losses(trainer))
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_dpo_runs(model, tokenizer, settings):
    pairs = {"prompt": TEXTS, "chosen": [" yes"] * 12, "rejected": [" no, never"] * 12}
    trainer = DPOTrainer(
        model,
        args=DPOConfig(**settings),
        train_dataset=Dataset.from_dict(pairs),
        processing_class=tokenizer,
    )
    found = losses(trainer)
    assert found[0] == pytest.approx(math.log(2), abs=1e-3) and found[-1] < found[0]


def test_a_reward_is_learned_from_pairs(model, tokenizer, settings):
    reward = AutoModelForSequenceClassification.from_pretrained(model.name_or_path, num_labels=1)
    pairs = {"chosen": [f"{text} yes" for text in TEXTS], "rejected": [f"{text} no, never" for text in TEXTS]}
    trainer = RewardTrainer(
        reward,
        args=RewardConfig(**settings),
        train_dataset=Dataset.from_dict(pairs),
        processing_class=tokenizer,
    )
    found = losses(trainer)
    assert found[-1] < found[0]


def test_grpo_runs(model, tokenizer, settings):
    trainer = GRPOTrainer(
        model,
        reward_funcs=lambda completion_ids, **_: [sum(ids) / len(ids) for ids in completion_ids],
        args=GRPOConfig(**settings, num_generations=4, max_completion_length=12),
        train_dataset=Dataset.from_dict({"prompt": TEXTS}),
        processing_class=tokenizer,
    )
    assert len(losses(trainer)) == 3


def test_an_adapter_on_all_linear_layers_is_trained_alone(model, tokenizer, settings):
    trainer = SFTTrainer(
        model,
        args=SFTConfig(**settings),
        train_dataset=Dataset.from_dict({"text": TEXTS}),
        processing_class=tokenizer,
        peft_config=LoraConfig(target_modules="all-linear", r=4, task_type="CAUSAL_LM"),
    )
    trained = {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert trained and all("lora" in name and "head" not in name for name in trained)
    losses(trainer)
