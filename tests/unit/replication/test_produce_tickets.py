"""The produces that wait for the high watermark: thousands may wait for one offset."""

from __future__ import annotations

from nilometer.replication.leader import ProduceTickets


class Ticket(int):
    """Counts how often a ticket is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Ticket.compared += 1
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        Ticket.compared += 1
        return int(self) < int(other)

    __hash__ = int.__hash__


def test_to_forget_one_of_many_that_wait_for_an_offset_is_a_search_by_halves() -> None:
    """An idempotent producer repeats one batch on many connections, and the last ones time out first."""
    tickets, count = ProduceTickets(), 1_000
    for number in range(count):
        tickets.add(Ticket(number), 7)
    tickets.add(count, 6)
    for number in reversed(range(count)):
        tickets.discard(Ticket(number), 7)
    tickets.discard(Ticket(3), 7)  # released meanwhile
    assert tickets.waiting() == ((6, count),)
    assert Ticket.compared < 50 * count
