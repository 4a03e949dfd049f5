"""Decoding steps of streaming heads: the first keys of a document are kept beside the ring."""

from dataclasses import replace

import pytest

from longshort.ops.decode.launch import DecodeShape

from .cases import Step, check

STEPS = {
    "before the first keys are full": Step(windows=(3, None), firsts=(9, 0), held=5),
    "the first token": Step(windows=(3, 2), firsts=(9, 1), held=0),
    "within the ring": Step(windows=(30, 2), firsts=(9, 1), held=20),
    "far beyond the ring": Step(windows=(3, 5), firsts=(9, 4), held=90),
    "several tokens": Step(windows=(3, 5), firsts=(9, 4), held=70, new=4, rollback=4),
    "grouped": Step(windows=(3, 5, None, None), firsts=(9, 2, 0, 0), kv_heads=2, held=70),
    "grouped with a global head": Step(windows=(3, None), firsts=(9, 0), kv_heads=1, held=70),
    "several tokens fill the first keys": Step(windows=(2, 2), firsts=(9, 4), held=3, new=4, rollback=4),
    "padding": Step(windows=(3, 5), firsts=(9, 4), held=70, batch=2, padding=(0, 13)),
    "padding up to the new token": Step(windows=(3, 5), firsts=(9, 4), held=13, batch=2, padding=(0, 13)),
    "another text before": Step(windows=(3, 5), firsts=(9, 4), held=70, batch=2, padding=(0, 13), cut=40),
    "grouped and padded": Step(windows=(3, 5), firsts=(9, 4), kv_heads=1, held=50, batch=2, padding=(3, 45)),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("backend", ["blocked", "triton"])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_sees_and_keeps_the_first_keys_and_the_window(name, backend):
    check(STEPS[name], backend)


@pytest.mark.parametrize("name", ["far beyond the ring", "several tokens", "padding"])
def test_parts_of_a_split_head_see_the_first_keys_once(name):
    check(replace(STEPS[name], shape=DecodeShape(16, 4, 1, 40.0)), "triton")
