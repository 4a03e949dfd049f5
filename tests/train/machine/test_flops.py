"""FLOPs count products alone; the peak of a device is that of its data sheet, or not known."""

import pytest
import torch

from longshort import GPT, GPTConfig
from longshort.train.machine.flops import flops_per_token, peak_flops


@pytest.mark.parametrize("tied", [True, False])
def test_a_table_that_is_only_looked_up_costs_nothing(tied):
    model = GPT(GPTConfig.preset("tiny", positions="learned", head_dim=12, tie_embeddings=tied))
    config, tables = model.config, [model.position_embedding, *([] if tied else [model.embedding])]
    weights = model.n_parameters() - sum(table.weight.numel() for table in tables)
    assert flops_per_token(model, 1) == 6 * weights + 12 * 12 * config.n_heads * config.n_layers


def test_attention_within_chunks_costs_what_a_sequence_of_that_length_does():
    chunked, whole = (GPT(GPTConfig.preset("tiny", attention_chunk=chunk)) for chunk in (32, None))
    assert flops_per_token(chunked, 128) == flops_per_token(whole, 32) < flops_per_token(whole, 128)
    assert flops_per_token(chunked, 16) == flops_per_token(whole, 16)


@pytest.mark.parametrize(
    ("name", "peak"), [("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA A100-SXM4-40GB", 312e12), ("NVIDIA X", None)]
)
def test_the_peak_is_known_by_a_part_of_the_name(name, peak, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda")) == peak
    assert peak_flops(torch.device("cpu")) is None
