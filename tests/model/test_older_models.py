"""Models described by the fields of earlier versions compute what they computed, under the same names of weights.

Numbers of version 0.2 with torch 2.13 on a CPU, seed 0: three logits, the root mean square of all, and the loss.
"""

from typing import Any

import pytest
import torch

from longshort import GPT, GPTConfig

NUMBERS = {
    "tiny": (0.1195939, -0.2305077, 0.0511465, 0.158714, 5.5580173),
    "paper-6m": (0.0711849, 0.5103202, -0.0697938, 0.2776279, 9.1952248),
    "gpt2-small": (0.9412494, 0.2780275, -0.3608791, 0.5542851, 11.0210428),
}
OLDER_FIELDS: dict[str, dict[str, Any]] = {
    "tiny": {"vocab_size": 257, "context": 512, "width": 64, "n_heads": 4, "n_global": 1, "window": 16},
    "paper-6m": {"vocab_size": 10_000, "context": 2048, "width": 192, "n_heads": 6, "n_global": 1, "window": 50},
    "gpt2-small": {
        **{"vocab_size": 50_257, "context": 1024, "width": 768, "n_heads": 12, "n_global": 1, "window": 128},
        **{"activation": "gelu_tanh", "bias": True, "tie_embeddings": True, "ff_multiplier": 4},
    },
}
LAYERS = ("attention_norm", "attention.qkv", "attention.out", "mlp_norm", "mlp.up", "mlp.down")


@pytest.mark.parametrize("name", NUMBERS)
def test_a_model_of_older_fields_gives_the_numbers_that_it_gave(name: str) -> None:
    config = GPTConfig.from_dict(OLDER_FIELDS[name] | {"n_layers": 2})
    assert config == GPTConfig.preset(name, n_layers=2)
    torch.manual_seed(0)
    model = GPT(config).eval()
    tokens = torch.arange(40)[None] * 7 % 250
    with torch.no_grad():
        logits = model(tokens).logits[0]
        loss = model(tokens[:, :-1], tokens[:, 1:]).loss
    found = (logits[0, 0], logits[13, 100], logits[39, 200], logits.double().square().mean().sqrt(), loss)
    assert [float(x) for x in found] == pytest.approx(NUMBERS[name], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_model_of_older_fields_has_the_weights_that_it_had(name: str) -> None:
    with torch.device("meta"):
        model = GPT(GPTConfig.from_dict(OLDER_FIELDS[name] | {"n_layers": 2}))
    modules = {*(f"blocks.{layer}.{part}" for layer in range(2) for part in LAYERS), "norm"}
    names = {f"{module}.weight" for module in modules} | {"embedding.weight", "position_embedding.weight"}
    names |= {f"{module}.bias" for module in modules} if model.config.bias else set()
    names |= set() if model.config.tie_embeddings else {"head.weight"}
    assert model.state_dict().keys() == names
