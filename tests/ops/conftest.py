"""What the tests of the op share."""

from functools import partial

import pytest

from longshort.ops import blocked


@pytest.fixture
def engines(monkeypatch):
    """Names of the engines that groups of heads went to."""
    used = []
    originals = {name: getattr(blocked, name) for name in ("_fused_forward", "_rescaled_forward", "_dense_forward")}

    def noted(name, *arguments):
        used.append(name)
        originals[name](*arguments)

    for name in originals:
        monkeypatch.setattr(blocked, name, partial(noted, name))
    return used
