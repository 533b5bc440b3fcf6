"""One replica's log on disk, in Apache Kafka's own formats; and all the logs of a broker.

Start at :class:`Log` (one partition's log) and :class:`LogManager` (the log directories). Typical use::

    options = ManagerOptions(node_id=1, directories=[...], entropy=entropy, config_for=...)
    manager = await disk.offload(lambda: LogManager.open(disk, options, wall_ms=now))   # recovers if need be
    log = manager.create(TopicPartition("clicks", 0), config, topic_id=..., wall_ms=...)
    info = log.append_as_leader(records, leader_epoch=3, wall_ms=now)      # -> AppendInfo
    part = log.read(info.first_offset, 1 << 20, high_watermark, only_cached=True)
    if part is None:                                                       # not in the page cache
        part = await disk.offload(lambda: log.read(info.first_offset, 1 << 20, high_watermark))
    plan = log.flush_plan()                                                # group commit
    await disk.offload(plan.run)                                           # OSError: log.fence(error)
    log.mark_flushed(plan, wall_ms=now)                                    # log.flushed_offset has moved

Errors that a client receives are ``KafkaError``s with an error code. After its first failed write a log
raises ``LogFenced``; bytes damaged on disk raise ``CorruptRecordFound`` with file and position.

Layers, each importing only earlier ones: ``segments`` (files and indexes) → ``producers`` →
``leader_epoch_cache``, ``log_state`` → operations (``appending``, ``reading``, ``time_search``,
``truncation``, ``retention``, ``flushing``, ``recovery``) → ``log`` → ``directories``.

Importing this package imports none of its modules: tools need names of files, not logs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nilometer.storage.appending import AppendInfo
    from nilometer.storage.damage import Damage, DamageKind
    from nilometer.storage.directories.log_manager import LogManager, ManagerOptions, NoLogDirectory
    from nilometer.storage.errors import (
        CorruptCheckpoint,
        CorruptRecordFound,
        LogFenced,
        OffsetOutOfRange,
        RecordsRejected,
        UnexpectedAppendOffset,
    )
    from nilometer.storage.flushing import FlushPlan
    from nilometer.storage.leader_epoch_cache import LeaderEpochCache
    from nilometer.storage.log import Log
    from nilometer.storage.names import TopicPartition
    from nilometer.storage.producers import AppendOrigin
    from nilometer.storage.reading import LogSlice
    from nilometer.storage.record_validation import ReadingAllowance, UnreadRecords, ValidatedBatch
    from nilometer.storage.recovery import OpenOptions
    from nilometer.storage.segments.segment_files import SegmentFiles
    from nilometer.storage.segments.transaction_index import AbortedTxn
    from nilometer.storage.time_search import SearchSteps
    from nilometer.storage.topic_config import TOPIC_CONFIG, LogConfig, topic_defaults
    from nilometer.storage.truncation import Truncation

__all__ = [
    "TOPIC_CONFIG",
    "AbortedTxn",
    "AppendInfo",
    "AppendOrigin",
    "CorruptCheckpoint",
    "CorruptRecordFound",
    "Damage",
    "DamageKind",
    "FlushPlan",
    "LeaderEpochCache",
    "Log",
    "LogConfig",
    "LogFenced",
    "LogManager",
    "LogSlice",
    "ManagerOptions",
    "NoLogDirectory",
    "OffsetOutOfRange",
    "OpenOptions",
    "ReadingAllowance",
    "RecordsRejected",
    "SearchSteps",
    "SegmentFiles",
    "TopicPartition",
    "Truncation",
    "UnexpectedAppendOffset",
    "UnreadRecords",
    "ValidatedBatch",
    "topic_defaults",
]

_MODULES = {
    "AppendInfo": "appending",
    "LogManager": "directories.log_manager",
    "ManagerOptions": "directories.log_manager",
    "NoLogDirectory": "directories.log_manager",
    "CorruptCheckpoint": "errors",
    "CorruptRecordFound": "errors",
    "LogFenced": "errors",
    "OffsetOutOfRange": "errors",
    "RecordsRejected": "errors",
    "UnexpectedAppendOffset": "errors",
    "FlushPlan": "flushing",
    "LeaderEpochCache": "leader_epoch_cache",
    "Log": "log",
    "LogConfig": "topic_config",
    "topic_defaults": "topic_config",
    "TopicPartition": "names",
    "AppendOrigin": "producers",
    "LogSlice": "reading",
    "ReadingAllowance": "record_validation",
    "UnreadRecords": "record_validation",
    "ValidatedBatch": "record_validation",
    "OpenOptions": "recovery",
    "SegmentFiles": "segments.segment_files",
    "AbortedTxn": "segments.transaction_index",
    "Damage": "damage",
    "DamageKind": "damage",
    "SearchSteps": "time_search",
    "TOPIC_CONFIG": "topic_config",
    "Truncation": "truncation",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"nilometer.storage.{_MODULES[name]}"), name)
