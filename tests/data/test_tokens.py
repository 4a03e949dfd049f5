"""Token files: what is written is read, and what is not whole is not read."""

import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshort.data.errors import DataError
from longshort.data.tokenizer import BPETokenizer, ByteTokenizer
from longshort.data.tokens import TokenFile, TokenWriter, header_path, write_token_file

SRC = str(Path(__file__).parents[2] / "src")
CHUNKS = st.lists(st.lists(st.integers(0, 256), max_size=20), max_size=5)


def write(path, chunks=((1, 2, 256),)):
    return write_token_file(
        path, [np.array(chunk, dtype=np.uint16) for chunk in chunks], ByteTokenizer(), source="test"
    )


@given(chunks=CHUNKS)
def test_any_chunks_come_back_in_order(chunks):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.tokens")
        write(path, chunks)
        opened = TokenFile.open(path, verify=True)
        flat = [number for chunk in chunks for number in chunk]
        assert opened.tokens.tolist() == flat
        assert len(opened) == len(flat)
        assert opened.documents == flat.count(256)
        assert sorted(entry.name for entry in Path(folder).iterdir()) == ["train.json", "train.tokens"]


def test_header_says_what_the_numbers_are(tmp_path):
    opened = write(tmp_path / "train.tokens")
    assert opened.header["version"] == 1
    assert opened.header["source"] == "test"
    assert opened.vocab_size == 257
    assert opened.fingerprint == ByteTokenizer().fingerprint
    assert opened.end_of_document == 256


def test_tokens_are_mapped_and_cannot_be_changed(tmp_path):
    tokens = write(tmp_path / "train.tokens").tokens
    assert isinstance(tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 3


def test_large_vocabularies_are_written_in_thirty_two_bits(tmp_path):
    class Large(ByteTokenizer):
        vocab_size = 100_000

    opened = write_token_file(tmp_path / "a.tokens", [np.array([99_999], dtype=np.uint32)], Large())
    assert opened.tokens.dtype == np.uint32
    assert opened.tokens.tolist() == [99_999]


@pytest.mark.parametrize("number", [257, -1])
def test_a_number_beyond_the_vocabulary_is_refused_and_leaves_nothing(tmp_path, number):
    with pytest.raises(DataError, match="ids must be from 0 to 256, got"):
        write_token_file(tmp_path / "train.tokens", [np.array([number])], ByteTokenizer())
    assert list(tmp_path.iterdir()) == []


def test_leaving_a_writer_without_commit_leaves_nothing(tmp_path):
    with TokenWriter(tmp_path / "train.tokens", ByteTokenizer()) as writer:
        writer.append(np.array([1, 2]))
    assert list(tmp_path.iterdir()) == []


def test_writing_again_replaces_the_file(tmp_path):
    old = write(tmp_path / "train.tokens", [[1, 2, 3]])
    write(tmp_path / "train.tokens", [[4]])
    assert TokenFile.open(tmp_path / "train.tokens", verify=True).tokens.tolist() == [4]
    assert old.tokens.tolist() == [1, 2, 3]  # a reader keeps what it opened


def refusal(path, **options):
    with pytest.raises(DataError) as raised:
        TokenFile.open(path, **options)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_missing_file_names_the_command_that_makes_it(tmp_path):
    (tmp_path / ".train.tokens.tmp").write_text("what a killed writer leaves")
    assert refusal(tmp_path / "train.tokens").endswith(f"longshort data SOURCES --out {tmp_path}")
    (tmp_path / "book.txt").write_text("It was a dark and stormy night.")
    for text in (tmp_path, tmp_path / "book.txt"):  # the text itself given as data.path
        assert f"make one: longshort data {text} --out FOLDER, and name that" in refusal(text / "train.tokens")


def test_a_file_without_header_is_unfinished(tmp_path):
    write(tmp_path / "train.tokens")
    header_path(tmp_path / "train.tokens").unlink()
    assert "unfinished, since its header train.json is missing" in refusal(tmp_path / "train.tokens")


@pytest.mark.parametrize("change", [-1, -2, 1, 2])
def test_a_file_of_another_size_is_refused(tmp_path, change):
    path = tmp_path / "train.tokens"
    write(path)
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + b"\0" * change)
    assert f"must have the 6 bytes that its header says, got {6 + change}" in refusal(path)


def test_a_changed_byte_is_found_on_request(tmp_path):
    path = tmp_path / "train.tokens"
    write(path)
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    TokenFile.open(path)
    assert "damaged: its header says checksum" in refusal(path, verify=True)


def test_another_vocabulary_is_refused(tmp_path):
    path = tmp_path / "train.tokens"
    write(path)
    other = BPETokenizer.train(["abc"], vocab_size=257)
    assert TokenFile.open(path, fingerprint=ByteTokenizer().fingerprint)
    message = refusal(path, fingerprint=other.fingerprint)
    assert "tokens of another vocabulary" in message
    assert other.fingerprint[:12] in message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"format": "else"}, "not the header of a token file"),
        ({"version": 2}, "format version must be 1, got 2"),
        ({"count": "3"}, "count must be int, got '3'"),
        ({"count": -1}, "got -1 of"),
        ({"fingerprint": None}, "fingerprint must be str, got None"),
        ({"dtype": "float64"}, "tokens of uint16 or uint32"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path, changes, expected):
    path = tmp_path / "train.tokens"
    header = write(path).header
    header_path(path).write_text(json.dumps(header | changes))
    assert expected in refusal(path)


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_header_that_is_no_json_object_is_refused(tmp_path, content):
    write(tmp_path / "train.tokens")
    header_path(tmp_path / "train.tokens").write_text(content)
    assert "train.json" in refusal(tmp_path / "train.tokens")


def test_a_writer_killed_while_writing_leaves_nothing_that_opens(tmp_path):
    code = f"""
        import itertools, sys
        sys.path.insert(0, {SRC!r})
        import numpy as np
        from longshort.data.tokenizer import ByteTokenizer
        from longshort.data.tokens import write_token_file

        def chunks():
            for i in itertools.count():
                yield np.zeros(1000, dtype=np.uint16)
                if i == 20:
                    print("writing", flush=True)

        write_token_file({str(tmp_path / "train.tokens")!r}, chunks(), ByteTokenizer())
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "writing\n"
        process.kill()
    assert [entry.name.startswith(".train.tokens.") for entry in tmp_path.iterdir()] == [True]
    assert "no such token file" in refusal(tmp_path / "train.tokens")
    assert write(tmp_path / "train.tokens").tokens.tolist() == [1, 2, 256]
