"""Control records: transaction markers and others.

Encodes and decodes a transaction marker. Key: version (int16, 0) and type (int16: 0 abort, 1 commit). Value:
version (int16, 0) and the epoch of the transaction coordinator (int32). A batch with a marker has exactly
this one record, a producer id, and is transactional.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from nilometer.wire.compression import Bytes
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.record_batch import NO_PARTITION_LEADER_EPOCH, BatchHeader
from nilometer.wire.records import BatchBuilder, Record, decode_records

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")
_VERSION = 0


class ControlType(enum.IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


class EndTxnMarker(NamedTuple):
    control_type: ControlType
    """COMMIT or ABORT."""
    coordinator_epoch: int
    timestamp: int
    """Milliseconds since the epoch."""


def control_type(record: Record) -> ControlType:
    """Return the type of a record in a control batch; UNKNOWN for a newer type. Raises CorruptBatch."""
    if record.key is None or len(record.key) < _KEY.size:
        raise CorruptBatch("control record without a type")
    version, number = _KEY.unpack_from(record.key)
    if version < 0:
        raise CorruptBatch(f"invalid control record version {version}")
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


def end_txn_marker(record: Record) -> EndTxnMarker | None:
    """Return the marker in ``record``, None for a control record of another type. Raises CorruptBatch."""
    found = control_type(record)
    if found not in (ControlType.COMMIT, ControlType.ABORT):
        return None
    if record.value is None or len(record.value) < _MARKER.size:
        raise CorruptBatch("end transaction marker without a coordinator epoch")
    version, coordinator_epoch = _MARKER.unpack_from(record.value)
    if version < 0:
        raise CorruptBatch(f"invalid end transaction marker version {version}")
    return EndTxnMarker(found, coordinator_epoch, record.timestamp)


def read_end_txn_marker(buffer: Bytes, position: int, header: BatchHeader) -> EndTxnMarker | None:
    """Return the marker in a control batch; None for other control records and a batch without a marker.

    Raises CorruptBatch if the records cannot be decoded.
    """
    records = decode_records(buffer, position, header)
    try:
        return end_txn_marker(records[0]) if records else None
    except CorruptBatch:
        return None


def build_end_txn_marker(
    marker: EndTxnMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
) -> bytes:
    """Return the control batch that ends the producer's transaction in a partition."""
    if marker.control_type not in (ControlType.COMMIT, ControlType.ABORT):
        raise ValueError(f"{marker.control_type.name} does not end a transaction")
    builder = BatchBuilder()
    builder.append(
        marker.timestamp,
        _KEY.pack(_VERSION, marker.control_type),
        _MARKER.pack(_VERSION, marker.coordinator_epoch),
    )
    return builder.build(
        base_offset,
        producer_id,
        producer_epoch,
        transactional=True,
        control=True,
        partition_leader_epoch=partition_leader_epoch,
    )
