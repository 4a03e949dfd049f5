"""A small model and what it writes, for the tests of generation."""

import torch

from longshort import GPT, generate

from ..small import small_config


def build(**options):
    """A model whose weights are large enough for its choices to differ."""
    torch.manual_seed(0)
    return GPT(small_config(**{"vocab_size": 257, "init_std": 0.2} | options)).eval()


def text(model, prompt, **options):
    """The tokens of each sequence, greedily unless the options say otherwise."""
    options = {"max_new_tokens": 30, "temperature": 0.0} | options
    return torch.stack(list(generate(model, prompt, **options))).T.tolist()
