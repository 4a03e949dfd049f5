"""The layer against a dense computation written out by hand, option by option."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from longshort import HeadPlan, LSCache
from longshort.nn import LSAttention, LSAttentionResult, RopeScaling, SigmaLinear, rotary

WIDTH, HEADS, LENGTH = 24, 4, 19
PLAN = HeadPlan(windows=(None, 5, 2, 1))


def build(plan: HeadPlan = PLAN, **options: Any) -> LSAttention:
    layer = LSAttention(WIDTH, plan, **options).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)  # also gains and biases, so that a forgotten one shows
    for module in layer.modules():
        if isinstance(module, SigmaLinear):
            module.reset_sigma()
    return layer


def dense(
    layer: LSAttention, x: Tensor, *, slopes: tuple[float, ...] | None = None, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Output and masked logits, head by head, from the layer's weights alone."""
    weight = layer.qkv.effective_weight() if isinstance(layer.qkv, SigmaLinear) else layer.qkv.weight
    d, group = layer.head_dim, layer.n_heads // layer.n_kv_heads
    rows = F.linear(x, weight, layer.qkv.bias)
    q, k, v = rows.split([layer.n_heads * d, layer.n_kv_heads * d, layer.n_kv_heads * d], dim=-1)
    q, k, v = q.unflatten(-1, (-1, d)), k.unflatten(-1, (-1, d)), v.unflatten(-1, (-1, d))
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = layer.q_norm(q), layer.k_norm(k)
    if layer.rope_theta is not None:
        q, k = (rotary(y, torch.arange(x.shape[1]), theta=layer.rope_theta) for y in (q, k))
    offset = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    outputs, logits = [], []
    for head, window in enumerate(layer.plan.windows):
        scores = q[:, :, head] @ k[:, :, head // group].mT / math.sqrt(d)
        hidden = (offset < 0) | (offset >= (window or x.shape[1]))
        logits.append(scores.masked_fill(hidden, torch.nan))
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if slopes is not None:
            scores = scores - slopes[head] * offset
        outputs.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[:, :, head // group])
    return layer.out(torch.cat(outputs, -1)), torch.stack(logits, 1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": True},
        {"head_dim": 10},
        {"positions": "rotary"},
        {"positions": "rotary", "rope_theta": 50.0},
        {"qk_norm": "head"},
        {"qk_norm": "width"},
        {"qk_norm": "plain"},
        {"sigma_reparam": True, "bias": True},
        {"n_kv_heads": 2},
        {"n_kv_heads": 1, "qk_norm": "width", "positions": "rotary"},
        {"backend": "reference"},
    ],
    ids=str,
)
def test_layer_equals_the_dense_computation(options: dict[str, Any]) -> None:
    layer, x = build(**options), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(layer(x), dense(layer, x)[0])


def test_softcap_bounds_the_logits() -> None:
    layer, x = build(softcap=2.0), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(layer(x), dense(layer, x, softcap=2.0)[0])
    assert not torch.allclose(layer(x), dense(layer, x)[0])


def test_alibi_is_the_standard_slopes() -> None:
    layer, x = build(positions="alibi"), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    slopes = PLAN.with_alibi().slopes
    assert slopes is not None
    torch.testing.assert_close(layer(x), dense(layer, x, slopes=slopes)[0])


def test_alibi_keeps_the_slopes_that_a_plan_brings() -> None:
    plan = HeadPlan(windows=PLAN.windows, slopes=(0.0, 0.1, 0.2, 0.3))
    assert build(plan, positions="alibi").plan == plan


def test_rotary_layer_gives_the_same_at_shifted_positions() -> None:
    layer, x = build(positions="rotary"), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    positions = torch.arange(LENGTH)
    torch.testing.assert_close(layer(x), layer(x, positions=positions + 500))
    assert not torch.allclose(layer(x), layer(x, positions=2 * positions))


def test_segments_shut_off_what_is_not_in_the_own_segment() -> None:
    layer, x = build(), torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    segments = torch.tensor([[0] * 8 + [1] * 11])
    expected = torch.cat([layer(x[:, :8]), layer(x[:, 8:])], dim=1)
    torch.testing.assert_close(layer(x, segments=segments), expected)


@pytest.mark.parametrize("options", [{}, {"qk_norm": "head", "positions": "rotary"}, {"softcap": 2.0}], ids=str)
def test_stats_are_the_extremes_of_the_dense_logits(options: dict[str, Any]) -> None:
    layer, x = build(**options), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    _, logits = dense(layer, x)
    stats = layer(x, stats=True).stats
    torch.testing.assert_close(stats.max, logits.nan_to_num(-torch.inf).amax((0, 2, 3)).float())
    torch.testing.assert_close(stats.min, logits.nan_to_num(torch.inf).amin((0, 2, 3)).float())


@pytest.mark.parametrize("cached", [False, True])
def test_layer_returns_the_tensor_alone_unless_statistics_are_asked_for(cached: bool) -> None:
    layer, x = build(), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    results = []
    for stats in (False, True, "max"):
        cache = LSCache([PLAN], head_dim=6, batch_size=2, dtype=torch.float64).layers[0] if cached else None
        results.append(layer(x, cache=cache, stats=stats))
    for result in results[1:]:
        assert isinstance(result, LSAttentionResult)
        assert torch.equal(x + results[0], x + result.out)
    assert torch.equal(results[2].stats.max, results[1].stats.max) and results[2].stats.min is None


@pytest.mark.parametrize("bias", [(False, False), (True, True), (True, False)], ids=str)
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("fused", [False, True])
def test_projections_of_another_attention_carry_over(fused: bool, kv_heads: int, bias: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    x, sizes = torch.randn(2, LENGTH, WIDTH), (HEADS * 8, kv_heads * 8, kv_heads * 8)
    parts = [torch.nn.Linear(WIDTH, size, bias=bias[0]) for size in sizes]
    back = torch.nn.Linear(HEADS * 8, WIDTH, bias=bias[1])
    q, k, v = (part(x).unflatten(-1, (-1, 8)).transpose(1, 2) for part in parts)
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    expected = back(attended.transpose(1, 2).flatten(-2))
    given: Any = parts
    if fused:
        given = torch.nn.Linear(WIDTH, sum(sizes), bias=bias[0])
        given.load_state_dict(
            {name: torch.cat([dict(part.named_parameters())[name] for part in parts]) for name in given.state_dict()}
        )
    layer = LSAttention.from_projections(HeadPlan.full(HEADS), qkv=given, out=back)
    torch.testing.assert_close(layer(x), expected)
    assert (layer.qkv.bias is not None, layer.out.bias is not None) == bias
    assert layer.n_kv_heads == kv_heads


def test_carried_weights_are_copies_with_their_dtype_mode_and_frozenness() -> None:
    qkv, back = torch.nn.Linear(8, 24, dtype=torch.float64), torch.nn.Linear(8, 8, dtype=torch.float64).eval()
    qkv.weight.requires_grad_(False)
    layer = LSAttention.from_projections(HeadPlan.full(2), qkv=qkv, out=back, qk_norm="head", dropout=0.5)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float64}
    assert not layer.qkv.weight.requires_grad and layer.out.weight.requires_grad
    assert layer.qkv.bias.requires_grad
    assert not layer.training and layer.dropout.p == 0.5
    torch.nn.init.zeros_(back.weight)
    assert layer.out.weight.abs().sum() > 0


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (((8, 24), (9, 8)), "plan must have a number of heads that divides out's 9 inputs, got 2"),
        (((8, 25), (8, 8)), "qkv must have 8 outputs for the 2 query heads of 4 and .* got 25"),
        (((8, 8), (8, 8)), "qkv must have 8 outputs .* got 8"),
        (((8, 8), (8, 4), (8, 8), (8, 8)), r"qkv must have 8 outputs .* got 8 \+ 4 \+ 8"),
        (((8, 8), (8, 8), (8, 8)), "qkv must be one layer, or one each for queries, keys and values, got 2"),
        (((8, 24), (8, 7)), "qkv must have as many inputs as out has outputs, got 8 and 7"),
    ],
)
def test_projections_that_do_not_fit_are_a_clear_error(sizes: tuple[tuple[int, int], ...], message: str) -> None:
    *qkv, back = (torch.nn.Linear(*size) for size in sizes)
    with pytest.raises(ValueError, match=message):
        LSAttention.from_projections(HeadPlan.full(2), qkv=qkv[0] if len(qkv) == 1 else qkv, out=back)


def test_projections_that_are_not_linear_are_a_clear_error() -> None:
    with pytest.raises(ValueError, match=r"out must be made of nn\.Linear, got Conv1d"):
        LSAttention.from_projections(HeadPlan.full(2), qkv=torch.nn.Linear(8, 24), out=torch.nn.Conv1d(8, 8, 1))
    with pytest.raises(ValueError, match=r"qkv must be made of nn\.Linear, got Conv1d"):
        LSAttention.from_projections(HeadPlan.full(2), qkv=torch.nn.Conv1d(8, 24, 1), out=torch.nn.Linear(8, 8))


def test_options_that_the_projections_show_are_a_clear_error() -> None:
    qkv, back = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)
    with pytest.raises(ValueError, match="options must be what the projections do not show, got bias"):
        LSAttention.from_projections(HeadPlan.full(2), qkv=qkv, out=back, bias=True)
    with pytest.raises(ValueError, match="plan must be a HeadPlan or a LayerReach, got int"):
        LSAttention.from_projections(2, qkv=qkv, out=back)  # type: ignore[arg-type]


def test_dropout_acts_on_the_output_in_training_only() -> None:
    layer, x = build(dropout=0.5), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    kept = layer.train()(x)
    expected = layer.eval()(x)
    dropped = kept == 0
    assert 0.3 < dropped.double().mean() < 0.7
    torch.testing.assert_close(kept[~dropped], 2 * expected[~dropped])


def test_gradients_reach_every_parameter() -> None:
    layer = build(qk_norm="head", sigma_reparam=True, bias=True, positions="rotary")
    layer(torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention_dropout": 0.1}, "attention_dropout must be 0, got 0.1: .* use dropout"),
        ({"positions": "learned"}, "positions must be 'none' where the model adds them to the input, got 'learned'"),
        ({"positions": "rope"}, "positions must be one of rotary, alibi, none, got 'rope'"),
        ({"positions": "rotary", "head_dim": 5}, "head_dim must be even with rotary positions, got 5"),
        ({"head_dim": 0}, "head_dim must be None or an integer >= 1, got 0"),
        ({"head_dim": 6.0}, "head_dim must be None or an integer >= 1, got 6.0"),
        ({"width": "24"}, "width must be an integer >= 1, got '24'"),
        ({"n_kv_heads": 0}, "n_kv_heads must be None or an integer >= 1, got 0"),
        ({"chunk": True}, "chunk must be None or an integer >= 1, got True"),
        ({"rope_theta": 0}, "rope_theta must be a finite number > 0, got 0"),
        ({"rope_scaling": {"kind": "linear"}}, "rope_scaling must be None or a RopeScaling, got {'kind': 'linear'}"),
        (
            {"rope_scaling": RopeScaling(kind="linear", factor=2)},
            "rope_scaling must be None unless positions are 'rotary'",
        ),
        ({"scale": float("nan")}, "scale must be None or a finite number, got nan"),
        ({"softcap": -1}, "softcap must be None or a finite number > 0, got -1"),
        ({"qk_norm_eps": "1e-6"}, "qk_norm_eps must be a finite number > 0, got '1e-6'"),
        ({"causal": None}, "causal must be True or False, got None"),
        ({"n_kv_heads": 3}, "n_kv_heads must be a divisor of the plan's 4 heads, got 3"),
        ({"qk_norm": "rms"}, "qk_norm must be None or one of"),
        ({"width": 25}, "width must be a multiple of the plan's 4 heads, or give head_dim; got 25"),
        ({"plan": (None, 5)}, "plan must be a HeadPlan or a LayerReach, got tuple"),
    ],
)
def test_wrong_argument_is_a_clear_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LSAttention(**({"width": WIDTH, "plan": PLAN} | arguments))


@pytest.mark.parametrize("positions", ["none", "rotary"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            {"x": torch.randn(5, WIDTH)},
            rf"x must be a tensor of shape \(batch, positions, {WIDTH}\), got \(5, {WIDTH}\)",
        ),
        ({"x": torch.randn(2, 5, 7)}, r"x must be a tensor .* got \(2, 5, 7\)"),
        ({"x": [1.0]}, "x must be a tensor .* got list"),
        # A single position would be broadcast: all tokens would stand at the same place.
        ({"positions": torch.tensor([3])}, r"positions must have shape \(5,\) or \(2, 5\), got \(1,\)"),
        ({"positions": torch.tensor(3)}, r"positions must have shape .* got \(\)"),
        ({"positions": torch.arange(4)}, r"positions must have shape .* got \(4,\)"),
        ({"positions": torch.arange(15).view(3, 5)}, r"positions must have shape .* got \(3, 5\)"),
        ({"positions": torch.arange(5.0)}, r"positions must be a tensor of integers, got torch\.float32"),
        ({"positions": [0, 1, 2, 3, 4]}, "positions must be a tensor of integers, got list"),
        (
            {"cache": LSCache([PLAN], head_dim=6)},
            r"cache must be one of a cache's layers, got LSCache: .* cache\.layers",
        ),
    ],
)
def test_wrong_call_is_a_clear_error(call: dict[str, Any], message: str, positions: str) -> None:
    layer = LSAttention(WIDTH, PLAN, positions=positions)
    with pytest.raises(ValueError, match=message):
        layer(**({"x": torch.randn(2, 5, WIDTH)} | call))
