"""One finished run for all tests of a process, and processes that start at once."""

import os
import sys

import pytest

from longshort.train import train

from ..ranks import forkserver
from .tiny import tiny_config


@pytest.fixture(scope="session")
def finished(corpus, tmp_path_factory):
    """The folder of a run of thirty steps."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    train(tiny_config(corpus, out, "telemetry.logits_every=7", "run.eval_every=15", "run.keep=1"))
    return out


@pytest.fixture
def context(monkeypatch):
    """Of processes that start at once: forked from one that has torch loaded and has never used it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the server looks there for what it loads
    return forkserver()
