"""Models small enough for every test, with weights large enough that greedy text does not settle at once."""

import torch

from longshort import GPT, HeadPlan
from longshort.hf import LongShortForCausalLM
from longshort.nn import RopeScaling

from ..small import small_config

MIXED = HeadPlan(windows=(None, 3, 8, None), decays=(0.0, 0.01, 0.0, 0.02))
LAYERS = (HeadPlan(windows=(5, 5, 5, 5)), HeadPlan(windows=(None,) * 4, slopes=(0.5, 0.0, 0.25, 0.1)))

ROTARY = {"positions": "rotary"}
VARIANTS = {
    "learned": {},
    "rotary": {"positions": "rotary", "rope_theta": 500.0},
    "sinusoidal": {"positions": "sinusoidal"},
    "alibi": {"positions": "alibi"},
    "no positions": {"positions": "none", "restart_positions": True},
    "plain attention": {"n_global": None, "window": None},
    "all global": {"n_global": 4, "window": None},
    "all local": {"n_global": 0},
    "one plan": {"plan": MIXED},
    "a plan a layer": {"plans": LAYERS},
    "alibi on a plan": {"plan": MIXED, "positions": "alibi"},
    "ladder": {"reach": {"pattern": "ladder", "largest": 16, "smallest": 4}},
    "dual rope": {"reach": {"pattern": "interleave", "layers": "LG", "window": 8, "dual_rope": True}, **ROTARY},
    "nope": {"reach": {"pattern": "long_short", "n_global": 1, "window": 8, "nope": True}, **ROTARY},
    "like llama-4": {"reach": {"like": "llama-4", "window": 8}, "n_layers": 4, "context": 64, **ROTARY},
    "partly rotated": {"reach": {"like": "mimo-v2-flash", "window": 8}, "n_layers": 3, **ROTARY},
    "sinks": {"reach": {"pattern": "long_short", "n_global": 1, "window": 8, "sinks": True}},
    "las": {"plan": HeadPlan.las(n_heads=4, max_decay=0.1)},
    "las, smoothed": {"plan": HeadPlan.las(n_heads=4, max_decay=0.1), "smoothing": 3},
    "smoothed": {"smoothing": 5, "positions": "rotary"},
    "las, smoothed before": {
        **{"plan": HeadPlan.las(n_heads=4, max_decay=0.1), "smoothing": 3, "smoothing_stage": "before"},
        **ROTARY,
    },
    "grouped queries": {"n_kv_heads": 2, "n_global": 2, "head_dim": 12},
    "qk-norm head": {"qk_norm": "head"},
    "qk-norm width": {"qk_norm": "width", "positions": "rotary"},
    "qk-norm plain": {"qk_norm": "plain"},
    "softcap": {"softcap": 5.0, "activation": "gelu_tanh", "ff_multiplier": 2},
    "biases, tied": {"bias": True, "tie_embeddings": True, "norm_eps": 1e-3},
    "sigma-reparam": {"sigma_reparam": True},
    "llama": {"positions": "rotary", "norm": "rms", "mlp": "swiglu", "ff_width": 50, "qk_norm": "head"},
    "gemma": {
        **{"positions": "rotary", "norm": "rms", "norm_unit_offset": True, "norm_placement": "sandwich"},
        **{"mlp": "geglu", "attention_scale": 0.3, "embedding_scale": 5.0, "logit_softcap": 3.0},
        **{"tie_embeddings": True, "rope_scaling": RopeScaling(kind="linear", factor=4.0)},
    },
    "olmo": {
        **{"positions": "rotary", "norm": "rms", "norm_placement": "post", "mlp": "relu2", "qk_norm": "width"},
        **{"rope_scaling": RopeScaling(kind="llama3", factor=8.0, original_context=40)},
    },
    "training": {"dropout": 0.1, "z_loss": 1e-3, "loss_chunk": 50, "backend": "blocked"},
}


def gpt(**options):
    """A `GPT` with its own draw of weights, biases and gains included."""
    torch.manual_seed(0)
    model = GPT(small_config(**{"vocab_size": 257, "init_std": 0.2} | options)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            if name.endswith("gamma"):
                parameter.mul_(2)
    return model


def shell(**options):
    return LongShortForCausalLM.from_gpt(gpt(**options))
