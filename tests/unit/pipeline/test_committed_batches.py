"""read_committed: what of a fetch is left out, by what the broker names and the markers among the records."""

from __future__ import annotations

from nilometer.pipeline.decode.column_decoder import ColumnDecoder
from nilometer.pipeline.source.cluster.cluster_source import CommittedBatches
from nilometer.wire.records import BatchBuilder, ControlType, EndTxnMarker, build_end_txn_marker


class Partition:
    """Batches of transactions, one behind the other."""

    def __init__(self) -> None:
        self.data = b""
        self.next_offset = 0

    def send(self, producer_id: int, *values: bytes, transactional: bool = True) -> int:
        builder = BatchBuilder()
        for value in values:
            builder.append(0, None, value)
        self.data += builder.build(self.next_offset, producer_id, 0, 0, transactional=transactional)
        first = self.next_offset
        self.next_offset += len(values)
        return first

    def end(self, producer_id: int, kind: ControlType) -> None:
        marker = EndTxnMarker(kind, 0, 0)
        self.data += build_end_txn_marker(
            marker, producer_id=producer_id, producer_epoch=0, base_offset=self.next_offset
        )
        self.next_offset += 1

    def read(self, aborted, start=0) -> list[bytes]:
        decoder = ColumnDecoder("t", 0, start, self.next_offset)
        batches = [*decoder.add(self.data, CommittedBatches(aborted)), *decoder.take()]
        return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_an_aborted_transaction_is_left_out_and_others_among_it_are_not():
    log = Partition()
    aborted = log.send(7, b"lost 1")
    log.send(8, b"kept 1")
    log.send(9, b"plain", transactional=False)
    log.send(7, b"lost 2", b"lost 3")
    log.end(8, ControlType.COMMIT)
    log.end(7, ControlType.ABORT)
    log.send(7, b"kept 2")
    log.end(7, ControlType.COMMIT)
    assert log.read([(7, aborted)]) == [b"kept 1", b"plain", b"kept 2"]


def test_each_aborted_transaction_of_a_producer_ends_with_its_own_marker():
    log = Partition()
    first = log.send(7, b"lost 1")
    log.end(7, ControlType.ABORT)
    log.send(7, b"kept")
    log.end(7, ControlType.COMMIT)
    second = log.send(7, b"lost 2")
    log.end(7, ControlType.ABORT)
    assert log.read([(7, second), (7, first)]) == [b"kept"]


def test_a_fetch_from_the_middle_of_an_aborted_transaction_leaves_out_the_rest():
    log = Partition()
    first = log.send(7, b"lost 1", b"lost 2")
    log.send(7, b"lost 3")
    log.end(7, ControlType.ABORT)
    log.send(7, b"kept")
    assert log.read([(7, first)], start=1) == [b"kept"]
