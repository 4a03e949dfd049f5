"""One finished run for all tests of a process."""

import pytest

from longshort.train import train

from .tiny import tiny_config


@pytest.fixture(scope="session")
def finished(corpus, tmp_path_factory):
    """The folder of a run of thirty steps."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    train(tiny_config(corpus, out, "telemetry.logits_every=7", "run.eval_every=15", "run.keep=1"))
    return out
