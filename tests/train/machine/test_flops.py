"""The peak of a device is that of its data sheet, or not known."""

import pytest
import torch

from longshort.train.machine.flops import peak_flops


@pytest.mark.parametrize(
    ("name", "peak"), [("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA A100-SXM4-40GB", 312e12), ("NVIDIA X", None)]
)
def test_the_peak_is_known_by_a_part_of_the_name(name, peak, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda")) == peak
    assert peak_flops(torch.device("cpu")) is None
