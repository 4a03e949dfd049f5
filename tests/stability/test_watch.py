"""Watching every head's logits in a model that is not ours."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from longshort import GPT, GPTConfig, HeadPlan, LSAttention
from longshort.stability import watch_logits

PLAN = HeadPlan(windows=(None, 5, 2, 1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([LSAttention(32, PLAN, positions="rotary") for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_watched_logits_are_those_that_stats_returns():
    model, x = Residual(), torch.randn(2, 20, 32)
    with watch_logits(model) as seen:
        out = model(x)
    assert torch.equal(out, model(x))
    first = model.layers[0](x, stats=True)
    second = model.layers[1](x + first.out, stats=True)
    for layer, result in enumerate((first, second)):
        assert torch.equal(seen[layer].max, result.stats.max) and torch.equal(seen[layer].min, result.stats.min)


@pytest.mark.parametrize("watched", [True, "max"])
@pytest.mark.parametrize("asked", [False, True, "max"])
def test_the_caller_and_the_one_who_watches_each_get_what_they_asked_for(asked, watched):
    layer, x = LSAttention(32, PLAN), torch.randn(2, 20, 32)
    expected = layer(x, stats=True).stats
    with watch_logits(layer, stats=watched) as seen:
        result = layer(x, stats=asked)
    found = {"caller": (asked, result.stats if asked else None), "watcher": (watched, seen[0])}
    for wanted, stats in found.values():
        if not wanted:
            assert stats is None and isinstance(result, torch.Tensor)
            continue
        assert torch.equal(stats.max, expected.max)
        assert stats.min is None if wanted == "max" else torch.equal(stats.min, expected.min)


def test_extremes_are_kept_over_all_passes_within():
    model, small, large = Residual(), torch.randn(1, 9, 32), 10 * torch.randn(1, 9, 32)
    seen = {}
    for name, passes in {"small": [small], "large": [large], "both": [small, large, small]}.items():
        with watch_logits(model) as found:
            for x in passes:
                model(x)
        seen[name] = found[0]
    assert torch.equal(seen["both"].max, torch.maximum(seen["small"].max, seen["large"].max))
    assert torch.equal(seen["both"].min, torch.minimum(seen["small"].min, seen["large"].min))


def test_they_are_fp32_whatever_the_default_dtype(bf16_by_default):
    model, x = Residual(), torch.randn(1, 9, 32)
    with watch_logits(model) as seen:
        model(x)
    assert torch.equal(seen[0].max, model.layers[0](x, stats=True).stats.max)


def test_a_nan_stays_visible():
    model, x = Residual(), torch.randn(1, 9, 32)
    with watch_logits(model) as seen:
        model(x * torch.nan)
        model(x)
    assert seen[0].abs_max.isnan().all()


def test_nothing_is_measured_afterwards_nor_after_an_error():
    model = Residual()
    with pytest.raises(ValueError, match="x must be a tensor of shape"), watch_logits(model):
        model(torch.randn(1, 9, 31))
    assert all(layer.watched is None for layer in model.layers)


def test_a_layer_that_did_not_run_says_so():
    model = Residual()
    with watch_logits(model) as seen:
        model.layers[1](torch.randn(1, 9, 32))
    assert (seen[0].abs_max == -torch.inf).all() and seen[1].abs_max.isfinite().all()


def test_our_own_models_can_be_watched_too():
    model, tokens = GPT(GPTConfig.preset("tiny")), torch.randint(256, (1, 30))
    with watch_logits(model) as seen:
        model(tokens, tokens).loss.backward()
    expected = model(tokens, stats=True).stats
    torch.testing.assert_close(torch.stack([found.max for found in seen.values()]), expected[..., 0])


def test_a_compiled_model_is_watched_without_a_break_and_compiles_once_more():
    torch._dynamo.reset()
    model, x = Residual(), torch.randn(2, 20, 32)
    counted = CompileCounter()
    compiled = torch.compile(model, backend=counted, fullgraph=True)
    expected = compiled(x)
    for _ in range(3):
        with watch_logits(compiled) as seen:
            assert torch.equal(compiled(x), expected)
        assert torch.equal(seen[0].max, model.layers[0](x, stats=True).stats.max)
        assert torch.equal(compiled(x), expected)
    assert counted.frame_count == 2


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda: (nn.Linear(2, 2), None), "model must have an LSAttention layer, got a Linear without one"),
        (lambda: (model := Residual(), watch_logits(model)), "model must not be watched already"),
    ],
)
def test_what_cannot_be_watched_is_a_clear_error(prepare, message):
    model, outer = prepare()
    if outer is not None:
        outer.__enter__()
    with pytest.raises(ValueError, match=message), watch_logits(model):
        pass


@pytest.mark.parametrize("stats", [False, "min"])
def test_watching_nothing_or_something_unknown_is_a_clear_error(stats):
    model = Residual()
    with pytest.raises(ValueError, match=r"stats must be .*, got"), watch_logits(model, stats=stats):
        pass
    with watch_logits(model), pytest.raises(ValueError, match="stats must be False, True or"):
        model.layers[0](torch.randn(1, 9, 32), stats="min")
