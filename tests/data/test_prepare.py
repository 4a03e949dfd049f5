"""Preparing a folder: complete, repeatable, and whole or not there."""

import gzip
import json
import multiprocessing
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from longshort.data import default_data, load_tokenizer, parallel
from longshort.data.corpus import SPLITS
from longshort.data.errors import DataError
from longshort.data.prepare import prepare
from longshort.data.tokens import TokenFile

SRC, HERE = str(Path(__file__).parents[2] / "src"), str(Path(__file__).parent)


@pytest.fixture
def books(tmp_path):
    """Sixty documents in three files of different kinds."""
    folder = tmp_path / "books"
    folder.mkdir()
    texts = [f"Document {i}: " + "it was a dark and stormy night, é. " * (i % 7 + 1) for i in range(60)]
    (folder / "a.txt").write_text("\n<|endoftext|>\n".join(texts[:20]))
    (folder / "b.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in texts[20:40]).encode())
    )
    (folder / "c.txt").write_text("\n<|endoftext|>\n".join(texts[40:]))
    return folder


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def texts(prepared, split):
    ids = prepared.splits[split].tokens.tolist()
    end = prepared.tokenizer.end_of_document
    assert not ids or ids[-1] == end
    documents, start = [], 0
    for place, number in enumerate(ids):
        if number == end:
            documents.append(prepared.tokenizer.decode(ids[start:place]).strip())
            start = place + 1
    return documents


@pytest.mark.parametrize("options", [{}, {"tokenizer": "bytes"}, {"vocab_size": 400}])
def test_every_document_is_in_exactly_one_split(books, tmp_path, options):
    prepared = prepare(books, tmp_path / "out", workers=1, **options)
    found = [text for split in SPLITS for text in texts(prepared, split)]
    assert sorted(int(text.split(":")[0].split()[1]) for text in found) == list(range(60))
    assert all(text.endswith("stormy night, é.") for text in found)
    assert all(prepared.splits[split].documents >= 1 for split in SPLITS)


def test_the_folder_holds_what_it_should_and_opens_with_its_own_tokenizer(books, tmp_path):
    prepare(books, tmp_path / "out", vocab_size=300, workers=1)
    names = {f"{split}.{ending}" for split in SPLITS for ending in ("tokens", "json")} | {"tokenizer.json"}
    assert set(content(tmp_path / "out")) == names
    fingerprint = load_tokenizer(tmp_path / "out").fingerprint
    for split in SPLITS:
        TokenFile.open(tmp_path / "out" / f"{split}.tokens", verify=True, fingerprint=fingerprint)


@pytest.mark.parametrize("options", [{"tokenizer": "bytes"}, {"vocab_size": 300}])
def test_the_number_of_workers_does_not_change_a_byte(books, tmp_path, monkeypatch, options):
    monkeypatch.setattr(parallel, "_TASK_CHARACTERS", 500)
    for workers in (1, 3):
        prepare(books, tmp_path / str(workers), workers=workers, **options)
    assert content(tmp_path / "1") == content(tmp_path / "3")


def test_a_learned_vocabulary_can_be_used_again(books, tmp_path):
    learned = prepare(books, tmp_path / "a", vocab_size=300, workers=1)
    for place in (tmp_path / "a", tmp_path / "a" / "tokenizer.json"):
        used = prepare(books, tmp_path / f"b{place.suffix}", tokenizer=place, workers=1)
        assert used.tokenizer.fingerprint == learned.tokenizer.fingerprint
        assert used.splits["train"].tokens.tolist() == learned.splits["train"].tokens.tolist()


@pytest.mark.parametrize("part", [None, "2/2"])
def test_a_tokenizer_that_differs_beside_its_vocabulary_is_another_setting(books, tmp_path, part):
    own = prepare(books, tmp_path / "own", vocab_size=300, workers=1).tokenizer
    lower = tmp_path / "lower.json"
    lower.write_text(json.dumps(own.to_dict() | {"normalizer": {"type": "Lowercase"}}))
    assert load_tokenizer(lower).fingerprint == own.fingerprint
    first = prepare(books, tmp_path / "out", tokenizer=tmp_path / "own", workers=1, part=part and "1/2")
    with pytest.raises(DataError, match="other sources or settings"):
        prepare(books, tmp_path / "out", tokenizer=lower, workers=1, part=part)
    assert prepare(books, tmp_path / "out", tokenizer=first.folder, workers=1, part=part and "1/2").reused
    begins = tmp_path / "begins.json"  # what goes before a text is in none of the tokens
    begins.write_text(
        json.dumps(
            own.to_dict()
            | {
                "post_processor": {
                    "type": "ByteLevel",
                    "add_prefix_space": True,
                    "trim_offsets": True,
                    "use_regex": True,
                }
            }
        )
    )
    assert prepare(books, tmp_path / "out", tokenizer=begins, workers=1, part=part and "1/2").reused


def test_a_vocabulary_is_learned_from_training_text_alone(tmp_path):
    for name, word in (("train", "aaaaaaaa "), ("held", "zzzzzzzz ")):
        (tmp_path / f"{name}.txt").write_text(word * 50)
    prepared = prepare(
        tmp_path / "train.txt", tmp_path / "out", validation=tmp_path / "held.txt", vocab_size=262, workers=1
    )
    assert len(prepared.tokenizer.encode("aaaaaaaa")) < 8
    assert len(prepared.tokenizer.encode("zzzzzzzz")) == 8


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_file_of_training_is_not_held_out_too(tmp_path, split):
    for name in ("a.txt", "b.txt"):
        (tmp_path / "books" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "books" / name).write_text("It was a dark and stormy night.")
    (tmp_path / "other").symlink_to(tmp_path / "books")
    held = tmp_path / "other" / "b.txt"
    with pytest.raises(DataError, match=f"^{held}: a source of training and of {split}; move it out"):
        prepare(tmp_path / "books", tmp_path / "out", **{split: held})
    assert not (tmp_path / "out").exists()
    prepare(tmp_path / "books" / "a.txt", tmp_path / "out", **{split: held})


def test_named_validation_text_leaves_all_sources_to_training(books, tmp_path):
    (tmp_path / "held.txt").write_text("held out")
    prepared = prepare(books, tmp_path / "out", validation=tmp_path / "held.txt")
    assert prepared.splits["train"].documents == 60
    assert texts(prepared, "validation") == ["held out"]
    assert len(prepared.splits["test"]) == 0


def test_a_hub_dataset_keeps_its_own_splits(tmp_path, monkeypatch):
    class Datasets:
        @staticmethod
        def load_dataset(name, config, *, split, streaming):
            return [{"text": f"{name} {split}"}]

        @staticmethod
        def get_dataset_split_names(name, config):
            return ["train", "validation", "test", "extra"]

    monkeypatch.setitem(sys.modules, "datasets", Datasets)
    prepared = prepare("hf:deepmind/pg19", tmp_path / "out")
    assert {split: texts(prepared, split) for split in SPLITS} == {
        split: [f"deepmind/pg19 {split}"] for split in SPLITS
    }


def test_progress_goes_through_the_stages_to_the_end(books, tmp_path):
    told = []
    prepare(books, tmp_path / "out", vocab_size=300, workers=1, progress=lambda *call: told.append(call))
    assert list(dict.fromkeys(stage for stage, _, _ in told)) == ["reading", "learning the vocabulary", "tokenizing"]
    size = sum(path.stat().st_size for path in books.iterdir())
    assert told[-1] == ("tokenizing", size, size)


def test_the_same_again_is_found_and_not_made_again(books, tmp_path):
    first = prepare(books, tmp_path / "out")
    before = (tmp_path / "out" / "train.tokens").stat().st_mtime_ns
    second = prepare(books, tmp_path / "out")
    assert (first.reused, second.reused) == (False, True)
    assert (tmp_path / "out" / "train.tokens").stat().st_mtime_ns == before


@pytest.mark.parametrize("options", [{"seed": 1}, {"split": (0.5, 0.25, 0.25)}, {"vocab_size": 300, "workers": 1}])
def test_other_settings_do_not_replace_a_folder_unless_forced(books, tmp_path, options):
    prepare(books, tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(DataError, match="holds data from other sources or settings; give another --out, or --force"):
        prepare(books, tmp_path / "out", **options)
    assert content(tmp_path / "out") == before
    prepare(books, tmp_path / "out", force=True, **options)
    assert content(tmp_path / "out") != before


def test_changed_sources_do_not_replace_a_folder_unless_forced(books, tmp_path):
    prepare(books, tmp_path / "out")
    (books / "a.txt").write_text("changed")
    with pytest.raises(DataError, match="other sources or settings"):
        prepare(books, tmp_path / "out")


@pytest.mark.parametrize("name", ["thesis.tex", "tokenizer.json", "train.json"])
def test_a_folder_of_other_things_is_left_alone(books, tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("{}")
    with pytest.raises(DataError, match=f"holds other files \\({name}\\)"):
        prepare(books, tmp_path / "out")
    assert content(tmp_path / "out") == {name: b"{}"}


def test_a_damaged_folder_is_made_again(books, tmp_path):
    prepare(books, tmp_path / "out")
    whole = content(tmp_path / "out")
    (tmp_path / "out" / "validation.tokens").write_bytes(b"short")
    assert not prepare(books, tmp_path / "out").reused
    assert content(tmp_path / "out") == whole


def test_an_error_half_way_leaves_an_empty_folder(books, tmp_path):
    (books / "d.txt").write_bytes(b"fine until here \xff")
    with pytest.raises(DataError, match=r"d\.txt: not UTF-8"):
        prepare(books, tmp_path / "out", vocab_size=None)
    assert content(tmp_path / "out") == {}


@pytest.mark.parametrize("text", ["", "\n \n", "<|endoftext|>\n<|endoftext|>\n"])
def test_a_corpus_of_nothing_is_refused(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(DataError, match="no text for training"):
        prepare(tmp_path / "a.txt", tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"tokenizer": "bytes", "vocab_size": 300},
            "tokenizer and vocab_size must not both be given, got bytes and 300",
        ),
        ({"vocab_size": 10}, "vocab_size must be from 257 .* got 10"),
        ({"workers": 0}, "workers must be from 1 to 1,024, got 0"),
        ({"split": (1, 1, 1)}, "split must be three shares"),
        ({"validation": "nowhere"}, "nowhere: no such file or folder"),
    ],
)
def test_wrong_settings_are_refused(books, tmp_path, options, complaint):
    with pytest.raises(DataError, match=complaint):
        prepare(books, tmp_path / "out", **options)


def test_a_file_in_place_of_the_folder_is_refused(books, tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(DataError, match="out: File exists"):
        prepare(books, tmp_path / "out")


def test_a_process_that_dies_is_one_clear_error(books, tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "_TASK_CHARACTERS", 100)

    def kill_all(stage, done, total):  # one that dies between two tasks takes nothing with it
        for process in multiprocessing.active_children():
            process.kill()

    with pytest.raises(DataError, match="a tokenizing process died"):
        prepare(books, tmp_path / "out", workers=2, progress=kill_all)
    assert content(tmp_path / "out") == {}


KILLED_AT_EVERY_STEP = """
    import sys
    from pathlib import Path
    sys.path[:0] = {paths!r}
    from killed import until_it_ends
    from longshort.data.errors import DataError
    from longshort.data.prepare import prepare
    from longshort.data.tokens import TokenFile

    books, out = Path({books!r}), Path({out!r})
    SPLITS = ("train", "validation", "test")

    def whole():
        # As a user opens a folder: train first; if that is there, all is there, and of one making.
        try:
            train = TokenFile.open(out / "train.tokens", verify=True)
        except DataError:
            return None
        recipes = {{TokenFile.open(out / f"{{split}}.tokens", verify=True).header["recipe"] for split in SPLITS}}
        assert recipes == {{train.header["recipe"]}}, recipes
        assert (out / "tokenizer.json").is_file()
        return train.header["recipe"]

    def old_data():
        if {replace}:
            prepare(books, out, seed=1, force=True)

    seen = set()
    work = lambda: prepare(books, out, seed=2, force={replace})
    step = until_it_ends(work, lambda: seen.add(whole()), before=old_data)
    assert prepare(books, out, seed=2).reused
    print(step, len(seen))
"""


@pytest.mark.parametrize("replace", [False, True])
def test_killed_at_any_touch_of_a_file_nothing_half_written_is_taken_for_whole(books, tmp_path, replace):
    code = KILLED_AT_EVERY_STEP.format(paths=[SRC, HERE], books=str(books), out=str(tmp_path / "out"), replace=replace)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps, outcomes = map(int, done.stdout.split())
    assert steps > 15
    # Nothing or the new data; and, where it replaces, the old data until the end.
    assert outcomes == (3 if replace else 2)
    prepare(books, tmp_path / "fresh", seed=2)
    assert content(tmp_path / "out") == content(tmp_path / "fresh")


def test_killed_while_tokenizing_it_leaves_no_process_and_runs_again(books, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import multiprocessing, sys, time
        sys.path.insert(0, {SRC!r})
        from longshort.data.prepare import prepare

        def progress(stage, done, total):
            if stage == "tokenizing":
                print(*(child.pid for child in multiprocessing.active_children()), flush=True)
                time.sleep(60)

        if __name__ == "__main__":
            prepare({str(books)!r}, {str(tmp_path / "out")!r}, workers=2, progress=progress)
        """)
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        children = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    assert children
    deadline = time.monotonic() + 20
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, children))
    with pytest.raises(DataError, match="no such token file"):
        TokenFile.open(tmp_path / "out" / "train.tokens")
    prepare(books, tmp_path / "out")
    prepare(books, tmp_path / "fresh")
    assert content(tmp_path / "out") == content(tmp_path / "fresh")


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Nobody may be there to collect an orphan; a dead one that waits for that is dead.
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def test_two_runs_at_once_share_the_work(books, tmp_path):
    code = f"""
import sys, time
sys.path.insert(0, {SRC!r})
from longshort.data.prepare import prepare
print(prepare({str(books)!r}, {str(tmp_path / "out")!r}, progress=lambda *told: time.sleep(0.7)).reused)
"""
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [run.communicate()[0].strip() for run in runs]
    assert sorted(answers) == ["False", "True", "True"]


def test_default_data_is_the_standard_library_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSHORT_CACHE", str(tmp_path))
    told = []
    folder = default_data(progress=lambda *call: told.append(call))
    assert folder.parent == tmp_path
    assert folder.name.startswith(f"stdlib-{sys.version_info[0]}.{sys.version_info[1]}")
    assert load_tokenizer(folder).vocab_size == 257
    assert all(len(TokenFile.open(folder / f"{split}.tokens", verify=True)) > 100_000 for split in SPLITS)
    assert told
    told.clear()
    assert default_data(cache_dir=tmp_path, progress=lambda *call: told.append(call)) == folder
    assert told == []


@pytest.mark.parametrize("name", ["train.tokens", "validation.json", "tokenizer.json"])
def test_one_changed_byte_has_the_folder_made_again(tmp_path, name):
    (tmp_path / "text.txt").write_text("to be or not to be " * 40)
    options = {"vocab_size": 270, "split": (0.5, 0.25, 0.25), "workers": 1}
    out = prepare(tmp_path / "text.txt", tmp_path / "out", **options).folder
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    content = before[name]
    digit = content.rindex(b"1") if name == "validation.json" else content.rindex(b"t") if b"t" in content else 4
    (out / name).write_bytes(content[:digit] + bytes([content[digit] ^ 1]) + content[digit + 1 :])
    assert not prepare(tmp_path / "text.txt", out, **options).reused
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_an_empty_name_of_a_tokenizer_is_not_bytes(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("text " * 50)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="no such tokenizer"):
        prepare(["a.txt"], tmp_path / "out", tokenizer="")
