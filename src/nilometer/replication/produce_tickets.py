"""Produce requests with acks=all that wait for the high watermark, as data.

A ticket is a number chosen by the shell and the offset that the high watermark must reach. Tickets arrive
nearly in order of offsets (a batch repeated by an idempotent producer asks for an older one), so a sorted
list is fast enough.
"""

from __future__ import annotations

from bisect import insort
from operator import itemgetter

from nilometer.replication.partition import Offset

_REQUIRED = itemgetter(0)


class ProduceTickets:
    """Invariant: sorted by required offset; of equal ones, in order of arrival."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[Offset, int]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, ticket: int, required_offset: Offset) -> None:
        waiting = self._waiting
        if not waiting or waiting[-1][0] <= required_offset:
            waiting.append((required_offset, ticket))
        else:
            insort(waiting, (required_offset, ticket), key=_REQUIRED)

    def discard(self, ticket: int) -> None:
        """The request no longer waits. Unknown tickets are ignored: it may have been released meanwhile."""
        self._waiting = [entry for entry in self._waiting if entry[1] != ticket]

    def released_by(self, high_watermark: Offset) -> list[int]:
        """Take out every ticket whose required offset has been reached."""
        count = 0
        for required_offset, _ in self._waiting:
            if required_offset > high_watermark:
                break
            count += 1
        released = [ticket for _, ticket in self._waiting[:count]]
        del self._waiting[:count]
        return released

    def take_all(self) -> list[int]:
        tickets = [ticket for _, ticket in self._waiting]
        self._waiting.clear()
        return tickets

    def waiting(self) -> tuple[tuple[Offset, int], ...]:
        """(required offset, ticket) of every waiting produce."""
        return tuple(self._waiting)
