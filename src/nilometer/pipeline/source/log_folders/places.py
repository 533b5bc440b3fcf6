"""Opens a place: a folder of files (``stored_files``), or an archived partition (``archived_partition``).

An archived partition has a place of its own, ``archive:<topic>/<topic id>/<partition>@<archive>``.
Opened, it looks like the folder of a replica, with the files that the manifest names.
"""

from __future__ import annotations

import errno

from nilometer.pipeline.source.log_folders import stored_files
from nilometer.runtime import Disk

_PREFIX = "archive:"


def archived_place(archive: str, topic: str, topic_id: str, partition: int) -> str:
    return f"{_PREFIX}{topic}/{topic_id}/{partition}@{archive}"


def open_place(place: str) -> tuple[Disk, str]:
    """Return the disk of a place and the place's path on it.

    Raises ValueError for an unknown URI, FileNotFoundError for a partition that is not archived.
    """
    if not place.startswith(_PREFIX):
        return stored_files.open_place(place)
    from nilometer.pipeline.source.log_folders.archived_partition import read_partition, view

    archive, topic, topic_id, partition = _parsed(place)
    found = read_partition(archive, topic, topic_id, partition)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "no such archived partition", shown(place))
    return view(found)


def shown(place: str) -> str:
    """Return a place for messages: without credentials, and without the options of its storage."""
    if not place.startswith(_PREFIX):
        return stored_files.shown(place)
    archive, topic, topic_id, partition = _parsed(place)
    return stored_files.shown(stored_files.join(archive, topic, topic_id, str(partition)))


def _parsed(place: str) -> tuple[str, str, str, int]:
    partition_path, _, archive = place.removeprefix(_PREFIX).partition("@")
    topic, topic_id, partition = partition_path.split("/")
    return archive, topic, topic_id, int(partition)
