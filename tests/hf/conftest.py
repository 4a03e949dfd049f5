"""A model for the tests that only read from it."""

import pytest

from .small import shell


@pytest.fixture(scope="session")
def model():
    return shell()


@pytest.fixture(scope="session")
def assistant():
    """A worse model of the same vocabulary, which is right now and then."""
    return shell(n_layers=1, init_std=0.21)
