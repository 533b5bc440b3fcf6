"""Whether what is in the tier is of this broker's own history: of its log, and of its metadata. Pure.

A leader epoch has one leader in one cluster. So entries of a manifest that have the epochs of the log have
its records, unless a second cluster with the same id writes to the store: the CRC of an entry's last batch
tells them apart, as far as the log still has that batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from msgspec import structs

from nilometer.identifiers import Offset
from nilometer.tier import plan
from nilometer.tier.format import SEGMENTS_OF_A_LINE, Manifest, RemoteSegment

BEHIND_MS_MAX = 30_000
"""For so long a broker may know less of the metadata log than the writer of a manifest."""


class AsOf(NamedTuple):
    """What was found about a log holds until one of these changes."""

    leader_epoch: int
    truncations: int


class LogLineage:
    """What of a tier is the same as in one log, of the leader or of a follower.

    What agrees is compared once, for each writer and rank of the last manifest. The caller has the log, and
    reads the CRCs: until :meth:`to_prove` returns None, it calls it, and :meth:`prove` with that of the log.
    """

    def __init__(self, claim: int) -> None:
        self._claim = claim
        self._compared_by: tuple[object, ...] = ()
        """The writer, rank and :class:`AsOf` for which the following holds."""
        self._agreed: Offset = 0
        """What is below has the epochs of the log."""
        self._proven: Offset = 0
        """What is below, and has a CRC, has the records of the log."""
        self.same_until: Offset = 0
        """The end of the last segment that was compared with the log and has its records; 0 if none was."""
        self.foreign: RemoteSegment | None = None
        """A segment with the epochs of the log and other records: another cluster has written it."""
        self._own_by: tuple[object, ...] = ()
        """The manifest, :class:`AsOf` and end for which :attr:`_own` was found."""
        self._own: Manifest | None = None
        """That manifest without what is not of the log; None if all is."""

    def has_more(self, manifest: Manifest, as_of: AsOf) -> bool:
        """Return whether there are segments that :meth:`compare_some` has not found to agree."""
        self._begin(manifest, as_of)
        return bool(manifest.segments) and self._agreed < manifest.end_offset

    def compare_some(self, manifest: Manifest, log: plan.LogView, as_of: AsOf) -> bool:
        """Compare some segments by their epochs; return whether there may be more to compare.

        All of many would hold the event loop when a leader begins.
        """
        self._begin(manifest, as_of)
        segments = manifest.segments
        first = bisect_right(segments, self._agreed, key=_end_offset)
        until = min(first + SEGMENTS_OF_A_LINE, len(segments))
        if first == until:
            return False
        cut = plan.divergent(manifest, log, self._agreed, until)
        same = len(segments) - len(cut) if cut else until
        if same > first:
            self._agreed = segments[same - 1].end_offset
        return not cut

    def divergent(self, manifest: Manifest, log: plan.LogView, as_of: AsOf) -> tuple[RemoteSegment, ...]:
        """Return the last segments, whose records are not those of the log by their epochs, or may not be.

        A cluster with a lower claim may have had leaders of the same epochs, so what is here is copied again.
        """
        self._begin(manifest, as_of)
        cut = plan.divergent(manifest, log, self._agreed)
        if not cut:
            self._agreed = manifest.end_offset
        return max(cut, plan.still_local(manifest, log), key=len) if manifest.claim < self._claim else cut

    def to_prove(self, manifest: Manifest, log: plan.LogView, as_of: AsOf) -> RemoteSegment | None:
        """Return the next segment whose last batch has to be compared with that of the log; None if there is
        none. Of a thousand without a CRC, it returns the last one: to them the log's CRC is None."""
        if manifest.claim != self._claim:
            return None
        same = len(manifest.segments) - len(self.divergent(manifest, log, as_of))
        if self.foreign is not None:
            return None
        first = self.proven_count(manifest, max(log.log_start_offset, log.local_start_offset), as_of)
        some = range(first, min(first + SEGMENTS_OF_A_LINE, same))
        for place in some:
            if manifest.segments[place].last_crc is not None:
                return manifest.segments[place]
        return manifest.segments[some[-1]] if some else None

    def proven_count(self, manifest: Manifest, log_from: Offset, as_of: AsOf) -> int:
        """Return how many of the first segments need not be compared with the log: they were, or end at or
        below ``log_from``, the first offset that the log itself has."""
        if manifest.claim != self._claim:
            return len(manifest.segments)
        self._begin(manifest, as_of)
        return bisect_right(manifest.segments, max(self._proven, log_from), key=_end_offset)

    def _begin(self, manifest: Manifest, as_of: AsOf) -> None:
        by = manifest.writer, manifest.rank, as_of
        if by != self._compared_by:
            self._compared_by, self.foreign = by, None
            self._agreed = self._proven = self.same_until = 0

    def prove(self, segment: RemoteSegment, crc: int | None) -> None:
        """Note the CRC of the log's batch where the last one of ``segment`` is; None if it tells nothing."""
        if crc not in (None, segment.last_crc):
            self.foreign, self._own_by = segment, ()
            return
        self._proven = segment.end_offset
        if segment.last_crc in (None, crc):  # not if it is the log's batch that is damaged
            self.same_until = segment.end_offset

    def own(self, manifest: Manifest, end: Offset, as_of: AsOf, view: Callable[[], plan.LogView]) -> Manifest:
        """Return the manifest without what an unclean election has left behind, or another cluster has
        written. ``end``: that of the log, which may be a follower's that has not all of it yet."""
        by = manifest.number, manifest.writer, as_of, min(end, manifest.end_offset)
        if by != self._own_by:
            cut = self.divergent(manifest, view(), as_of)
            if self.foreign is not None:
                first = bisect_right(manifest.segments, self.foreign.base_offset, key=_end_offset)
                cut = max(cut, manifest.segments[first:], key=len)
            kept, of = len(manifest.segments) - len(cut), by[:2]
            if not cut:
                self._own = None
            elif self._own is None or self._own_by[:2] != of or len(self._own.segments) != kept:
                self._own = structs.replace(manifest, segments=manifest.segments[:kept])
            self._own_by = by
        return manifest if self._own is None else self._own


class WriterAhead:
    """Whether the writer of a manifest knew more of the metadata log than this broker does.

    For a moment that may be; or the metadata were restored from an older backup.
    """

    def __init__(self, claim: int) -> None:
        self._claim = claim
        self._since_ms: int | None = None
        self._found: str | None = None
        """The writer that was ahead for too long. That this log has as many entries later says nothing: they
        are others."""

    def is_ahead(self, manifest: Manifest, known_entry: int) -> bool:
        """Return whether it knew, or has been found to know, more than ``known_entry``."""
        if manifest.claim < self._claim:
            return False
        return manifest.writer == self._found or known_entry < manifest.topic.metadata_entry

    def ahead_ms(self, manifest: Manifest, known_entry: int, now_ms: int) -> int | None:
        """Return for how long it was so, at each look since the first; None if it is not."""
        if not self.is_ahead(manifest, known_entry):
            self._since_ms = None
            return None
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms - self._since_ms >= BEHIND_MS_MAX:
            self._found = manifest.writer
        return now_ms - self._since_ms


def _end_offset(segment: RemoteSegment) -> Offset:
    return segment.end_offset
