"""What models after GPT-2 are made of, against transformers' own, and the presets that put it together."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from longshort import GPT, GPTConfig, generate
from longshort.generation import SoftThinking
from longshort.model import SequenceClassifier
from longshort.nn import RopeScaling, SequenceBatchNorm
from longshort.rl import rollout
from longshort.train.machine.flops import flops_per_token
from longshort.train.memory import least_parameters

from ..small import small_config

GEMMA: dict[str, Any] = {
    **{"positions": "rotary", "norm": "rms", "norm_unit_offset": True, "norm_placement": "sandwich", "mlp": "geglu"},
    **{"attention_scale": 0.3, "embedding_scale": 5.0, "logit_softcap": 3.0, "tie_embeddings": True},
    **{"rope_scaling": RopeScaling(kind="linear", factor=4.0)},
}
OLMO: dict[str, Any] = {"positions": "rotary", "norm": "rms", "norm_placement": "post", "mlp": "swiglu", "ff_width": 50}
MODELS = {"gemma": GEMMA, "olmo": OLMO}


def drawn(**options: Any) -> GPT:
    """A model in float64 whose gains are not one."""
    torch.manual_seed(0)
    model = GPT(small_config(init_std=0.2, **options)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def draw(*shape: int) -> Tensor:
    return torch.randint(256, shape)


def copy_block(block: Any, layer: Any, norms: dict[str, str]) -> None:
    """Our weights into a layer of transformers; its norms by our names for them."""
    attention, heads = layer.self_attn, block.attention
    q, k, v = block.attention.qkv.weight.split(heads.qkv.rows)
    gate, up = block.mlp.up.weight.chunk(2)
    weights = {attention.q_proj: q, attention.k_proj: k, attention.v_proj: v, attention.o_proj: block.attention.out}
    weights |= {layer.mlp.gate_proj: gate, layer.mlp.up_proj: up, layer.mlp.down_proj: block.mlp.down}
    weights |= {getattr(layer, theirs): getattr(block, ours) for ours, theirs in norms.items()}
    if heads.q_norm is not None:
        weights |= {attention.q_norm: heads.q_norm.norm, attention.k_norm: heads.k_norm.norm}
    with torch.no_grad():
        for module, weight in weights.items():
            module.weight.copy_(getattr(weight, "weight", weight))


def transformers_twin(model: GPT, theirs: Any, norms: dict[str, str]) -> Any:
    theirs = theirs.double().eval()
    theirs.config._attn_implementation = "eager"
    with torch.no_grad():
        theirs.model.embed_tokens.weight.copy_(model.embedding.weight)
        theirs.model.norm.weight.copy_(model.norm.weight)
        if model.head is not None:
            theirs.lm_head.weight.copy_(model.head.weight)
    for block, layer in zip(model.blocks, theirs.model.layers, strict=True):
        copy_block(block, layer, norms)
    return theirs


SIZES: dict[str, Any] = {
    **{"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8},
    **{"intermediate_size": 50, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "attention_bias": False},
}
FULL: dict[str, Any] = {"n_global": 4, "window": None, "positions": "rotary", "norm": "rms", "ff_width": 50}


def test_a_model_like_llama_3_has_its_logits() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = scaling | {"rope_theta": 500.0, "original_max_position_embeddings": 40}
    theirs = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, rope_parameters=rope))
    ours = RopeScaling(kind="llama3", factor=8.0, original_context=40)
    model = drawn(**FULL, n_kv_heads=2, mlp="swiglu", rope_theta=500.0, rope_scaling=ours)
    twin = transformers_twin(
        model, theirs, {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    )
    tokens = draw(2, 60)
    torch.testing.assert_close(model(tokens).logits, twin(tokens).logits, rtol=0, atol=1e-5)


def test_a_model_like_gemma_2_has_its_logits() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    caps: dict[str, Any] = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 20}
    config = Gemma2Config(**SIZES, **caps, num_key_value_heads=4, sliding_window=1000, layer_types=None)
    options = {"norm_unit_offset": True, "norm_placement": "sandwich", "mlp": "geglu", "tie_embeddings": True}
    options |= {"softcap": 2.0, "logit_softcap": 3.0, "attention_scale": 20.0**-0.5, "embedding_scale": 32**0.5}
    model = drawn(**FULL, **options)
    norms = {"attention_norm": "input_layernorm", "attention_out_norm": "post_attention_layernorm"}
    norms |= {"mlp_norm": "pre_feedforward_layernorm", "mlp_out_norm": "post_feedforward_layernorm"}
    twin = transformers_twin(model, Gemma2ForCausalLM(config), norms)
    tokens = draw(2, 60)
    logits = model(tokens).logits
    assert logits.abs().max() < 3
    torch.testing.assert_close(logits, twin(tokens).logits, rtol=0, atol=1e-5)


def test_a_model_like_olmo_2_has_its_logits() -> None:
    from transformers import Olmo2Config, Olmo2ForCausalLM

    model = drawn(**FULL, norm_placement="post", mlp="swiglu", qk_norm="width", norm_eps=1e-6)
    theirs = Olmo2ForCausalLM(Olmo2Config(**SIZES | {"rms_norm_eps": 1e-6}, num_key_value_heads=4, pad_token_id=0))
    norms = {"attention_out_norm": "post_attention_layernorm", "mlp_out_norm": "post_feedforward_layernorm"}
    tokens = draw(2, 60)
    twin = transformers_twin(model, theirs, norms)
    torch.testing.assert_close(model(tokens).logits, twin(tokens).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "option",
    [
        {"norm": "rms"},
        {"attention_scale": 0.1},
        {"embedding_scale": 3.0},
        {"logit_softcap": 2.0},
        {"mlp": "relu2"},
        {"rope_scaling": RopeScaling(kind="linear", factor=2.0)},
    ],
    ids=str,
)
def test_option_without_weights_changes_the_logits(option: dict[str, Any]) -> None:
    model, tokens = drawn(positions="rotary"), draw(1, 30)
    other = GPT(small_config(init_std=0.2, positions="rotary", **option)).double().eval()
    other.load_state_dict(model.state_dict())
    assert not torch.allclose(model(tokens).logits, other(tokens).logits)


@pytest.mark.parametrize("name", MODELS)
def test_loss_is_the_cross_entropy_of_the_logits_with_their_gradients(name: str) -> None:
    model, tokens, targets = drawn(**MODELS[name], loss_chunk=7), draw(2, 15), draw(2, 15)
    targets[0, 3:6] = -100
    losses = model(tokens, targets).loss, F.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(loss, list(model.parameters())) for loss in losses))


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_cached_tokens_have_the_logits_of_the_whole_sequence(name: str, static: bool) -> None:
    model, tokens = drawn(**MODELS[name]), draw(2, 30)
    cache = model.new_cache(2, static=static)
    parts = [model(part, cache=cache).logits for part in (tokens[:, :17], *tokens[:, 17:].split(1, dim=1))]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens).logits)
    assert len(list(generate(model.float(), tokens[:1], max_new_tokens=5, temperature=0.0))) == 5


def test_embeddings_are_scaled_as_tokens_are() -> None:
    model, tokens = drawn(**GEMMA), draw(2, 15)
    assert torch.equal(model(embeddings=model.embedding(tokens)).logits, model(tokens).logits)


@pytest.mark.parametrize("thinking", [None, SoftThinking(end=255, top_k=3, tau=1.0)], ids=["tokens", "mixtures"])
def test_scores_of_a_rollout_are_those_of_the_capped_logits_and_the_scaled_mixtures(
    thinking: SoftThinking | None,
) -> None:
    model = drawn(**GEMMA)
    found = rollout(model, [[1, 2, 3], [4, 5, 6]], thinking, max_new_tokens=6)
    scored = found.scores(model, entropy=True)
    tokens, before = found.tokens, found.prompts.shape[1] - 1
    if thinking is None:
        logits = model(torch.cat((found.prompts, tokens[:, :-1]), dim=1)).logits[:, before:]
        expected = logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        torch.testing.assert_close(scored.log_probs, expected)
    else:
        weights = thinking.weights(found.ids, found.values)
        mixtures = (model.embedding.weight[found.ids] * weights[..., None]).sum(-2)[:, :-1]
        inputs = torch.cat((model.embedding(found.prompts), mixtures), dim=1)
        logits = model(embeddings=inputs).logits[:, before:]
    torch.testing.assert_close(scored.entropy, torch.distributions.Categorical(logits=logits).entropy())


@pytest.mark.parametrize("name", MODELS)
def test_checkpointed_and_compiled_models_have_the_same_gradients(name: str) -> None:
    model, tokens = drawn(**MODELS[name]).train(), draw(2, 20)
    expected = torch.autograd.grad(model(tokens, tokens).loss, list(model.parameters()))
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    loss = compiled(tokens, tokens).loss
    torch.testing.assert_close(torch.autograd.grad(loss, list(compiled.parameters())), expected)
    model.gradient_checkpointing = True
    torch.testing.assert_close(torch.autograd.grad(model(tokens, tokens).loss, list(model.parameters())), expected)


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_drawn_as_everywhere(name: str) -> None:
    model = GPT(small_config(width=128, **MODELS[name] | {"ff_width": 300}, sigma_reparam=True))
    for key, parameter in model.named_parameters():
        if key.endswith("norm.weight"):
            assert parameter.eq(0 if model.config.norm_unit_offset else 1).all(), key
        elif parameter.ndim == 2:
            std = 0.02 / 2 if key.endswith(("attention.out.weight", "mlp.down.weight")) else 0.02
            assert parameter.std().item() == pytest.approx(std, rel=0.05), key
    up = model.blocks[0].mlp.up
    assert up.rows == [300, 300] and up.gamma.shape == (2,)


@pytest.mark.parametrize("name", MODELS)
def test_batch_norm_takes_the_place_of_every_norm_of_a_classifier(name: str) -> None:
    model = SequenceClassifier(small_config(**MODELS[name]), n_classes=3, norm="batch")
    norms = [module for key, module in model.named_modules() if key.endswith("norm") and "attention.q" not in key]
    assert len(norms) == (9 if name == "gemma" else 5) and all(isinstance(x, SequenceBatchNorm) for x in norms)
    output = model(draw(4, 20), torch.tensor([0, 1, 2, 0]))
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits, torch.tensor([0, 1, 2, 0])))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("modern-10m", 10_621_696),
        ("modern-30m", 27_536_256),
        ("modern-125m", 125_849_856),
        ("modern-350m", 332_976_128),
        ("modern-1b", 1_012_489_216),
    ],
)
def test_a_preset_has_about_the_parameters_of_its_name(name: str, size: int) -> None:
    config = GPTConfig.preset(name)
    with torch.device("meta"):
        model = GPT(config)
    assert model.n_parameters() == size
    named = {"m": 1e6, "b": 1e9}[name[-1]] * int(name.split("-")[1][:-1])
    assert abs(size / named - 1) < 0.1
    gains = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 1)
    assert least_parameters(config) == size - gains
    assert config.ff_width is not None and config.ff_width % 64 == 0
    assert config.ff_width / config.width == pytest.approx(8 / 3, rel=0.04)
    table = config.vocab_size * config.width
    assert flops_per_token(model, 1) == 6 * (size - table) + 12 * config.width * config.n_layers


def test_a_modern_model_learns() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig.preset("modern-10m", n_layers=2, vocab_size=64, context=64, window=16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    sequence = torch.arange(65) * 5 % 64
    tokens = torch.stack([(sequence + shift) % 64 for shift in range(8)])
    losses = []
    for _ in range(15):
        loss = model(tokens[:, :-1], tokens[:, 1:]).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(4.16, abs=0.2) and losses[-1] < 0.5


def test_compiled_layers_share_one_table_of_angles():
    """Otherwise the backward pass computes cosines and sines again."""
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    found = []

    def kept(graph, inputs):
        found.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    config = GPTConfig.preset("modern-10m", n_layers=2, context=32, vocab_size=64, width=32, n_heads=2, ff_width=32)
    model, tokens = GPT(config), torch.arange(32)[None]
    parts = {"fw_compiler": kept, "bw_compiler": kept, "partition_fn": min_cut_rematerialization_partition}
    torch.compile(model, backend=aot_autograd(**parts))(tokens, tokens).loss.backward()
    assert found.count("longshort.cos_sin.default") == 1
    assert not {"aten.cos.default", "aten.sin.default"} & {*found}
