"""Small models of many kinds, whose text is not all the same token."""

import torch

from longshort import GPT, GPTConfig, HeadPlan
from longshort.reach import LayerReach

SIZES = {"vocab_size": 257, "context": 1024, "n_layers": 2, "width": 96, "head_dim": 32, "init_std": 0.2}
LLAMA = {"positions": "rotary", "norm": "rms", "mlp": "swiglu"}
PLANS = {
    "full": {"n_heads": 4, "plan": HeadPlan.full(4), "bias": True, "tie_embeddings": True},
    "long_short": {"n_heads": 4, "n_global": 1, "window": 48, **LLAMA},
    "grouped": {"n_heads": 8, "n_kv_heads": 4, "n_global": 2, "window": 33, "qk_norm": "head", **LLAMA},
    "three_to_five": {"n_heads": 8, "n_global": 3, "window": 64, "mlp": "relu2", "norm_placement": "sandwich"},
    "ladder": {"n_heads": 6, "reach": {"pattern": "ladder", "largest": 128, "smallest": 8}, **LLAMA},
    "interleave": {
        "n_heads": 4,
        "n_layers": 3,
        "reach": {"pattern": "interleave", "layers": "LLG", "window": 40, "dual_rope": True},
        "softcap": 8.0,
        "logit_softcap": 12.0,
        "embedding_scale": 2.0,
        "positions": "rotary",
        "norm": "rms",
        "norm_unit_offset": True,
        "mlp": "geglu",
    },
    "alibi": {"n_heads": 4, "n_global": 1, "window": 50, "positions": "alibi", "mlp": "gelu_tanh"},
    "nope": {
        "n_heads": 4,
        "reach": {"pattern": "long_short", "n_global": 1, "window": 16, "nope": True, "temperature": {"every": 64}},
        "norm_placement": "post",
        "qk_norm": "plain",
        **LLAMA,
    },
    "sinks": {
        "n_heads": 4,
        "reach": {"pattern": "long_short", "n_global": 2, "window": 20, "sinks": True},
        "qk_norm": "width",
        **LLAMA,
    },
    "unordered": {
        "n_heads": 4,
        "plan": HeadPlan(windows=(16, None, 48, 16)),
        "positions": "sinusoidal",
        "sigma_reparam": True,
        "init_std": 1.0,
    },
    "mixed_group": {
        "n_heads": 6,
        "n_kv_heads": 2,
        "plan": HeadPlan(windows=(64, 16, 64, 8, 32, 8)),
        "positions": "none",
        "norm": "rms",
        "mlp": "swiglu",
    },
    "scaled": {
        "n_heads": 4,
        "reach": (LayerReach(plan=HeadPlan.long_short(4, 1, 1), local_share=0.5, global_base=5e4),) * 2,
        "rope_scaling": {"kind": "yarn", "factor": 4.0, "original_context": 256, "heads": "global"},
        "attention_scale": 0.3,
        "loss": {"exponent": 0.5},
        **LLAMA,
    },
}


def small(name: str, **more) -> GPT:
    """The model of this plan, with weights drawn from a fixed seed; gains, biases and sinks are drawn too."""
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(**(SIZES | PLANS[name] | more))).eval()
    with torch.no_grad():
        for parameter in gpt.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return gpt


def prompts(*lengths: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(0, 256, (length,), generator=draw).tolist() for length in lengths]
