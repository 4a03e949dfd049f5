"""transformers' Trainer takes the model as it takes its own."""

import pytest
import torch
from transformers import AutoModelForCausalLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments

from longshort.data.tokenizer import ByteTokenizer
from longshort.hf import fast_tokenizer

from .small import shell

pytest.importorskip("accelerate")

TEXTS = ["to be or not to be", "that is the question", "whether", "it is nobler in the mind to suffer"]


def trainer(model, out, **options):
    tokenizer = fast_tokenizer(ByteTokenizer())
    tokenizer.padding_side = "right"  # on the left, the last padding would be asked for the first token
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=2,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
        **{"per_device_train_batch_size": 2} | options,
    )
    return Trainer(
        model=model,
        args=arguments,
        train_dataset=[dict(tokenizer(text)) for text in TEXTS],
        eval_dataset=[dict(tokenizer(text)) for text in TEXTS],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )


def weights_after(tmp_path, name, **options):
    model = shell()
    trainer(model, tmp_path / name, save_strategy="no", **options).train()
    return model.state_dict()


def test_a_step_lowers_the_loss_and_what_is_saved_loads(tmp_path):
    model = shell()
    loop = trainer(model, tmp_path)
    before = loop.evaluate()["eval_loss"]
    loop.train()
    assert loop.evaluate()["eval_loss"] < before
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-2")
    tokens = torch.tensor([[1, 2, 3]])
    assert loaded(tokens).logits.equal(model.eval()(tokens).logits)


def test_gradient_checkpointing_and_accumulation_take_the_same_steps(tmp_path):
    plain = weights_after(tmp_path, "plain")
    names = ("activation_checkpointing", "gradient_checkpointing")  # from transformers 5.23 on, and before
    name = next(name for name in names if name in TrainingArguments.__dataclass_fields__)
    recomputed = weights_after(tmp_path, "recomputed", **{name: True})
    accumulated = weights_after(tmp_path, "accumulated", per_device_train_batch_size=1, gradient_accumulation_steps=2)
    for name, weight in plain.items():
        for other in (recomputed, accumulated):
            torch.testing.assert_close(other[name], weight, rtol=1e-3, atol=1e-4)
