"""PEFT's adapters on our models: where they go by themselves, merged and saved, and what is refused."""

import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM

from ..hf.small import shell

TOKENS = torch.randint(257, (2, 20), generator=torch.Generator().manual_seed(1))


def test_lora_finds_its_modules():
    model = get_peft_model(shell(), LoraConfig(task_type="CAUSAL_LM"))
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert len(trained) == 2 * 2 and all(".attention.qkv.lora_" in name for name in trained)


@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 2, "n_global": 2, "tie_embeddings": True}])
def test_lora_on_attention_and_mlp_is_merged_and_saved(options, tmp_path):
    targets = ["qkv", "out", "up", "down"]
    model = get_peft_model(shell(**options), LoraConfig(target_modules=targets, r=4, task_type="CAUSAL_LM"))
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.5)
    before = model(TOKENS).logits
    for _ in range(3):
        model(TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()
    adapted = model.eval()(TOKENS).logits
    assert not torch.allclose(adapted, before, atol=1e-3)
    model.merge_and_unload().save_pretrained(tmp_path)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(merged(TOKENS).logits, adapted, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:Position ids are not supported")
def test_prompt_tuning_trains_and_generates():
    model = get_peft_model(shell(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    model(TOKENS, labels=TOKENS).loss.backward()
    (prompt,) = (weight for weight in model.parameters() if weight.requires_grad)
    assert prompt.grad.abs().sum() > 0
    assert model.generate(input_ids=TOKENS, max_new_tokens=5, do_sample=False).shape == (2, 25)


def test_prefix_tuning_is_refused_by_name():
    model = get_peft_model(shell(), PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    with pytest.raises(ValueError, match="prefix tuning makes one; prompt tuning works"):
        model(TOKENS, labels=TOKENS)
