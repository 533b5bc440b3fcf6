"""The void marker: a file in a partition's folder that makes its lines in the checkpoint files void.

A checkpoint line has the partition's name but no topic id. If a folder is created while the checkpoint files
may still have a line of an earlier folder of that name, it gets this marker before its first log file. While
the marker exists, the lines are ignored. The next write of the checkpoint files replaces the old lines; then
the marker is removed. A crash at any point leaves the marker, or no old line.

Names in one folder reach the disk in the order of their creation, so the marker needs no sync.
"""

from __future__ import annotations

import posixpath

from nilometer.runtime import Disk

PREFIX = "checkpoints-void."


def file_name(unique_hex: str) -> str:
    """Return a unique marker name, so that a late removal cannot hit the marker of a later folder."""
    return PREFIX + unique_hex


def write(disk: Disk, folder: str, name: str) -> None:
    """Create the folder, and the marker in it. Raises OSError."""
    disk.make_directories(folder)
    disk.open(posixpath.join(folder, name), create=True).close()


def find(disk: Disk, folder: str) -> tuple[str, ...]:
    """Return the paths of the markers in ``folder``. Raises OSError."""
    if not disk.is_directory(folder):
        return ()
    found = disk.list_directory(folder)
    return tuple(posixpath.join(folder, name) for name in found if name.startswith(PREFIX))


def remove(disk: Disk, path: str) -> None:
    """Remove a marker and sync its folder; does nothing if it was deleted meanwhile. Raises OSError."""
    try:
        disk.remove(path)
        disk.sync_directory(posixpath.dirname(path))
    except FileNotFoundError:
        return
