"""What was meant by a name that does not exist."""

import pytest

from longshort.losses import LossSettings
from longshort.model import GPTConfig
from longshort.spelling import closest


@pytest.mark.parametrize("record", [GPTConfig, LossSettings])
def test_a_field_like_no_other_gets_the_list_of_fields_and_no_guess(record) -> None:
    with pytest.raises(ValueError, match=f"{record.__name__} has no field 'colour'; its fields are") as caught:
        record.from_dict({"colour": "red"})
    assert "did you mean" not in str(caught.value)


def test_a_very_long_name_is_answered_quickly() -> None:
    assert closest("x" * 10_000_000, ["window"]) is None


def test_a_name_that_is_no_text_is_close_to_none() -> None:
    with pytest.raises(ValueError, match="LossSettings has no field 3; its fields are exponent, linear_below"):
        LossSettings.from_dict({3: 0.5})
