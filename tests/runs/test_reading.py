"""Reading run folders: what a trainer writes is understood, and what is wrong is named."""

import json
import math

import numpy as np
import pytest

from longshort.files import write_atomically
from longshort.runs import Reader, RunError, load_run, load_runs

from ..report.synthetic import eval_record, logits_of, run_record, spike_record, train_record, write_lines


def test_run_without_an_end_is_in_progress(tmp_path):
    assert load_run(write_lines(tmp_path, [run_record(), train_record(1, 2.0)])).status == "in progress"


def test_run_with_an_end_has_its_status(tmp_path):
    end = {"kind": "end", "step": 1, "seconds": 1.0, "status": "interrupted"}
    assert load_run(write_lines(tmp_path, [run_record(), train_record(1, 2.0), end])).status == "interrupted"


def test_null_is_nan(tmp_path):
    run = load_run(write_lines(tmp_path, [run_record(), train_record(1, None), eval_record(1, None)]))
    assert math.isnan(run.train["loss"][0])
    assert math.isnan(run.evaluations[0].loss)


def test_logits_are_the_larger_of_both_ends_and_keep_nan(tmp_path):
    telemetry = logits_of(6.0)
    telemetry["logit_max"][0][0] = None
    run = load_run(write_lines(tmp_path, [run_record(), train_record(10, 2.0, **telemetry)]))
    assert run.logits_NLH.shape == (1, 2, 4)
    assert run.logits_NLH[0, 1, 3] == 6.0
    assert run.logits_NLH[0, 0, 1] == 3.0
    assert math.isnan(run.logits_NLH[0, 0, 0])


def test_torn_last_line_is_left_out_and_said(tmp_path):
    run = load_run(write_lines(tmp_path, [run_record(), train_record(1, 2.0)], torn='{"kind":"train","st'))
    assert run.train["step"].tolist() == [1]
    assert "line 3" in run.notes[0] and "incomplete" in run.notes[0]


def test_lines_that_a_run_adds_while_it_is_read_are_not_taken_for_a_torn_one(tmp_path, monkeypatch):
    folder = write_lines(tmp_path, [run_record(), train_record(1, 3.0)])
    take = Reader._take

    def slow_take(reader, text):
        with (folder / "metrics.jsonl").open("a") as file:
            file.write("".join(json.dumps(train_record(step, 2.0)) + "\n" for step in (2, 3)))
        take(reader, text)

    monkeypatch.setattr(Reader, "_take", slow_take)
    run = load_run(folder)
    assert run.notes == () and run.last_step == 1


def test_a_resume_replaces_the_steps_that_are_done_again(tmp_path):
    records = [run_record(), *(train_record(step, 3.0) for step in range(1, 6)), eval_record(4, 3.0)]
    records += [spike_record(5, 9.0), {"kind": "resume", "step": 3}]
    records += [train_record(step, 2.0) for step in range(4, 8)] + [eval_record(4, 2.0), spike_record(6, 8.0)]
    run = load_run(write_lines(tmp_path, records))
    assert run.train["step"].tolist() == list(range(1, 8))
    assert run.train["loss"].tolist() == [3.0] * 3 + [2.0] * 4
    assert [(e.step, e.loss) for e in run.evaluations] == [(4, 2.0)]
    assert [spike.step for spike in run.spikes] == [6]
    assert run.resumes == (3,)


def test_a_rollback_replaces_the_steps_and_keeps_the_spike(tmp_path):
    records = [
        run_record(),
        *(train_record(step, 3.0) for step in range(1, 6)),
        eval_record(2, 3.0),
        eval_record(5, 3.0),
    ]
    records += [spike_record(5, None, "rollback"), train_record(3, 1.0), train_record(4, 1.0)]
    run = load_run(write_lines(tmp_path, records))
    assert run.train["step"].tolist() == [1, 2, 3, 4]
    assert run.train["loss"].tolist() == [3.0, 3.0, 1.0, 1.0]
    assert [(spike.step, spike.action) for spike in run.spikes] == [(5, "rollback")]
    assert [evaluation.step for evaluation in run.evaluations] == [2]


def test_a_resume_after_a_rollback_keeps_its_spike_since_that_batch_does_not_come_again(tmp_path):
    records = [run_record(), *(train_record(step, 3.0) for step in (1, 2)), spike_record(5, 9.0, "rollback")]
    records += [spike_record(4, 8.0), {"kind": "resume", "step": 2}, train_record(3, 1.0)]
    run = load_run(write_lines(tmp_path, records))
    assert [(spike.step, spike.action) for spike in run.spikes] == [(5, "rollback")]


def test_a_step_that_is_repeated_without_logits_has_none(tmp_path):
    records = [run_record(), *(train_record(step, 3.0, **logits_of(6.0)) for step in (1, 2)), train_record(2, 2.0)]
    assert load_run(write_lines(tmp_path, records)).logit_steps.tolist() == [1]


@pytest.mark.parametrize(("steps", "mean"), [(100, 98.0), (5, 5.0)])
def test_training_loss_is_the_mean_of_the_last_steps_and_at_least_of_one(steps, mean, tmp_path):
    records = [run_record(), *(train_record(step, float(step)) for step in range(1, steps + 1))]
    assert load_run(write_lines(tmp_path, records)).training_loss == mean


def test_speed_is_that_of_most_steps(tmp_path):
    records = [
        run_record(),
        *(train_record(step, 2.0, tokens_per_second=rate) for step, rate in ((1, 1.0), (2, 9.0), (3, 9.0))),
    ]
    assert load_run(write_lines(tmp_path, records)).speed == 9.0


def test_training_loss_of_a_run_whose_last_step_was_lost_is_not_finite(tmp_path):
    records = [run_record(), *(train_record(step, None if step == 100 else 2.0) for step in range(1, 101))]
    assert math.isnan(load_run(write_lines(tmp_path, records)).training_loss)


def test_variant_is_the_configs_or_else_the_name(tmp_path):
    named = write_lines(tmp_path / "a", [run_record("ls-7", variant="ls")])
    plain = write_lines(tmp_path / "b", [run_record("ls-8")])
    assert [run.variant for run in load_runs([named, plain])] == ["ls", "ls-8"]


def test_runs_of_one_name_get_labels_of_their_own(tmp_path):
    folders = [write_lines(tmp_path / str(seed), [run_record("same", seed=seed)]) for seed in (1, 2)]
    assert [run.label for run in load_runs(folders)] == ["same, seed 1", "same, seed 2"]


def test_places_between_recorded_steps_are_interpolated(tmp_path):
    run = load_run(write_lines(tmp_path, [run_record(), train_record(10, 2.0), train_record(20, 2.0)]))
    np.testing.assert_allclose(run.at_steps([15], "seconds"), [15.0])


def test_text_with_line_separators_stays_one_record(tmp_path):
    sample = {"kind": "sample", "step": 1, "text": "a\u2028b\x85c"}
    tmp_path.joinpath("metrics.jsonl").write_text(
        json.dumps(run_record()) + "\n" + json.dumps(sample, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    assert load_run(tmp_path).samples[0].text == "a\u2028b\x85c"


def test_only_the_validation_split_counts_as_an_evaluation(tmp_path):
    records = [run_record(), eval_record(4, 3.0), eval_record(4, 9.0) | {"split": "test"}]
    assert load_run(write_lines(tmp_path, records)).final_loss == 3.0


def test_unknown_kinds_are_passed_over(tmp_path):
    assert load_run(write_lines(tmp_path, [run_record(), {"kind": "weather", "step": 1}])).last_step == 0


BAD = {
    "not JSON": ["{oops", "line 2: not JSON"],
    "not an object": ["[1]", "line 2: must be an object"],
    "missing key": [json.dumps({"kind": "train", "step": 1}), "line 2: the train record has no 'tokens'"],
    "wrong type": [json.dumps(train_record(1, 2.0) | {"loss": "low"}), "line 2: 'loss' must be float, got 'low'"],
    "null step": [json.dumps(eval_record(1, 2.0) | {"step": None}), "line 2: 'step' must be int, got 'None'"],
    "shape": [json.dumps(train_record(1, 2.0, **logits_of(1.0, layers=3))), "must be 2 layers x 4 heads, got 3 x 4"],
    "ragged": [json.dumps(train_record(1, 2.0, logit_max=[[1], [1, 2]], logit_min=[])), "'logit_max' must be a list"],
    "one end": [json.dumps(train_record(1, 2.0, logit_max=logits_of(1.0)["logit_max"])), "has no 'logit_min'"],
    "no number of ours": [json.dumps(train_record(10**20, 2.0)), "line 2: 'step' must fit into 64 bits, got '1000"],
    "no float": [json.dumps(train_record(1, 10**400)), "line 2: 'loss' must fit into 64 bits"],
    "no float of a head": [
        json.dumps(train_record(1, 2.0, logit_max=[[10**400] * 4] * 2, logit_min=[])),
        "'logit_max' must be a list of numbers",
    ],
    "second run": [json.dumps(run_record()), "line 2: a second run record"],
}


@pytest.mark.parametrize("case", BAD)
def test_bad_line_is_one_error_with_file_and_line(tmp_path, case):
    line, message = BAD[case]
    write_lines(tmp_path, [run_record()], torn=line + "\n" + json.dumps(train_record(1, 2.0)) + "\n")
    with pytest.raises(RunError) as error:
        load_run(tmp_path)
    assert str(tmp_path / "metrics.jsonl") in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "holds no record"),
        ([train_record(1, 2.0)], "line 1: a train record before the run record"),
        ([run_record(format=2)], "format 2, but this version reads only format 1"),
        ([run_record(plans=[[None]])], "'plans' must list 4 heads for each of 2 layers"),
        ([run_record(plans=[["all"] * 4] * 2)], "'plans' must hold integers or null, got 'all'"),
        ([run_record(firsts=[4, 4])], "'firsts' must list 4 heads for each of 2 layers"),
        ([run_record(firsts=[[4, 4, 4, None]] * 2)], "'firsts' must hold integers, got 'None'"),
        ([run_record(config={"model": None})], "'config' must hold sections of keys, got 'model' with 'None'"),
        ([run_record(git=7)], "'git' must be str, got '7'"),
        ([run_record(versions="0.1.0")], "'versions' must be dict, got '0.1.0'"),
    ],
)
def test_bad_description_is_named(tmp_path, records, message):
    with pytest.raises(RunError, match=message):
        load_run(write_lines(tmp_path, records))


def test_folder_of_runs_is_told_from_a_run(tmp_path):
    write_lines(tmp_path / "one", [run_record()])
    with pytest.raises(RunError, match="it holds runs, so name them"):
        load_run(tmp_path)


def test_run_named_twice_is_refused(tmp_path):
    folder = write_lines(tmp_path, [run_record()])
    with pytest.raises(RunError, match="more than once"):
        load_runs([folder, folder / "metrics.jsonl"])


def test_no_run_is_refused():
    with pytest.raises(RunError, match="at least one"):
        load_runs([])


def test_a_reader_that_follows_takes_in_whole_lines_only(tmp_path):
    reader = Reader(tmp_path)
    reader.update()
    assert reader.step is None
    line = json.dumps(train_record(2, 2.0)) + "\n"
    write_lines(tmp_path, [run_record(), train_record(1, 2.0)], torn=line[:9])
    reader.update()
    assert reader.step.step == 1
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(line[9:])
    reader.update()
    assert reader.step.step == 2


def test_a_reader_keeps_the_newest_logits_evaluation_and_end(tmp_path):
    records = [run_record(), train_record(1, 2.0, **logits_of(6.0)), eval_record(1, 1.5), train_record(2, 2.0)]
    reader = Reader(write_lines(tmp_path, [*records, {"kind": "end", "step": 2, "status": "interrupted"}]))
    reader.update()
    assert reader.logits_LH.max() == 6.0
    assert (reader.step.step, reader.evaluation.loss, reader.end.status) == (2, 1.5, "interrupted")


@pytest.mark.parametrize("grown", [0, 20])
def test_a_rewound_log_is_read_again_even_if_it_has_outgrown_the_old_one(tmp_path, grown):
    file = tmp_path / "metrics.jsonl"
    write_lines(tmp_path, [run_record(), *(train_record(step, 2.0) for step in range(1, 9))])
    reader = Reader(tmp_path)
    reader.update()
    new = [run_record("of another length"), *(train_record(step, 2.0) for step in range(1, 4 + grown))]
    write_atomically(file, "".join(json.dumps(record) + "\n" for record in new))
    reader.update()
    assert reader.step.step == 3 + grown
    assert reader.run().train["step"].tolist() == list(range(1, 4 + grown))


@pytest.mark.parametrize(
    ("status", "step", "steps", "is_finished"),
    [("finished", 4, 4, True), ("finished", 5, 4, True), ("finished", 4, 5, False), ("interrupted", 4, 4, False)],
)
def test_a_run_is_finished_by_its_own_end_at_the_steps_that_are_asked_for(tmp_path, status, step, steps, is_finished):
    end = {"kind": "end", "step": step, "status": status}
    run = load_run(write_lines(tmp_path, [run_record(), train_record(1, 2.0), end]))
    assert run.is_finished(steps) is is_finished


def test_a_run_that_was_resumed_after_its_end_is_not_finished(tmp_path):
    records = [run_record(), {"kind": "end", "step": 4, "status": "finished"}, {"kind": "resume", "step": 4}]
    assert not load_run(write_lines(tmp_path, records)).is_finished(4)
