"""The produce requests with acks=all that wait for the high watermark.

A ticket is a number, chosen by the code that uses the leader role, with the offset that the high watermark
must reach. Tickets arrive almost in order of offsets (except for a batch repeated by an idempotent producer),
so a sorted list is fast enough.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import itemgetter

from nilometer.identifiers import Offset

_REQUIRED = itemgetter(0)


class ProduceTickets:
    """The waiting tickets, sorted by required offset, then by arrival."""

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

    def discard(self, ticket: int, required_offset: Offset) -> None:
        """Remove a ticket. An unknown one is ignored: it may have been released meanwhile."""
        waiting = self._waiting
        index = bisect_left(waiting, required_offset, key=_REQUIRED)
        while index < len(waiting) and waiting[index][0] == required_offset:
            if waiting[index][1] == ticket:
                del waiting[index]
                return
            index += 1

    def released_by(self, high_watermark: Offset) -> list[int]:
        """Remove and return the tickets whose required offset is at or below ``high_watermark``."""
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
        """Return (required offset, ticket) of every waiting produce request."""
        return tuple(self._waiting)
