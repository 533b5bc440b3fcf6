"""The control record that ends a transaction in a partition: commit or abort.

Key: version (int16, 0) and type (int16: 0 abort, 1 commit). Value: version (int16, 0) and the epoch of
the transaction coordinator (int32).
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from nilometer.wire.compression import Bytes
from nilometer.wire.record_batch import BatchHeader
from nilometer.wire.records import BatchBuilder, decode_records

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0


class ControlType(enum.IntEnum):
    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True)
class EndTxnMarker:
    control_type: ControlType
    coordinator_epoch: int
    timestamp: int


def read_marker(buffer: Bytes, position: int, header: BatchHeader) -> EndTxnMarker | None:
    """Return the marker in a control batch; None for other control records and a batch without records."""
    records = decode_records(buffer, position, header)
    if not records:
        return None
    key, value = records[0].key, records[0].value
    if key is None or len(key) < _KEY.size or value is None or len(value) < _VALUE.size:
        return None
    _, kind = _KEY.unpack_from(key)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    _, coordinator_epoch = _VALUE.unpack_from(value)
    return EndTxnMarker(ControlType(kind), coordinator_epoch, records[0].timestamp)


def build_marker(producer_id: int, producer_epoch: int, marker: EndTxnMarker) -> bytes:
    """Return a control batch that the leader appends for the transaction coordinator."""
    builder = BatchBuilder()
    key = _KEY.pack(_VERSION, marker.control_type)
    builder.append(marker.timestamp, key, _VALUE.pack(_VERSION, marker.coordinator_epoch))
    return builder.build(
        producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )
