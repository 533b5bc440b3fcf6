"""The exceptions that a log raises.

Those that a client receives have an error code (:class:`KafkaError`). :class:`LogFenced` and
:class:`CorruptRecordFound` mean that this replica can no longer be relied on; their code is the one that
Kafka uses for a failed log directory, KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.wire.errors import ErrorCode, KafkaError


class OffsetOutOfRange(KafkaError):
    """An offset below the log start or above the end of the log."""

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int, log: str) -> None:
        super().__init__(
            ErrorCode.offset_out_of_range,
            f"offset {offset} of {log} is not in [{log_start_offset}, {log_end_offset}]",
        )
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class OffsetInTier(KafkaError):
    """The record is not in the local log any more: it is in remote storage."""

    def __init__(self, offset: int, local_start_offset: int, log: str) -> None:
        super().__init__(
            ErrorCode.offset_moved_to_tiered_storage,
            f"offset {offset} of {log} is in remote storage: the local log begins at {local_start_offset}",
        )
        self.offset = offset
        self.local_start_offset = local_start_offset


class LogFenced(KafkaError):
    """A write to the log failed, so it accepts no more (KAFKA-10778). ``reason`` is the first failure."""

    def __init__(self, log: str, reason: OSError) -> None:
        super().__init__(ErrorCode.kafka_storage_error, f"{log} is offline since a disk error: {reason}")
        self.reason = reason


class CorruptRecordFound(KafkaError):
    """The bytes on disk are not the batch that was written. No record from ``position`` on is served.

    ``position`` is in bytes; ``offset`` is the first offset that cannot be read.
    """

    def __init__(self, path: str, position: int, offset: int, reason: str) -> None:
        super().__init__(
            ErrorCode.kafka_storage_error,
            f"{path} is damaged at byte {position} (records from offset {offset} on): {reason}",
        )
        self.path = path
        self.position = position
        self.offset = offset
        self.reason = reason


class RecordsRejected(KafkaError):
    """``count`` records of a batch are invalid, so none of it was appended (KIP-467).

    ``records``: for the first ones their number in the batch, counted from 0, and what is wrong with them.
    """

    def __init__(self, code: ErrorCode, records: Sequence[tuple[int, str]], count: int) -> None:
        index, first = records[0]
        super().__init__(code, f"{count} records are invalid, the first is record {index}: {first}")
        self.records = records


class UnexpectedAppendOffset(KafkaError):
    """A follower fetched records whose offsets do not continue its log."""

    def __init__(self, log: str, first_offset: int, last_offset: int, log_end_offset: int) -> None:
        super().__init__(
            ErrorCode.unknown_server_error,
            f"records [{first_offset}, {last_offset}] do not continue {log}, which ends at {log_end_offset}",
        )
        self.first_offset = first_offset
        self.last_offset = last_offset


class CorruptCheckpoint(Exception):
    """A checkpoint or metadata file is damaged. The caller rebuilds it, or rejects the log directory."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
