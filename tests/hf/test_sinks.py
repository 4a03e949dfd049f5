"""Learned sinks in the transformers class: text with every cache, and weights that lack them."""

import pytest
import torch

from longshort import GPT
from longshort.hf import LongShortForCausalLM

from ..small import small_config
from .small import VARIANTS, gpt


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generated_text_is_the_same_with_every_cache(cache):
    model = LongShortForCausalLM.from_gpt(gpt(**VARIANTS["sinks"])).eval()
    tokens = torch.randint(256, (2, 12), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(tokens, use_cache=False, **options)
    assert torch.equal(model.generate(tokens, cache_implementation=cache, **options), expected)


def test_sinks_that_a_folder_lacks_begin_at_0(tmp_path):
    plain = GPT(small_config(reach={"pattern": "long_short", "n_global": 1, "window": 8}))
    LongShortForCausalLM.from_gpt(plain).save_pretrained(tmp_path)
    config = LongShortForCausalLM.from_gpt(GPT(small_config(**VARIANTS["sinks"]))).config
    model, found = LongShortForCausalLM.from_pretrained(tmp_path, config=config, output_loading_info=True)
    assert sorted(found["missing_keys"]) == [f"model.blocks.{layer}.attention.sinks" for layer in range(2)]
    assert not any(block.attention.sinks.any() for block in model.model.blocks)
    assert torch.equal(model.model.head.weight, plain.head.weight)
