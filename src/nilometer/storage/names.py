"""Names of files and folders in a log directory, as Kafka gives them.

No file is opened here. A segment's files share a 20-digit base offset; a partition's
folder is ``<topic>-<partition>``, where the topic itself may hold dashes; a deleted partition's is
``<topic>-<partition>.<uuid hex>-delete``, a replica being moved between folders ``…-future``.
"""

from __future__ import annotations

import enum
import re

import msgspec

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
SWAP_INPUTS_SUFFIX = ".inputs"
"""A file that lists the segments that a ``.swap`` segment replaces. Kafka has no such file and ignores it."""
TEMPORARY_SUFFIX = ".tmp"
CORRUPT_SUFFIX = ".corrupt"
"""Bytes that recovery cut off: kept as evidence, never served. Kafka ignores the suffix."""

SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT = "replication-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
GAPS_MARKER = "gaps-are-lawful"
"""An empty file in the folder of a log that was compacted once, on this broker or on the leader that it was
copied from: offsets may be missing in it. Not Kafka's."""

TIER_MARKER = "begins-in-remote-storage"
"""A file in the folder of a log whose first records may be in remote storage only: its log start offset may
be below its first segment. Not Kafka's."""
EPOCHS_LOST = b"epochs begin late\n"
"""What is in that file, which else is empty, if the leader epochs of these records are not known here."""

MOVED_MARKER = "moved-between-folders"
"""An empty file in the folder of a log that was copied from another log directory of this broker, until the
folder that it was copied from is out of use. Not Kafka's."""

_FOLDER_NAME_MAX = 255
_OFFSET_FILE = re.compile(r"^(\d{20})(\.[a-z]+)$")
_PARTITION_FOLDER = re.compile(r"^(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>0|[1-9][0-9]{0,9})$")
_SUFFIXED_FOLDER = re.compile(r"^(?P<partition>\S+)\.(?P<unique>[0-9a-f]{32})-(?P<kind>delete|future|stray)$")


def offset_name(offset: int, suffix: str) -> str:
    """Return the name of a segment's file, for example ``00000000000000000042.log``."""
    return f"{offset:020d}{suffix}"


def parse_offset_name(name: str) -> tuple[int, str] | None:
    """Return the offset and suffix in the name of a segment's or snapshot's file; None for other names."""
    found = _OFFSET_FILE.match(name)
    return (int(found[1]), found[2]) if found else None


class FolderKind(enum.Enum):
    LIVE = ""
    DELETE = "delete"
    FUTURE = "future"
    STRAY = "stray"


class TopicPartition(msgspec.Struct, frozen=True, order=True):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionFolder(msgspec.Struct, frozen=True):
    """The parts of a partition's folder name."""

    name: str
    topic_partition: TopicPartition
    kind: FolderKind


def parse_folder_name(name: str) -> PartitionFolder | None:
    """Parse a folder's name; None if it is not one that a broker gives to a partition's folder.

    So ``t-00`` and ``copy of t-0`` are not folders of ``t-0``.
    """
    kind = FolderKind.LIVE
    partition_name = name
    if suffixed := _SUFFIXED_FOLDER.match(name):
        kind = FolderKind(suffixed["kind"])
        partition_name = suffixed["partition"]
    found = _PARTITION_FOLDER.fullmatch(partition_name)
    if found is None:
        return None
    return PartitionFolder(name, TopicPartition(found["topic"], int(found["partition"])), kind)


def delete_folder_name(topic_partition: TopicPartition, unique_hex: str) -> str:
    """Return the name that a deleted partition's folder gets; a long topic name is cut to fit."""
    return _suffixed_folder_name(topic_partition, unique_hex, FolderKind.DELETE)


def stray_folder_name(topic_partition: TopicPartition, unique_hex: str) -> str:
    """Return the name that a stray folder gets, which the metadata does not assign to this broker.

    A long topic name is cut to fit.
    """
    return _suffixed_folder_name(topic_partition, unique_hex, FolderKind.STRAY)


def future_folder_name(topic_partition: TopicPartition, unique_hex: str) -> str | None:
    """Return the name of the folder of a log while it is copied from another log directory.

    None if the topic's name is too long for that (KAFKA-4893).
    """
    name = f"{topic_partition}.{unique_hex}-{FolderKind.FUTURE.value}"
    return name if len(name) <= _FOLDER_NAME_MAX else None


def _suffixed_folder_name(topic_partition: TopicPartition, unique_hex: str, kind: FolderKind) -> str:
    tail = f"-{topic_partition.partition}.{unique_hex}-{kind.value}"
    return topic_partition.topic[: _FOLDER_NAME_MAX - len(tail)] + tail
