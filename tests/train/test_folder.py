"""Where a run may be written: in a new or empty folder or over itself, and never over anything else."""

import json
import os
import shutil

import pytest

from longshort.files import LOCK
from longshort.runs.log import METRICS
from longshort.train import ConfigError, train
from longshort.train.folder import CONFIG, OUTPUT, check_is_a_run_folder
from longshort.train.sweeps.processes import RunFailed, run_all

from .tiny import tiny_config


def everything(folder):
    """Every path below a folder, with the content of files."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


EXPORT = {"config.json": "{}", "model.safetensors": "weights", "tokenizer.json": "{}"}
OTHERS = {
    "an export": (EXPORT, "config.json, model.safetensors, tokenizer.json"),
    "notes for metrics": ({METRICS: "precious notes\n"}, f"{METRICS}, line 1: not JSON"),
    "one line of notes": ({METRICS: "precious notes"}, f"{METRICS}, line 1: not JSON"),
    "another program's metrics": ({METRICS: '{"epoch": 1}\n{"epoch": 2}\n'}, f"{METRICS}, line 1: must be an object"),
    "a newer version's run": ({METRICS: '{"kind": "run", "format": 2}\n'}, "'format': 2"),
    "a file for checkpoints": ({"checkpoints": "notes"}, "checkpoints, which is not a folder"),
    "a file for a checkpoint": ({"checkpoints/step-00000002": "x"}, "step-00000002, which is not a folder"),
    "another program's checkpoints": ({"checkpoints/epoch-1.pt": "x"}, "holds checkpoints"),
    "a folder for metrics": ({f"{METRICS}/notes": "x"}, f"{METRICS}, which is not a file"),
    "a folder for the tokenizer": ({"tokenizer.json/notes": "x"}, "tokenizer.json, which is not a file"),
    "a lock with content": ({LOCK: "my notes"}, "a .lock that no run made"),
    "many files": ({f"{n}.txt": "x" for n in range(9)}, "0.txt, 1.txt, 2.txt and 6 more"),
    "a name of two lines": ({"a\nb": "x"}, r"'a\\nb'"),
    "an output without its run": ({OUTPUT: "x"}, OUTPUT),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("several", [False, True])
def test_what_is_not_a_run_is_named_and_left_as_it_is(tmp_path, name, several):
    files, said = OTHERS[name]
    for path, content in files.items():
        (tmp_path / "run" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / path).write_text(content)
    before, config = everything(tmp_path), tiny_config("no data needed", tmp_path / "run")
    with pytest.raises(ConfigError, match=said) as raised:
        run_all([config], jobs=1) if several else train(config)
    assert everything(tmp_path) == before and len(str(raised.value).splitlines()) == 1


def test_a_data_folder_is_not_trained_into(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "data")
    before = everything(tmp_path)
    with pytest.raises(ConfigError, match=r"holds test\.json, test\.tokens, tokenizer\.json and 4 more"):
        train(tiny_config(tmp_path / "data", tmp_path / "data"))
    assert everything(tmp_path) == before


@pytest.mark.parametrize(("link", "said"), [(False, "is a file"), (True, "is a link to nothing")])
def test_a_file_or_a_link_to_nothing_is_no_folder(tmp_path, link, said):
    if link:
        (tmp_path / "run").symlink_to(tmp_path / "nowhere")
    else:
        (tmp_path / "run").write_text("precious")
    with pytest.raises(ConfigError, match=f"run: {said}"):
        train(tiny_config("no data needed", tmp_path / "run"))
    assert os.listdir(tmp_path) == ["run"]


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match="lock that no run made"):
        train(tiny_config("no data needed", tmp_path / "run"))
    assert (tmp_path / "precious").read_text() == "x"


def test_one_folder_of_something_else_keeps_all_runs_from_starting(tmp_path, corpus):
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / CONFIG).write_text('{"model_type": "gpt2"}')
    with pytest.raises(ConfigError, match=f"second: holds {CONFIG}"):
        run_all([tiny_config(corpus, tmp_path / name) for name in ("first", "second")], jobs=2)
    assert os.listdir(tmp_path) == ["second"]


def test_a_new_or_empty_folder_and_what_an_early_stop_leaves_are_free(tmp_path):
    config = tiny_config("no data needed", tmp_path / "run")
    check_is_a_run_folder(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / ".step-00000001.7.tmp").mkdir(parents=True)
    (tmp_path / "run" / "tensorboard").mkdir()
    for name, content in {METRICS: '{"kind": "ru', LOCK: "", ".gitkeep": "x", OUTPUT: "x"}.items():
        (tmp_path / "run" / name).write_text(content)
    (tmp_path / "run" / CONFIG).write_text(json.dumps(config.to_dict()))
    check_is_a_run_folder(tmp_path / "run")


@pytest.mark.parametrize("lost", ["nothing", METRICS, "checkpoints"])
def test_beside_a_run_anything_may_be_kept(finished, tmp_path, lost):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("it went well")
    if lost == METRICS:
        (tmp_path / "run" / METRICS).unlink()
    elif lost == "checkpoints":
        shutil.rmtree(tmp_path / "run" / "checkpoints")
    check_is_a_run_folder(tmp_path / "run")


def test_a_run_in_a_linked_folder_with_linked_checkpoints_is_a_run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "large disk")
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "large disk")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    check_is_a_run_folder(tmp_path / "link")


@pytest.mark.slow
def test_a_run_that_failed_in_its_own_process_can_be_started_again(tmp_path):
    config = tiny_config(tmp_path / "no data", tmp_path / "run")
    for _ in range(2):
        with pytest.raises(RunFailed, match="no data"):
            run_all([config], jobs=1, poll_seconds=0.05)
