"""Processes that share a prompt's prefill end up with the cache and the tokens of one process."""

import pytest
import torch

from longshort import GPT, GPTConfig, HeadPlan, generate
from longshort.generation import shared_prefill

BASE = {"vocab_size": 19, "context": 96, "n_layers": 2, "width": 16, "n_heads": 4, "init_std": 0.3}
LONG_SHORT = {"n_global": 1, "window": 5}
LENGTH = 43
"""Of the prompt: not a multiple of any number of ranks here."""
CASES = {
    "grouped queries, in a static cache": {"positions": "rotary", "qk_norm": "head", "n_kv_heads": 2}
    | {"plan": HeadPlan(windows=(None, None, 4, 3)), "static": True},
    "prompts of different lengths": LONG_SHORT | {"padded": True},
    "streaming, and windows larger than a share": {"positions": "rotary"}
    | {"plan": HeadPlan(windows=(None, 6, 6, 4), firsts=(0, 3, 3, 1)), "rollback": 20},
    "smoothed values, all local": {"plan": HeadPlan(windows=(4, 4, 2, 9)), "positions": "alibi", "smoothing": 3},
    "smoothed keys": {"plan": HeadPlan.las(n_heads=4, max_decay=0.1), "positions": "none", "n_kv_heads": 2}
    | {"smoothing": 3, "smoothing_stage": "before"},
    "positions that restart": LONG_SHORT | {"padded": True, "restart_positions": True, "positions": "rotary"},
    "global heads not rotated": {"positions": "rotary", "n_kv_heads": 2, "padded": True}
    | {"reach": {"pattern": "long_short", "n_global": 2, "window": 5, "nope": True}},
    "prompts of different lengths, in a static cache": LONG_SHORT | {"padded": True, "static": True},
}


def built(changes):
    torch.manual_seed(1)
    return GPT(GPTConfig(**BASE | changes)).double().eval()


def held(cache):
    """Everything that can still be seen of each store, in order."""
    found = []
    for layer in cache.layers:
        for store in layer.stores:
            stop = cache.length if store.window is not None or store in layer.pools else min(cache.length, store.limit)
            first = 0 if store.window is None else max(0, stop - store.window - cache.rollback)
            found += [store._read(x, first, stop) for x in (store.k, store.v)]
    return found


def against_one_process(group, changes):
    changes = dict(changes)
    static, padded = changes.pop("static", False), changes.pop("padded", False)
    options = {"static": static, "rollback": changes.pop("rollback", 2), "max_length": 60 if static else None}
    model = built(changes)
    tokens, given = torch.randint(19, (2, LENGTH)), {}
    if padded:
        given["segments"] = torch.where(torch.arange(LENGTH) < torch.tensor([[0], [9]]), -1, 0)
        given["positions"] = (torch.arange(LENGTH) - torch.tensor([[0], [9]])).clamp(min=0)
        if model.config.restart_positions:
            del given["positions"]
    caches = [model.new_cache(2, **options) for _ in range(2)]
    expected = model(tokens, cache=caches[0], last_logits=1, **given).logits[:, -1]
    found = shared_prefill(model, tokens, caches[1], group, **given)
    errors = {"prefill": float((found - expected).abs().max())}
    for number, (mine, theirs) in enumerate(zip(held(caches[1]), held(caches[0]), strict=True)):
        errors[f"store {number}"] = float((mine - theirs).abs().max()) if mine.numel() else 0.0
    for step in range(8):  # rings wrap
        token = expected.argmax(-1, keepdim=True)
        expected, found = (model(token, cache=cache).logits[:, -1] for cache in caches)
        errors[f"step {step}"] = float((found - expected).abs().max())
    return errors


@pytest.mark.every(4)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_cache_and_logits_are_those_of_one_process(ranks, name, size):
    for errors in ranks.run(against_one_process, CASES[name], size=size):
        assert max(errors.values()) <= 1e-12, errors


def drawn(group, prompt, options):
    model = built(LONG_SHORT)
    alone, together = (torch.stack(list(generate(model, prompt, **options | {"group": g}))) for g in (None, group))
    return alone.tolist(), together.tolist()


@pytest.mark.every(2)
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"seed": 3}])
def test_tokens_are_those_of_one_process(ranks, options):
    prompt = [list(range(19)) * 2, [5, 3, 1] * 8]
    results = ranks.run(drawn, prompt, options | {"max_new_tokens": 12}, size=4)
    assert all(together == results[0][0] for _, together in results)


def refused(group, length, options):
    torch.manual_seed(0)
    model = built(LONG_SHORT | {"window": 20})
    list(generate(model, torch.zeros(1, length, dtype=torch.long), group=group, max_new_tokens=2, **options))


@pytest.mark.parametrize(
    ("length", "options", "message"),
    [
        (2, {}, "tokens must have more positions than the group has ranks, 2, got 2"),
        (33, {}, "group must have at most 1 ranks for a prompt of 33 tokens, got 2"),
        (40, {"use_cache": False}, "group needs use_cache and a prompt within the context of 96, got use_cache=False"),
        (97, {}, r"group needs use_cache .* and 97 tokens"),
    ],
)
def test_prompts_that_cannot_be_shared_are_refused(ranks, length, options, message):
    with pytest.raises(ValueError, match=message):
        ranks.run(refused, length, options, size=2)


def test_a_prompt_too_short_for_the_ranks_is_refused_with_the_number_that_can_share_it(ranks):
    with pytest.raises(ValueError, match=r"at most 2 ranks .* 42"):  # three would share 39, which two do not divide
        ranks.run(refused, 42, {}, size=3)
    assert ranks.run(refused, 42, {}, size=2) == [None] * 2


def filled_before(group):
    model = built(LONG_SHORT)
    cache = model.new_cache()
    model(torch.zeros(1, 3, dtype=torch.long), cache=cache)
    shared_prefill(model, torch.zeros(1, 20, dtype=torch.long), cache, group)


def test_a_cache_that_holds_something_is_refused(ranks):
    with pytest.raises(ValueError, match=r"cache must be empty while sequences are shared .* got 3 tokens"):
        ranks.run(filled_before, size=2)
