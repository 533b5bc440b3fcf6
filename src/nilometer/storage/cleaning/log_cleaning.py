"""One compaction round over a log in use: the part that runs on the thread of the log's owner.

The round itself (:mod:`~nilometer.storage.cleaning.cleaning_round`) works on files and does not see changes
of the log. This module decides whether the round may continue, and replaces segments by the cleaned segment
made from them: on disk with :mod:`nilometer.storage.swapping`, in memory by one assignment, so that readers
have the old segments or the new one. A reader on another thread that combined a file of one with an index of
the other notices it by :attr:`LogState.replacements` and reads again.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.storage import swapping
from nilometer.storage.cleaning.cleaning_plan import CleaningPlan
from nilometer.storage.cleaning.cleaning_round import CleaningRound, ReadyGroup, RoundOptions
from nilometer.storage.errors import LogFenced
from nilometer.storage.log_state import LogState
from nilometer.storage.segments.segment import LogSegment


class RoundOvertaken(Exception):
    """The log has changed so that the round must be abandoned; the message says how."""


class LogCleaning:
    def __init__(self, log: LogState, plan: CleaningPlan, options: RoundOptions) -> None:
        """Start a round, and mark the log as one that may have gaps. Raises OSError, RoundOvertaken."""
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
            # The round reads the aborted transactions of sealed segments itself, on its own thread.
            tuple(log.segments)[:-1],
            tuple(log.segments.active.aborted()),
            log.producers.producers,
            options,
        )

    def check(self, inputs: Sequence[LogSegment] = ()) -> None:
        """Check that the round may continue and may replace ``inputs``. Raises RoundOvertaken."""
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
            raise RoundOvertaken("its segments no longer exist")

    def _are_live(self, inputs: Sequence[LogSegment]) -> bool:
        """Whether ``inputs`` are still adjacent segments of the log, and none of them is the active one."""
        live = tuple(self._log.segments)
        slot = next((slot for slot, segment in enumerate(live) if segment is inputs[0]), None)
        if slot is None or slot + len(inputs) >= len(live):
            return False
        return all(one is other for one, other in zip(live[slot:], inputs, strict=False))

    def replace(self, group: ReadyGroup, *, wall_ms: int) -> list[str]:
        """Replace the group's segments by the cleaned one; return the ``.deleted`` files, to remove later.

        Raises RoundOvertaken; LogFenced if a rename fails.
        """
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
        log.begin_replacement()
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
            log.end_replacement()
        return removable

    def finish(self) -> None:
        """Record, after the last group was replaced, the offset below which the log is clean.

        Raises RoundOvertaken.
        """
        self.check()
        self._log.advance_cleaned(self.round.end_offset)
