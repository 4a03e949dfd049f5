"""A small model and tokens for the tests of both caches, and what a full forward pass gives."""

import torch

from longshort import GPT, GPTConfig

TIGHT = {"atol": 1e-5, "rtol": 1e-5}


def build(**options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "context": 256, "n_layers": 2, "width": 32, "n_heads": 4, "init_std": 0.3}
    reach = {} if options.keys() & {"plan", "plans", "reach"} else {"n_global": 1, "window": 8}
    return GPT(GPTConfig(**sizes | reach | options)).eval()


def draw(batch=1, length=150, seed=1):
    return torch.randint(50, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def full(model, tokens, **options):
    return model(tokens, **options).logits
