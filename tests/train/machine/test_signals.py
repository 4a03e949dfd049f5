"""A stop request lets a run finish its step; an impatient one does not."""

import signal
import threading
from functools import partial
from types import SimpleNamespace

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


def test_ctrl_c_is_pressed_again_one_second_after_the_first_request_however_many_came_between(monkeypatch):
    clock, calls = SimpleNamespace(), []
    monkeypatch.setattr(signals, "time", clock)
    with pytest.raises(KeyboardInterrupt), told_to_stop(lambda: calls.append(1)):
        for now in (10.0, 10.6, 11.1):
            clock.monotonic = partial(float, now)
            signal.raise_signal(KEY)
    assert len(calls) == 2


def test_requests_are_handled_as_before_when_the_block_ends():
    before = [signal.getsignal(number) for number in (KEY, SCHEDULER)]
    with told_to_stop(lambda: None):
        assert signal.getsignal(KEY) is not before[0]
    assert [signal.getsignal(number) for number in (KEY, SCHEDULER)] == before


def test_in_another_thread_nothing_is_handled_and_the_block_runs():
    done = []

    def work():
        with told_to_stop(lambda: None):
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done
