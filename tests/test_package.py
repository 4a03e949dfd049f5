"""The package as a user meets it: names and imports."""

import importlib.resources
import re
import subprocess
import sys

import pytest

import longshort

PUBLIC_NAMES = [
    "HeadPlan",
    "attention",
    "LSAttention",
    "GPT",
    "GPTConfig",
    "LSCache",
    "generate",
    "Smoothing",
    "reach",
]
LOADED_ON_DEMAND = ["triton", "transformers", "tokenizers", "typer", "rich", "yaml", "altair", "longshort.report"]


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_public_name_is_exported(name):
    assert name in longshort.__all__
    assert getattr(longshort, name).__doc__


def test_every_exported_name_exists():
    assert [name for name in longshort.__all__ if not hasattr(longshort, name)] == []


def test_types_are_shipped():
    assert importlib.resources.files("longshort").joinpath("py.typed").is_file()


def test_version_has_three_numbers():
    assert re.fullmatch(r"\d+\.\d+\.\d+", longshort.__version__)


def test_import_loads_torch_and_no_more():
    # Torch itself may load some of them: only what longshort adds counts.
    code = f"""
import sys, torch
before = set(sys.modules)
import longshort
for name in longshort.__all__:
    getattr(longshort, name)
print(sorted((set(sys.modules) - before) & set({LOADED_ON_DEMAND!r})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
