"""Where a tail of a topic goes on after an interruption, and how many there are at once."""

from __future__ import annotations

import pytest

from nilometer.client.consumer.tail import LogRange
from nilometer.console.reading.record_reader import (
    BEHIND_MAX,
    TAIL_RECORDS,
    TAILS_MAX,
    RecordSlots,
    TooManyTails,
    continued,
)


@pytest.mark.parametrize(
    ("after", "start", "end", "position", "missed"),
    [
        (None, 0, 50, 50, 0),  # a tail that begins
        (50, 0, 50, 50, 0),  # nothing was appended
        (40, 0, 50, 40, 0),  # what was appended is read
        (10, 30, 50, 30, 20),  # retention deleted 20 of them
        (60, 0, 50, 50, 0),  # the topic was created again
        (0, 0, BEHIND_MAX, 0, 0),
        (0, 0, BEHIND_MAX + 1, BEHIND_MAX + 1 - TAIL_RECORDS, BEHIND_MAX + 1 - TAIL_RECORDS),
        (5, 10, 10_000, 9_900, 9_895),
    ],
)
def test_a_tail_goes_on_where_it_was_or_says_what_it_passes_over(
    after: int | None, start: int, end: int, position: int, missed: int
) -> None:
    assert continued(after, LogRange(start, end, end)) == (position, missed)


def test_tails_have_places_of_their_own() -> None:
    slots = RecordSlots()
    open_tails = [slots.tail() for _ in range(TAILS_MAX)]
    for one in open_tails:
        one.__enter__()
    with pytest.raises(TooManyTails), slots.tail():
        pass
    assert not slots.readings.locked(), "records are read and written while tails are open"
    open_tails[0].__exit__(None, None, None)
    with slots.tail():
        pass
