"""transformers' generation on a GPU: the cache lives there, and the text is that of the CPU's definition."""

import pytest
import torch

pytest.importorskip("transformers")

from longshort import GPT, GPTConfig
from longshort.hf import LongShortForCausalLM

TOKENS = torch.tensor([list(range(5, 35)), [256] * 27 + [200, 100, 50]])
MASK = torch.tensor([[1] * 30, [0] * 27 + [1] * 3])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = GPTConfig.preset("tiny", vocab_size=257, context=128, init_std=0.2)
    return LongShortForCausalLM.from_gpt(GPT(config).cuda().eval())


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}], ids=str)
def test_generated_text_is_the_same_with_and_without_a_cache(model, options):
    inputs = {"input_ids": TOKENS.cuda(), "attention_mask": MASK.cuda()}
    fixed = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 256, "return_dict_in_generate": True}
    cached = model.generate(**inputs, **fixed, **options)
    beams = {name: value for name, value in options.items() if name == "num_beams"}
    assert cached.sequences.equal(model.generate(**inputs, **fixed, **beams, use_cache=False).sequences)
    assert cached.past_key_values.inner.device.type == "cuda"


def test_past_learned_positions_it_stops_with_a_message(model):
    with pytest.raises(ValueError, match="positions must be below max_position_embeddings=128"):
        model(TOKENS.cuda().repeat(1, 5), position_ids=torch.arange(150, device="cuda")[None])
