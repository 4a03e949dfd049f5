"""The default data: the standard library of the running Python, as bytes, prepared once."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path

from longshort.data.corpus import standard_library_corpus
from longshort.data.prepare import PrepareProgress, prepare

CACHE_VARIABLE = "LONGSHORT_CACHE"


def default_data(cache_dir: Path | str | None = None, progress: PrepareProgress | None = None) -> Path:
    """The prepared default corpus, made on the first call, in a few seconds, and reused later.

    It is in `cache_dir`, else $LONGSHORT_CACHE, else ~/.cache/longshort, in a folder named after the Python version.
    """
    corpora = standard_library_corpus()
    identity = json.dumps([corpus.identity() for corpus in corpora.values()])
    name = f"stdlib-{platform.python_version()}-bytes-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    root = Path(cache_dir) if cache_dir else cache_root()
    return prepare(corpora, root / name, progress=progress).folder


def cache_root() -> Path:
    """Where reproducible data is kept: $LONGSHORT_CACHE, else ~/.cache/longshort."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "longshort")
