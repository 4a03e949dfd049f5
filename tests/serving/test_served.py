"""What vLLM answers for a model of ours is what the model answers itself."""

import pytest
import torch
from vllm import SamplingParams

from longshort import HeadPlan, generate

from .models import PLANS, prompts, small


def greedy(llm, given, new):
    """The outputs of vLLM: the likeliest token each time, and the logprobs of the likeliest 20."""
    params = SamplingParams(temperature=0, max_tokens=new, logprobs=20, ignore_eos=True)
    requests = [{"prompt_token_ids": prompt} for prompt in given]
    return [result.outputs[0] for result in llm.generate(requests, params, use_tqdm=False)]


def check_same(gpt, given, outputs):
    """The tokens are those of our engine, and the logprobs within 1e-4; returns the largest difference."""
    largest = 0.0
    for prompt, output in zip(given, outputs, strict=True):
        tokens = list(output.token_ids)
        own = generate(gpt, torch.tensor([prompt]), max_new_tokens=len(tokens), temperature=0)
        assert tokens == [int(token) for token in own]
        with torch.no_grad():
            logprobs = gpt(torch.tensor([prompt + tokens])).logits.log_softmax(-1)[0, len(prompt) - 1 : -1]
        for place, found in zip(logprobs, output.logprobs, strict=True):
            largest = max([largest, *(abs(float(place[token]) - value.logprob) for token, value in found.items())])
    assert largest < 1e-4
    return largest


@pytest.mark.parametrize("name", PLANS)
def test_tokens_and_logprobs_are_the_models_own(served, name):
    gpt, given = small(name), prompts(300, 17, 1)
    llm = served(gpt, max_num_batched_tokens=128)
    check_same(gpt, given, greedy(llm, given, 40))


def test_a_prefix_that_the_cache_still_holds_is_not_computed_again(served):
    gpt, (long, other) = small("ladder"), prompts(200, 30)
    llm = served(gpt, max_num_batched_tokens=256)
    greedy(llm, [long], 1)
    found = llm.generate([{"prompt_token_ids": long + other}], SamplingParams(max_tokens=1), use_tqdm=False)
    assert found[0].num_cached_tokens >= 160
    check_same(gpt, [long + other, long + other[:9]], greedy(llm, [long + other, long + other[:9]], 20))


def test_half_precision_answers_nearly_the_same(served):
    gpt, given = small("sinks"), prompts(100)
    (output,) = greedy(served(gpt, dtype="bfloat16"), given, 1)
    with torch.no_grad():
        logprobs = gpt(torch.tensor(given)).logits.log_softmax(-1)[0, -1]
    assert max(abs(logprobs[token] - value.logprob) for token, value in output.logprobs[0].items()) < 0.3


@pytest.mark.parametrize(
    ("plan", "options", "said"),
    [
        ({"plan": HeadPlan.las(n_heads=4, max_decay=0.1)}, {}, "layer 0 has decays"),
        ({}, {"tensor_parallel_size": 2}, "tensor_parallel_size must be 1"),
        ({}, {"quantization": "fp8", "dtype": "bfloat16"}, "quantization must be None"),
        ({"head_dim": 24}, {}, "head_dim must be one of 32, 64"),
    ],
)
def test_what_is_not_served_is_refused_by_name(served, plan, options, said):
    gpt = small("full", **plan)
    with pytest.raises(Exception, match=said):
        served(gpt, **options)
