"""The record of a run: whole lines of strict JSON, and a way back."""

import json
import math
import sys
from types import SimpleNamespace

import pytest
import torch

from longshort.runs.log import (
    METRICS,
    RunLog,
    TensorBoardSink,
    WandbSink,
    begins_with_a_run,
    largest_logit,
    read_log,
    rewind_log,
)
from longshort.runs.records import RunError


def lines(folder):
    return (folder / METRICS).read_text().splitlines()


class Sink:
    def __init__(self):
        self.records, self.closed = [], False

    def write(self, record):
        self.records.append(record)

    def rewind(self, step):
        pass

    def close(self):
        self.closed = True


def test_what_is_not_finite_becomes_null_at_any_depth(tmp_path):
    log = RunLog(tmp_path)
    written = log.write(
        "train", step=1, loss=math.nan, logit_max=torch.tensor([[1.5, math.inf]]), other={"a": [-math.inf, 2]}
    )
    log.close()
    assert read_log(tmp_path) == [written]
    assert written["loss"] is None and written["logit_max"] == [[1.5, None]] and written["other"] == {"a": [None, 2]}


def test_tensors_and_paths_become_plain_values(tmp_path):
    log = RunLog(tmp_path / "new")
    record = log.write("train", step=1, out=tmp_path, norm=torch.tensor(2.0), indices=(3, 4))
    log.close()
    assert record == {"kind": "train", "step": 1, "out": str(tmp_path), "norm": 2.0, "indices": [3, 4]}


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path):
    log = RunLog(tmp_path)
    log.write("train", step=1)
    assert len(lines(tmp_path)) == 1
    log.close()


def test_sinks_get_every_record_and_are_closed(tmp_path):
    sink = Sink()
    log = RunLog(tmp_path, [sink])
    log.write("train", step=1)
    log.write("end", step=1)
    log.close()
    assert [record["kind"] for record in sink.records] == ["train", "end"] and sink.closed


def write_log(folder, *records, torn=""):
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / METRICS).write_text(text + torn)


RECORDS = [
    {"kind": "run", "seed": 0},
    {"kind": "train", "step": 1},
    {"kind": "eval", "step": 1},
    {"kind": "train", "step": 2},
    {"kind": "spike", "step": 3},
    {"kind": "train", "step": 3},
    {"kind": "end", "step": 3},
]


def test_a_torn_last_line_is_dropped(tmp_path):
    write_log(tmp_path, *RECORDS, torn='{"kind": "tra')
    assert read_log(tmp_path) == RECORDS


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    (tmp_path / METRICS).write_text('{"kind": "run"}\n{"kind": "tr\n{"kind": "train", "step": 1}\n')
    with pytest.raises(ValueError, match=f"{METRICS}, line 2: not JSON"):
        read_log(tmp_path)


def test_only_a_line_without_its_end_is_torn(tmp_path):
    (tmp_path / METRICS).write_text("precious notes\n")
    with pytest.raises(RunError, match=f"{METRICS}, line 1: not JSON"):
        read_log(tmp_path)


@pytest.mark.parametrize("line", ["[1]", "7", '{"epoch": 3}', '{"kind": 5}'])
def test_a_line_that_is_no_record_is_an_error_that_names_it(tmp_path, line):
    write_log(tmp_path, RECORDS[0], torn=line + "\n")
    with pytest.raises(RunError, match=f"{METRICS}, line 2: must be an object with a 'kind'"):
        read_log(tmp_path)


@pytest.mark.parametrize("text", ["", "\n", "\0\0\0", '{"ki', '{"kind": "run", "form'])
def test_a_log_whose_first_line_was_cut_short_has_no_record_yet(tmp_path, text):
    (tmp_path / METRICS).write_text(text)
    assert not begins_with_a_run(tmp_path)


@pytest.mark.parametrize(
    "text", ["precious notes", '{"kind": "train"}', '{"epoch": 1}\n', '{"kind": "run", "format": 2}\n', "\xff"]
)
def test_a_log_that_begins_otherwise_is_not_a_runs(tmp_path, text):
    (tmp_path / METRICS).write_text(text, encoding="latin-1")
    with pytest.raises(RunError, match=f"{METRICS}, line 1"):
        begins_with_a_run(tmp_path)


def test_a_log_begins_with_the_description_of_the_run(tmp_path):
    write_log(tmp_path, RECORDS[0] | {"format": 1}, torn='{"kind": "tra')
    assert begins_with_a_run(tmp_path)


def test_rewinding_drops_later_steps_and_the_end(tmp_path):
    write_log(tmp_path, *RECORDS)
    rewind_log(tmp_path, 2)
    assert read_log(tmp_path) == RECORDS[:4]


def test_rewinding_to_where_the_run_ended_drops_the_end_only(tmp_path):
    write_log(tmp_path, *RECORDS)
    rewind_log(tmp_path, 3)
    assert read_log(tmp_path) == RECORDS[:6]


def test_rewinding_keeps_the_spikes_of_dropped_batches_only(tmp_path):
    spikes = [{"kind": "spike", "step": 3, "batch": batch} for batch in (7, 8)]
    write_log(tmp_path, *RECORDS[:2], *spikes)
    rewind_log(tmp_path, 0, dropped=[8])
    assert [record.get("batch") for record in read_log(tmp_path) if record["kind"] == "spike"] == [8]


def test_rewinding_to_a_step_keeps_its_evaluation(tmp_path):
    write_log(tmp_path, *RECORDS)
    rewind_log(tmp_path, 1)
    assert [record["kind"] for record in read_log(tmp_path)] == ["run", "train", "eval"]


def test_rewinding_before_the_start_drops_everything(tmp_path):
    write_log(tmp_path, *RECORDS)
    rewind_log(tmp_path, -1)
    assert read_log(tmp_path) == []


def test_rewinding_a_torn_log_leaves_whole_lines(tmp_path):
    write_log(tmp_path, *RECORDS[:3], torn='{"ki')
    rewind_log(tmp_path, 5)
    log = RunLog(tmp_path)
    log.write("train", step=2)
    log.close()
    assert read_log(tmp_path) == RECORDS[:4]


def test_rewinding_nothing_is_no_error(tmp_path):
    rewind_log(tmp_path, 3)
    assert not (tmp_path / METRICS).exists()


@pytest.mark.parametrize(
    ("record", "largest"),
    [
        ({"logit_max": [[1.0, 2.0]], "logit_min": [[-5.0, 0.0]]}, 5.0),
        ({"logit_max": [[1.0, None]], "logit_min": [[-5.0, 0.0]]}, None),
        ({}, None),
    ],
)
def test_the_largest_logit_is_over_both_ends_and_unknown_where_one_is_not_finite(record, largest):
    assert largest_logit(record) == largest


def test_scalars_of_steps_and_evaluations_go_to_the_other_sinks(tmp_path, monkeypatch):
    logged, wandb = [], SimpleNamespace(init=lambda **about: wandb)
    wandb.log = lambda scalars, step: logged.append((step, scalars))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    sink = WandbSink(tmp_path, "project", {})
    logits = {"logit_max": [[1.0, 2.0]], "logit_min": [[-5.0, 0.0]]}
    for record in (
        {"kind": "run", "seed": 0},
        {"kind": "train", "step": 1, "loss": 2.5, "mfu": None} | logits,
        {"kind": "eval", "step": 1, "split": "validation", "loss": 2.0},
        {"kind": "end", "step": 1, "seconds": 9.0},
    ):
        sink.write(record)
    assert logged == [(1, {"train/loss": 2.5, "train/logit_abs_max": 5.0}), (1, {"eval/loss": 2.0})]


def test_a_logit_that_is_not_finite_is_not_shown_as_zero(tmp_path, monkeypatch):
    logged, wandb = [], SimpleNamespace(init=lambda **about: wandb)
    wandb.log = lambda scalars, step: logged.append(scalars)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    logits = {"logit_max": [[None, 3.0]], "logit_min": [[None, -1.0]]}
    WandbSink(tmp_path, "project", {}).write({"kind": "train", "step": 1, "loss": 2.5} | logits)
    assert math.isnan(logged[0]["train/logit_abs_max"]) and logged[0]["train/loss"] == 2.5


def test_a_resumed_run_goes_on_with_its_own_run_at_wandb(tmp_path, monkeypatch):
    begun = []
    (tmp_path / "mine").mkdir()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **about: begun.append(about)))
    for resumed in (False, True, False):
        WandbSink(tmp_path / "mine", "project", {}, resumed=resumed)
    first, again, other = (about["id"] for about in begun)
    assert first == again != other and all(about["name"] == "mine" for about in begun)


def test_tensorboard_forgets_the_steps_that_are_repeated(tmp_path, monkeypatch):
    events = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            events.append(("from", purge_step))

        def add_scalar(self, name, value, step):
            events.append((name, step))

        def close(self):
            events.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter))
    log = RunLog(tmp_path, [TensorBoardSink(tmp_path)])
    for step in (1, 2):
        log.write("train", step=step, loss=2.5)
    log.rewind(1)
    log.write("train", step=2, loss=2.0)
    log.close()
    TensorBoardSink(tmp_path, 2)  # a run that resumes at step 2
    step = "train/loss"
    assert events == [("from", 0), (step, 1), (step, 2), "closed", ("from", 2), (step, 2), "closed", ("from", 3)]


def test_a_missing_tensorboard_is_one_line_that_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"run\.tensorboard needs TensorBoard: pip install 'longshort\[tensorboard\]'"):
        TensorBoardSink(tmp_path)


def test_a_changed_digit_is_an_error_that_names_the_line(tmp_path):
    log = RunLog(tmp_path)
    for step in (1, 2):
        log.write("train", step=step, loss=2.5)
    log.close()
    (tmp_path / METRICS).write_text((tmp_path / METRICS).read_text().replace("2.5", "2.4", 1))
    with pytest.raises(ValueError, match=f"{METRICS}, line 1: damaged \\(its checksum differs\\); remove the line"):
        read_log(tmp_path)
