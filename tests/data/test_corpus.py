"""Sources: files, folders, Hugging Face datasets, the standard library."""

import gzip
import os
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from longshort.data.corpus import SPLITS, HubDataset, open_corpus, standard_library_corpus
from longshort.data.errors import DataError


def write(root, **texts):
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path):
    write(tmp_path, b_txt="2", a__z_txt="1", c_jsonl='{"text": "3"}')
    assert list(open_corpus([tmp_path]).documents()) == ["1", "2", "3"]


def test_other_and_hidden_files_of_a_folder_are_left_out(tmp_path):
    write(tmp_path, a_txt="1", b_py="2", c_json="3")
    (tmp_path / ".hidden.txt").write_text("4")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "d.txt").write_text("5")
    assert list(open_corpus([tmp_path]).documents()) == ["1"]


def test_endings_in_capitals_are_the_same(tmp_path):
    (tmp_path / "A.TXT").write_text("1")
    (tmp_path / "B.JSONL").write_text('{"text": "2"}')
    (tmp_path / "C.JSONL.GZ").write_bytes(gzip.compress(b'{"text": "3"}'))
    assert list(open_corpus([tmp_path]).documents()) == ["1", "2", "3"]


def test_a_file_named_itself_is_read_whatever_its_ending(tmp_path):
    write(tmp_path, notes_md="1")
    assert list(open_corpus([str(tmp_path / "notes.md")]).documents()) == ["1"]


def test_a_file_in_two_sources_is_named(tmp_path):
    write(tmp_path, a_txt="1", b__c_txt="2")
    (tmp_path / "link.md").symlink_to(tmp_path / "a.txt")
    for sources in (["a.txt", "a.txt"], ["a.txt", "b/../a.txt"], [".", "b"], ["b", "b"], ["a.txt", "link.md"]):
        with pytest.raises(DataError, match=r"(txt|md): twice in the sources; give it once"):
            open_corpus([tmp_path / source for source in sources])
    with pytest.raises(DataError, match="hf:a/b:train: twice in the sources"):
        open_corpus(["hf:a/b", "hf:a/b:train"])


def test_folders_that_are_links_are_read_too_and_once(tmp_path):
    write(tmp_path, books__a_txt="1", elsewhere__b_txt="2")
    (tmp_path / "books" / "more").symlink_to(tmp_path / "elsewhere")
    assert list(open_corpus([tmp_path / "books"]).documents()) == ["1", "2"]
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "books")
    with pytest.raises(DataError, match="books/more/loop: twice in the sources; give it once"):
        open_corpus([tmp_path / "books"])


@pytest.mark.parametrize("source", ["", " "])
def test_an_empty_source_is_not_the_current_folder(source, tmp_path, monkeypatch):
    write(tmp_path, a_txt="1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"sources must be files, folders or hf:OWNER/NAME, got '{source}'"):
        open_corpus([source])


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    write(tmp_path, a_txt="1", b__c_txt="2")
    scandir = os.scandir

    def closed(path):
        if Path(path).name == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(PermissionError, match="Permission denied"):
        open_corpus([tmp_path])


def test_sources_are_read_in_the_order_given(tmp_path):
    write(tmp_path, a_txt="1", b_txt="2")
    assert list(open_corpus([tmp_path / "b.txt", tmp_path / "a.txt"]).documents()) == ["2", "1"]


def test_bytes_read_count_up_to_the_size(tmp_path):
    write(tmp_path, a_txt="one", b_txt="", c_txt="three")
    corpus = open_corpus([tmp_path])
    read = [piece.read for piece in corpus.pieces()]
    assert read == sorted(read)
    assert read[-1] == corpus.size == 8


def test_identity_changes_with_the_files(tmp_path):
    write(tmp_path, a_txt="one")
    before = open_corpus([tmp_path]).identity()
    write(tmp_path, a_txt="other")
    assert open_corpus([tmp_path]).identity() != before


def test_a_folder_without_text_says_what_it_looked_for(tmp_path):
    write(tmp_path, a_pdf="x")
    with pytest.raises(DataError, match=r"holds no text files; names must end in \.txt, \.jsonl"):
        open_corpus([tmp_path])


def test_a_missing_source_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match=r"pipe.txt: neither a file nor a folder"):
        open_corpus([tmp_path / "pipe.txt"])
    with pytest.raises(DataError, match="nowhere: no such file or folder"):
        open_corpus([tmp_path / "nowhere"])


def test_no_sources_are_refused():
    with pytest.raises(DataError, match="sources must be files, folders or hf:OWNER/NAME, got none"):
        open_corpus([])


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the package `datasets`, which needs the network."""
    asked = []
    records = {"train": [{"text": "one"}, {"text": " "}, {"text": "two"}], "test": [{"text": "three"}]}

    def load_dataset(name, config, *, split, streaming):
        asked.append((name, config, split, streaming))
        return records[split]

    module = SimpleNamespace(load_dataset=load_dataset, get_dataset_split_names=lambda name, config: list(records))
    monkeypatch.setitem(sys.modules, "datasets", module)
    return SimpleNamespace(asked=asked, records=records)


def test_a_hub_dataset_is_streamed(hub):
    assert list(open_corpus(["hf:deepmind/pg19"]).documents()) == ["one", "two"]
    assert list(open_corpus(["hf:deepmind/pg19@small:test"]).documents()) == ["three"]
    assert hub.asked == [("deepmind/pg19", None, "train", True), ("deepmind/pg19", "small", "test", True)]


def test_a_hub_dataset_without_text_is_refused(hub):
    hub.records["train"] = [{"body": "x"}]
    with pytest.raises(DataError, match=r"hf:a/b:train: records must have a string 'text', got the fields \['body'\]"):
        list(open_corpus(["hf:a/b"]).documents())


def test_whatever_goes_wrong_at_the_hub_is_one_line(hub):
    with pytest.raises(DataError) as raised:
        list(open_corpus(["hf:a/b:nosuch"]).documents())
    assert str(raised.value) == "hf:a/b:nosuch: cannot be read: KeyError: 'nosuch'"


def test_hub_without_its_package_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="pip install datasets"):
        list(open_corpus(["hf:a/b"]).documents())


def test_an_empty_hub_name_is_refused():
    with pytest.raises(DataError, match="must be hf:OWNER/NAME"):
        HubDataset.parse("hf:")


def test_standard_library_is_some_megabytes_in_three_parts_without_overlap():
    corpora = standard_library_corpus()
    names = {split: {part.name for part in corpora[split].parts} for split in SPLITS}
    assert 5e6 < sum(corpus.size for corpus in corpora.values()) < 40e6
    assert all(corpora[split].size > 100_000 for split in SPLITS)
    assert sum(map(len, names.values())) == len(set.union(*names.values()))


def test_standard_library_holds_no_installed_packages_and_no_tests():
    parts = [part for corpus in standard_library_corpus().values() for part in corpus.parts]
    folders = {folder for part in parts for folder in Path(part.name).parts[:-1]}
    assert not folders & {"site-packages", "dist-packages", "test", "tests"}
    assert all(part.path.is_relative_to(sysconfig.get_path("stdlib")) for part in parts)


def test_a_python_without_source_text_is_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match="too little of its standard library"):
        standard_library_corpus()
