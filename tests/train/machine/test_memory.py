"""What the machine has left, containers included, and which errors say that memory is full."""

import torch

from longshort.train.machine import memory
from longshort.train.machine.memory import available_memory, shortage


def test_another_error_is_not_taken_for_one_of_memory():
    assert shortage(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None


def test_the_machine_says_what_is_free():
    free = available_memory(torch.device("cpu"))
    assert free is not None and free > 2**20


def test_the_limit_of_a_container_counts_but_its_page_cache_is_free(tmp_path, monkeypatch):
    (tmp_path / "own").write_text("0::/job/step\n")
    inner = tmp_path / "cgroup" / "job" / "step"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("1000000\n")
    (inner.parent / "memory.stat").write_text("anon 300000\nfile 600000\n")
    monkeypatch.setattr(
        memory,
        "_numbers",
        lambda path, by, read=memory._numbers: {} if "proc" in str(path) else read(path, by),
    )
    assert memory._left_to_group(tmp_path / "cgroup", tmp_path / "own") == 700000
    (tmp_path / "own").write_text("4:memory:/elsewhere\n")
    (tmp_path / "cgroup" / "memory").mkdir()
    (tmp_path / "cgroup" / "memory" / "memory.limit_in_bytes").write_text("5000\n")
    (tmp_path / "cgroup" / "memory" / "memory.stat").write_text("rss 7\ntotal_rss 1000\n")
    assert memory._left_to_group(tmp_path / "cgroup", tmp_path / "own") == 4000
