"""The division of heads into vLLM's layers, and what is refused; vLLM itself is not needed."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshort import GPTConfig, HeadPlan
from longshort.hf.vllm.sublayers import divide


def config(plan=None, n_kv_heads=None, n_layers=2, **options):
    n_heads = plan.n_heads if plan is not None else options.pop("n_heads", 4)
    sizes = {"vocab_size": 9, "context": 256, "n_layers": n_layers, "width": 8 * n_heads, "n_heads": n_heads}
    return GPTConfig(**sizes, n_kv_heads=n_kv_heads, plan=plan, **options)


def outline(layer):
    return [(sub.name, sub.kv_heads, sub.heads) for sub in layer]


def test_far_and_near_heads_are_one_sublayer_each_where_their_numbers_divide():
    (layer, _) = divide(config(HeadPlan.long_short(n_heads=6, n_global=2, window=16)))
    assert outline(layer) == [("far_0", (0, 1), (0, 1)), ("near16_0", (2, 3, 4, 5), (2, 3, 4, 5))]


def test_query_heads_go_with_their_kv_head():
    (layer, _) = divide(config(HeadPlan(windows=(16, 16, None, None, 16, 16)), n_kv_heads=3))
    assert outline(layer) == [("far_0", (1,), (2, 3)), ("near16_0", (0, 2), (0, 1, 4, 5))]


def test_query_heads_of_several_windows_read_what_the_furthest_keeps():
    (layer, _) = divide(config(HeadPlan(windows=(64, 8, 8, 8, 64, 8)), n_kv_heads=2))
    assert outline(layer) == [("near64_0", (0, 1), (0, 4)), ("near64_0_near8", (0, 1), (1, 2, 3, 5))]
    assert [(sub.window, sub.reads) for sub in layer] == [(64, None), (8, "near64_0")]


def test_plain_attention_is_one_sublayer():
    assert [len(layer) for layer in divide(config(HeadPlan.full(5)))] == [1, 1]


windows = st.one_of(st.none(), st.sampled_from([1, 8, 16, 64]))
kv_windows = st.integers(1, 12).flatmap(lambda heads: st.lists(windows, min_size=heads, max_size=heads))


@given(st.lists(kv_windows, min_size=1, max_size=3), st.sampled_from([1, 2, 3]))
def test_every_head_is_in_one_sublayer_and_no_block_is_padded(layers, group):
    heads = max(map(len, layers))
    plans = [row + row[-1:] * (heads - len(row)) for row in layers]
    repeated = [HeadPlan(windows=tuple(w for w in row for _ in range(group))) for row in plans]
    made = config(n_heads=heads * group, n_kv_heads=heads, n_layers=len(plans), plans=tuple(repeated))
    divided = divide(made)
    largest = max(len(sub.kv_heads) for layer in divided for sub in layer if sub.window or not any(map(any, plans)))
    for plan, layer in zip(repeated, divided, strict=True):
        assert sorted(head for sub in layer for head in sub.heads) == list(range(heads * group))
        assert all(plan.windows[head] == sub.window for sub in layer for head in sub.heads)
        assert all(largest % len(sub.kv_heads) == 0 for sub in layer)
        assert len({sub.name for sub in layer}) == len(layer)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"plan": HeadPlan.las(n_heads=4, max_decay=0.1)}, "layer 0 has decays"),
        ({"plan": HeadPlan.streaming(n_heads=4, first=2, recent=8)}, "layer 0 has first keys"),
        ({"smoothing": 3}, "smoothing must be None for vLLM, got 3"),
        ({"attention_chunk": 64}, "attention_chunk must be None for vLLM, got 64"),
    ],
)
def test_what_vllm_cannot_compute_is_refused_by_name(options, said):
    with pytest.raises(ValueError, match=said):
        divide(config(**options))


def test_the_example_of_the_page_prints_what_it_says(capsys):
    page = Path(__file__).parents[3] / "docs" / "howto" / "vllm.md"
    (block,) = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
    exec(compile(block, str(page), "exec"), {})
    assert capsys.readouterr().out.strip() == block.splitlines()[-1].removeprefix("# ")
