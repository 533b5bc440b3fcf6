"""One round over a log that is in use, as the log's owner sees it. All of it for the owner's thread.

The round itself (:mod:`~nilometer.storage.cleaning.cleaning_round`) works on files and knows nothing of what
becomes of the log meanwhile. Here is judged whether it may go on, and here a cleaned segment takes the place
of those it was made from. On the disk that is :mod:`nilometer.storage.swapping`; in memory it is one
assignment: readers have the old segments or the new one. A reader on another thread that finds the file of
one and the index of the other looks again: :attr:`LocalLog.replacements` tells that something was replaced
meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.storage import swapping
from nilometer.storage.cleaning.cleaning_round import CleaningRound, ReadyGroup, RoundOptions
from nilometer.storage.cleaning.plan import CleaningPlan
from nilometer.storage.errors import LogFenced
from nilometer.storage.local_log import LocalLog
from nilometer.storage.segments.segment import LogSegment


class RoundOvertaken(Exception):
    """The log has changed in a way that makes the rest of a round void."""


class LogCleaning:
    def __init__(self, log: LocalLog, plan: CleaningPlan, options: RoundOptions) -> None:
        """Begin a round: from here on the log may have gaps. Raises OSError, RoundOvertaken."""
        self._log = log
        self._truncations = log.truncations
        self._log_start_offset = log.log_start_offset
        self._folder = log.folder
        self.plan = plan
        self.check(plan.segments)
        log.allow_gaps()
        self.round = CleaningRound(
            log.files.disk,
            log.folder,
            plan,
            log.config,
            # Sealed segments get no more of them; those of the active one are read here.
            tuple(log.segments)[:-1],
            tuple(log.segments.active.aborted()),
            log.producers.producers,
            options,
        )

    def check(self, inputs: Sequence[LogSegment] = ()) -> None:
        """That the round may go on, and may replace ``inputs``. Raises RoundOvertaken."""
        log = self._log
        if log.failure is not None or log.folder != self._folder:
            raise RoundOvertaken("the log was deleted, or is offline")
        if log.truncations != self._truncations:
            raise RoundOvertaken("the log was truncated")
        if log.log_start_offset != self._log_start_offset:
            raise RoundOvertaken("records were deleted")
        if not log.config.is_compacted:
            raise RoundOvertaken("the topic is not compacted any more")
        if inputs and not self._are_live(inputs):
            raise RoundOvertaken("its segments are gone")

    def _are_live(self, inputs: Sequence[LogSegment]) -> bool:
        """Whether they are neighbours in the log as it is now, and none of them is written to."""
        live = tuple(self._log.segments)
        slot = next((slot for slot, segment in enumerate(live) if segment is inputs[0]), None)
        if slot is None or slot + len(inputs) >= len(live):
            return False
        return all(one is other for one, other in zip(live[slot:], inputs, strict=False))

    def replace(self, group: ReadyGroup, *, wall_ms: int) -> list[str]:
        """Returns the files to remove at leisure. Raises RoundOvertaken; LogFenced, as any failed write."""
        self.check(group.inputs)
        log, replacement = self._log, group.replacement
        cleaned = LogSegment(
            log.files,
            log.folder,
            replacement.base_offset,
            size=replacement.size,
            created_ms=wall_ms,
            index_interval_bytes=log.config.index_interval_bytes,
        )
        removable: list[str] = []
        log.replacements += 1
        try:
            swapping.commit(log.files.disk, replacement)
            for segment in group.inputs:
                removable += segment.mark_deleted()
            swapping.put_in_place(log.files.disk, replacement)
            log.segments.replace(group.inputs, cleaned)
            log.producers.remove_snapshots([segment.base_offset for segment in group.inputs[1:]])
        except OSError as error:
            log.fence(error)
            raise LogFenced(log.name, error) from error
        finally:
            log.replacements += 1
            log.read_hints = {}
            log.name_changes += 1
        return removable

    def finish(self) -> None:
        """All groups are in place: the log is clean as far as the round went. Raises RoundOvertaken."""
        self.check()
        self._log.cleaned_offset = self.round.end_offset
