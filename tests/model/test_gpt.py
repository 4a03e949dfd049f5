"""The model: sizes, what a position may depend on, inputs and outputs, and how it trains."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from longshort import GPT, GPTConfig, HeadPlan
from longshort.losses import LossSettings
from longshort.nn import SigmaLinear, sinusoidal, update_sigma
from longshort.ops import blocked

from ..small import small_config

# Torch's own word, once a process, on a CPU without bf16 instructions.
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")

ENCODINGS = ("learned", "rotary", "sinusoidal", "alibi", "none")


def tiny(**overrides: Any) -> GPT:
    # Weights ten times the usual, so that an input that should matter does.
    return GPT(small_config(**({"init_std": 0.2} | overrides))).double().eval()


def draw(*shape: int) -> Tensor:
    return torch.randint(256, shape)


def gradients(model: GPT, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_paper_model_has_the_authors_number_of_parameters() -> None:
    with torch.device("meta"):
        model = GPT(GPTConfig.preset("paper-6m"))
    assert model.n_parameters(position_table=False) == 6_496_704
    assert model.n_parameters() == 6_496_704 + 2048 * 192


@pytest.mark.parametrize(("preset", "size"), [("gpt2-small", 124_439_808), ("gpt2-medium", 354_823_168)])
def test_gpt2_presets_have_gpt2s_number_of_parameters(preset: str, size: int) -> None:
    with torch.device("meta"):
        assert GPT(GPTConfig.preset(preset)).n_parameters() == size


def test_no_encoding_but_learned_has_a_position_table() -> None:
    sizes = {encoding: tiny(positions=encoding).n_parameters() for encoding in ENCODINGS}
    assert sizes["learned"] == sizes["none"] + 128 * 32
    assert sizes["rotary"] == sizes["sinusoidal"] == sizes["alibi"] == sizes["none"]


def test_weights_are_drawn_as_the_author_does() -> None:
    model = GPT(GPTConfig.preset("paper-6m", n_layers=2, bias=True, qk_norm="head"))
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert parameter.eq(1).all(), name
        elif name.endswith("bias"):
            assert parameter.eq(0).all(), name
        else:
            std = 0.02 / 2 if name.endswith(("attention.out.weight", "mlp.down.weight")) else 0.02
            assert parameter.std().item() == pytest.approx(std, rel=0.03), name
            assert abs(parameter.mean().item()) < 4 * std / parameter.numel() ** 0.5, name


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_appending_tokens_changes_no_earlier_logits(encoding: str) -> None:
    model, tokens = tiny(positions=encoding, qk_norm="head"), draw(2, 40)
    whole = model(tokens).logits
    torch.testing.assert_close(model(tokens[:, :23]).logits, whole[:, :23])
    assert not torch.allclose(model(tokens[:, 1:23]).logits[:, -1], whole[:, 22])  # the first token does matter


@pytest.mark.parametrize("encoding", ["learned", "rotary", "sinusoidal", "alibi"])
def test_order_of_earlier_tokens_matters_under_every_encoding(encoding: str) -> None:
    model, tokens = tiny(positions=encoding, n_layers=1, plan=HeadPlan.full(4)), draw(1, 12)
    swapped = tokens[:, [1, 0, *range(2, 12)]]
    assert not torch.allclose(model(tokens).logits[:, -1], model(swapped).logits[:, -1])


def test_order_of_earlier_tokens_does_not_matter_without_encoding() -> None:
    model, tokens = tiny(positions="none", n_layers=1, plan=HeadPlan.full(4)), draw(1, 12)
    swapped = tokens[:, [1, 0, *range(2, 12)]]
    torch.testing.assert_close(model(tokens).logits[:, -1], model(swapped).logits[:, -1])


def test_local_model_forgets_what_is_out_of_reach() -> None:
    model, tokens = tiny(n_global=0, window=3), draw(1, 20)  # two layers of window 3 reach 4 back
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 256
    same = (model(tokens).logits == model(changed).logits).all(-1)[0]
    assert same.tolist() == [not 5 <= t <= 9 for t in range(20)]


def test_each_layer_follows_its_own_plan() -> None:
    plans = (HeadPlan.full(4), HeadPlan.long_short(n_heads=4, n_global=2, window=5))
    model = tiny(plans=plans)
    assert tuple(block.attention.plan for block in model.blocks) == plans
    other = GPT(small_config(plans=plans[::-1])).double().eval()
    other.load_state_dict(model.state_dict())
    tokens = draw(1, 30)
    assert not torch.allclose(model(tokens).logits, other(tokens).logits)


@pytest.mark.parametrize(
    "option",
    [{"softcap": 0.5}, {"rope_theta": 10.0}, {"activation": "gelu_tanh"}, {"qk_norm": "plain"}, {"norm_eps": 0.1}],
    ids=str,
)
def test_option_without_parameters_reaches_the_blocks(option: dict[str, Any]) -> None:
    model, tokens = tiny(positions="rotary"), draw(1, 30)
    other = tiny(positions="rotary", **option)
    other.load_state_dict(model.state_dict())
    assert not torch.equal(model(tokens).logits, other(tokens).logits)


def test_shape_options_reach_the_blocks() -> None:
    options = {"n_kv_heads": 2, "n_global": 2, "head_dim": 12, "ff_multiplier": 3, "qk_norm": "width", "bias": True}
    block = tiny(**options).blocks[0]
    assert block.attention.qkv.weight.shape == ((4 + 2 + 2) * 12, 32)
    assert block.attention.out.weight.shape == (32, 4 * 12)
    assert block.attention.k_norm.norm.weight.shape == (2 * 12,)
    assert block.mlp.up.weight.shape == (3 * 32, 32)
    assert all(layer.bias is not None for layer in (block.attention.qkv, block.mlp.down, block.mlp_norm))


def test_dropout_acts_on_embeddings_attention_and_mlp_in_training_only() -> None:
    model, tokens = tiny(dropout=0.5), draw(1, 30)
    for part in (model.dropout, model.blocks[1].attention.dropout, model.blocks[1].mlp.dropout):
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.train(module is part)
        assert not torch.allclose(model(tokens).logits, model(tokens).logits)
    assert torch.equal(model.eval()(tokens).logits, model(tokens).logits)


def test_sinusoidal_positions_start_at_the_size_of_a_learned_table() -> None:
    model, tokens = tiny(positions="sinusoidal"), draw(1, 12)
    table = 0.2 * 2**0.5 * sinusoidal(torch.arange(12), 32, dtype=torch.float64)
    assert table.square().mean().sqrt().item() == pytest.approx(0.2)
    bare = GPT(small_config(positions="none")).double().eval()
    bare.load_state_dict(model.state_dict())
    expected = bare(embeddings=bare.embedding(tokens) + table).logits
    torch.testing.assert_close(model(tokens).logits, expected)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_packed_documents_with_restart_have_the_logits_they_have_alone(encoding: str) -> None:
    model = tiny(positions=encoding, restart_positions=True)
    first, second = draw(1, 13), draw(1, 9)
    segments = torch.tensor([[7] * 13 + [3] * 9])
    packed = model(torch.cat([first, second], 1), segments=segments).logits
    torch.testing.assert_close(packed[:, :13], model(first).logits)
    torch.testing.assert_close(packed[:, 13:], model(second).logits)


def test_positions_run_on_across_segments_without_restart() -> None:
    model, tokens = tiny(), draw(1, 20)
    segments = torch.tensor([[0] * 11 + [1] * 9])
    packed = model(tokens, segments=segments).logits
    torch.testing.assert_close(packed[:, 11:], model(tokens[:, 11:], positions=torch.arange(11, 20)).logits)
    assert not torch.allclose(packed[:, 11:], model(tokens[:, 11:]).logits)


def test_padding_changes_nothing_and_is_finite() -> None:
    model, tokens = tiny(restart_positions=True), draw(1, 20)
    segments = torch.tensor([[-1] * 6 + [0] * 14])
    padded = model(tokens, segments=segments).logits
    torch.testing.assert_close(padded[:, 6:], model(tokens[:, 6:]).logits)
    assert padded.isfinite().all()


@pytest.mark.parametrize("tie", [False, True])
def test_loss_is_the_cross_entropy_of_the_logits(tie: bool) -> None:
    model, tokens, targets = tiny(tie_embeddings=tie, loss_chunk=7), draw(2, 15), draw(2, 15)
    targets[0, 3:6] = -100
    output = model(tokens, targets, return_logits=True)
    expected = F.cross_entropy(output.logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(output.loss, expected)
    full = F.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(gradients(model, output.loss), gradients(model, full))


def test_z_loss_is_in_the_training_loss_only() -> None:
    model, tokens, targets = tiny(z_loss=0.5), draw(2, 15), draw(2, 15)
    plain = model(tokens, targets).loss
    z_term = model(tokens).logits.logsumexp(-1).square().mean()
    torch.testing.assert_close(model.train()(tokens, targets).loss, plain + 0.5 * z_term)


def test_logits_are_returned_when_there_is_no_loss_or_when_asked_for() -> None:
    model, tokens = tiny(), draw(2, 5)
    assert model(tokens).logits.shape == (2, 5, 256) and model(tokens).loss is None
    assert model(tokens, tokens).logits is None
    assert model(tokens, tokens, return_logits=True).logits.shape == (2, 5, 256)
    assert model(tokens, return_logits=False).logits is None


def test_embeddings_stand_in_for_tokens() -> None:
    model, tokens = tiny(), draw(2, 15)
    embeddings = model.embedding(tokens)
    assert torch.equal(model(embeddings=embeddings).logits, model(tokens).logits)
    (grad,) = torch.autograd.grad(model(targets=tokens, embeddings=embeddings).loss, embeddings)
    assert grad.abs().sum() > 0


def test_stats_are_stacked_per_layer_and_head_and_detached() -> None:
    model, tokens = tiny(), draw(2, 15)
    output = model(tokens, tokens, stats=True)
    assert output.stats.shape == (2, 4, 2) and not output.stats.requires_grad
    assert model(tokens).stats is None
    largest = model(tokens, tokens, stats="max")
    assert largest.stats.shape == (2, 4, 1) and torch.equal(largest.stats, output.stats[..., :1])
    assert torch.equal(largest.loss, output.loss)
    positions = torch.arange(15)
    x = model.embedding(tokens) + model.position_embedding(positions)
    for layer, block in enumerate(model.blocks):
        x, stats = block(x, positions=positions, stats=True)
        assert torch.equal(output.stats[layer], torch.stack((stats.max, stats.min), -1))


@pytest.mark.parametrize("options", [{}, {"tie_embeddings": True}, {"qk_norm": "width", "positions": "rotary"}])
def test_model_from_the_meta_device_equals_one_built_in_place(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    config = small_config(sigma_reparam=True, **options)
    expected = GPT(config).eval()
    with torch.device("meta"):
        model = GPT(config).eval()
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.fill_(torch.nan)  # empty memory may hold anything
    model.init_weights()
    assert all(p.isfinite().all() for p in (*model.parameters(), *model.buffers()))
    model.load_state_dict(expected.state_dict())
    tokens = draw(2, 20)
    assert torch.equal(model(tokens).logits, expected(tokens).logits)


def test_a_step_on_fake_tensors_has_its_shapes() -> None:
    with FakeTensorMode():
        model, tokens = GPT(small_config()), torch.zeros(2, 20, dtype=torch.long)
        output = model(tokens, tokens, segments=tokens, stats=True)
        output.loss.backward()
    assert output.stats.shape == (2, 4, 2) and model.embedding.weight.grad.shape == model.embedding.weight.shape


def test_gradient_checkpointing_gives_the_same_loss_statistics_and_gradients() -> None:
    model, tokens = tiny(dropout=0.1, sigma_reparam=True, positions="rotary").train(), draw(2, 20)
    outputs = []
    for model.gradient_checkpointing in (False, True, "attention"):
        torch.manual_seed(2)
        output = model(tokens, tokens, stats=True)
        outputs.append((output.loss.detach(), output.stats, gradients(model, output.loss)))
    for recomputed in outputs[1:]:
        assert torch.equal(outputs[0][1], recomputed[1])
        torch.testing.assert_close(outputs[0], recomputed)


@pytest.mark.parametrize(("kept", "times"), [(True, 2), ("attention", 1)])
def test_attention_is_computed_once_where_its_outputs_are_kept(kept, times, monkeypatch) -> None:
    model, tokens, calls = tiny(n_layers=3, backend="blocked").train(), draw(2, 20), []
    original = blocked.forward

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return original(*arguments, **options)

    monkeypatch.setattr(blocked, "forward", counted)
    model.gradient_checkpointing = kept
    model(tokens, tokens).loss.backward()
    assert len(calls) == 3 * times


def test_gradient_checkpointing_keeps_fewer_activations() -> None:
    model, tokens = tiny(n_layers=4).train(), draw(2, 60)

    def saved() -> int:
        total = 0

        def count(x: Tensor) -> Tensor:
            nonlocal total
            total += x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
            model(tokens, tokens)
        return total

    without = saved()
    model.gradient_checkpointing = True
    assert saved() < 0.7 * without


@pytest.mark.slow
def test_compiled_model_equals_eager() -> None:
    model, tokens = GPT(small_config(positions="rotary", qk_norm="head", sigma_reparam=True)), draw(2, 33)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True)
    expected, output = (m(tokens, tokens, stats=True) for m in (model, compiled))
    torch.testing.assert_close(output, expected)
    output.loss.backward()
    expected.loss.backward()
    for (name, p), q in zip(model.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.slow
def test_compiled_model_takes_any_length_and_packed_rows() -> None:
    model = GPT(small_config(restart_positions=True))
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (20, 33):
        tokens = draw(2, length)
        segments = (torch.arange(length) > 8).long().expand(2, -1)
        torch.testing.assert_close(
            compiled(tokens, tokens, segments=segments).loss, model(tokens, tokens, segments=segments).loss
        )


def test_bf16_autocast_is_close_to_fp32() -> None:
    model, tokens = GPT(small_config(qk_norm="head", positions="rotary", sigma_reparam=True)), draw(2, 33)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(tokens, tokens, stats=True, return_logits=True)
    assert output.logits.dtype == torch.bfloat16 and output.loss.dtype == torch.float32
    torch.testing.assert_close(output.loss, model(tokens, tokens).loss, rtol=1e-2, atol=0)
    output.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_whole_model_runs_in_bf16() -> None:
    model, tokens = GPT(small_config(qk_norm="width", positions="sinusoidal")).bfloat16(), draw(2, 33)
    output = model(tokens, tokens, return_logits=True)
    assert output.logits.dtype == torch.bfloat16 and output.loss.isfinite()


@pytest.mark.parametrize(
    "options",
    [{}, {"positions": "rotary", "qk_norm": "head", "n_kv_heads": 2, "n_global": 2}, {"sigma_reparam": True}],
    ids=str,
)
def test_model_learns_a_batch_by_heart(options: dict[str, Any]) -> None:
    model, tokens = GPT(small_config(**options)), draw(4, 33)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        loss = model(tokens[:, :-1], tokens[:, 1:]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_sigma(model)
        losses.append(loss.item())
    assert losses[0] > 5 and losses[-1] < 1


def test_sigma_reparam_covers_the_blocks_and_tracks_training() -> None:
    model, tokens = GPT(small_config(sigma_reparam=True)), draw(4, 33)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(20):
        optimizer.zero_grad()
        model(tokens, tokens).loss.backward()
        optimizer.step()
        update_sigma(model)
    layers = [module for module in model.modules() if isinstance(module, SigmaLinear)]
    assert len(layers) == 2 * 4
    for layer in layers:
        exact = torch.stack([torch.linalg.matrix_norm(w, 2) for w in layer.weight.split(layer.rows)])
        torch.testing.assert_close(layer.sigma(), exact, rtol=0.1, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "input must be tokens or embeddings, got neither"),
        ({"tokens": draw(2, 5), "embeddings": torch.randn(2, 5, 32)}, "input must be tokens or embeddings, got both"),
        ({"tokens": draw(5)}, r"tokens must have shape \(batch, length\), got \(5,\)"),
        ({"tokens": torch.randn(2, 5)}, "tokens must be int64 or int32, got torch.float32"),
        ({"tokens": torch.full((2, 5), 256)}, "tokens must be from 0 to 255, got values from 256 to 256"),
        ({"tokens": torch.full((2, 5), -1)}, "tokens must be from 0 to 255, got values from -1 to -1"),
        ({"tokens": draw(2, 129)}, "sequences must be no longer than the 128 learned positions, got length 129"),
        ({"embeddings": torch.randn(2, 5, 31)}, r"embeddings must be floating-point of shape \(batch, length, 32\)"),
        ({"tokens": draw(2, 5), "targets": draw(2, 4)}, r"targets must have shape \(2, 5\), got \(2, 4\)"),
        ({"tokens": draw(2, 5), "targets": draw(2, 5).int()}, "targets must be int64, got torch.int32"),
        ({"tokens": draw(2, 5), "targets": torch.full((2, 5), -1)}, "targets must be from 0 to 255"),
        ({"tokens": draw(2, 5), "segments": draw(1, 5)}, r"segments must have shape \(2, 5\), got \(1, 5\)"),
        ({"tokens": draw(2, 5), "segments": torch.zeros(2, 5)}, "segments must be int64 or int32, got torch.float32"),
        ({"tokens": draw(2, 5), "positions": draw(4)}, r"positions must have shape \(5,\), got \(4,\)"),
        ({"tokens": draw(2, 5), "positions": 128 + draw(5)}, "positions must be from 0 to 127"),
        ({"tokens": [[1, 2]]}, "tokens must be a tensor, got list"),
        ({"tokens": draw(2, 5).numpy()}, "tokens must be a tensor, got ndarray"),
        ({"embeddings": [[1.0]]}, "embeddings must be a tensor, got list"),
        ({"tokens": draw(2, 5), "targets": [[1]]}, "targets must be a tensor, got list"),
        ({"tokens": draw(2, 5), "segments": [[1]]}, "segments must be a tensor, got list"),
        ({"tokens": draw(2, 5), "positions": [1]}, "positions must be a tensor, got list"),
        ({"tokens": draw(2, 5), "last_logits": True}, "last_logits must be None or an integer >= 1, got True"),
        ({"tokens": draw(2, 5), "last_logits": 2.5}, "last_logits must be None or an integer >= 1, got 2.5"),
        ({"tokens": draw(2, 5), "cache": object()}, "cache must be an LSCache, got object"),
    ],
)
def test_wrong_input_is_a_clear_error(arguments: dict[str, Any], message: str) -> None:
    model = GPT(small_config())
    with pytest.raises(ValueError, match=message):
        model(**arguments)


def test_config_of_another_type_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="config must be a GPTConfig, got dict"):
        GPT({"width": 3})  # type: ignore[arg-type]


def test_logits_of_the_last_positions_alone_are_those_of_the_whole_row():
    model, tokens = GPT(small_config()).eval(), torch.randint(256, (2, 20))
    torch.testing.assert_close(model(tokens, last_logits=3).logits, model(tokens).logits[:, -3:])
    with pytest.raises(ValueError, match="last_logits must be None or an integer >= 1, got 0"):
        model(tokens, last_logits=0)


class Adapted(torch.nn.Module):
    """As adapters are put around a layer: the weight it shows is not all that it computes with."""

    def __init__(self, inner: torch.nn.Linear) -> None:
        super().__init__()
        self.inner, self.weight = inner, inner.weight
        self.added = torch.nn.Parameter(torch.randn_like(inner.weight))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.inner(hidden) + hidden @ self.added.mT


def test_an_adapter_around_the_head_enters_logits_loss_and_gradients() -> None:
    model = tiny(z_loss=0.01)
    tokens, targets = draw(2, 30), draw(2, 30)
    targets[0, :9] = -100
    inner = model.head
    model.head = Adapted(inner)
    loss = model(tokens, targets).loss
    logits = model(tokens).logits
    torch.testing.assert_close(logits, model.hidden(tokens)[0] @ (inner.weight + model.head.added).mT)
    torch.testing.assert_close(loss, F.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    loss.backward()
    assert model.head.added.grad.abs().sum() > 0
    counted = targets.flatten() != -100
    squared = logits.logsumexp(-1).flatten()[counted].square().mean()
    torch.testing.assert_close(model.train()(tokens, targets).loss, loss + 0.01 * squared)
    assert model(tokens, torch.full_like(targets, -100)).loss == 0


def test_an_adapter_around_the_head_leaves_the_loss_of_changed_scores_as_exact_as_it_is() -> None:
    torch.manual_seed(0)
    model = tiny(loss=LossSettings(logit_softcap=2.0)).to(torch.bfloat16)
    model.head.weight.data.mul_(100)
    tokens, targets = draw(2, 30), draw(2, 30)
    expected = model(tokens, targets).loss
    model.head = Adapted(model.head)
    model.head.added.data.zero_()
    torch.testing.assert_close(model(tokens, targets).loss, expected, atol=1e-6, rtol=1e-6)


def test_a_head_with_a_bias_enters_the_loss_whole() -> None:
    model, tokens, targets = tiny(), draw(2, 30), draw(2, 30)
    model.head = torch.nn.Linear(model.config.width, model.config.vocab_size, dtype=model.head.weight.dtype)
    torch.nn.init.normal_(model.head.bias)
    loss = model(tokens, targets).loss
    torch.testing.assert_close(loss, F.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten()))
    loss.backward()
    assert model.head.bias.grad.abs().sum() > 0


def test_torch_func_gives_the_gradients_of_each_sequence_apart() -> None:
    model, tokens = tiny(), draw(3, 12)
    targets = tokens.roll(-1, 1).index_fill(1, torch.tensor([5]), -100)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: dict[str, Tensor], tokens: Tensor, targets: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (tokens[None], targets[None])).loss

    with warnings.catch_warnings(action="ignore"):  # torch says that a mapped op runs once per entry
        each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, tokens, targets)
    for index in range(3):
        alone = gradients(model, model(tokens[index, None], targets[index, None]).loss)
        torch.testing.assert_close({name: grad[index] for name, grad in each.items()}, alone)
