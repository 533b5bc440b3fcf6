"""The logs that a starting broker finds in its log directories, and the cluster that they belong to.

They are looked at before anything in the directories is changed. Only the cluster that they were written in
knows their topics: in any other one no log would be assigned to this broker. So with logs in its directories
a broker creates no cluster, and joins only their own. A folder with Kafka's metadata log is refused by name.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

import msgspec

from nilometer.broker.replicas import broker_epoch_marker
from nilometer.runtime import Disk
from nilometer.storage import CorruptCheckpoint, names
from nilometer.storage.directories import log_directory
from nilometer.storage.directories.log_directory import METADATA_TOPIC, LogDirectory
from nilometer.storage.names import FolderKind

KAFKA_METADATA = f"{METADATA_TOPIC}-0"
NAMED_MAX = 3
EMPTY_FOLDER = "To begin with a new broker, set log.dirs to an empty folder"


class FoundLogs(msgspec.Struct, frozen=True):
    directories: Sequence[str]
    """The log directories that have logs."""
    logs: Sequence[str]
    """The names of the partitions."""
    cluster_id: str | None
    """The id in ``meta.properties``; None if no directory has one."""

    def __str__(self) -> str:
        shown = ", ".join(self.logs[:NAMED_MAX]) + (", …" if len(self.logs) > NAMED_MAX else "")
        return f"{', '.join(self.directories)}: has the logs of {len(self.logs)} partitions ({shown})"


def find_logs(disk: Disk, log_dirs: Sequence[str], node_id: int) -> FoundLogs | None:
    """Return the logs in ``log_dirs``; None if there are none. May block; nothing is changed.

    Raises CorruptCheckpoint if the folders are those of another node or of a Kafka broker in KRaft mode, or
    if a ``meta.properties`` cannot be read. A directory that fails is left out: it is found again, and taken
    offline, when it is opened.
    """
    found: dict[str, list[str]] = {}
    cluster_ids: list[str] = []
    of_kafka: list[str] = []
    is_ours = False
    for path in log_dirs:
        try:
            folders = LogDirectory(disk, path).partition_folders()
            identity = log_directory.read_meta_properties(disk, posixpath.join(path, names.META_PROPERTIES))
            is_ours = is_ours or disk.exists(posixpath.join(path, broker_epoch_marker.NAME))
            if disk.is_directory(posixpath.join(path, KAFKA_METADATA)):
                of_kafka.append(path)
        except OSError:
            continue
        if identity is not None:
            identity.check(posixpath.join(path, names.META_PROPERTIES), node_id, None)
            cluster_ids += [identity.cluster_id] if identity.cluster_id else []
        if live := [str(each.topic_partition) for each in folders if each.kind is FolderKind.LIVE]:
            found[path] = live
    if of_kafka and not is_ours:
        raise CorruptCheckpoint(
            of_kafka[0],
            f"has {KAFKA_METADATA}, the metadata log of Apache Kafka: this is the data of a Kafka broker. "
            f"Nothing was changed. {EMPTY_FOLDER}; MirrorMaker 2 copies Kafka's topics",
        )
    if not found:
        return None
    logs = sorted(name for several in found.values() for name in several)
    return FoundLogs(tuple(found), logs, cluster_ids[0] if cluster_ids else None)
