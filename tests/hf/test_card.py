"""What the card says of the reach of a model, beyond its example."""

import pytest

from longshort import GPTConfig, HeadPlan
from longshort.hf.card import model_card, reach_in_words


def test_heads_that_see_the_first_keys_are_told_apart():
    plans = (HeadPlan(windows=(8, 8, 8), firsts=(2, 0, 2)),)
    assert reach_in_words(plans) == "layer 1: 2 with a window of 8 and the first 2, 1 with a window of 8"


@pytest.mark.parametrize(("nope", "words"), [(True, "rotary; global heads are not rotated"), (False, "rotary")])
def test_global_heads_that_are_not_rotated_are_told(nope, words):
    reach = {"pattern": "interleave", "layers": "LG", "window": 64, "nope": nope}
    assert f"| positions | {words} |" in model_card(GPTConfig.preset("modern-10m", reach=reach), 1)


def test_a_bar_in_a_fact_does_not_end_its_cell():
    card = model_card(GPTConfig.preset("tiny"), 1, trained={"data": "books|code"})
    assert "| data | books\\|code |" in card
