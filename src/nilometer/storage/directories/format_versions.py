"""Whether this version can read the files of a log directory: checked before anything in it is written.

A later version may write files of a later format. They are no damage: a broker that took them for that would
recover what is in order, or forget offsets. So a broker refuses to start with them, and names the file. Files
of single partitions are not checked: what an unknown version of them says is in the log, too.
"""

from __future__ import annotations

import json
import posixpath
from typing import Any

from nilometer.runtime import Disk
from nilometer.storage import checkpoints, names
from nilometer.storage.directories import clean_shutdown, meta_properties
from nilometer.storage.directories.checkpoint_files import FILES
from nilometer.storage.errors import CorruptCheckpoint


def check_versions(disk: Disk, directory: str) -> None:
    """Raise CorruptCheckpoint if a file in ``directory`` has a later version; nothing is changed. May block.

    A file that cannot be read, or whose version is no number, is left to what reads it later.
    """
    for name, newest in (
        (names.META_PROPERTIES, meta_properties.VERSION),
        (names.CLEAN_SHUTDOWN, clean_shutdown.VERSION),
        *((name, checkpoints.VERSION) for name in FILES),
    ):
        path = posixpath.join(directory, name)
        version = _version(disk, path, name)
        if version is not None and version > newest:
            raise CorruptCheckpoint(
                path,
                f"has version {version}, but this version of the broker reads versions up to {newest}. "
                "Nothing was changed: start a version that can read it",
            )


def _version(disk: Disk, path: str, name: str) -> int | None:
    try:
        text = disk.read_file(path).decode()
        if name == names.META_PROPERTIES:
            lines = (line.partition("=") for line in text.splitlines())
            return next((int(value) for key, _, value in lines if key.strip() == "version"), None)
        if name == names.CLEAN_SHUTDOWN:
            fields: dict[str, Any] = json.loads(text)
            return int(fields["version"])
        return int(text.partition("\n")[0])
    except (OSError, ValueError, TypeError, KeyError):
        return None
