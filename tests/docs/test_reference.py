"""The generated parts of the site hold everything that the code has."""

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def generated(monkeypatch):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS))
    from _extensions import generated

    yield generated
    for name in [name for name in sys.modules if name.startswith("_extensions")]:
        del sys.modules[name]


def test_the_command_line_page_has_every_verb_and_its_options(generated):
    from longshort.cli import VERBS

    lines = list(generated.verbs())
    assert [line for line in lines if line.startswith("## ")] == [f"## longshort {verb}" for verb in VERBS]
    assert any("--variants" in line for line in lines)


def test_the_configuration_page_has_every_key(generated):
    from longshort.train.settings.keys import config_keys

    shown = [line.split("`")[1] for line in generated.config_keys() if line.startswith("| `")]
    assert shown == [key.name for key in config_keys()]


def test_a_cell_of_the_configuration_page_does_not_break_its_table(generated):
    assert all(line.count("|") == 5 for line in generated.config_keys() if line.startswith("| "))


def test_an_api_page_has_every_public_name_and_starts_with_those_asked_for(generated):
    from _extensions import api

    import longshort

    heads = [line.split()[1] for line in api.package("longshort", ["HeadPlan"]) if line.startswith("`" * 7 + "{")]
    names = [head.partition("(")[0] for head in heads]
    assert names[0] == "HeadPlan"
    assert sorted(names) == sorted(set(longshort.__all__) - {"reach"})  # a package, with a page of its own


def test_the_drawing_of_the_masks_is_that_of_the_plans(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    import masks

    assert masks.picture() == masks.PICTURE.read_text(encoding="utf-8")
