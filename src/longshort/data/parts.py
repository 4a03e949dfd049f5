"""Parts of a corpus, prepared by separate calls on any machines: which documents are a part's, and what parts share.

    OUT/parts/shared.json, tokenizer.json     made by the first part to start
    OUT/parts/3-of-8/                         a part, in the form of a prepared folder

A part is a range of documents, in the order of the corpus, so parts one after another are the whole.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from longshort.data.errors import DataError
from longshort.data.folder import PARTS
from longshort.data.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer, tokenizer_checksum
from longshort.files import sealed, unsealed, write_atomically, write_json

FORMAT = "longshort-parts"
VERSION = 1
MOST_PARTS = 100_000
_SHARED = "shared.json"


@dataclass(frozen=True)
class Part:
    """One of `count` parts, numbered from 1.

    >>> part = Part.parse("3/8")
    >>> part.name, part.documents(100)
    ('3-of-8', (25, 37))
    """

    number: int
    count: int

    def __post_init__(self) -> None:
        _check_parts(self.count)
        if not 1 <= self.number <= self.count:
            raise DataError(f"part must be from 1/{self.count} to {self.count}/{self.count}, got {self}")

    @classmethod
    def parse(cls, text: str) -> Part:
        found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        if not found:
            raise DataError(f"part must be NUMBER/COUNT, such as 1/8 to 8/8, got {text!r}")
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def all(cls, count: int) -> list[Part]:
        """
        >>> [str(part) for part in Part.all(2)]
        ['1/2', '2/2']
        """
        _check_parts(count)
        return [cls(number, count) for number in range(1, count + 1)]

    @property
    def name(self) -> str:
        return f"{self.number}-of-{self.count}"

    def folder(self, out: Path) -> Path:
        return out / PARTS / self.name

    def documents(self, total: int) -> tuple[int, int]:
        """Its first document among `total`, and the first of the next part."""
        return total * (self.number - 1) // self.count, total * self.number // self.count

    def recipe(self, recipe: str) -> str:
        """A hash of everything that determines this part, given that of the whole."""
        return hashlib.sha256(f"{recipe} part {self}".encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def _check_parts(count: int) -> None:
    if not 1 <= count <= MOST_PARTS:
        raise DataError(f"the number of parts must be from 1 to {MOST_PARTS:,}, got {count}")


@dataclass(frozen=True)
class Shared:
    """What all parts of a folder share, however many parts there are."""

    recipe: str
    """The hash of everything that determines the whole"""
    source: str
    tokenizer: Tokenizer
    documents: dict[str, list[int]]
    """The number of documents in each file of each corpus"""

    @property
    def total(self) -> int:
        return sum(map(sum, self.documents.values()))

    @classmethod
    def read(cls, out: Path) -> Shared | None:
        """None if there is none, or it is damaged."""
        folder = out / PARTS
        try:
            data = unsealed((folder / _SHARED).read_text(encoding="utf-8"))
            if (data["format"], data["version"]) != (FORMAT, VERSION):
                return None
            tokenizer = load_tokenizer(folder, checksum=data["tokenizer"])
            return cls(data["recipe"], data["source"], tokenizer, data["documents"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, out: Path) -> None:
        """Write the tokenizer, then the rest, which marks it as complete."""
        content = self.tokenizer.to_dict()
        write_json(out / PARTS / TOKENIZER_FILE, content)
        data = {
            "format": FORMAT,
            "version": VERSION,
            "recipe": self.recipe,
            "source": self.source,
            "tokenizer": tokenizer_checksum(content),
            "documents": self.documents,
        }
        write_atomically(out / PARTS / _SHARED, sealed(data) + "\n")
