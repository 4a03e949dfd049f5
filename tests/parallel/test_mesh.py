"""Sizes of a mesh: what they multiply to, and what would fit where they do not."""

import pytest

from longshort.parallel.mesh import mesh_sizes


@pytest.mark.parametrize(
    ("world", "given", "sizes"),
    [
        (1, {}, (1, 1, 1)),
        (1, {"dp_shard": -1}, (1, 1, 1)),
        (8, {"dp_replicate": 2, "dp_shard": -1}, (2, 4, 1)),
        (16, {"dp_shard": 8, "cp": 2}, (1, 8, 2)),
        (6, {"dp_replicate": 2, "dp_shard": 3}, (2, 3, 1)),
    ],
)
def test_the_rest_goes_where_it_is_asked_for(world, given, sizes):
    assert mesh_sizes(world, **given) == sizes


def test_processes_that_share_sequences_share_the_model_and_read_as_one():
    sizes = mesh_sizes(24, dp_replicate=2, dp_shard=3, cp=4)
    assert (sizes.shards, sizes.readers) == (12, 6)


@pytest.mark.parametrize(
    ("world", "given", "message"),
    [
        (12, {"dp_shard": 8}, "must divide the number of processes, 12, got 8; .*dp_shard of 1, 2, 3, 4, 6, 12 would"),
        (12, {"dp_shard": 8}, "or start a multiple of 8 processes"),
        (
            4,
            {"dp_replicate": 2, "dp_shard": 4},
            r"dp_replicate=2 \* .*dp_shard=4 \* .*cp=1 must be .* 4, got 8; .* 1, 2, 4",
        ),
        (4, {"dp_replicate": 2, "dp_shard": 4}, "or start 8 processes"),
        (6, {"dp_shard": -1, "cp": 4}, "a parallel.cp that divides 6 would fit"),
        (12, {"dp_shard": 4, "cp": 2}, "parallel.dp_shard of 1, 2, 3, 6 would fit"),
        (48, {"dp_shard": 5}, r"parallel.dp_shard of 1, 2, 3, 4, 6, 8, 12, \.\.\., 48 would fit"),
    ],
)
def test_sizes_that_do_not_multiply_to_the_world_are_refused_with_what_would(world, given, message):
    with pytest.raises(ValueError, match=message):
        mesh_sizes(world, **given)
