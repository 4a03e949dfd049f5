"""The benchmark of attention times nothing that it has not checked, and says what it measured."""

from dataclasses import replace

import pytest
import torch

from benchmarks import attention as benchmark
from benchmarks.attention_page import cpu_tables
from benchmarks.harness import OURS, Recorder, WrongResult
from benchmarks.peers import Implementation, on_cpu, ours
from benchmarks.shapes import GPU_SHAPES, Shape

SMALL = Shape(batch=2, heads=3, length=150, head_dim=8, window=16)
MINE = Implementation(name=OURS, work="ls", build=ours("ls"))


def one_key_too_many(shape):
    return ours("ls")(replace(shape, window=shape.window + 1))


def wrong_gradient(shape):
    attend = ours("ls")(shape)
    return lambda q, k, v: attend(q, k, v.detach()) + 0 * v


def not_a_number(shape):
    attend = ours("ls")(shape)
    return lambda q, k, v: attend(q, k, v) * torch.nan


def wrong_at_the_true_length(shape):
    attend = ours("ls")(shape)
    return attend if shape.length < SMALL.length else lambda q, k, v: attend(q, k, v).roll(1, dims=2)


def broken(shape):
    raise NotImplementedError("no such kernel\nand a long story")


def run(*implementations, said=None):
    record = Recorder(progress=(lambda line: None) if said is None else said.append)
    return benchmark.run(record, shapes=[SMALL], implementations=implementations, rounds=2)


@pytest.mark.parametrize("implementation", on_cpu(), ids=lambda i: f"{i.name} {i.work}")
def test_every_implementation_computes_what_it_says(implementation):
    inputs = benchmark.draw(SMALL, implementation.work, "cpu")[:3]
    errors = benchmark.check(implementation, implementation.build(SMALL), SMALL, inputs)
    assert all(error < 2e-5 for error in errors)


@pytest.mark.parametrize("build", [one_key_too_many, wrong_gradient, not_a_number, wrong_at_the_true_length])
def test_an_implementation_that_is_wrong_ends_the_benchmark_by_name(build):
    with pytest.raises(WrongResult, match=r"theirs \(ls\) is wrong at B2 H3 T150 D8 w16"):
        run(MINE, Implementation(name="theirs", work="ls", build=build))


@pytest.mark.slow
def test_ours_is_compared_with_full_attention_and_with_the_fastest_local_peer():
    results = run(*on_cpu())
    mine = {(row["work"], row["direction"]): row for row in results["rows"] if row["name"] == OURS}
    assert list(mine) == [(work, way) for way in ("forward", "forward+backward") for work in ("ls", "local")]
    assert {row["against"] for key, row in mine.items() if key[0] == "ls"} == {"sdpa causal"}
    assert all(
        row["against"] in ("sdpa band mask", "local-attention") for key, row in mine.items() if key[0] == "local"
    )
    for row in mine.values():
        assert len(row["milliseconds"]) == 2 and row["speedup"] > 0 and row["timing"] == "clock"
        assert 0 < row["error"] < 2e-5 and 0 < row["gradient_error"] < 2e-5


def test_a_peer_that_is_missing_or_cannot_run_is_named_and_ours_must_run():
    said = []
    absent = Implementation(name="absent", work="full", build=broken, missing=lambda: "pip install it")
    theirs = Implementation(name="theirs", work="full", build=broken)
    results = run(MINE, absent, theirs, said=said)
    assert said[0] == "left out absent: pip install it"
    failed = [row for row in results["rows"] if "failed" in row]
    assert [row["name"] for row in failed] == ["theirs", "theirs"]
    assert any("theirs (full): NotImplementedError: no such kernel" in line for line in said)
    assert "| theirs | NotImplementedError: no such kernel |" in cpu_tables(results)
    with pytest.raises(NotImplementedError, match="no such kernel"):
        run(replace(MINE, build=broken))


def test_the_shortened_shape_covers_windows_in_a_length_that_every_peer_takes():
    for shape in GPU_SHAPES:
        short = benchmark.shortened(shape, "cuda")
        assert short.batch == 2 and short.length % 128 == 0 and short.length >= 4 * short.window + 37


def test_inputs_are_leaves_of_their_own_and_differ_by_seed():
    q, _, _, grad = benchmark.draw(SMALL, "ls", "cpu")
    assert q.shape == (2, 3, 150, 8) and q.is_contiguous() and q.requires_grad and not q._is_view()
    assert grad.shape == q.shape and not grad.requires_grad
    assert torch.equal(q, benchmark.draw(SMALL, "ls", "cpu")[0])
    assert not torch.equal(q, benchmark.draw(SMALL, "ls", "cpu", seed=1)[0])
