"""Sharded tensors in several processes: see `checks`."""

import pytest

from longshort.parallel.mesh import Sizes

from . import checks

MESHES = {"four": Sizes(1, 4, 1), "hsdp": Sizes(2, 2, 1)}


@pytest.mark.parametrize("mesh", ["hsdp", pytest.param("four", marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", range(len(checks.CHECKS)), ids=[check.__name__ for check in checks.CHECKS])
def test_a_sharded_model_is_changed_and_measured_like_a_whole_one(number, mesh, ranks):
    ranks.run(checks.run, number, MESHES[mesh], size=4)
