"""What batches say of themselves: offsets, control records, the records of aborted transactions."""

from __future__ import annotations

from nilometer.share.partition_events import Acquired, OffsetRange, batches_of, fetched
from nilometer.wire.records import BatchBuilder, ControlType, EndTxnMarker, build_end_txn_marker


def batch(base_offset: int, count: int, producer_id: int = -1) -> bytes:
    builder = BatchBuilder()
    for number in range(count):
        builder.append(1_000, None, b"%d" % number, ())
    return builder.build(
        base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=producer_id >= 0,
    )


def marker(offset: int, producer_id: int, kind: ControlType) -> bytes:
    return build_end_txn_marker(
        EndTxnMarker(kind, 0, 1_000), producer_id=producer_id, producer_epoch=0, base_offset=offset
    )


def test_batches_are_ranges_of_offsets() -> None:
    found = fetched(batch(5, 3) + batch(10, 1), 6)
    assert found.fetch_offset == 6
    assert list(found.batches) == [OffsetRange(5, 7), OffsetRange(10, 10)]
    assert list(found.unreadable) == []


def test_an_incomplete_last_batch_is_not_there() -> None:
    found = fetched(batch(0, 3) + batch(3, 3)[:-1], 0)
    assert list(found.batches) == [OffsetRange(0, 2)]


def test_control_records_cannot_be_read_at_any_isolation_level() -> None:
    records = batch(0, 2, producer_id=7) + marker(2, 7, ControlType.COMMIT)
    assert list(fetched(records, 0).unreadable) == [OffsetRange(2, 2)]


def test_an_aborted_transaction_cannot_be_read_up_to_its_marker() -> None:
    records = (
        batch(0, 2, producer_id=7)
        + batch(2, 1, producer_id=8)
        + marker(3, 7, ControlType.ABORT)
        + batch(4, 2, producer_id=7)
        + marker(6, 7, ControlType.COMMIT)
    )
    found = fetched(records, 0, aborted=[(7, 0)])
    assert list(found.unreadable) == [OffsetRange(0, 1), OffsetRange(3, 3), OffsetRange(6, 6)]
    assert len(found.batches) == 5


def test_records_that_are_not_transactional_do_not_belong_to_an_aborted_transaction() -> None:
    records = batch(0, 1, producer_id=7) + batch(1, 1) + marker(2, 7, ControlType.ABORT)
    assert list(fetched(records, 0, aborted=[(7, 0)]).unreadable) == [OffsetRange(0, 0), OffsetRange(2, 2)]


def test_the_response_has_the_batches_of_what_was_acquired() -> None:
    one, two, three = batch(0, 3), batch(3, 3), batch(6, 3)
    records = one + two + three
    assert bytes(batches_of(records, [Acquired(0, 8, 1)])) == records
    assert bytes(batches_of(records, [Acquired(4, 4, 1)])) == two
    assert bytes(batches_of(records, [Acquired(2, 2, 1), Acquired(5, 5, 2)])) == one + two
    assert bytes(batches_of(records, [])) == b""
    assert bytes(batches_of(records, [Acquired(9, 9, 1)])) == b""
