"""Heads of one layer that tell positions apart in different ways."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longshort import GPT, GPTConfig, HeadPlan, LSAttention
from longshort.nn import positions as module
from longshort.nn.positions import RopeScaling, place, placed_heads, rotary, sharing_tables
from longshort.reach import LayerReach, QueryTemperature

LENGTH, DIM = 40, 8
MIXED = HeadPlan(windows=(None, 8, 8, None))


def queries_and_keys(n_heads, n_kv_heads, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, LENGTH, n_heads, DIM), (2, LENGTH, n_kv_heads, DIM))
    return tuple(torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)


def turned(x, positions, theta, share):
    """One head, by the definition: `rotary` of its first features."""
    features = 2 * round(share * DIM / 2)
    if not features:
        return x
    return torch.cat((rotary(x[..., :features], positions, theta=theta), x[..., features:]), dim=-1)


@st.composite
def layers(draw):
    kv_heads, group = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    kv_windows = draw(st.lists(st.sampled_from([None, 8, 4]), min_size=kv_heads, max_size=kv_heads))
    plan = HeadPlan(windows=tuple(window for window in kv_windows for _ in range(group)))
    bases, shares = st.sampled_from([None, 100.0, 1e6]), st.sampled_from([0.0, 0.25, 0.5, 1.0])
    return kv_heads, LayerReach(
        plan=plan,
        local_base=draw(bases),
        global_base=draw(bases),
        local_share=draw(shares),
        global_share=draw(shares),
        temperature=draw(st.sampled_from([None, QueryTemperature(scale=0.5, every=7)])),
    )


@pytest.mark.parametrize("few", [0, 1024])
@settings(max_examples=60, deadline=None)
@given(layers(), st.booleans())
def test_every_head_is_placed_by_its_own_reach(few, drawn, by_sequence):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FEW", few)  # for some tokens heads that differ are rotated together
        check_every_head(*drawn, by_sequence)


def check_every_head(kv_heads, reach, by_sequence):
    group = reach.n_heads // kv_heads
    q, k = queries_and_keys(reach.n_heads, kv_heads)
    positions = torch.arange(3, 3 + LENGTH)
    positions = torch.stack((positions, positions.flip(0))) if by_sequence else positions
    found_q, found_k = place(q, k, positions, placed_heads(reach, kv_heads, DIM, 500.0))
    factor = 1 + 0.5 * torch.log1p(((positions + 1) // 7).float())
    for head, window in enumerate(reach.plan.windows):
        base, share = (
            (reach.global_base, reach.global_share) if window is None else (reach.local_base, reach.local_share)
        )
        expected = turned(q[:, :, [head]], positions, base or 500.0, share)
        if window is None and reach.temperature is not None:
            expected = expected * factor[..., None, None]
        torch.testing.assert_close(found_q[:, :, [head]], expected)
        kv_head = head // group
        torch.testing.assert_close(
            found_k[:, :, [kv_head]], turned(k[:, :, [kv_head]], positions, base or 500.0, share)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_alike_are_rotated_bit_for_bit_as_by_rotary(dtype):
    q, k = queries_and_keys(4, 2, dtype)
    positions = torch.arange(LENGTH)
    heads = placed_heads(LayerReach(plan=HeadPlan(windows=(None, None, 8, 8))), 2, DIM, 10000.0)
    assert len(heads) == 1
    found = place(q, k, positions, heads)
    assert torch.equal(found[0], rotary(q, positions))
    assert torch.equal(found[1], rotary(k, positions))


def test_scaling_of_global_heads_leaves_local_ones_alone():
    q, k = queries_and_keys(4, 4)
    positions, scaling = torch.arange(LENGTH), RopeScaling(kind="linear", factor=8.0, heads="global")
    found, _ = place(q, k, positions, placed_heads(LayerReach(plan=MIXED), 4, DIM, 500.0, scaling))
    for head, window in enumerate(MIXED.windows):
        expected = rotary(q[:, :, [head]], positions, theta=500.0, scaling=None if window else scaling)
        assert torch.equal(found[:, :, [head]], expected)


def test_smallest_share_turns_a_pair_of_features():
    (heads,) = placed_heads(LayerReach(plan=HeadPlan(windows=(None, None)), global_share=0.01), 2, 16, 1e4)
    assert heads.features == 2


@pytest.fixture
def tables(monkeypatch):
    """The bases of the tables of angles that were made."""
    made, angles = [], module._angles
    monkeypatch.setattr(module, "_angles", lambda *given: made.append(given[2]) or angles(*given))
    return made


@pytest.mark.parametrize("few", [0, 1024])
def test_bases_that_come_twice_share_a_table(few, tables, monkeypatch):
    monkeypatch.setattr(module, "_FEW", few)
    reach = LayerReach(plan=HeadPlan(windows=(None, 8, None, 8)), local_base=1e4, global_base=1e6)
    place(*queries_and_keys(4, 4), torch.arange(LENGTH), placed_heads(reach, 4, DIM, 10000.0))
    assert sorted(tables) == [1e4, 1e6]


@pytest.mark.parametrize("few", [0, 1024])
def test_layers_share_a_table_for_one_forward_pass(few, tables, monkeypatch):
    monkeypatch.setattr(module, "_FEW", few)
    torch.manual_seed(0)
    reach = tuple(LayerReach(plan=MIXED, global_share=share) for share in (1.0, 0.0, 0.0))
    config = GPTConfig(vocab_size=16, context=LENGTH, width=32, n_layers=3, n_heads=4, positions="rotary", reach=reach)
    model, tokens = GPT(config), torch.randint(16, (2, LENGTH))
    positions = torch.arange(LENGTH)
    near = model(tokens, positions=positions).logits
    assert len(tables) == 1
    positions.mul_(3)  # the same tensor with other positions
    far = model(tokens, positions=positions).logits
    assert len(tables) == 2 and not torch.allclose(near, far)
    with monkeypatch.context() as patch:
        patch.setattr("longshort.model.gpt.sharing_tables", nullcontext)
        assert torch.equal(model(tokens, positions=positions).logits, far)
        assert len(tables) == 5  # each layer made its own
    with pytest.raises(RuntimeError), sharing_tables():
        raise RuntimeError
    assert torch.equal(model(tokens, positions=positions).logits, far) and len(tables) == 6  # nothing is kept


def test_layer_without_rotation_on_global_heads_forgets_their_order():
    torch.manual_seed(0)
    reach = LayerReach(plan=MIXED, global_share=0)
    layer = LSAttention(32, reach, positions="rotary")
    x = torch.randn(1, LENGTH, 32)
    q, _, _ = layer.heads(x, torch.arange(LENGTH))
    later, _, _ = layer.heads(x, torch.arange(100, 100 + LENGTH))
    assert torch.equal(q[:, [0, 3]], later[:, [0, 3]])
    assert not torch.allclose(q[:, [1, 2]], later[:, [1, 2]])


def test_temperature_needs_no_rotation():
    reach = LayerReach(plan=MIXED, temperature=QueryTemperature(scale=1.0, every=1))
    torch.manual_seed(0)
    layer = LSAttention(32, reach)
    plain = LSAttention(32, MIXED)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(1, LENGTH, 32)
    (q, k, v), (plain_q, plain_k, plain_v) = layer.heads(x), plain.heads(x)
    factor = 1 + torch.log(torch.arange(LENGTH) + 2.0)[:, None]
    torch.testing.assert_close(q[:, [0, 3]], plain_q[:, [0, 3]] * factor)
    assert torch.equal(q[:, [1, 2]], plain_q[:, [1, 2]])
    assert torch.equal(k, plain_k)
    assert torch.equal(v, plain_v)


@pytest.mark.parametrize(
    ("reach", "positions", "words"),
    [
        (LayerReach(plan=MIXED, local_base=1e4), "none", "positions must be 'rotary' for a reach with bases"),
        (LayerReach(plan=MIXED, global_share=0.5), "alibi", "positions must be 'rotary' for a reach with bases"),
    ],
)
def test_reach_that_the_layer_cannot_serve_is_refused(reach, positions, words):
    with pytest.raises(ValueError, match=words):
        LSAttention(32, reach, positions=positions)


def test_alibi_gives_its_slopes_to_the_plan_of_a_reach():
    layer = LSAttention(32, LayerReach(plan=MIXED), positions="alibi")
    assert layer.plan == layer.reach.plan == MIXED.with_alibi()
