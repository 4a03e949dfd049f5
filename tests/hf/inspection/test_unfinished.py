"""A conversion that was stopped: the same command resumes it, and gives what one without a stop would."""

import json
import os
import signal
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

from longshort import HeadPlan
from longshort.cli import app
from longshort.files import alone_in
from longshort.hf.inspection import record, uptraining
from longshort.hf.inspection.convert import convert
from longshort.hf.inspection.opened import open_folder
from longshort.hf.inspection.propose import Budget
from longshort.hf.inspection.unfinished import model_digest
from longshort.hf.inspection.uptraining import Interrupted

from ..small import shell
from .models import folder_of, model_of

CPU = torch.device("cpu")
PLANS = [HeadPlan(windows=(None, None, 5, 5)), HeadPlan(windows=(9, 9, 3, 3))]
SIZES = {"length": 64, "rows": 4, "steps": 6, "batch": 2, "rate": 3e-3}


class Crash(Exception):
    """Stands for a process that ends without warning."""


def begin(folder, out, text, progress=lambda *step: None, **options):
    plan = {} if "budget" in options else {"plans": PLANS}
    return convert(open_folder(folder, CPU, trained=True), out, text=text, progress=progress, **SIZES | plan | options)


def at(place, do):
    """Progress that does something when it comes to a place: what is done, and how far."""

    def progress(what, done, total):
        if (what.partition(",")[0], done) == place:
            do()

    return progress


def crash():
    raise Crash


def press():
    """Ctrl-C where Python itself handles it; a process in the background of a shell has no such handler."""
    raise KeyboardInterrupt


interrupt = partial(os.kill, os.getpid(), signal.SIGINT)


def files(folder):
    """Everything in a folder; the lock is empty."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt-oss", "ours"])
def test_an_interrupted_training_resumes_to_the_same_bits(name, tmp_path, text):
    model = shell(positions="rotary") if name == "ours" else model_of(name)
    source, out = folder_of(model, tmp_path / "source"), tmp_path / "out"
    options = {"budget": Budget(share=0.4)}
    expected = begin(source, tmp_path / "whole", text, **options)
    with pytest.raises(Interrupted, match="interrupted at step 2 of 6"):
        begin(source, out, text, at(("training", 2), interrupt), **options)
    assert not out.exists() and [path.name for path in (tmp_path / "out.unfinished" / "checkpoints").iterdir()] == [
        "step-00000002"
    ]
    seen = []
    assert begin(source, out, text, lambda *step: seen.append(step[:2]), **options) == expected
    assert [done for _, done in seen] == [3, 4, 5, 6]  # neither measured nor proposed again
    assert files(out) == files(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source", "whole"]


@pytest.mark.parametrize(
    ("place", "again"),
    [
        (("measuring", 2), "measuring"),
        (("loss", 1), "loss"),
        (("training", 1), "training"),
        (("training", 5), "training"),
    ],
)
def test_one_that_ended_without_warning_goes_on_from_what_is_complete(place, again, llama, tmp_path, text, monkeypatch):
    expected = begin(llama, tmp_path / "whole", text)
    monkeypatch.setattr(uptraining, "SAVED_EVERY", 0.0)
    with pytest.raises(Crash):
        begin(llama, tmp_path / "out", text, at(place, crash))
    assert len(list(tmp_path.glob("out.unfinished/checkpoints/*"))) == (place == ("training", 5))  # the newest alone
    seen = []
    assert begin(llama, tmp_path / "out", text, lambda *step: seen.append(step[:2])) == expected
    what, done = seen[0]
    assert what.startswith(again) and done == (place[1] if again == "training" else 1)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@pytest.mark.parametrize("name", ["llama", "ours"])
def test_each_measurement_that_is_complete_is_kept(name, tmp_path, text, monkeypatch):
    source = folder_of(shell(positions="rotary") if name == "ours" else model_of(name), tmp_path / "source")
    options, seen, calls = {"budget": Budget(share=0.4), "steps": 0}, [], []
    loss_on = record.loss_on
    monkeypatch.setattr(record, "loss_on", lambda *given: calls.append(given) or loss_on(*given))
    expected = begin(source, tmp_path / "whole", text, lambda *step: seen.append(step[:2]), **options)
    plans, of_plans = [done for what, done in seen if what == "plans"], len(calls)
    assert len(plans) > 2 and of_plans == len(plans) + 1
    with pytest.raises(Interrupted, match="interrupted while measuring"):
        begin(source, tmp_path / "out", text, at(("plans", 2), press), **options)
    seen.clear()
    calls.clear()
    assert begin(source, tmp_path / "out", text, lambda *step: seen.append(step[:2]), **options) == expected
    assert [what for what, done in seen if what != "plans"] == [] and len(calls) == of_plans - 2
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert not (tmp_path / "out.unfinished").exists()


def test_damaged_measurements_are_named(llama, tmp_path, text):
    with pytest.raises(Crash):
        begin(llama, tmp_path / "out", text, at(("loss", 1), crash))
    heads = tmp_path / "out.unfinished" / "heads.safetensors"
    heads.write_bytes(heads.read_bytes()[:-4] + b"0000")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"heads\.safetensors: missing or damaged; remove .*unfinished to begin"):
            begin(llama, tmp_path / "out", text)
        heads.unlink(missing_ok=True)


def test_a_model_without_finite_losses_leaves_nothing(tmp_path, text):
    model = model_of("llama")
    model.lm_head.weight.data[5, 5] = torch.nan
    with pytest.raises(ValueError, match="model must give finite losses, got nan for the model"):
        begin(folder_of(model, tmp_path / "source"), tmp_path / "out", text)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_damaged_checkpoint_is_not_used(llama, tmp_path, text):
    expected = begin(llama, tmp_path / "whole", text)
    with pytest.raises(Interrupted):
        begin(llama, tmp_path / "out", text, at(("training", 3), interrupt))
    (weights,) = tmp_path.glob("out.unfinished/checkpoints/step-00000003/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4] + b"0000")
    seen = []
    assert begin(llama, tmp_path / "out", text, lambda *step: seen.append(step[1])) == expected
    assert seen == [1, 2, 3, 4, 5, 6]


@pytest.fixture
def stopped(llama, tmp_path, text):
    with pytest.raises(Interrupted):
        begin(llama, tmp_path / "out", text, at(("training", 1), interrupt))
    return tmp_path / "out.unfinished"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 7}, "begun with --steps 6, not 7;"),
        ({"rate": 1e-3}, "begun with --lr 0.003, not 0.001;"),
        ({"batch": 1}, "begun with --batch 2, not 1;"),
        ({"length": 32}, "begun with --length 64, not 32;"),
        ({"rows": 6}, "begun with --rows 4, not 6;"),
        ({"first": False}, "begun with --first True, not False;"),
        ({"plans": PLANS[::-1]}, "begun with another plan;"),
        ({"budget": Budget(share=0.3)}, "begun with another plan;"),
    ],
)
def test_other_settings_are_refused_and_nothing_changes(options, words, stopped, llama, text):
    before = files(stopped)
    with pytest.raises(ValueError, match=words) as found:
        begin(llama, stopped.with_suffix(""), text, **options)
    assert str(found.value).startswith(f"{stopped}: ") and "run the command that began it to resume" in str(found.value)
    assert files(stopped) == before and not stopped.with_suffix("").exists()


def test_another_model_or_text_is_refused(stopped, llama, tmp_path, text):
    before, out = files(stopped), tmp_path / "out"
    (tmp_path / "other.txt").write_text(text.read_text().replace("Head 3", "Tail 3"))
    with pytest.raises(ValueError, match="begun with another text;"):
        begin(llama, out, tmp_path / "other.txt")
    model = model_of("llama")
    model.lm_head.weight.data[5, 5] += 1
    with pytest.raises(ValueError, match="begun with another model;"):
        begin(folder_of(model, tmp_path / "other"), out, text)
    assert files(stopped) == before


def test_a_model_is_known_by_its_weights_and_configuration_wherever_it_is(llama, tmp_path):
    model = model_of("llama")
    assert model_digest(open_folder(llama, CPU).model) == model_digest(
        open_folder(folder_of(model, tmp_path / "moved"), CPU).model
    )
    digest = model_digest(model)
    model.config.rms_norm_eps *= 2
    assert model_digest(model) != digest


def test_a_conversion_that_would_fail_again_leaves_nothing(stopped, llama, text, monkeypatch):
    monkeypatch.setattr(
        torch.nn.utils, "clip_grad_norm_", lambda parameters, norm: next(parameters).data.fill_(torch.nan)
    )
    with pytest.raises(ValueError, match="the loss must stay finite"):
        begin(llama, stopped.with_suffix(""), text)
    assert list(stopped.parent.iterdir()) == []


@pytest.mark.parametrize("made", ["file", "folder", "link"])
def test_something_else_beside_the_output_is_named_and_kept(made, llama, tmp_path, text):
    other = tmp_path / "out.unfinished"
    if made == "file":
        other.write_text("mine")
    elif made == "link":
        other.symlink_to(tmp_path / "nowhere")
    else:
        other.mkdir()
        (other / "notes.txt").write_text("mine")
    found = "holds notes.txt" if made == "folder" else "is not a folder"
    with pytest.raises(ValueError, match=f"out.unfinished: {found}, so it is no unfinished conversion; move it"):
        begin(llama, tmp_path / "out", text)
    assert [path.name for path in tmp_path.iterdir()] == ["out.unfinished"]
    if made == "folder":
        assert [path.name for path in other.iterdir()] == ["notes.txt"]


def test_damaged_settings_are_named(stopped, llama, text):
    kept = stopped / "begun.json"
    kept.write_text(kept.read_text().replace('"--steps": 6', '"--steps": 9'))
    with pytest.raises(ValueError, match=r"begun\.json: damaged \(its checksum differs\); remove .* to begin again"):
        begin(llama, stopped.with_suffix(""), text)
    assert kept.is_file()


def test_two_at_once_are_refused(stopped, llama, text):
    with alone_in(stopped), pytest.raises(ValueError, match="in use by another process"):
        begin(llama, stopped.with_suffix(""), text)
    assert (stopped / "begun.json").is_file()


def test_the_verb_says_how_to_resume(llama, tmp_path, text, monkeypatch):
    (tmp_path / "plans.json").write_text(json.dumps([plan.to_dict() for plan in PLANS]))
    command = ["convert", llama, "--plan", tmp_path / "plans.json", "--text", text, "--out", tmp_path / "out"]
    command += ["--length", 64, "--rows", 4, "--steps", 3, "--batch", 2, "--device", "cpu"]
    clip, calls = torch.nn.utils.clip_grad_norm_, []

    def stopping(*arguments):
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        calls.append(arguments)
        return clip(*arguments)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", stopping)
    shown = CliRunner().invoke(app, [str(word) for word in command])
    assert shown.exit_code == 130 and not (tmp_path / "out").exists()
    assert shown.stderr.endswith("interrupted at step 2 of 3; run the same command again to resume\n")
    shown = CliRunner().invoke(app, [str(word) for word in command])
    assert shown.exit_code == 0 and len(calls) == 3 and (tmp_path / "out" / "conversion.json").is_file()
