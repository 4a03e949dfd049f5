"""Checkpoints: whole or not there, checked when read, few enough."""

import json
import logging
import os
import re
import shutil
import time

import pytest
import torch
from safetensors import SafetensorError

from longshort.files import sealed, unsealed
from longshort.train.checkpoints import checkpoint as module
from longshort.train.checkpoints.checkpoint import (
    CheckpointError,
    discard_after,
    load_checkpoint,
    newest_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)


def save(folder, step, value=None):
    tensors = {"w": torch.full((3, 2), float(step if value is None else value))}
    return save_checkpoint(folder, step=step, model=tensors, trainer={"w/exp_avg": tensors["w"] * 2}, state={"a": step})


def steps(folder):
    return sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir() if not path.name.startswith("."))


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_what_is_saved_is_read_back(tmp_path):
    path = save(tmp_path, 12)
    assert path == tmp_path / "step-00000012"
    found = load_checkpoint(path)
    assert found.step == 12 and found.state["a"] == 12
    assert torch.equal(found.model["w"], torch.full((3, 2), 12.0))
    assert torch.equal(found.trainer["w/exp_avg"], torch.full((3, 2), 24.0))


def test_views_and_shared_strides_are_saved_as_they_look(tmp_path):
    base = torch.arange(6.0).view(2, 3)
    save_checkpoint(tmp_path, step=1, model={"t": base.T}, trainer={}, state={})
    assert torch.equal(load_checkpoint(tmp_path / "step-00000001").model["t"], base.T)


def test_a_folder_of_checkpoints_or_of_a_run_gives_the_newest(tmp_path):
    for step in (9, 10, 100):
        save(tmp_path / "checkpoints", step)
    assert load_checkpoint(tmp_path).step == 100
    assert load_checkpoint(tmp_path / "checkpoints").step == 100


def test_the_newest_is_that_of_the_latest_step_whatever_its_number_of_digits(tmp_path):
    for step in (99_999_999, 100_000_000):
        save(tmp_path, step)
    assert load_checkpoint(tmp_path).step == 100_000_000


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, 5, value=1)
    save(tmp_path, 5, value=2)
    assert load_checkpoint(tmp_path).model["w"][0, 0] == 2
    assert names(tmp_path) == ["step-00000005"]


def test_what_killed_writers_left_is_not_taken_for_a_part_of_a_checkpoint(tmp_path):
    save(tmp_path, 5, value=1)
    for name in (f".step-00000005.{os.getpid()}.tmp", ".step-00000005.replaced.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shard-00003-model-00001-of-00001.safetensors").touch()
    save(tmp_path, 5, value=2)
    assert load_checkpoint(tmp_path).model["w"][0, 0] == 2
    assert names(tmp_path) == ["step-00000005"]


def test_a_writer_that_is_killed_while_it_removes_what_it_replaces_leaves_a_whole_checkpoint(tmp_path, monkeypatch):
    def killed(folder, **options):
        (folder / "model.safetensors").unlink(missing_ok=True)
        raise KeyboardInterrupt

    save(tmp_path, 5, value=1)
    monkeypatch.setattr(module.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 5, value=2)
    assert newest_checkpoint(tmp_path, pytest.fail).model["w"][0, 0] == 2


def test_all_is_on_the_disk_before_a_checkpoint_has_its_name_and_then_the_name_is(tmp_path, monkeypatch):
    events, sync, rename = [], os.fsync, module.Path.rename
    monkeypatch.setattr(os, "fsync", lambda handle: events.append(os.fstat(handle).st_ino) or sync(handle))
    monkeypatch.setattr(module.Path, "rename", lambda path, to: events.append("rename") or rename(path, to))
    path = save(tmp_path, 1)
    named = events.index("rename")
    assert set(events[:named]) == {part.stat().st_ino for part in (path, *path.iterdir())}
    assert events[named + 1 :] == [tmp_path.stat().st_ino]


@pytest.mark.parametrize("call", ["save_file", "sha256", "flush", "json.dumps"])
def test_whatever_stops_the_writer_half_way_leaves_the_checkpoint_before(tmp_path, monkeypatch, call):
    save(tmp_path, 1)

    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(*((json, "dumps") if call == "json.dumps" else (module, call)), stopped)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2)
    monkeypatch.undo()
    assert newest_checkpoint(tmp_path).step == 1
    assert names(tmp_path) == ["step-00000001"]


def test_a_full_disk_is_an_os_error_that_names_the_file_and_leaves_no_draft(tmp_path, monkeypatch):
    def full(tensors, path):
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(OSError, match=r"cannot write .*model.safetensors: No space left"):
        save(tmp_path, 2)
    assert list(tmp_path.iterdir()) == []


def write_forever(folder):
    tensors = {str(i): torch.full((50, 1000), float(i)) for i in range(20)}
    for step in range(10**6):
        save_checkpoint(folder, step=step, model=tensors, trainer=tensors, state={})
        prune_checkpoints(folder, keep=2, best=None)


def test_a_writer_that_is_killed_at_any_moment_leaves_only_whole_checkpoints(tmp_path, context):
    writer = context.Process(target=write_forever, args=(tmp_path,))
    writer.start()
    try:
        for _ in range(600):
            if tmp_path.is_dir() and len([p for p in tmp_path.iterdir() if not p.name.startswith(".")]) >= 2:
                break
            time.sleep(0.1)
        time.sleep(0.3)
    finally:
        writer.kill()
        writer.join()
    found = newest_checkpoint(tmp_path, pytest.fail)  # which would be told of a damaged one
    assert found is not None and all(torch.equal(v, torch.full((50, 1000), float(k))) for k, v in found.model.items())
    save(tmp_path, found.step + 1)
    prune_checkpoints(tmp_path, keep=1, best=None)
    assert [path.name for path in tmp_path.iterdir()] == [f"step-{found.step + 1:08d}"]


def damage(path, name):
    content = bytearray((path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (path / name).write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.safetensors"])
def test_one_flipped_bit_is_noticed(tmp_path, name):
    path = save(tmp_path, 1)
    damage(path, name)
    with pytest.raises(CheckpointError, match=f"{name}: damaged or missing"):
        load_checkpoint(path)


@pytest.mark.parametrize("harm", ["flipped bit", "cut short", "missing", "state cut short", "state missing"])
def test_a_damaged_checkpoint_is_passed_over_with_a_message(tmp_path, harm):
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    if harm == "flipped bit":
        damage(path, "model.safetensors")
    elif harm == "cut short":
        os.truncate(path / "trainer.safetensors", 20)
    elif harm == "missing":
        (path / "model.safetensors").unlink()
    elif harm == "state cut short":
        os.truncate(path / "state.json", 20)
    else:
        (path / "state.json").unlink()
    said = []
    assert newest_checkpoint(tmp_path, said.append).step == 1
    assert len(said) == 1 and re.search(r"step-00000002.*damaged or missing.*; trying the one before it$", said[0])


def test_of_damaged_checkpoints_the_first_promises_none_before_it(tmp_path, caplog):
    for step in (1, 2):
        damage(save(tmp_path, step), "model.safetensors")
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        load_checkpoint(tmp_path)
    ends = [message.rpartition("; ")[2] for message in caplog.messages]
    assert ends == ["trying the one before it", "there is no earlier one"]


def test_a_damaged_checkpoint_is_a_plain_line_on_standard_error(tmp_path, monkeypatch, capsys):
    save(tmp_path, 1)
    damage(save(tmp_path, 2), "model.safetensors")
    monkeypatch.setattr(logging.root, "handlers", [])  # as in a program that does not configure logging
    assert load_checkpoint(tmp_path).step == 1
    shown = capsys.readouterr().err
    assert len(shown.splitlines()) == 1 and shown.startswith(str(tmp_path)) and ".py" not in shown


def test_a_newer_format_is_not_passed_over_as_damaged(tmp_path):
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    (path / "state.json").write_text(json.dumps({"format": 3, "other": "keys"}))
    with pytest.raises(CheckpointError, match="format 3, but this version reads only formats 1 and 2"):
        newest_checkpoint(tmp_path)


def test_what_may_not_be_read_is_not_passed_over_as_damaged(tmp_path, monkeypatch):
    def refused(self, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(self))

    save(tmp_path, 1)
    monkeypatch.setattr(module.Path, "read_text", refused)
    with pytest.raises(PermissionError):
        newest_checkpoint(tmp_path)


@pytest.mark.parametrize("state", ["[]", "7", '{"format": 1}', '{"format": 1, "sha256": [], "step": 1}', "[" * 100_000])
def test_a_state_that_is_not_one_is_damage(tmp_path, state):
    (save(tmp_path, 1) / "state.json").write_text(state)
    assert newest_checkpoint(tmp_path) is None


@pytest.mark.parametrize("change", [{"step": "one"}, {"config": []}, {"format": 2, "sha256": {}}])
def test_a_value_of_the_state_that_nothing_writes_is_damage(tmp_path, change):
    file = save(tmp_path, 1) / "state.json"
    file.write_text(sealed(unsealed(file.read_text()) | change))
    assert newest_checkpoint(tmp_path) is None


def test_a_folder_without_a_whole_checkpoint_is_an_error_that_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        load_checkpoint(tmp_path)
    assert newest_checkpoint(tmp_path / "nowhere") is None


def test_another_format_is_refused_by_number(tmp_path):
    path = save(tmp_path, 1)
    state = unsealed((path / "state.json").read_text()) | {"format": 99}
    (path / "state.json").write_text(sealed(state))
    with pytest.raises(CheckpointError, match="format 99, but this version reads only formats 1 and 2"):
        load_checkpoint(path)


@pytest.mark.parametrize(("best", "left"), [(None, [30, 40]), (10, [10, 30, 40]), (40, [30, 40]), (99, [30, 40])])
def test_the_newest_few_and_the_best_are_kept(tmp_path, best, left):
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    prune_checkpoints(tmp_path, keep=2, best=best)
    assert steps(tmp_path) == left


def test_pruning_removes_drafts_and_nothing_that_is_not_ours(tmp_path):
    save(tmp_path, 1)
    (tmp_path / ".step-00000002.77.tmp").mkdir()
    for name in ("step-final", "notes"):
        shutil.copytree(tmp_path / "step-00000001", tmp_path / name)
    prune_checkpoints(tmp_path, keep=1, best=None)
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000001", "step-final", "notes"}


def test_a_checkpoint_that_cannot_be_removed_is_an_error_and_a_draft_is_not(tmp_path, monkeypatch):
    def refused(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    save(tmp_path, 1)
    (tmp_path / ".step-00000002.77.tmp").mkdir()
    monkeypatch.setattr(os, "rmdir", refused)
    prune_checkpoints(tmp_path, keep=1, best=None)
    with pytest.raises(PermissionError):
        discard_after(tmp_path, 0)
    monkeypatch.undo()


def test_later_checkpoints_can_be_discarded(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step)
    discard_after(tmp_path, 20)
    assert steps(tmp_path) == [10, 20]


@pytest.mark.parametrize("target", ["elsewhere", "nowhere"])
def test_of_a_linked_checkpoint_the_link_goes_and_what_it_points_to_stays(tmp_path, target):
    elsewhere = save(tmp_path / "elsewhere", 10)
    folder = tmp_path / "checkpoints"
    save(folder, 20)
    for step in (10, 30, 40):
        link = elsewhere if target == "elsewhere" else tmp_path / "nowhere"
        (folder / f"step-{step:08d}").symlink_to(link, target_is_directory=True)
    discard_after(folder, 30)
    assert steps(folder) == [10, 20, 30]
    save(folder, 30)
    prune_checkpoints(folder, keep=2, best=None)
    assert [path.name for path in sorted(folder.iterdir())] == ["step-00000020", "step-00000030"]
    assert newest_checkpoint(folder).step == 30 and load_checkpoint(elsewhere).step == 10


def test_folders_whose_names_are_not_ours_are_neither_read_nor_removed(tmp_path):
    save(tmp_path, 100)
    for name in ("step-5", "step-200", "step-000000300", "step-٠٠٠٠٠٤٠٠"):
        shutil.copytree(tmp_path / "step-00000100", tmp_path / name)
    save(tmp_path, 150)
    discard_after(tmp_path, 150)
    prune_checkpoints(tmp_path, keep=1, best=None)
    assert newest_checkpoint(tmp_path).step == 150
    assert len(list(tmp_path.iterdir())) == 5


def test_a_changed_digit_of_the_state_is_noticed(tmp_path):
    path = save(tmp_path, 3)
    text = (path / "state.json").read_text()
    (path / "state.json").write_text(text.replace('"a": 3', '"a": 2'))
    with pytest.raises(CheckpointError, match=r"state.json: damaged or missing \(its checksum differs"):
        load_checkpoint(path)


def test_the_files_of_a_checkpoint_have_the_mode_of_any_other_file(tmp_path):
    before = os.umask(0o027)
    try:
        save(tmp_path, 1)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}
    assert len(modes) == 3 and set(modes.values()) == {0o640}, modes
