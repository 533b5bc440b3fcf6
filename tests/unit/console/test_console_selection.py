"""What a search of the console looks at, and what it keeps, has a bound in time and in memory."""

from __future__ import annotations

import asyncio
import threading

import pytest

from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.console.reading.record_reader import (
    MATCHED_BYTES_MAX,
    MATCHING_MAX,
    OutOfTime,
    RecordQuery,
    RecordSlots,
    Selection,
)
from nilometer.console.views.records import HEADERS_KEPT, WHOLE_BYTES, json_filter, kept, record_views
from nilometer.console.web.guard import ENTRIES_MAX, BadForm, form_entries
from support.step_clock import StepClock

QUERY = RecordQuery("t", None, value=json_filter("$.a == 1"))
DEADLINE_MS = 10_000


def record(value: bytes | None, key: bytes | None = None, headers: int = 0) -> ConsumerRecord:
    return ConsumerRecord("t", 0, 7, 0, 0, key, value, (("h", b"v" * 10),) * headers, 0)


async def test_values_are_looked_at_in_another_thread() -> None:
    threads: list[int] = []

    class Noting(RecordQuery):
        def selects(self, record: ConsumerRecord) -> bool:
            threads.append(threading.get_ident())
            return super().selects(record)

    query = Noting("t", None, value=QUERY.value)
    selection = Selection(query, StepClock(), RecordSlots(), DEADLINE_MS)
    wanted, other = record(b'{"a": 1}'), record(b'{"a": 2}')
    assert await selection.select([wanted, other, wanted]) == [wanted, wanted]
    assert threading.get_ident() not in threads
    assert len(threads) == 3


async def test_no_value_is_looked_at_after_the_time_of_the_search() -> None:
    clock = StepClock()

    class Slow(RecordQuery):
        def selects(self, record: ConsumerRecord) -> bool:
            clock.us += 4_000_000
            return super().selects(record)

    selection = Selection(Slow("t", None, value=QUERY.value), clock, RecordSlots(), DEADLINE_MS)
    with pytest.raises(OutOfTime):
        await selection.select([record(b"{}")] * 1_000)
    assert clock.us == 12_000_000


async def test_few_searches_look_at_values_at_once() -> None:
    slots = RecordSlots()
    for _ in range(MATCHING_MAX):
        await slots.matching.acquire()
    waiting = asyncio.ensure_future(
        Selection(QUERY, StepClock(), slots, DEADLINE_MS).select([record(b'{"a": 1}')])
    )
    await asyncio.sleep(0.01)
    assert not waiting.done()
    slots.matching.release()
    assert len(await waiting) == 1


def test_a_long_value_meets_no_condition() -> None:
    fitting = b'{"a": 1}' + b" " * (MATCHED_BYTES_MAX - 8)
    assert QUERY.selects(record(fitting))
    assert not QUERY.selects(record(fitting + b" "))


def test_what_no_page_shows_is_not_kept() -> None:
    large, size = b"x" * (10 * WHOLE_BYTES), 10 * WHOLE_BYTES
    one = kept(record(large, large, HEADERS_KEPT + 5))
    assert one.key is not None
    assert one.value is not None
    assert len(one.key) == len(one.value) == WHOLE_BYTES + 1
    assert len(one.headers) == HEADERS_KEPT
    [view] = record_views([one], limit=WHOLE_BYTES)
    assert (view.value.size, view.value.is_cut, len(view.value.text)) == (size, True, WHOLE_BYTES)
    small = record(b"x" * WHOLE_BYTES, None, 3)
    assert kept(small) == small


async def test_a_form_has_a_bounded_number_of_entries() -> None:
    class Posted:
        def __init__(self, body: bytes) -> None:
            self._body = body

        async def stream(self) -> object:
            yield self._body

    assert await form_entries(Posted(b"a=1&" * (ENTRIES_MAX - 1)), 10**6) == {"a": "1"}  # type: ignore[arg-type]
    with pytest.raises(BadForm, match="entries"):
        await form_entries(Posted(b"a&" * (ENTRIES_MAX + 2)), 10**6)  # type: ignore[arg-type]
