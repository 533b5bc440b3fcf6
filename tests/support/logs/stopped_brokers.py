"""The log directories of brokers that were stopped in order, with empty replicas."""

from __future__ import annotations

from pathlib import Path

from nilometer.identifiers import uuid_from_text
from nilometer.runtime import Runtime
from nilometer.storage.directories.log_directory import MetaProperties, write_meta_properties
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.names import META_PROPERTIES, TopicPartition
from nilometer.storage.topic_config import LogConfig

EVENTS = TopicPartition("events", 0)
BROKER_EPOCH = 17
WALL_MS = 1_700_000_000_000


def opened(directory: Path) -> LogManager:
    options = ManagerOptions(node_id=1, directories=[str(directory)], entropy=Runtime.system().entropy)
    return LogManager.open(Runtime.system().disk, options, wall_ms=WALL_MS)


def broker_folder(directory: Path, *parts: TopicPartition) -> Path:
    """The log directory of a broker that was stopped in order, with empty replicas."""
    directory.mkdir(parents=True)
    identity = MetaProperties(node_id=1, cluster_id="c", directory_id=None)
    write_meta_properties(Runtime.system().disk, str(directory / META_PROPERTIES), identity)
    manager = opened(directory)
    for number, part in enumerate(parts or (EVENTS,)):
        topic_id = uuid_from_text("bcdef"[number] * 21 + "A")
        manager.create(part, LogConfig(), wall_ms=WALL_MS, topic_id=topic_id)
    assert manager.close({}, broker_epoch=BROKER_EPOCH, wall_ms=WALL_MS) == []
    return directory
