"""Parts of a corpus: joined, they are what one call makes, byte for byte; anything else is refused by name."""

import gzip
import json
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longshort.cli import app
from longshort.data.corpus import SPLITS, Corpus, open_corpus, standard_library_corpus
from longshort.data.errors import DataError
from longshort.data.folder import MANIFEST, PARTS
from longshort.data.join import join
from longshort.data.parallel import count_documents
from longshort.data.parts import Part, Shared
from longshort.data.prepare import prepare
from longshort.data.tokenizer import BPETokenizer
from longshort.data.tokens import TokenFile
from longshort.files import unsealed

SRC, HERE = str(Path(__file__).parents[2] / "src"), str(Path(__file__).parent)


@pytest.fixture
def books(tmp_path):
    """Sixty documents in five files: many in one, one in one, none in one."""
    folder = tmp_path / "books"
    folder.mkdir()
    texts = [f"Document {i}: " + "it was a dark and stormy night, é. " * (i % 7 + 1) for i in range(60)]
    (folder / "a.txt").write_text("\n<|endoftext|>\n".join(texts[:37]))
    (folder / "b.txt").write_text(" \n")
    (folder / "c.txt").write_text(texts[37])
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[38:50])
    (folder / "d.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "e.txt").write_text("\n<|endoftext|>\n".join(texts[50:]))
    return folder


def content(folder):
    """The files of a prepared folder, without the parts that it was joined from."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in (PARTS, MANIFEST)}


def in_parts(sources, out, count, **options):
    for part in reversed(Part.all(count)):
        prepare(sources, out, part=part, **options)
    return join(out, count)


def documents(folder, split):
    """The documents of a token file, as tuples of tokens."""
    file = TokenFile.open(folder / f"{split}.tokens", verify=True)
    found, start, ids = [], 0, file.tokens.tolist()
    for place, number in enumerate(ids):
        if number == file.end_of_document:
            found.append(tuple(ids[start:place]))
            start = place + 1
    assert start == len(ids)
    return found


@pytest.mark.parametrize("count", [1, 7, 61])
def test_joined_parts_are_what_one_call_makes(books, tmp_path, count):
    prepare(books, tmp_path / "one")
    joined = in_parts(books, tmp_path / "parts", count)
    assert not joined.reused
    assert content(tmp_path / "parts") == content(tmp_path / "one")


@pytest.mark.parametrize(
    "options",
    [
        {"vocab_size": 300, "workers": 1},
        {"split": (1.0, 0.0, 0.0)},
        {"split": (0.5, 0.25, 0.25), "seed": 3},
        {"validation": "held", "test": "held"},
        {"split": (0.98, 0.01, 0.01)},  # too few documents: each is cut
    ],
)
def test_whatever_the_settings(books, tmp_path, options):
    (tmp_path / "held").mkdir()
    for name in "xyz":
        (tmp_path / "held" / f"{name}.txt").write_text(f"held out {name}\n<|endoftext|>\nand more {name}")
    options = {key: tmp_path / "held" if value == "held" else value for key, value in options.items()}
    prepare(books, tmp_path / "one", **options)
    for count in (3, 5):
        in_parts(books, tmp_path / f"parts{count}", count, **options)
        assert content(tmp_path / f"parts{count}") == content(tmp_path / "one")


def test_the_joined_documents_are_those_of_the_parts_in_order(books, tmp_path):
    in_parts(books, tmp_path / "out", 4)
    for split in SPLITS:
        held = [d for part in Part.all(4) for d in documents(part.folder(tmp_path / "out"), split)]
        assert documents(tmp_path / "out", split) == held
    assert sum(len(documents(tmp_path / "out", split)) for split in SPLITS) == 60


def test_every_part_has_its_share_of_the_documents(books, tmp_path):
    in_parts(books, tmp_path / "out", 4)
    for part in Part.all(4):
        assert sum(len(documents(part.folder(tmp_path / "out"), split)) for split in SPLITS) == 15


@pytest.mark.parametrize("total", [0, 1, 5, 100])
def test_parts_cover_the_documents_without_gap_or_overlap(total):
    ranges = [part.documents(total) for part in Part.all(7)]
    assert (ranges[0][0], ranges[-1][1]) == (0, total)
    assert all(one[1] == next[0] for one, next in pairwise(ranges))
    assert max(stop - start for start, stop in ranges) - min(stop - start for start, stop in ranges) <= 1


def test_a_part_opens_only_the_files_that_hold_its_documents(books, monkeypatch):
    corpus = open_corpus([books])
    counts = [37, 0, 1, 12, 10]
    excerpt = corpus.excerpt(counts, 38, 50)
    assert [part.name for part in excerpt.parts] == ["d.jsonl.gz"]
    assert [text.split(":")[0] for text in excerpt.documents()] == [f"Document {n}" for n in range(38, 50)]
    assert corpus.excerpt(counts, 5, 5).parts == ()


def test_the_vocabulary_is_learned_once(books, tmp_path, monkeypatch):
    learned = []
    train = BPETokenizer.train
    monkeypatch.setattr(BPETokenizer, "train", lambda *a: learned.append(1) or train(*a))
    in_parts(books, tmp_path / "out", 3, vocab_size=300, workers=1)
    assert learned == [1]


@pytest.mark.parametrize("workers", [1, 2])
def test_documents_are_counted_by_any_number_of_processes(books, workers):
    assert list(count_documents(open_corpus([books]).parts, workers)) == [37, 0, 1, 12, 10]


def test_a_part_done_is_found_and_a_joined_folder_too(books, tmp_path):
    in_parts(books, tmp_path / "out", 2)
    assert prepare(books, tmp_path / "out", part="2/2").reused
    assert join(tmp_path / "out", 2).reused
    assert prepare(books, tmp_path / "out").reused


def test_the_parts_are_not_needed_once_joined(books, tmp_path):
    in_parts(books, tmp_path / "out", 2)
    shutil.rmtree(tmp_path / "out" / PARTS)
    assert prepare(books, tmp_path / "out").reused


def test_the_manifest_names_the_parts_with_their_checksums(books, tmp_path):
    in_parts(books, tmp_path / "out", 2)
    manifest = unsealed((tmp_path / "out" / MANIFEST).read_text())
    assert [entry["part"] for entry in manifest["parts"]] == ["1/2", "2/2"]
    for part, entry in zip(Part.all(2), manifest["parts"], strict=True):
        for split in SPLITS:
            header = TokenFile.open(part.folder(tmp_path / "out") / f"{split}.tokens", verify=True).header
            assert entry[split] == {key: header[key] for key in ("count", "documents", "checksum")}
    assert manifest["recipe"] == TokenFile.open(tmp_path / "out" / "train.tokens").header["recipe"]


def test_data_that_replaces_a_joined_folder_takes_its_manifest_away(books, tmp_path):
    in_parts(books, tmp_path / "out", 2)
    prepare(books, tmp_path / "out", seed=5, force=True)
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_missing_parts_are_named(books, tmp_path):
    for part in ("1/4", "3/4"):
        prepare(books, tmp_path / "out", part=part)
    with pytest.raises(DataError, match=r"parts: missing or unfinished: 2/4, 4/4; run longshort data .* --part 2/4"):
        join(tmp_path / "out", 4)
    assert content(tmp_path / "out") == {}


def test_an_unfinished_part_counts_as_missing(books, tmp_path):
    for part in Part.all(2):
        prepare(books, tmp_path / "out", part=part)
    (tmp_path / "out" / PARTS / "2-of-2" / "train.json").unlink()
    with pytest.raises(DataError, match="missing or unfinished: 2/2"):
        join(tmp_path / "out", 2)


@pytest.mark.parametrize("options", [{"seed": 9}, {"vocab_size": 300, "workers": 1}])
def test_a_part_of_something_else_is_refused_by_name(books, tmp_path, options):
    for part in Part.all(2):
        prepare(books, tmp_path / "out", part=part)
        prepare(books, tmp_path / "other", part=part, **options)
    folder = tmp_path / "out" / PARTS / "2-of-2"
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "other" / PARTS / "2-of-2", folder)
    with pytest.raises(DataError, match=r"2-of-2/train.tokens: not part 2/2 of these sources .*--part 2/2 --force"):
        join(tmp_path / "out", 2)


def test_a_part_with_another_tokenizer_is_refused_by_name(books, tmp_path):
    for part in Part.all(2):
        prepare(books, tmp_path / "out", part=part)
    prepare(books, tmp_path / "other", part=Part(1, 2), vocab_size=300, workers=1)
    shared, other = (Shared.read(tmp_path / name) for name in ("out", "other"))
    replace(shared, tokenizer=other.tokenizer).write(tmp_path / "out")
    with pytest.raises(DataError, match=r"1-of-2/train\.tokens: not part 1/2"):
        join(tmp_path / "out", 2)


def test_a_part_in_the_place_of_another_is_refused_by_name(books, tmp_path):
    for part in Part.all(3):
        prepare(books, tmp_path / "out", part=part)
    shutil.rmtree(tmp_path / "out" / PARTS / "3-of-3")
    shutil.copytree(tmp_path / "out" / PARTS / "2-of-3", tmp_path / "out" / PARTS / "3-of-3")
    with pytest.raises(DataError, match=r"3-of-3/train\.tokens: not part 3/3"):
        join(tmp_path / "out", 3)


def test_a_damaged_part_is_refused_by_name_and_leaves_nothing(books, tmp_path):
    for part in Part.all(2):
        prepare(books, tmp_path / "out", part=part)
    damaged = tmp_path / "out" / PARTS / "2-of-2" / "train.tokens"
    tokens = damaged.read_bytes()
    damaged.write_bytes(tokens[:-4] + b"\x01\x00" + tokens[-2:])
    with pytest.raises(DataError, match=r"2-of-2/train.tokens: damaged: its checksum differs"):
        join(tmp_path / "out", 2)
    assert content(tmp_path / "out") == {}
    prepare(books, tmp_path / "out", part="2/2")
    assert damaged.read_bytes() == tokens


def test_damaged_shared_facts_are_made_again(books, tmp_path):
    prepare(books, tmp_path / "out", part="1/2", vocab_size=300, workers=1)
    for name in ("shared.json", "tokenizer.json"):
        path = tmp_path / "out" / PARTS / name
        before = path.read_bytes()
        path.write_bytes(before[:-20])
        prepare(books, tmp_path / "out", part="2/2", vocab_size=300, workers=1)
        assert path.read_bytes() == before


def test_parts_of_other_settings_are_not_mixed_unless_forced(books, tmp_path):
    prepare(books, tmp_path / "out", part="1/2")
    with pytest.raises(DataError, match="parts: holds parts of other sources or settings; give another --out"):
        prepare(books, tmp_path / "out", part="2/2", seed=1)
    for part in Part.all(2):
        prepare(books, tmp_path / "out", part=part, seed=1, force=True)
    join(tmp_path / "out", 2)
    prepare(books, tmp_path / "one", seed=1)
    assert content(tmp_path / "out") == content(tmp_path / "one")


def test_parts_and_whole_data_do_not_share_a_folder_unless_they_are_the_same(books, tmp_path):
    prepare(books, tmp_path / "whole", seed=1)
    with pytest.raises(DataError, match="holds data from other sources or settings"):
        prepare(books, tmp_path / "whole", part="1/2")
    prepare(books, tmp_path / "parts", part="1/2")
    with pytest.raises(DataError, match=r"holds other files \(parts\)"):
        prepare(books, tmp_path / "parts")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("")
    with pytest.raises(DataError, match=r"holds other files \(thesis.tex\)"):
        prepare(books, tmp_path / "thesis", part="1/2")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ("0/8", "part must be from 1/8 to 8/8, got 0/8"),
        ("9/8", "part must be from 1/8 to 8/8, got 9/8"),
        ("1/0", "the number of parts must be from 1 to 100,000, got 0"),
        ("half", "part must be NUMBER/COUNT, such as 1/8 to 8/8, got 'half'"),
        ("-1/8", "part must be NUMBER/COUNT"),
    ],
)
def test_wrong_parts_are_refused(books, tmp_path, part, complaint):
    with pytest.raises(DataError, match=complaint):
        prepare(books, tmp_path / "out", part=part)
    assert not (tmp_path / "out").exists()


def test_no_parts_to_join_is_one_clear_line(tmp_path):
    with pytest.raises(DataError, match=r"out: holds no parts; make them: longshort data SOURCES .* --part 1/4"):
        join(tmp_path / "out", 4)
    with pytest.raises(DataError, match="the number of parts must be from 1"):
        join(tmp_path / "out", 0)


def test_text_of_nothing_is_refused_when_it_is_joined(tmp_path):
    (tmp_path / "a.txt").write_text("\n \n")
    prepare(tmp_path / "a.txt", tmp_path / "out", part="1/1")
    with pytest.raises(DataError, match="no text for training"):
        join(tmp_path / "out", 1)


def test_the_corpora_of_each_split_can_be_parted(tmp_path):
    corpora = {
        split: Corpus(corpus.parts[:7], corpus.description) for split, corpus in standard_library_corpus().items()
    }
    prepare(corpora, tmp_path / "one")
    in_parts(corpora, tmp_path / "parts", 3)
    assert content(tmp_path / "parts") == content(tmp_path / "one")


KILLED_AT_EVERY_STEP = """
    import sys
    from pathlib import Path
    sys.path[:0] = {paths!r}
    from killed import until_it_ends
    from longshort.data.errors import DataError
    from longshort.data.join import join
    from longshort.data.prepare import prepare
    from longshort.data.tokens import TokenFile

    books, out = Path({books!r}), Path({out!r})

    def the_part_is_whole_or_refused():
        try:
            join(out, 2)
        except DataError as error:
            assert "missing or unfinished: 2/2" in str(error), error

    def the_joined_folder_is_whole_or_unfinished():
        # As a user opens a folder: train first; if that is there, all is there.
        try:
            TokenFile.open(out / "train.tokens")
        except DataError:
            return
        for split in ("train", "validation", "test"):
            TokenFile.open(out / f"{{split}}.tokens", verify=True)

    prepare(books, out, part="1/2")
    if {joining}:
        prepare(books, out, part="2/2")
        steps = until_it_ends(lambda: join(out, 2), the_joined_folder_is_whole_or_unfinished)
    else:
        steps = until_it_ends(lambda: prepare(books, out, part="2/2"), the_part_is_whole_or_refused)
    assert join(out, 2).reused
    print(steps)
"""


@pytest.mark.parametrize("joining", [False, True])
def test_killed_at_any_touch_of_a_file_nothing_half_written_is_taken_for_whole(books, tmp_path, joining):
    code = KILLED_AT_EVERY_STEP.format(paths=[SRC, HERE], books=str(books), out=str(tmp_path / "out"), joining=joining)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15
    prepare(books, tmp_path / "one")
    assert content(tmp_path / "out") == content(tmp_path / "one")


def test_parts_that_start_at_once_share_the_work(books, tmp_path):
    code = f"""
import sys
sys.path.insert(0, {SRC!r})

from longshort.data.prepare import prepare
stages = []
prepare({str(books)!r}, {str(tmp_path / "out")!r}, part=sys.argv[1], vocab_size=300, workers=1,
        progress=lambda stage, done, total: stages.append(stage))
print("counting documents" in stages)
"""
    runs = [
        subprocess.Popen([sys.executable, "-c", code, str(part)], stdout=subprocess.PIPE, text=True)
        for part in Part.all(3)
    ]
    assert sorted(run.communicate()[0].strip() for run in runs) == ["False", "False", "True"]
    join(tmp_path / "out", 3)
    prepare(books, tmp_path / "one", vocab_size=300, workers=1)
    assert content(tmp_path / "out") == content(tmp_path / "one")


def run(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


def test_the_verb_makes_parts_and_joins_them(books, tmp_path):
    for part in Part.all(2):
        shown = run("--out", tmp_path / "out", books, "--part", part)
        assert shown.exit_code == 0, shown.output
        assert f"wrote   {tmp_path / 'out' / PARTS / part.name}" in shown.output and "note" not in shown.output
    shown = run("--out", tmp_path / "out", "--join", 2)
    assert shown.exit_code == 0, shown.output
    assert f"wrote   {tmp_path / 'out'}" in shown.output
    assert "nothing to do" in run("--out", tmp_path / "out", "--join", 2).output


def test_the_verb_refuses_to_join_with_other_options(books, tmp_path):
    shown = run("--out", tmp_path / "out", books, "--join", 2, "--part", "1/2")
    assert shown.exit_code == 1
    assert "--join must come with --out alone, since the parts say the rest, got SOURCES, --part" in shown.stderr
    shown = run("--out", tmp_path / "out", "--join", 2, "--seed", 3, "--split", 0.8, 0.1, 0.1)
    assert shown.exit_code == 1
    assert "since the parts say the rest, got --split, --seed" in shown.stderr
