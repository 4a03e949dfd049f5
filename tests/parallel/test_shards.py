"""Sharded tensors in several processes: see `checks`."""

from pathlib import Path

from ..processes import in_processes


def test_a_sharded_model_is_changed_and_measured_like_a_whole_one():
    in_processes(4, Path(__file__).with_name("checks.py"))
