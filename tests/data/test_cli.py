"""`longshort data` as a user meets it."""

import platform

import pytest
from typer.testing import CliRunner

from longshort.cli import app
from longshort.data import TokenFile


def run(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("It was a dark and stormy night; the rain fell in torrents. " * 20)
    return path


def test_it_prints_what_it_read_where_it_wrote_and_how_much(book, tmp_path):
    shown = run("--out", tmp_path / "out", book)
    assert shown.exit_code == 0, shown.output
    assert f"read    {book}" in shown.output
    assert f"wrote   {tmp_path / 'out'}" in shown.output
    counts = {split: TokenFile.open(tmp_path / "out" / f"{split}.tokens") for split in ("train", "validation", "test")}
    for split, tokens in counts.items():
        assert f"{split} {len(tokens):,} tokens {tokens.documents} documents" in " ".join(shown.output.split())
    assert "vocabulary of 257" in shown.output


def test_a_second_run_says_that_there_is_nothing_to_do(book, tmp_path):
    run("--out", tmp_path / "out", book)
    assert "nothing to do" in run("--out", tmp_path / "out", book).output


def test_without_sources_it_says_that_it_uses_the_standard_library(tmp_path):
    shown = run("--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.output
    assert "no SOURCES: using the source text of the running Python's own standard library" in shown.output
    assert f"files of the standard library of Python {platform.python_version()}" in shown.output


def test_options_reach_their_place(book, tmp_path):
    (tmp_path / "held.txt").write_text("held out")
    held = ["--validation", tmp_path / "held.txt", "--test", tmp_path / "held.txt"]
    shown = run("--out", tmp_path / "a", book, "--vocab-size", 280, "--workers", 1, *held)
    assert shown.exit_code == 0, shown.output
    assert "vocabulary of 280" in shown.output
    assert TokenFile.open(tmp_path / "a" / "test.tokens").documents == 1
    shown = run("--out", tmp_path / "b", book, "--tokenizer", tmp_path / "a", "--workers", 1, "--split", 0.5, 0.5, 0)
    assert shown.exit_code == 0, shown.output
    assert "vocabulary of 280" in shown.output
    assert len(TokenFile.open(tmp_path / "b" / "test.tokens")) == 0
    assert run("--out", tmp_path / "b", book, "--seed", 1).exit_code == 1
    assert run("--out", tmp_path / "b", book, "--seed", 1, "--force").exit_code == 0


def test_bad_input_is_one_clear_line_and_a_non_zero_exit(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\x00\x01")
    shown = run("--out", tmp_path / "out", tmp_path / "a.txt")
    assert shown.exit_code == 1
    (line,) = shown.stderr.splitlines()
    assert line.startswith(f"error: {tmp_path / 'a.txt'}: a binary file")


def test_no_out_is_refused():
    shown = run()
    assert shown.exit_code == 2
    assert "--out" in shown.output


def test_named_validation_without_sources_is_refused(book, tmp_path):
    shown = run("--out", tmp_path / "out", "--validation", book)
    assert shown.exit_code == 1
    assert "validation and test must come with sources" in shown.stderr
