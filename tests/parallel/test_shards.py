"""Sharded tensors in several processes: see `checks`."""

import pytest

from longshort.parallel.mesh import Sizes

from . import checks

MESHES = {"two": Sizes(1, 2, 1), "four": Sizes(1, 4, 1), "hsdp": Sizes(2, 2, 1)}
QUICK = {"four": ("drawing_holds_no_whole_copy",), "hsdp": ("norms_and_clips_are_those_of_the_whole",)}
"""What `make test` checks on these meshes; `make test-all` checks everything on all."""


def cases():
    for mesh in MESHES:
        for number, check in enumerate(checks.CHECKS):
            quick = mesh == "two" or check.__name__ in QUICK[mesh]
            marks = () if quick else pytest.mark.slow
            yield pytest.param(mesh, number, id=f"{mesh}-{check.__name__}", marks=marks)


@pytest.mark.parametrize(("mesh", "number"), [*cases()])
def test_a_sharded_model_is_changed_and_measured_like_a_whole_one(mesh, number, ranks):
    sizes = MESHES[mesh]
    ranks.run(checks.run, number, sizes, size=sizes.dp_replicate * sizes.dp_shard)
