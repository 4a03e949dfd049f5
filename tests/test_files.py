"""Files and folders that are either whole or not there."""

import json
import os
import subprocess
import sys

import pytest

from longshort import files


def test_text_and_bytes_are_written_as_they_are(tmp_path):
    assert files.write_atomically(tmp_path / "a", "häuser\n").read_bytes() == "häuser\n".encode()
    assert files.write_atomically(tmp_path / "b", b"\x00\xff").read_bytes() == b"\x00\xff"


def test_folders_on_the_way_are_made(tmp_path):
    assert files.write_atomically(tmp_path / "one" / "two" / "file", "x").exists()


def test_an_older_file_is_replaced(tmp_path):
    (tmp_path / "file").write_text("older and longer")
    files.write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_others_may_read_it_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        path = files.write_atomically(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_an_interruption_leaves_the_older_file_and_no_draft(tmp_path, monkeypatch, moment):
    (tmp_path / "file").write_text("older")

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "older"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_json_ends_in_a_newline_and_reads_back(tmp_path):
    text = files.write_json(tmp_path / "a.json", {"b": [1, None]}).read_text()
    assert text.endswith("}\n")
    assert json.loads(text) == {"b": [1, None]}


def test_json_refuses_what_json_cannot_say_and_writes_nothing(tmp_path):
    with pytest.raises(ValueError):
        files.write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert not list(tmp_path.iterdir())


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match=f"{name}: not a file"):
            files.write_atomically(tmp_path / name, "x")
        with pytest.raises(ValueError, match=f"{name}: not a file"):
            files.check_replaceable(tmp_path / name, "mark")
    assert (tmp_path / "pipe").is_fifo() and len(list(tmp_path.iterdir())) == 2


def test_a_file_is_replaceable_if_it_holds_the_mark(tmp_path):
    files.check_replaceable(tmp_path / "new", "mark")
    (tmp_path / "ours").write_text("with the mark")
    files.check_replaceable(tmp_path / "ours", "mark")
    (tmp_path / "theirs").write_bytes(b"precious \xff")
    with pytest.raises(ValueError, match="theirs: already exists and is not one of our files"):
        files.check_replaceable(tmp_path / "theirs", "mark")


def test_a_new_folder_appears_when_it_is_whole(tmp_path):
    with files.new_folder(tmp_path / "one" / "folder") as draft:
        (draft / "file").write_text("x")
        assert not (tmp_path / "one" / "folder").exists()
    assert (tmp_path / "one" / "folder" / "file").read_text() == "x"
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["folder"]


def test_a_new_folder_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), files.new_folder(tmp_path / "folder") as draft:
        (draft / "file").write_text("x")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_new_folder_takes_the_place_of_an_empty_one(tmp_path):
    (tmp_path / "folder").mkdir()
    with files.new_folder(tmp_path / "folder") as draft:
        (draft / "file").write_text("x")
    assert (tmp_path / "folder" / "file").read_text() == "x"


@pytest.mark.parametrize("kind", ["full", "file", "link", "link to nothing"])
def test_a_new_folder_never_takes_the_place_of_another(tmp_path, kind):
    if kind == "full":
        (tmp_path / "folder" / "inside").mkdir(parents=True)
    elif kind == "file":
        (tmp_path / "folder").write_text("precious")
    else:
        (tmp_path / "folder").symlink_to("/dev/null" if kind == "link" else tmp_path / "nowhere")
    with pytest.raises(ValueError, match="already exists"), files.new_folder(tmp_path / "folder"):
        raise AssertionError("the block must not run")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_others_may_read_a_new_folder_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        with files.new_folder(tmp_path / "folder") as draft:
            (draft / "file").touch(mode=0o600)
    finally:
        os.umask(before)
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "folder" / "file").stat().st_mode & 0o777 == 0o640


HOLD = "import sys, time; from pathlib import Path; from longshort.files import alone_in\n"
HOLD += "with alone_in(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"


def test_a_folder_is_one_process_s_alone_until_it_ends_however_it_ends(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=f"{tmp_path}: in use by another process"), files.alone_in(tmp_path):
            raise AssertionError("the block must not run")
    finally:
        holder.kill()
        holder.communicate()
    with files.alone_in(tmp_path):
        pass


def test_a_folder_is_free_again_after_a_block_that_failed(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), files.alone_in(tmp_path):
            raise KeyboardInterrupt


def test_a_lock_file_that_an_earlier_process_left_keeps_nobody_out(tmp_path):
    (tmp_path / ".lock").touch()
    with files.alone_in(tmp_path):
        pass


def test_where_files_cannot_be_locked_nobody_is_kept_out(tmp_path, monkeypatch):
    def refused(self, **options):
        raise NotImplementedError("no flock")

    monkeypatch.setattr(files.FileLock, "acquire", refused)
    with files.alone_in(tmp_path):
        pass


@pytest.mark.parametrize("indent", [None, 2])
def test_a_seal_shows_every_change_and_is_not_part_of_the_content(indent):
    content = {"step": 12, "loss": 0.5, "text": 'says , "crc32": "00000000"} and é'}
    text = files.sealed(content, indent=indent)
    assert files.unsealed(text) == content
    for place in range(len(text)):
        changed = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
        try:
            found = files.unsealed(changed)
        except ValueError:
            continue
        found = {key: value for key, value in found.items() if key in content}
        assert found == content  # the seal itself was hit


def test_json_without_a_seal_is_taken_as_it_is():
    assert files.unsealed('{"step": 12}') == {"step": 12}
    assert files.unsealed("[1]") == [1]


def test_a_result_that_could_not_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mark")
    with pytest.raises(ValueError, match=r"file: not a folder, so new\.json cannot be written there"):
        files.check_replaceable(tmp_path / "file" / "new.json", "mark")
    files.check_replaceable(tmp_path / "not" / "yet" / "new.json", "mark")
    assert not (tmp_path / "not").exists()
    monkeypatch.setattr(os, "access", lambda folder, mode: folder != tmp_path)
    with pytest.raises(ValueError, match=r"no permission to write new\.json there; give another name"):
        files.check_replaceable(tmp_path / "not" / "yet" / "new.json", "mark")
