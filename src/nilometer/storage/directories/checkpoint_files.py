"""The four offset checkpoint files of a log directory: their content, and how they are replaced.

They are written in three steps: plan on the thread that owns the logs, run the plan on any thread, record on
the owner's thread that it ran (``note_written``). One plan runs at a time. A plan that runs after a newer one
writes nothing, so an old value never replaces a newer one.

Until a plan is recorded, the old or the new content may be on disk; the queries here consider both.

A file whose content on disk is known to be the planned one is not written again. At least one file is written
nevertheless: a broker without traffic notices a failed disk by its checkpoints alone.

Lines of an earlier folder of the same name are void while the partition's folder has a marker.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Mapping, Sequence

import msgspec

from nilometer.runtime import Disk
from nilometer.storage import checkpoints, names
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.log_state import LogState
from nilometer.storage.names import TopicPartition

# The void marker: a file in a partition's folder that makes its lines in the checkpoint files void.
#
# A checkpoint line has the partition's name but no topic id. If a folder is created while the checkpoint
# files may still have a line of an earlier folder of that name, it gets this marker before any other file.
# While the marker exists, the lines are ignored. The next write of the checkpoint files replaces the
# old lines; then the marker is removed. A crash at any point leaves the marker, or no old line, or a folder
# without a topic id, which is not used.
#
# Names in one folder reach the disk in the order of their creation, so the marker needs no sync of its own.

_VOID_PREFIX = "checkpoints-void."


def void_marker_name(unique_hex: str) -> str:
    """Return a unique marker name, so that a late removal cannot hit the marker of a later folder."""
    return _VOID_PREFIX + unique_hex


def write_void_marker(disk: Disk, folder: str, name: str) -> None:
    """Create the folder, and the marker in it. Raises OSError."""
    disk.make_directories(folder)
    disk.open(posixpath.join(folder, name), create=True).close()


def void_markers(disk: Disk, folder: str) -> tuple[str, ...]:
    """Return the paths of the markers in ``folder``. Raises OSError."""
    if not disk.is_directory(folder):
        return ()
    found = disk.list_directory(folder)
    return tuple(posixpath.join(folder, name) for name in found if name.startswith(_VOID_PREFIX))


def remove_void_marker(disk: Disk, path: str) -> None:
    """Remove a marker and sync its folder; does nothing if it was deleted meanwhile. Raises OSError."""
    try:
        disk.remove(path)
        disk.sync_directory(posixpath.dirname(path))
    except FileNotFoundError:
        return


Offsets = Mapping[TopicPartition, int]

FILES = (
    names.RECOVERY_POINT_CHECKPOINT,
    names.REPLICATION_OFFSET_CHECKPOINT,
    names.LOG_START_OFFSET_CHECKPOINT,
    names.CLEANER_OFFSET_CHECKPOINT,
)


class LogWaiting(msgspec.Struct, frozen=True):
    """A log that accepts no appends before a write of the checkpoint files, when the write was planned."""

    log: LogState
    truncations: int
    unsynced: tuple[str, ...]
    """Paths of the files that the write must also make durable, with the names in their folder."""


class CheckpointPlan(msgspec.Struct, frozen=True):
    """The new content of the checkpoint files, written by :meth:`run`."""

    owner: CheckpointFiles
    number: int
    content: Mapping[str, Offsets]
    """The offsets of each file, by file name."""
    files: tuple[str, ...]
    """The names of the files to write; the others have their content on disk already."""
    void_markers: Mapping[TopicPartition, tuple[str, ...]]
    """Markers (paths, see the comment above) to remove after the write: the files then have no line of
    an earlier folder of the same name."""
    waiting: Sequence[LogWaiting]
    """The logs that accept no appends before this write."""

    @property
    def directory(self) -> str:
        return self.owner.directory

    def run(self) -> bool:
        """Write the files, on any thread; return False, with nothing written, if a newer plan ran before.

        Blocks on the disk. Raises the first OSError.
        """
        return self.owner.write(self)


class CheckpointFiles:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.directory = directory
        self.void_markers: dict[TopicPartition, tuple[str, ...]] = {}
        """Paths of the markers of the partitions whose lines in the files must be ignored."""
        self.errors: list[CorruptCheckpoint] = []
        """Errors of the files that were damaged, and so are treated as empty."""
        self._written: dict[str, Offsets] = {}
        """The content of the files, by file name."""
        self._is_on_disk = False
        """Whether ``_written`` is what this process wrote. A file that was read may be missing or damaged."""
        self._planned: list[CheckpointPlan] = []
        """Plans that may have been written, partly or fully, and are not recorded yet; oldest first."""
        self._last_number = 0
        self._newest_begun = 0
        """Number of the newest plan that began to write."""

    def load(self) -> None:
        """Read the four files; a damaged one is treated as empty (see :attr:`errors`). Raises OSError.

        They are durable then: the last process may have been killed before it synced the folder of a file it
        had renamed. A power loss would bring back the former one, whose offsets no log waits for any more.
        """
        self._disk.sync_directory(self.directory)
        self._written = {name: self._read(name) for name in FILES}

    def trusted(self, name: str) -> dict[TopicPartition, int]:
        """Return the offsets in file ``name``, without those of partitions with a void marker."""
        return {key: offset for key, offset in self._written[name].items() if key not in self.void_markers}

    def may_have_line(self, key: TopicPartition) -> bool:
        return any(key in offsets for content in self._contents() for offsets in content.values())

    def may_exceed(self, key: TopicPartition, name: str, offset: int) -> bool:
        """Return whether file ``name`` on disk may have an offset above ``offset`` for partition ``key``."""
        return any(content.get(name, {}).get(key, 0) > offset for content in self._contents())

    def least(self, key: TopicPartition, name: str) -> int:
        """Return the least offset that file ``name`` on disk may have for ``key``; 0 if it may have none."""
        if key in self.void_markers:
            return 0
        return min(content.get(name, {}).get(key, 0) for content in self._contents())

    def plan(self, content: Mapping[str, Offsets], waiting: Sequence[LogWaiting]) -> CheckpointPlan:
        """Return a plan to write ``content``, which must have all four files. Does not block."""
        self._last_number += 1
        files = self._changed(content)
        plan = CheckpointPlan(self, self._last_number, content, files, dict(self.void_markers), waiting)
        self._planned.append(plan)
        return plan

    def _changed(self, content: Mapping[str, Offsets]) -> tuple[str, ...]:
        """Return the files to write for ``content``: those that may differ on disk, at least the smallest."""
        if self._planned or not self._is_on_disk:
            return FILES
        changed = tuple(name for name in FILES if content[name] != self._written[name])
        smallest = min(FILES[:-1], key=lambda name: len(content[name]))  # the cleaner's file may not exist
        return changed or (smallest,)

    def write(self, plan: CheckpointPlan) -> bool:
        """Write the plan's files: see :meth:`CheckpointPlan.run`."""
        if plan.number < self._newest_begun:
            return False
        self._newest_begun = plan.number
        for log in plan.waiting:
            for path in log.unsynced:
                with contextlib.suppress(FileNotFoundError):  # deleted, or truncated again, meanwhile
                    checkpoints.make_durable(self._disk, path)
        for name in plan.files:
            path, offsets = posixpath.join(self.directory, name), plan.content[name]
            if offsets or name != names.CLEANER_OFFSET_CHECKPOINT or self._disk.exists(path):
                checkpoints.write_offsets(self._disk, path, offsets)
        for paths in plan.void_markers.values():
            for path in paths:
                remove_void_marker(self._disk, path)
        return True

    def note_written(self, plan: CheckpointPlan) -> None:
        """Record that ``plan.run()`` returned True: its content is on disk. Call it on the owner's thread."""
        self._written = dict(plan.content)
        self._is_on_disk = True
        self._planned = [other for other in self._planned if other.number > plan.number]
        for key, paths in plan.void_markers.items():
            if self.void_markers.get(key) == paths:
                del self.void_markers[key]

    def _contents(self) -> list[Mapping[str, Offsets]]:
        return [self._written, *(plan.content for plan in self._planned)]

    def _read(self, name: str) -> Offsets:
        try:
            return checkpoints.read_offsets(self._disk, posixpath.join(self.directory, name))
        except CorruptCheckpoint as error:
            self.errors.append(error)
            return {}
