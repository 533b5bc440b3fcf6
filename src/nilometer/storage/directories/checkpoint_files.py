"""The four offset checkpoints of a log directory: what the files may say, and how they are replaced.

In three steps: plan on the thread that owns the logs, run on any thread, note on the owner's thread again.
One plan runs at a time. A plan that comes after a newer one writes nothing, so an old value never replaces a
newer one.

Between running a plan and recording it either content may be on disk. The queries here cover both.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from nilometer.runtime import Disk
from nilometer.storage import checkpoints, names
from nilometer.storage.directories import void_checkpoints
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition

Offsets = Mapping[TopicPartition, int]

FILES = (
    names.RECOVERY_POINT_CHECKPOINT,
    names.REPLICATION_OFFSET_CHECKPOINT,
    names.LOG_START_OFFSET_CHECKPOINT,
    names.CLEANER_OFFSET_CHECKPOINT,
)


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """Checkpoint files to write. :meth:`run` stalls; it raises the first OSError."""

    owner: CheckpointFiles
    number: int
    content: Mapping[str, Offsets]
    """By file name."""
    void_markers: Mapping[TopicPartition, tuple[str, ...]]
    """To be removed once the files are written: from then on these hold no older line of those names."""
    cuts: Mapping[TopicPartition, int]
    """The truncation count of each log that waits for its truncation to be checkpointed."""

    @property
    def directory(self) -> str:
        return self.owner.directory

    def run(self) -> bool:
        """On any thread; false, with nothing written, where a newer plan came first."""
        return self.owner.write(self)


class CheckpointFiles:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.directory = directory
        self.void_markers: dict[TopicPartition, tuple[str, ...]] = {}
        """Of the folders for which the lines in the files are void."""
        self.errors: list[CorruptCheckpoint] = []
        """Files that could not be read and were taken as empty."""
        self._written: dict[str, Offsets] = {}
        """The content of the files, by file name."""
        self._planned: list[CheckpointPlan] = []
        """Plans that may have written something, the oldest first."""
        self._last_number = 0
        self._newest_begun = 0

    def load(self) -> None:
        """Raises OSError."""
        self._written = {name: self._read(name) for name in FILES}

    def trusted(self, name: str) -> dict[TopicPartition, int]:
        """The lines of one file, except those of folders whose lines are void."""
        return {key: offset for key, offset in self._written[name].items() if key not in self.void_markers}

    def may_have_line(self, key: TopicPartition) -> bool:
        return any(key in offsets for content in self._contents() for offsets in content.values())

    def may_exceed(self, key: TopicPartition, name: str, offset: int) -> bool:
        """Whether a line on disk may be above ``offset``."""
        return any(content.get(name, {}).get(key, 0) > offset for content in self._contents())

    def least(self, key: TopicPartition, name: str) -> int:
        """The least that the line of ``key`` on disk may say; 0 where there may be none to be believed."""
        if key in self.void_markers:
            return 0
        return min(content.get(name, {}).get(key, 0) for content in self._contents())

    def plan(self, content: Mapping[str, Offsets], cuts: Mapping[TopicPartition, int]) -> CheckpointPlan:
        """Never stalls. ``content`` has all four files."""
        self._last_number += 1
        plan = CheckpointPlan(self, self._last_number, content, dict(self.void_markers), cuts)
        self._planned.append(plan)
        return plan

    def write(self, plan: CheckpointPlan) -> bool:
        """See :meth:`CheckpointPlan.run`."""
        if plan.number < self._newest_begun:
            return False
        self._newest_begun = plan.number
        for name, offsets in plan.content.items():
            path = posixpath.join(self.directory, name)
            if offsets or name != names.CLEANER_OFFSET_CHECKPOINT or self._disk.exists(path):
                checkpoints.write_offsets(self._disk, path, offsets)
        for paths in plan.void_markers.values():
            for path in paths:
                void_checkpoints.remove(self._disk, path)
        return True

    def note_written(self, plan: CheckpointPlan) -> None:
        """The plan has run, and wrote."""
        self._written = dict(plan.content)
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


def cleaned_offsets(logs: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
    """Up to where compaction has been, of the logs that it came through, whatever their policy is now."""
    return {key: log.cleaned_offset for key, log in logs.items() if log.cleaned_offset}


def moved_starts(logs: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
    """Log starts that differ from the first segment's base offset."""
    return {
        key: log.log_start_offset
        for key, log in logs.items()
        if log.log_start_offset > log.segments.first.base_offset
    }
