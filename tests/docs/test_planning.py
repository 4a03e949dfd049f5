"""The page on plans of larger runs shows what the command prints."""

from pathlib import Path

import pytest

from longshort.planning import Machines, planned
from longshort.train import TrainConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "plan.md").read_text(encoding="utf-8")


def indented(text):
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


@pytest.mark.parametrize(("name", "gpus"), [("plan-7b", 8), ("plan-70b", 512)])
def test_a_plan_on_the_page_is_that_of_the_command(name, gpus):
    text, _ = planned(TrainConfig.load(ROOT / "examples" / f"{name}.yaml"), Machines(), gpus=gpus)
    until_rates = indented(text[: text.index("\nrates")].rstrip("\n"))
    assert f"    $ longshort plan examples/{name}.yaml --gpus {gpus}\n{until_rates}\n" in PAGE


def test_the_table_by_number_of_gpus_is_that_of_the_command():
    text, _ = planned(TrainConfig.load(ROOT / "examples" / "plan-7b.yaml"), Machines())
    table = text[text.index("  GPUs ") : text.index("\n\nThe cheapest")]
    assert indented(table) in PAGE
