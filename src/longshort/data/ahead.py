"""Batches made ahead: the host prepares the next one while a GPU works on the present one."""

from __future__ import annotations

from collections.abc import Callable

from longshort.data.stream import Batch


class BatchesAhead:
    """Batches by number, of which the next can be prepared before it is asked for.

    Batch n is what `make` gives for n, prepared or not, so a resumed run gets the batches it would have got.

    Args:
        make: Gives the batch of a number.
        pinned: Put batches into page-locked memory, from which a copy to a GPU does not hold up the host.
    """

    def __init__(self, make: Callable[[int], Batch], *, pinned: bool) -> None:
        self._make, self._pinned = make, pinned
        self._next: tuple[int, Batch] | None = None

    def prepare(self, number: int) -> None:
        """Make a batch that will be taken soon."""
        self._next = number, self._made(number)

    def take(self, number: int) -> Batch:
        """The batch of this number, on the host."""
        ready, self._next = self._next, None
        return ready[1] if ready is not None and ready[0] == number else self._made(number)

    def _made(self, number: int) -> Batch:
        batch = self._make(number)
        if not self._pinned:
            return batch
        segments = None if batch.segments is None else batch.segments.pin_memory()
        return Batch(batch.tokens.pin_memory(), batch.targets.pin_memory(), segments, batch.indices)
