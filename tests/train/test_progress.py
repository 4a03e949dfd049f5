"""What is shown in a terminal during a run."""

import os
import pty
import subprocess
import sys

import pytest

from longshort.train.progress import ConsoleReporter

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
MISSING = ["train", "tiny", "data.path=/nonexistent"]


def shown_in_a_terminal(*command, **environment):
    """What a command writes to a terminal, and its exit code."""
    ours, its = pty.openpty()
    told = {**os.environ, "TERM": "xterm", **environment}
    process = subprocess.Popen([sys.executable, *command], stdin=its, stdout=its, stderr=its, env=told)
    os.close(its)
    parts = []
    try:
        while part := os.read(ours, 1 << 16):
            parts.append(part)
    except OSError:  # how Linux says that nobody has the terminal open any more
        pass
    os.close(ours)
    return b"".join(parts).decode(), process.wait(timeout=60)


@pytest.mark.parametrize(
    "verb", [["train", "tiny", "data.path=/nonexistent"], ["rl", "rl-tiny", "run.out=/dev/null/a"]]
)
def test_a_command_that_fails_gives_the_cursor_back(verb):
    text, code = shown_in_a_terminal("-m", "longshort", *verb)
    assert code == 1 and "error: " in text
    assert text.count(HIDE) == text.count(SHOW) == 1


def test_a_process_that_does_not_write_shows_no_line_of_its_own():
    command = ["-m", "longshort", *MISSING]
    text, _ = shown_in_a_terminal(*command, RANK="1", WORLD_SIZE="2")
    assert "MASTER_ADDR" in text and HIDE not in text and "starting" not in text


def test_the_updating_line_stands_within_the_block_alone(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    reporter = ConsoleReporter()
    assert capsys.readouterr().out == ""
    with pytest.raises(KeyboardInterrupt), reporter:
        raise KeyboardInterrupt
    said = capsys.readouterr().out
    assert said.count(HIDE) == said.count(SHOW) == 1


def test_logits_that_are_no_longer_finite_take_the_place_of_the_last_that_were(capsys):
    reporter = ConsoleReporter()
    step = {"kind": "train", "loss": 2.0, "tokens_per_second": 10.0, "seconds": 1.0}
    reporter.record(step | {"step": 1, "logit_max": [[3.0]], "logit_min": [[0.0]]}, steps=1)
    reporter.record(step | {"step": 2, "logit_max": [[None]], "logit_min": [[0.0]]}, steps=2)
    reporter.record(step | {"step": 3}, steps=3)
    first, second, third = capsys.readouterr().out.splitlines()
    assert "max |logit| 3 " in first and "max |logit| not finite " in second and "max |logit| not finite " in third
