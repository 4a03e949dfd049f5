"""Makes transformers know our models wherever longshort is installed, so that programs need not import longshort first.

torch calls `install` at the end of its own import, by an entry point of its group `torch.backends`. Every process that
imports torch therefore runs this file: it imports the standard library alone, and all it leaves behind is a finder of
modules. That adds one line, our type of model, to transformers' table of configurations when the table is loaded, and
answers the import that the line causes when a folder of ours is opened. TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns it off.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

MODEL_TYPE = "longshort"
TABLE = "transformers.models.auto.auto_mappings"
CLASSES = f"transformers.models.{MODEL_TYPE}"
"""Where transformers looks for the classes of a type in its table."""


class _Table(SourceFileLoader):
    """Loads the table as it is and adds our line."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        if (names := getattr(module, "CONFIG_MAPPING_NAMES", None)) is not None:
            names.setdefault(MODEL_TYPE, "LongShortConfig")


class _Classes(Loader):
    """The public names of `longshort.hf`."""

    def exec_module(self, module: ModuleType) -> None:
        ours = importlib.import_module("longshort.hf")
        vars(module).update((name, getattr(ours, name)) for name in ours.__all__)


class Finder(MetaPathFinder):
    """Finds the two modules above; all others are left to Python."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == CLASSES:
            return ModuleSpec(fullname, _Classes())
        if fullname != TABLE:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Table(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Put the finder before Python's own, once."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
