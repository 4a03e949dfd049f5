"""Batches made ahead are the batches that would have been made."""

import torch

from longshort.data.ahead import BatchesAhead
from longshort.data.stream import Batch


def counted():
    made = []

    def make(number):
        made.append(number)
        return Batch(torch.full((1, 2), number), torch.full((1, 2), number + 1), None, (number,))

    return made, BatchesAhead(make, pinned=False)


def test_a_prepared_batch_is_not_made_again():
    made, batches = counted()
    batches.prepare(3)
    assert batches.take(3).indices == (3,) and made == [3]
    assert batches.take(3).indices == (3,) and made == [3, 3]


def test_another_batch_than_the_prepared_one_is_made_when_it_is_taken():
    made, batches = counted()
    batches.prepare(3)
    assert batches.take(5).tokens.tolist() == [[5, 5]] and made == [3, 5]
    assert batches.take(3).indices == (3,) and made == [3, 5, 3]
