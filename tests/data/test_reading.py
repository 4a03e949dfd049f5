"""Files of text in every form, and every way in which one can be bad."""

import gzip
import json
import lzma
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshort.data import reading
from longshort.data.corpus import open_corpus
from longshort.data.errors import DataError

zstandard = pytest.importorskip("zstandard")

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
# What a text file can hold: no zero byte, and neither a byte order mark nor a separator, which have a meaning.
PLAIN = st.text(st.characters(exclude_characters="\0\ufeff", exclude_categories=["Cs"])).filter(
    lambda text: text.strip() and "<|endoftext|>" not in text
)


def documents(path):
    return list(open_corpus([path]).documents())


@pytest.mark.parametrize("ending", COMPRESS)
@given(texts=st.lists(PLAIN, max_size=4))
def test_any_documents_come_back_from_plain_text(ending, texts):
    joined = "\n<|endoftext|>\n".join(texts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"a.txt{ending}")
        path.write_bytes(COMPRESS[ending](joined.encode()))
        assert documents(path) == [text + "\n" for text in texts[:-1]] + texts[-1:]


@pytest.mark.parametrize("ending", COMPRESS)
@given(texts=st.lists(st.text(), max_size=4))
def test_any_documents_come_back_from_json_lines(ending, texts):
    lines = "".join(json.dumps({"text": text, "id": 1}) + "\n" for text in texts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"a.jsonl{ending}")
        path.write_bytes(COMPRESS[ending](lines.encode()))
        assert documents(path) == [text for text in texts if text.strip()]


@given(
    lines=st.lists(st.sampled_from(["", "ab", "abcdefghijkl", "<|endoftext|>", " <|endoftext|>\t", "x<|endoftext|>"]))
)
def test_pieces_are_bounded_and_join_to_the_same_documents(lines):
    content = "\n".join(lines)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, "a.txt")
        path.write_text(content)
        whole = documents(path)
        # Longer than a separator line, which a smaller bound would cut.
        patch.setattr(reading, "LONGEST_PIECE", 20)
        assert documents(path) == whole
        assert all(len(piece.text) < 40 for piece in reading.read_pieces(path))


@given(text=st.text(min_size=1), longest=st.integers(1, 5))
def test_cutting_a_document_loses_nothing(text, longest):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "LONGEST_PIECE", longest)
        pieces = list(reading.cut(text))
    assert "".join(piece for piece, _ in pieces) == text
    assert all(0 < len(piece) <= longest for piece, _ in pieces)
    assert [last for _, last in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_separator_within_a_line_separates_nothing(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one <|endoftext|> two\n")
    assert documents(path) == ["one <|endoftext|> two\n"]


def test_the_rest_of_an_overlong_line_is_no_separator(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LONGEST_PIECE", 20)
    path = tmp_path / "a.txt"
    path.write_text("x" * 20 + "<|endoftext|>\ny")
    assert documents(path) == ["x" * 20 + "<|endoftext|>\ny"]


def test_blank_documents_are_left_out(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("<|endoftext|>\n\n<|endoftext|>\none\n<|endoftext|>\n  \n")
    assert documents(path) == ["one\n"]


def test_line_ends_and_a_byte_order_mark_are_treated_as_they_should_be(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n<|endoftext|>\r\ntwo\rthree")
    assert documents(path) == ["one\r\n", "two\rthree"]


def test_half_a_surrogate_pair_in_json_becomes_a_replacement_character(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a\\ud800b"}\n')
    assert documents(path) == ["a\ufffdb"]


def test_a_zst_of_several_frames_is_read_to_its_end(tmp_path):
    path = tmp_path / "a.txt.zst"
    path.write_bytes(b"".join(COMPRESS[".zst"](part) for part in (b"one ", b"two ", b"three")))
    assert documents(path) == ["one two three"]


def complaint(path, content):
    path.write_bytes(content)
    with pytest.raises(DataError) as raised:
        documents(path)
    message = str(raised.value)
    assert str(path) in message
    assert "; " in message or "must be" in message  # what to do
    assert "\n" not in message
    return message


def test_a_binary_file_is_refused(tmp_path):
    assert "a zero byte at offset 4" in complaint(tmp_path / "a.txt", b"\x7fELF\0\0")


def test_utf_16_is_named(tmp_path):
    assert "UTF-16" in complaint(tmp_path / "a.txt", "text".encode("utf-16"))


@pytest.mark.parametrize("before", [0, 5, 100_000, 1_000_003])
def test_a_wrong_encoding_is_refused_with_the_place_of_its_first_byte(tmp_path, before):
    message = complaint(tmp_path / "a.txt", b"x" * before + "é".encode("latin-1") + b" rest")
    assert f"byte 0xe9 at offset {before};" in message
    assert "iconv" in message


def test_the_place_of_a_wrong_byte_counts_a_byte_order_mark(tmp_path):
    assert "offset 4;" in complaint(tmp_path / "a.txt", b"\xef\xbb\xbfa\xff")


def test_text_that_ends_within_a_character_is_refused(tmp_path):
    assert "not UTF-8" in complaint(tmp_path / "a.txt", "aé".encode()[:-1])


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("keep", [0, 3, 0.5, -1])
def test_a_truncated_archive_is_refused(tmp_path, ending, keep):
    whole = COMPRESS[ending](b"".join(b"line %d\n" % i for i in range(10_000)))
    end = int(len(whole) * keep) if isinstance(keep, float) else keep
    assert "truncated" in complaint(tmp_path / f"a.txt{ending}", whole[:end])


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_a_file_that_is_no_archive_is_refused(tmp_path, ending):
    assert f"not a {ending} archive" in complaint(tmp_path / f"a{ending}", b"plain text, badly named")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "line 2: not JSON"),
        ('{"body": "x"}', "got the fields ['body']"),
        ('{"text": 3}', "got the fields ['text']"),
        ('["x"]', 'line 2: must be an object with a string "text", got a list'),
    ],
)
def test_a_bad_json_line_is_refused_by_number(tmp_path, line, expected):
    assert expected in complaint(tmp_path / "a.jsonl", f'{{"text": "fine"}}\n{line}\n'.encode())


def test_zst_without_its_package_names_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a.zst").write_bytes(COMPRESS[".zst"](b"text"))
    with pytest.raises(DataError, match="pip install zstandard"):
        documents(tmp_path / "a.zst")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("text")
    corpus = open_corpus([path])
    path.unlink()
    with pytest.raises(DataError, match=r"a\.txt: cannot be read: No such file"):
        list(corpus.pieces())
