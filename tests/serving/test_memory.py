"""vLLM frees what left the windows, and holds little more than our own cache does."""

import math
from typing import NamedTuple

import pytest
from vllm import SamplingParams

from .models import PLANS, prompts, small

LENGTH = 4000
"""Long enough for the last block of the far heads, which is seldom full, to weigh little."""


class Held(NamedTuple):
    """What one request holds in vLLM's cache."""

    blocks: list[tuple[int | None, int, int]]
    """Window, tokens per block and blocks held, of each group."""
    nbytes: int


def held_after_prefill(llm, length: int) -> Held:
    """What a request with so many tokens holds when the first token after it is computed."""
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    llm.llm_engine.add_request("one", {"prompt_token_ids": prompts(length)[0]}, params)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    while not scheduler.running or scheduler.running[0].num_computed_tokens <= length:
        llm.llm_engine.step()
    name, config = scheduler.running[0].request_id, scheduler.kv_cache_config
    blocks, total = [], 0
    for group, manager in zip(
        config.kv_cache_groups, scheduler.kv_cache_manager.coordinator.single_type_managers, strict=True
    ):
        held = sum(not block.is_null for block in manager.req_to_blocks[name])
        spec = group.kv_cache_spec
        blocks.append((spec.sliding_window, spec.block_size, held))
        total += held
    return Held(blocks, total * config.kv_cache_tensors[0].size // config.num_blocks)


@pytest.mark.parametrize("name", PLANS)
def test_near_groups_hold_their_window_and_all_groups_no_more_than_our_cache(served, name):
    gpt = small(name, context=LENGTH + 96)
    held = held_after_prefill(served(gpt, max_num_batched_tokens=512, enable_prefix_caching=False), LENGTH)
    for window, size, blocks in held.blocks:
        most = LENGTH + 1 if window is None else window
        assert blocks <= math.ceil(most / size) + (window is not None)
    own = gpt.new_cache(max_length=LENGTH + 1).nbytes
    assert held.nbytes < 1.1 * own
