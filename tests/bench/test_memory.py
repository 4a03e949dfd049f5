"""Peak memory is measured above the inputs."""

import torch

from longshort.bench import memory


def test_a_step_that_allocates_more_shows_a_higher_peak(monkeypatch):
    megabytes = 96
    cases = {
        "nothing": ("", lambda: lambda: None),
        "much": ("", lambda: lambda: torch.ones(megabytes << 18).sum()),  # 4 bytes each
    }
    monkeypatch.setattr(memory, "CASES", cases)
    assert memory.measure("nothing") < megabytes / 4
    assert memory.measure("much") > megabytes / 2


def test_every_case_says_what_it_is():
    assert all(what for what, _ in memory.CASES.values())
