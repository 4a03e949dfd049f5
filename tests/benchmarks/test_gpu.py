"""The GPU benchmark without a GPU: what it checks, what it concludes and what it leaves behind."""

import json
from dataclasses import replace

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from typer.testing import CliRunner

from benchmarks import gpu, gpu_check, gpu_peers, gpu_report, gpu_timing
from benchmarks.__main__ import app
from benchmarks.gpu_check import WrongResult
from benchmarks.gpu_peers import CUDNN, FA2, FLEX, OURS, OURS_WITH_STATS, TWO_CALLS
from benchmarks.registry import GPU_SHAPES, Implementation, Shape, ours
from longshort import HeadPlan, attention

TINY = Shape(batch=1, heads=2, length=48, head_dim=8, window=8)
LONG = Shape(batch=1, heads=32, length=32768, head_dim=128, window=128)
MINE = Implementation(name=OURS, work="ls", build=ours("ls"))
MINE_LOCAL = Implementation(name=OURS, work="local", build=ours("local"))


def one_key_too_many(shape):
    return ours("ls")(replace(shape, window=shape.window + 1))


def wrong_gradient(shape):
    attend = ours("ls")(shape)
    return lambda q, k, v: attend(q, k, v.detach()) + 0 * v


def not_a_number(shape):
    attend = ours("ls")(shape)
    return lambda q, k, v: attend(q, k, v) * torch.nan


def broken(shape):
    raise NotImplementedError("no such kernel\nand a long story")


def cpu_run(entrants, **options):
    return gpu.run(shapes=[TINY], entrants=entrants, device="cpu", rounds=2, **options)


def made_up(shape, *, flex=1.0, calls=1.0, stats=1.0, cudnn=10.0, share=0.6):
    """Rows of one shape, ours at 1 ms in three rounds of which one is disturbed."""
    times = {
        (OURS, "ls"): 1.0,
        (OURS_WITH_STATS, "ls"): stats,
        (FLEX, "ls"): flex,
        (TWO_CALLS, "ls"): calls,
        (OURS, "local"): 0.5,
        (FA2, "local"): 0.7,
        (CUDNN, "full"): cudnn,
        (FA2, "full"): 2 * cudnn,
        (CUDNN, "global"): 0.3,
    }
    rows = [
        {"shape": str(shape), "name": name, "work": work, "direction": direction, "timing": "graph"}
        | {"milliseconds": [ms, 3 * ms, ms]}
        for direction in gpu_report.DIRECTIONS
        for (name, work), ms in times.items()
    ]
    local = [row for row in rows if (row["work"], row["direction"]) == ("local", "forward")]
    for row in local:
        row["copy_share"] = share
    return rows


def goals(rows):
    return {goal["goal"]: goal["reached"] for goal in gpu_report.summarize(rows)["goals"]}


@pytest.mark.parametrize("build", [one_key_too_many, wrong_gradient, not_a_number])
def test_an_implementation_that_is_wrong_ends_the_benchmark_by_name(build):
    wrong = Implementation(name="theirs", work="ls", build=build)
    with pytest.raises(WrongResult, match=r"theirs \(ls\) is wrong at B1 H2 T48 D8 w8"):
        cpu_run([MINE, wrong])


def test_wrong_only_at_the_true_length_is_wrong():
    def build(shape):
        attend = ours("ls")(shape)
        return attend if shape.batch == 2 else lambda q, k, v: attend(q, k, v).roll(1, dims=2)

    with pytest.raises(WrongResult, match="output"):
        cpu_run([Implementation(name="theirs", work="ls", build=build)])


def test_the_shortened_shape_covers_windows_in_a_length_that_every_peer_takes():
    for shape in GPU_SHAPES:
        short = gpu_check._shortened(shape)
        assert short.batch == 2 and short.length % 128 == 0 and short.length >= 4 * short.window + 37


def test_rows_say_what_was_measured():
    results = cpu_run([MINE, MINE_LOCAL])
    assert [(r["work"], r["direction"]) for r in results["rows"]] == [
        ("ls", "forward"),
        ("local", "forward"),
        ("ls", "backward"),
        ("local", "backward"),
    ]
    for row in results["rows"]:
        assert len(row["milliseconds"]) == 2 and row["timing"] == "clock"
        assert 0 < row["error"] < 2e-2 and 0 < row["gradient_error"] < 5e-2
        assert (row["copy_share"] is not None) == (row["work"] == "local" and row["direction"] == "forward")


def test_a_peer_that_cannot_run_is_a_row_that_says_why():
    said = []
    results = cpu_run([MINE, Implementation(name="theirs", work="full", build=broken)], progress=said.append)
    failed = [row for row in results["rows"] if "failed" in row]
    assert [row["direction"] for row in failed] == ["forward", "backward"]
    assert all(row["failed"] == "NotImplementedError: no such kernel" for row in failed)
    assert any("theirs (full): NotImplementedError" in line for line in said)
    assert "failed / failed" not in gpu_report.table(results)  # it has no column


def test_a_failure_of_ours_is_not_swallowed():
    with pytest.raises(NotImplementedError, match="no such kernel"):
        cpu_run([Implementation(name=OURS, work="ls", build=broken)])


def test_too_little_memory_is_a_failure_even_of_ours():
    def no_memory():
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert gpu_check.failure(no_memory, required=True) == "OutOfMemoryError: CUDA out of memory"


def test_results_are_on_disk_after_every_shape(tmp_path):
    out, shapes = tmp_path / "gpu.json", [TINY, replace(TINY, length=40)]
    seen = []

    def keep(results):
        gpu_report.save(results, out)
        seen.append([row["shape"] for row in json.loads(out.read_text())["rows"]])

    gpu.run(shapes=shapes, entrants=[MINE], device="cpu", rounds=1, command="python -m benchmarks", keep=keep)
    assert [set(names) for names in seen] == [{str(TINY)}, {str(shape) for shape in shapes}]
    assert [path.name for path in tmp_path.iterdir() if path.suffix not in (".json", ".md")] == []
    assert "python -m benchmarks" in out.with_suffix(".md").read_text()


def test_ratios_are_medians_of_the_rounds_and_means_are_geometric():
    rows = made_up(TINY, flex=2.0) + made_up(LONG, flex=8.0)
    rows[0]["milliseconds"] = [1.0, 1.0, 1.0]  # ours, forward: the disturbed round is only theirs
    ratios = gpu_report.summarize(rows)["ratios"][FLEX]["forward"]
    assert ratios["by_shape"] == {str(TINY): pytest.approx(0.5), str(LONG): pytest.approx(0.125)}
    assert ratios["geometric_mean"] == pytest.approx(0.25)


def test_summary_holds_speedup_share_and_cost_by_shape():
    summary = gpu_report.summarize(made_up(LONG, cudnn=16.0, stats=1.01, share=0.4))
    assert summary["mhsa_speedup"] == {str(LONG): pytest.approx(16.0)}
    assert summary["copy_share"] == {str(LONG): 0.4}
    assert summary["statistics_cost"] == {str(LONG): pytest.approx(0.01)}


def test_goals_are_reached_or_not():
    good = goals(made_up(LONG, flex=2.0, calls=2.0, cudnn=15.0, stats=1.015, share=0.5))
    assert good.pop("forward + backward, times faster than cuDNN (full), T8192 D64") is None  # not measured
    assert set(good.values()) == {True}
    poor = goals(made_up(LONG, flex=1.0, calls=1.9, cudnn=14.9, stats=1.03, share=0.49))
    assert poor.pop("forward + backward, times faster than cuDNN (full), T8192 D64") is None
    assert set(poor.values()) == {False}


def test_one_slow_shape_misses_the_goal_for_every_shape_but_not_that_of_the_mean():
    reached = goals(made_up(TINY, flex=0.9) + made_up(LONG, flex=4.0))
    assert reached["forward / FlexAttention, every shape"] is False
    assert reached["forward / FlexAttention, geometric mean"] is True


def test_what_failed_enters_no_ratio():
    rows = [row for row in made_up(TINY) if (row["name"], row["direction"]) != (FLEX, "backward")]
    gone = {"shape": str(TINY), "name": FLEX, "work": "ls", "direction": "backward", "failed": "OutOfMemoryError"}
    rows.append(gone)
    summary = gpu_report.summarize(rows)
    assert summary["ratios"][FLEX]["backward"] == {"by_shape": {}, "geometric_mean": None}
    json.dumps(summary, allow_nan=False)
    page = gpu_report.table({"rows": rows, "summary": summary})
    assert "1000 / failed" in page and "not measured" in page


def test_the_table_has_microseconds_and_marks_what_was_not_captured():
    rows = made_up(TINY, flex=0.125)
    next(row for row in rows if row["name"] == FLEX)["timing"] = "events"
    page = gpu_report.table({"rows": rows, "summary": gpu_report.summarize(rows)})
    assert "| 125* / 125 |" in page and "| 1000 / 1000 |" in page


@pytest.mark.parametrize(("n_global", "length"), [(1, 256), (2, 300)])
def test_the_repeated_block_mask_is_the_one_made_for_all_heads(n_global, length):
    plan = HeadPlan.long_short(n_heads=4, n_global=n_global, window=50)
    reach = torch.tensor([length if w is None else w for w in plan.windows])
    whole = create_block_mask(
        lambda b, h, q, k: (q >= k) & (q - k < reach[h]), None, plan.n_heads, length, length, device="cpu"
    )
    ours = gpu_peers.block_mask(plan, length, "cpu")
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(ours, name), getattr(whole, name)), name
    assert torch.equal(ours.to_dense(), whole.to_dense())
    index = torch.arange(length)
    heads = torch.arange(plan.n_heads)[:, None, None]
    seen = ours.mask_mod(torch.tensor(0), heads, index[:, None], index)
    assert torch.equal(seen, whole.mask_mod(torch.tensor(0), heads, index[:, None], index))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_sees_what_the_plan_lets_it_see():
    shape = replace(TINY, length=200, heads=3, window=20)
    q, k, v, _ = (x.detach().float() for x in gpu_check.draw(shape, "ls", "cpu"))
    plan = shape.plan("ls")
    out = gpu_peers.flex(plan, shape.length, "cpu")(q, k, v)
    torch.testing.assert_close(out, attention(q, k, v, plan, backend="reference").out, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "work"), [(TWO_CALLS, "ls"), (FA2, "local")])
def test_flash_attention_is_called_for_the_same_work_and_without_a_copy(name, work, monkeypatch):
    """FlashAttention has no CPU kernel: a stand-in with its signature shows what it is handed."""

    def varlen(q, k, v, starts, ends, longest_q, longest_k, *, window_size):
        assert starts.tolist() == ends.tolist() == [0, 48, 96] and (longest_q, longest_k) == (48, 48)
        assert window_size[1] == 0
        assert all(x._is_view() and x.stride(0) == heads * x.shape[2] for x in (q, k, v))
        rows = [x.unflatten(0, (2, 48)).transpose(1, 2) for x in (q, k, v)]
        plan = HeadPlan(windows=(window_size[0] + 1,) * q.shape[1])  # it counts the keys before the current one
        return attention(*rows, plan, backend="reference").out.transpose(1, 2).flatten(0, 1)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
    shape = replace(TINY, batch=2, heads=4)
    heads = shape.plan(work).n_heads
    theirs = next(i for i in gpu_peers.implementations("cpu") if (i.name, i.work) == (name, work))
    output, gradient = gpu_check.check(theirs, theirs.build(shape), shape, gpu_check.draw(shape, work, "cpu")[:3])
    assert 0 < output < 2e-2 and 0 < gradient < 5e-2


def test_a_plan_that_flex_would_get_wrong_is_refused():
    with pytest.raises(ValueError, match="global heads first"):
        gpu_peers.block_mask(HeadPlan(windows=(8, None, 8)), 128, "cpu")


def test_inputs_lie_in_memory_as_a_projection_leaves_them_and_differ_by_seed():
    q, _, _, grad = gpu_check.draw(TINY, "ls", "cpu")
    assert q.shape == (1, 2, 48, 8) and q.transpose(1, 2).is_contiguous() and q.requires_grad and not q._is_view()
    assert grad.shape == q.shape and not grad.requires_grad
    assert torch.equal(q, gpu_check.draw(TINY, "ls", "cpu")[0])
    assert not torch.equal(q, gpu_check.draw(TINY, "ls", "cpu", seed=1)[0])


def test_copy_bandwidth_counts_bytes_read_and_written(monkeypatch):
    monkeypatch.setattr(gpu_timing, "eager", lambda call, device: lambda: 2.0)  # milliseconds
    assert gpu_timing.copy_bandwidth("cpu", size=1000) == pytest.approx(1e6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_verb_ends_in_one_line():
    shown = CliRunner().invoke(app, ["--device", "cuda"])
    assert shown.exit_code == 1
    assert shown.output == "error: device cuda needs a GPU, and PyTorch finds none\n"


@pytest.mark.parametrize("options", [["--device", "tpu"], ["--device", "cuda", "--shapes", "7"], ["--shapes", "x"]])
def test_a_device_or_shape_that_is_not_there_is_refused(options):
    shown = CliRunner().invoke(app, [*options])
    assert shown.exit_code == 1
    assert shown.output.startswith("error: ") and "must be" in shown.output


def test_the_verb_writes_what_was_measured(tmp_path, monkeypatch):
    asked = {}

    def run(*, keep, **options):
        asked.update(options)
        rows = made_up(TINY)
        results = {"machine": {"gpu": "H200"}, "command": options["command"], "rounds": options["rounds"], "rows": rows}
        results |= {"dtype": "bfloat16", "copy_bandwidth": 4e12, "summary": gpu_report.summarize(rows)}
        keep(results)
        return results

    monkeypatch.setattr(gpu, "run", run)
    out = tmp_path / "gpu.json"
    shown = CliRunner().invoke(app, ["--device", "cuda", "--shapes", "0,3", "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert asked["shapes"] == (GPU_SHAPES[0], GPU_SHAPES[3]) and asked["rounds"] == 3
    assert json.loads(out.read_text())["command"] == (
        f"python -m benchmarks --device cuda --rounds 3 --shapes 0,3 --out {out}"
    )
    assert str(TINY) in out.with_suffix(".md").read_text()
