"""Every benchmark goes through the harness: nothing wrong is timed, entrants take turns, results survive a stop."""

import json

import pytest
import torch

from benchmarks import harness, timing
from benchmarks.harness import Entrant, Recorder, WrongResult, failure, median_ratio, take_turns
from benchmarks.pages import Page

PAGE = Page(name="made-up", title="Made up", command="", about=lambda r: "", tables=lambda r: json.dumps(r["rows"]))


def raising(problem):
    def step():
        raise problem

    return step


def test_what_cannot_run_is_told_in_one_line_unless_it_is_ours():
    problem = NotImplementedError("no such kernel\nand a long story")
    assert failure(raising(problem), required=False) == "NotImplementedError: no such kernel"
    with pytest.raises(NotImplementedError):
        failure(raising(problem), required=True)


def test_too_little_memory_is_a_failure_even_of_ours():
    problem = torch.OutOfMemoryError("CUDA out of memory")
    assert failure(raising(problem), required=True) == "OutOfMemoryError: CUDA out of memory"


def test_a_wrong_result_is_raised_of_everyone():
    with pytest.raises(WrongResult):
        failure(raising(WrongResult("off")), required=False)


def test_entrants_take_turns_and_one_that_failed_stays_out():
    order = []

    def sample(name):
        order.append(name)
        if order == ["a", "b", "a"]:
            raise NotImplementedError("no more")
        return 1.0

    entrants = [Entrant(name, sample=lambda name=name: sample(name)) for name in "ab"]
    take_turns(entrants, 3)
    assert order == ["a", "b", "a", "b", "b"]
    assert entrants[0].row() == {"failed": "NotImplementedError: no more"} and entrants[0].sample is None
    assert entrants[1].row() == {"milliseconds": [1.0, 1.0, 1.0]}


def test_rounds_end_at_the_deadline_two_at_least():
    entrant = Entrant("a", sample=lambda: 1.0)
    take_turns([entrant], 5, deadline=0)
    assert len(entrant.milliseconds) == 2


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    assert median_ratio([1.0, 9.0, 1.0], [2.0, 3.0, 4.0]) == 0.5


def piecewise(out, stop_at=None, *, command="the command", **options):
    """Three pieces, perhaps with a stop before the one of that name; those that were measured, and the results."""
    measured = []

    def measure(name):
        if name == stop_at:
            raise KeyboardInterrupt
        measured.append(name)
        return [{"piece": name}]

    record = Recorder(out, command=command, **options)
    record.begin(PAGE, "cpu", rounds=3)
    try:
        for name in "abc":
            record.piece("rows", name, lambda name=name: measure(name))
    except KeyboardInterrupt:
        return measured, None
    return measured, record.end()


def rows(out):
    return [row["piece"] for row in json.loads(out.read_text())["rows"]]


def test_results_and_page_are_on_disk_after_every_piece(tmp_path):
    out = tmp_path / "made-up.json"
    piecewise(out, stop_at="c")
    assert rows(out) == ["a", "b"]
    assert "the command" in out.with_suffix(".md").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made-up.json", "made-up.md"]


def test_the_same_command_resumes_and_another_begins_anew(tmp_path):
    out = tmp_path / "made-up.json"
    piecewise(out, stop_at="c")
    assert piecewise(out, stop_at="b", command="another")[0] == ["a"]
    assert piecewise(out, stop_at="b")[0] == ["a"]
    assert piecewise(out)[0] == ["b", "c"]
    assert rows(out) == ["a", "b", "c"] and harness.UNFINISHED not in json.loads(out.read_text())
    assert piecewise(out)[0] == ["a", "b", "c"]  # what is whole is measured again


def test_what_the_time_was_up_for_is_named_and_made_up_for_by_the_same_command(tmp_path):
    out = tmp_path / "made-up.json"
    measured, results = piecewise(out, minutes=-1)
    assert measured == [] and results["rows"] == [{"name": name, "failed": harness.LEFT_OUT} for name in "abc"]
    assert piecewise(out)[0] == ["a", "b", "c"] and rows(out) == ["a", "b", "c"]


def merged(out, command, *names, minutes=1.0, value=0):
    """The pieces of one command, measured into a file that others share."""
    record = Recorder(out, command=command, minutes=minutes)
    record.begin(PAGE, "cpu", merge=True, rounds=3)
    for name in names:
        record.piece("rows", name, lambda: [{"value": value}])
    return record.end()


def test_commands_that_share_a_file_add_their_pieces_and_replace_what_they_measure_again(tmp_path):
    out = tmp_path / "made-up.json"
    merged(out, "one", "a", "b", value=1)
    results = merged(out, "other", "b", "c", value=2)
    assert {row["piece"]: row["value"] for row in results["rows"]} == {"a": 1, "b": 2, "c": 2}
    assert results["command"] == "one\n    other" and json.loads(out.read_text()) == results
    again = merged(out, "one", "a", value=3)
    assert again["command"] == "other\n    one" and len(again["rows"]) == 3


def test_results_of_another_commit_are_not_added_to(tmp_path, monkeypatch):
    out = tmp_path / "made-up.json"
    merged(out, "one", "a")
    monkeypatch.setattr(harness, "git_revision", lambda: "another")
    assert [row["piece"] for row in merged(out, "other", "b")["rows"]] == ["b"]


def test_what_was_left_out_of_a_shared_file_is_made_up_for_by_the_same_command(tmp_path):
    out = tmp_path / "made-up.json"
    merged(out, "one", "a", value=1)
    left = merged(out, "other", "b", minutes=-1)
    assert left["rows"][1]["failed"] == harness.LEFT_OUT
    results = merged(out, "other", "b", value=2)
    assert [row["value"] for row in results["rows"]] == [1, 2] and harness.UNFINISHED not in results


def test_a_failure_is_a_row_only_where_the_others_are_worth_having():
    said = []
    record = Recorder(progress=said.append)
    record.begin(PAGE, "cpu")
    record.piece("rows", "x", raising(RuntimeError("no memory\nat all")), lenient=True)
    assert record.results["rows"] == [{"name": "x", "failed": "RuntimeError: no memory"}]
    assert any("Traceback" in line for line in said)
    with pytest.raises(RuntimeError):
        record.piece("rows", "y", raising(RuntimeError("no memory")))
    with pytest.raises(WrongResult):
        record.piece("rows", "z", raising(WrongResult("off")), lenient=True)


def test_a_clock_takes_the_average_of_its_calls_after_warming_up():
    called, ticks = [], iter([10.0, 10.5])
    sample = timing.clocked(timing.warmed(lambda: called.append(1), 3), calls=5, clock=lambda: next(ticks))
    assert len(called) == 3 and sample() == pytest.approx(100.0) and len(called) == 8


def test_copy_bandwidth_counts_bytes_read_and_written(monkeypatch):
    monkeypatch.setattr(timing, "eager", lambda call, device: lambda: 2.0)  # milliseconds
    assert timing.copy_bandwidth("cpu", size=1000) == pytest.approx(1e6)
