"""Segments of a partition's replicas, side by side; and why some are not shown."""

from __future__ import annotations

from nilometer.console.views.partition import EARLIER_VERSION, ROWS_MAX, SegmentCell, segments_view
from nilometer.wire.own_apis import SEGMENTS_MAX, SegmentsState, SegmentState
from support.console.replica_states import Partition


def log(*bases: int, count: int | None = None, largest: int = -1) -> SegmentsState:
    newest = tuple(
        SegmentState(
            base_offset=base, size_bytes=base + 10, modified_ms=base + 1_000, largest_timestamp=largest
        )
        for base in bases
    )
    return SegmentsState(count=len(bases) if count is None else count, newest=newest)


def test_replicas_are_side_by_side_and_the_newest_segment_is_first() -> None:
    segments = {1: log(0, 100, 200), 2: log(0, 150), 3: log(0)}
    found = segments_view(Partition(segments=segments).survey().rows)
    assert (found.brokers, found.counts, found.absent, found.is_cut) == ((1, 2, 3), (3, 2, 1), (), False)
    assert [row.base_offset for row in found.rows] == [200, 150, 100, 0]
    assert found.rows[0].cells == (SegmentCell(210, 1_200, True), None, None)
    assert found.rows[1].cells == (None, SegmentCell(160, 1_150, True), None)
    assert [cell is not None and cell.is_active for cell in found.rows[3].cells] == [False, False, True]


def test_the_largest_timestamp_is_that_of_a_broker_which_knows_it() -> None:
    segments = {1: log(0), 2: log(0, largest=77), 3: log(0)}
    assert segments_view(Partition(segments=segments).survey().rows).rows[0].largest_timestamp == 77


def test_what_is_not_described_has_a_reason() -> None:
    partition = Partition(ends={1: 10, 2: 10, 3: None}, segments={1: log(0)})
    found = segments_view(partition.survey().rows)
    assert found.brokers == (1,)
    assert found.absent == ((2, EARLIER_VERSION), (3, "no response from it within 2000 ms"))
    none = segments_view(Partition().survey().rows)
    assert (none.rows, len(none.absent)) == ((), 3)


def test_a_long_log_is_cut() -> None:
    most = log(*range(ROWS_MAX))
    assert not segments_view(Partition(segments={1: most}).survey().rows).is_cut
    found = segments_view(Partition(segments={1: log(*range(ROWS_MAX + 1))}).survey().rows)
    assert (len(found.rows), found.is_cut, found.rows[-1].base_offset) == (ROWS_MAX, True, 1)
    assert segments_view(Partition(segments={1: log(5, count=SEGMENTS_MAX + 1)}).survey().rows).is_cut
