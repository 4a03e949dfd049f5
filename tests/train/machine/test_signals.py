"""A stop request lets a run finish its step; an impatient one does not."""

import signal

import pytest

from longshort.train.machine import signals
from longshort.train.machine.signals import told_to_stop

KEY, SCHEDULER = signal.SIGINT, signal.SIGTERM


def test_requests_only_call_stop_however_many_processes_pass_them_on():
    calls = []
    with told_to_stop(lambda: calls.append(1)):
        for number in (KEY, KEY, SCHEDULER, SCHEDULER):
            signal.raise_signal(number)
    assert len(calls) == 4


@pytest.mark.parametrize("first", [KEY, SCHEDULER])
def test_ctrl_c_once_more_interrupts_at_once(first, monkeypatch):
    monkeypatch.setattr(signals, "AGAIN", 0.0)
    calls = []
    with pytest.raises(KeyboardInterrupt), told_to_stop(lambda: calls.append(1)):
        signal.raise_signal(first)
        signal.raise_signal(SCHEDULER)  # a scheduler that repeats itself is not in a hurry
        signal.raise_signal(KEY)
    assert len(calls) == 2
