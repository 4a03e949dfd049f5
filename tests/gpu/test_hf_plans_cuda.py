"""Head plans in transformers' own models on a GPU: logits, gradients and text are those of the CPU."""

from copy import deepcopy

import pytest
import torch

pytest.importorskip("transformers")

from transformers import LlamaConfig, LlamaForCausalLM

from longshort import HeadPlan
from longshort.hf import far_mass, use_head_plan, watch_logits

PLAN = HeadPlan(windows=(None, 16, 40, 3))


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=61, num_key_value_heads=2, **sizes, **ends)).eval()
    use_head_plan(model, PLAN)
    return model, deepcopy(model).cuda()


@pytest.fixture(scope="module")
def inputs():
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(2, 200, dtype=torch.long)
    mask[0, :30] = 0
    return {"input_ids": torch.randint(1, 61, (2, 200), generator=generator), "attention_mask": mask}


def test_logits_gradients_and_statistics_are_those_of_the_cpu(models, inputs):
    found = []
    for model in models:
        own = {name: x.to(model.device) for name, x in inputs.items()}
        with watch_logits() as seen:
            out = model(**own, labels=own["input_ids"].masked_fill(own["attention_mask"] == 0, -100))
        model.zero_grad()
        out.loss.backward()
        grads = [p.grad for p in model.parameters()]
        found.append([out.logits[own["attention_mask"].bool()], seen[1].max, seen[1].min, *grads])
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there.cpu(), here, atol=1e-4, rtol=1e-3)


def test_text_and_reach_are_those_of_the_cpu(models, inputs):
    options = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
    texts = [m.generate(**{n: x.to(m.device) for n, x in inputs.items()}, **options).cpu() for m in models]
    assert torch.equal(*texts)
    masses = [far_mass(m, inputs["input_ids"].to(m.device), window=16) for m in models]
    torch.testing.assert_close(*masses, atol=1e-4, rtol=1e-3)
