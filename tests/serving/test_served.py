"""What vLLM answers for a model of ours is what the model answers itself."""

import pytest
import torch
from vllm import SamplingParams

from longshort import generate

from .models import PLANS, prompts, small


def greedy(llm, given, new):
    """The outputs of vLLM: the likeliest token each time, and the logprobs of the likeliest 20."""
    params = SamplingParams(temperature=0, max_tokens=new, logprobs=20, ignore_eos=True)
    requests = [{"prompt_token_ids": prompt} for prompt in given]
    return [result.outputs[0] for result in llm.generate(requests, params, use_tqdm=False)]


def check_same(gpt, given, outputs):
    for prompt, output in zip(given, outputs, strict=True):
        tokens = list(output.token_ids)
        own = generate(gpt, torch.tensor([prompt]), max_new_tokens=len(tokens), temperature=0)
        assert tokens == [int(token) for token in own]
        with torch.no_grad():
            logprobs = gpt(torch.tensor([prompt + tokens])).logits.log_softmax(-1)[0, len(prompt) - 1 : -1]
        for place, found in zip(logprobs, output.logprobs, strict=True):
            assert max(abs(place[token] - value.logprob) for token, value in found.items()) < 1e-4


@pytest.mark.parametrize("name", PLANS)
def test_tokens_and_logprobs_are_the_models_own(served, name):
    gpt, given = small(name), prompts(300, 17, 1)
    llm = served(gpt, max_num_batched_tokens=128)
    check_same(gpt, given, greedy(llm, given, 40))
