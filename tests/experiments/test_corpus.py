"""The books are rebuilt from a list with hashes; here a folder or a local server stands in for the network."""

import hashlib
import re
from collections import Counter
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from experiments import corpus
from experiments.corpus import Book, CorpusError, build, fetch, read_list

HEADER, FOOTER = "Project Gutenberg\r\n\r\n\r\n", "\r\nEnd of the book\r\n"


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def file_of(title):
    return (
        f"{HEADER}  {title}\r\n\r\n“Text — of {title}”\r\n[Illustration]\r\n\r\nA note\r\n\r\nThe end{FOOTER}".encode()
    )


def book_of(title):
    return f'{title}\n\n"Text -- of {title}"\n\nThe end\n'.encode()


def listed(title, split):
    hashes = {"sha256": sha256(file_of(title)), "book_sha256": sha256(book_of(title))}
    return Book(split=split, title=title, author="A", url=f"https://x.org/{title}/a%20b.txt", lines="3-6 9-9", **hashes)


BOOKS = [listed("One", "train-mini"), listed("Two", "train"), listed("Three", "validation")]


@pytest.fixture
def folder(tmp_path):
    for book in BOOKS:
        path = tmp_path / "stand-in" / book.title / "a b.txt"
        path.parent.mkdir(parents=True)
        path.write_bytes(file_of(book.title))
    return tmp_path / "stand-in"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_books_are_cut_cleaned_and_joined_by_split(folder, out):
    paths = build(out, BOOKS, mirror=folder.as_uri(), say=lambda line: None)
    assert [path.name for path in paths] == ["books-train.txt", "books-train-mini.txt", "books-validation.txt"]
    assert paths[0].read_bytes() == book_of("One") + b"<|endoftext|>\n" + book_of("Two")
    assert paths[1].read_bytes() == book_of("One") and paths[2].read_bytes() == book_of("Three")


def test_only_the_files_of_the_chosen_splits_are_fetched(folder, out):
    (path,) = build(out, BOOKS, splits=("validation",), mirror=folder.as_uri(), say=lambda line: None)
    assert path.read_bytes() == book_of("Three") and len(list((out / "sources").iterdir())) == 1
    with pytest.raises(CorpusError, match="--splits must be among train, train-mini, validation, got test"):
        build(out, BOOKS, splits=("test",))


def test_a_mirror_that_is_no_address_is_named_with_the_one_it_may_be(folder, out):
    with pytest.raises(CorpusError, match=re.escape(f"--mirror must be an address, as in {folder.as_uri()}, got")):
        build(out, BOOKS, mirror=str(folder), say=lambda line: None)
    assert not out.exists()


def test_a_missing_file_is_named_and_the_next_call_fetches_only_that(folder, out):
    missing = folder / "Two" / "a b.txt"
    content = missing.read_bytes()
    missing.unlink()
    with pytest.raises(CorpusError, match=r"1 of 3 files are missing; run the same command again.*/Two/a%20b.txt"):
        build(out, BOOKS, mirror=folder.as_uri(), say=lambda line: None)
    assert not list(out.glob("*.txt")) and len(list((out / "sources").iterdir())) == 2
    for book in BOOKS:
        (folder / book.title / "a b.txt").unlink(missing_ok=True)
    missing.write_bytes(content)
    assert len(build(out, BOOKS, mirror=folder.as_uri(), say=lambda line: None)) == 3


def test_a_file_with_a_wrong_hash_is_refused_and_not_kept(folder, out):
    build(out, BOOKS, mirror=folder.as_uri(), say=lambda line: None)
    before = (out / "books-train.txt").read_bytes()
    changed = replace(BOOKS[1], sha256="0" * 64)
    words = f"Two/a%20b.txt: sha256 must be {'0' * 64}, got {BOOKS[1].sha256} .* has changed or came damaged"
    with pytest.raises(CorpusError, match=words):
        build(out, [BOOKS[0], changed, BOOKS[2]], mirror=folder.as_uri(), say=lambda line: None)
    assert not (out / "sources" / f"{'0' * 64}.txt").exists() and (out / "books-train.txt").read_bytes() == before


def test_a_book_that_does_not_come_out_as_listed_is_refused(folder, out):
    wrong = replace(BOOKS[0], lines="3-5")
    with pytest.raises(CorpusError, match=f"One: sha256 must be {wrong.book_sha256}, got .* do not belong together"):
        build(out, [wrong], mirror=folder.as_uri(), say=lambda line: None)
    assert not list(out.glob("*.txt"))


def test_a_damaged_download_is_fetched_again(folder, out):
    path = fetch(BOOKS[0], out, mirror=folder.as_uri())
    path.write_bytes(path.read_bytes()[:-1])
    assert fetch(BOOKS[0], out, mirror=folder.as_uri()).read_bytes() == file_of("One")


class Library(BaseHTTPRequestHandler):
    """Serves the books; of those in `cut` it sends half."""

    asked: ClassVar[Counter[str]] = Counter()
    cut: ClassVar[set[str]] = set()

    def do_GET(self):
        title = self.path.split("/")[1]
        self.asked[title] += 1
        content = file_of(title)
        self.send_response(200 if title != "Gone" else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if title in self.cut else content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    Library.asked, Library.cut = Counter(), set()
    with ThreadingHTTPServer(("127.0.0.1", 0), Library) as found:
        Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def test_an_answer_that_breaks_off_is_an_error_and_is_asked_for_again(server, out):
    Library.cut = {"Two"}
    with pytest.raises(CorpusError, match=r"1 of 3 files are missing.*Two/a%20b.txt: cannot be read"):
        build(out, BOOKS, mirror=server, say=lambda line: None)
    Library.cut = set()
    build(out, BOOKS, mirror=server, say=lambda line: None)
    assert Library.asked == {"One": 1, "Two": 2, "Three": 1}


def test_an_address_that_is_gone_is_named(server, out):
    with pytest.raises(CorpusError, match=r"Gone/a%20b\.txt: cannot be read: HTTP Error 404"):
        fetch(listed("Gone", "train"), out, mirror=server)


def test_the_command_says_what_it_wrote_or_one_line(folder, out, monkeypatch):
    monkeypatch.setattr(corpus, "read_list", lambda: BOOKS)
    shown = CliRunner().invoke(corpus.app, ["--out", str(out), "--mirror", folder.as_uri(), "--splits", "validation"])
    assert shown.exit_code == 0 and f"wrote {out / 'books-validation.txt'}" in shown.output
    shown = CliRunner().invoke(corpus.app, ["--out", str(out), "--mirror", (folder / "nowhere").as_uri()])
    assert shown.exit_code == 1 and shown.stderr.startswith("error: 2 of 3 files are missing; run the same command")


def test_the_committed_list_names_every_book_once_at_a_fixed_commit_with_its_hashes():
    books = read_list()
    assert Counter(book.split for book in books) == {"train": 412, "train-mini": 70, "validation": 26}
    for key in ("url", "sha256", "book_sha256"):
        assert len({getattr(book, key) for book in books}) == len(books)
    for book in books:
        assert re.fullmatch(r"https://raw\.githubusercontent\.com/[\w-]+/[\w-]+/[0-9a-f]{40}/[!-~]+", book.url)
        assert all(re.fullmatch("[0-9a-f]{64}", one) for one in (book.sha256, book.book_sha256))
        ends = [int(end) for part in book.lines.split() for end in part.split("-")]
        assert ends and len(ends) % 2 == 0 and ends == sorted(ends) and ends[0] > 0
