"""The probes: recall and passkey, answered by looking the value up in the row itself."""

import re

import numpy as np
import pytest

from longshort.data.tasks import IGNORED, passkey, recall


def test_every_query_of_recall_asks_for_the_value_after_its_key():
    tokens, targets = recall.draw("row", length=64, pairs=8, symbols=40)
    values = dict(zip(tokens[:16:2], tokens[1:16:2], strict=True))
    (asked,) = np.nonzero(targets != IGNORED)
    assert len(asked) == 8 == len(values) and asked.min() >= 16
    assert [targets[place] for place in asked] == [values[tokens[place]] for place in asked]
    assert set(tokens[asked]) == set(values)


def test_keys_of_recall_occur_twice_and_no_more():
    tokens, _ = recall.draw("row", length=64, pairs=8, symbols=40)
    assert all((tokens == key).sum() == 2 for key in tokens[:16:2])
    assert max(tokens[:16:2]) < 20 <= min(tokens[1:16:2])


def test_queries_of_recall_are_mostly_near_and_sometimes_far():
    places = np.concatenate(
        [np.nonzero(recall.draw(str(i), length=256, pairs=4, symbols=64)[1] >= 0)[0] for i in range(200)]
    )
    assert np.median(places) < 70 and places.max() > 220


def test_the_passkey_is_in_the_row_and_asked_for_at_its_end():
    for number in range(20):
        tokens, targets = passkey.draw(str(number), length=300, digits=5)
        text = bytes(tokens.tolist()).decode()
        (told,) = re.findall(r"The pass key is (\d+)\. Keep", text)
        assert len(tokens) == 300 and text.endswith(f"The pass key is {told[:-1]}")
        assert bytes(targets[-5:].tolist()).decode() == told and (targets[:-5] == IGNORED).all()


def test_the_passkey_lies_at_any_depth():
    places = [bytes(passkey.draw(str(i), length=1000, digits=3)[0].tolist()).find(b"The pass key") for i in range(100)]
    assert min(places) < 150 and max(places) > 700


@pytest.mark.parametrize(
    ("check", "arguments", "words"),
    [
        (recall.check, (16, 8, 64), "pairs must be from 1 to a quarter of the length 16, got 8"),
        (recall.check, (64, 8, 10), "symbols must be from 18 to 65536 for 8 pairs, got 10"),
        (recall.check, (64, 8, 65537), "symbols must be from 18 to 65536 for 8 pairs, got 65537"),
        (passkey.check, (64, 5), "length must be at least"),
    ],
)
def test_a_row_without_room_is_an_error(check, arguments, words):
    with pytest.raises(ValueError, match=words):
        check(*arguments)
