"""What a leader does with its tier: what to copy, what to give up, what local logs may delete. Pure.

Every decision is made from the last manifest of the chain and the state of the leader's own log, and says
what the next manifest is; what it says happens when that manifest is written, and not before.

Invariants: only records below the last stable offset are copied; a local log deletes only what the manifest
names; an entry of the manifest whose records are not those of the leader's log is removed (an unclean
election can cause that); an object is removed from the store only when no manifest has named it for the grace
period.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

from msgspec import structs

from nilometer.identifiers import Offset
from nilometer.tier.format import (
    FORMAT_VERSION,
    HEAD,
    SEGMENTS_OF_A_LINE,
    Dropped,
    Manifest,
    RemoteSegment,
    TopicFacts,
    in_lines,
    manifest_number,
)

REMOVED_AT_ONCE = 2_000
"""So many objects are removed before a manifest says so, or more if more are dropped."""
LATE_SHARE = 10
"""One part in so many of the grace period may pass before a manifest that drops objects is in the store."""
REMOVED_SHARE = 4
"""One part in so many of what is dropped: manifests with the names of 200,000 objects have 12 MB."""

EpochEntries = Sequence[tuple[int, int]]
"""(Leader epoch, start offset), both rising: the leader epochs of a log."""


class LocalSegment(NamedTuple):
    """A sealed segment of the local log."""

    base_offset: Offset
    end_offset: Offset
    """The base offset of the next segment."""
    size: int


class LogView(NamedTuple):
    """What the decisions need to know of the leader's log."""

    log_start_offset: Offset
    local_start_offset: Offset
    log_end_offset: Offset
    last_stable_offset: Offset
    epochs: EpochEntries
    sealed: Sequence[LocalSegment]
    """All sealed segments, by base offset."""
    size: int
    """Bytes of all local segments."""


class Retention(NamedTuple):
    """The whole retention of a topic; -1 is unlimited."""

    ms: int
    bytes: int


def first_manifest(topic: TopicFacts, log_start_offset: Offset) -> Manifest:
    """Return what the first manifest of a chain is made from."""
    return Manifest(FORMAT_VERSION, 0, 0, -1, "", 0, log_start_offset, (), (), topic)


def epochs_within(epochs: EpochEntries, start: Offset, end: Offset) -> tuple[tuple[int, int], ...]:
    """Return the leader epochs of the records in ``[start, end)``; the first entry begins at ``start``.

    If the epochs begin later, so does the result.
    """
    at = max(bisect_right(epochs, start, key=_start_offset) - 1, 0)
    return tuple((epoch, max(first, start)) for epoch, first in epochs[at:] if first < end)


def divergent(
    manifest: Manifest, log: LogView, agreed: Offset = 0, until: int | None = None
) -> tuple[RemoteSegment, ...]:
    """Return the segments whose records are not those of the leader's log: other epochs, or beyond its end.

    What is below the log start offset, or below the first epoch that the leader knows, is not compared; nor
    what ends at or below ``agreed``, where it was found to be the same before. ``until``: only so many are
    compared, those before included.
    """
    known = max(log.log_start_offset, log.epochs[0][1] if log.epochs else log.log_end_offset)

    def is_divergent(segment: RemoteSegment) -> bool:
        start = max(segment.base_offset, known)
        if segment.end_offset > log.log_end_offset:
            return True
        # Of thousands of segments most are of one epoch.
        if len(segment.epochs) == 1 and segment.end_offset > start:
            at = bisect_right(log.epochs, start, key=_start_offset) - 1
            following = log.epochs[at + 1][1] if at + 1 < len(log.epochs) else log.log_end_offset
            return log.epochs[at][0] != segment.epochs[0][0] or following < segment.end_offset
        return segment.end_offset > start and epochs_within(
            segment.epochs, start, segment.end_offset
        ) != epochs_within(log.epochs, start, segment.end_offset)

    segments = manifest.segments
    end = len(segments) if until is None else until
    for place in range(bisect_right(segments, agreed, key=_end_offset), end):
        if is_divergent(segments[place]):
            return segments[place:]  # what follows was copied by the same leaders, or later ones
    return ()


def still_local(manifest: Manifest, log: LogView) -> tuple[RemoteSegment, ...]:
    """Return the segments that are not needed for what the leader's log does not have itself: those behind
    the first one that reaches its first local record. Also if they begin before that."""
    segments, local = manifest.segments, log.local_start_offset
    if log.log_start_offset >= local:
        return segments[bisect_right(segments, local, key=_end_offset) :]
    return segments[bisect_left(segments, local, key=_end_offset) + 1 :]


def next_to_copy(manifest: Manifest, log: LogView) -> LocalSegment | None:
    """Return the first sealed segment that is not in the tier and has committed, decided records only.

    Also if compaction, before the topic was tiered, has left no record in it: the tier has no gap.
    """
    tiered = manifest.end_offset if manifest.segments else log.log_start_offset
    for segment in log.sealed[bisect_right(log.sealed, tiered, key=_end_offset) :]:
        return segment if segment.end_offset <= log.last_stable_offset else None
    return None


def expiring(
    manifest: Manifest, log: LogView, retention: Retention, now_ms: int
) -> Generator[int, None, tuple[RemoteSegment, ...]]:
    """Return the oldest remote segments that the whole retention no longer keeps; in steps.

    Those below the log start offset, then by size and by time as Kafka does: bytes in the tier and those of
    local segments that begin behind the tier; the largest timestamp of a segment.
    """
    segments = manifest.segments
    excess = 0
    if retention.bytes >= 0:
        size = (yield from manifest.summing()).log_bytes
        excess = size + _bytes_behind(manifest.end_offset, log) - retention.bytes
    for count, segment in enumerate(segments):
        is_old = 0 <= segment.max_timestamp <= now_ms - retention.ms and retention.ms >= 0
        is_old |= not segment.log_bytes
        if segment.end_offset > log.log_start_offset and not is_old and segment.log_bytes > excess:
            return segments[:count]
        excess -= segment.log_bytes
        if (count + 1) % SEGMENTS_OF_A_LINE == 0:
            yield SEGMENTS_OF_A_LINE
    return segments


class NotTiered(NamedTuple):
    """What is in the local logs only."""

    records: int
    """Committed offsets that are not in the tier."""
    bytes: int
    """Bytes of all segments that are not there, the active one included."""
    sealed: int
    """How many sealed segments are not there."""
    sealed_bytes: int
    oldest: Offset
    """The base offset of the first segment that is not there; -1 if none has a record."""


NOTHING_MISSING = NotTiered(0, 0, 0, 0, -1)


def not_tiered(manifest: Manifest, log: LogView, high_watermark: Offset) -> NotTiered:
    """Return what would be lost with the disks of all replicas."""
    tiered = max(manifest.end_offset if manifest.segments else log.log_start_offset, log.log_start_offset)
    lagging = [one for one in log.sealed if one.end_offset > tiered]
    active = log.sealed[-1].end_offset if log.sealed else log.local_start_offset
    size = sum(one.size for one in lagging) + log.size - sum(one.size for one in log.sealed)
    return NotTiered(
        records=max(0, high_watermark - tiered),
        bytes=size,
        sealed=len(lagging),
        sealed_bytes=sum(one.size for one in lagging),
        oldest=(lagging[0].base_offset if lagging else active) if size else -1,
    )


def _bytes_behind(offset: Offset, log: LogView) -> int:
    """Return the bytes of the local segments that begin at ``offset`` or above.

    Another leader may have rolled its segments elsewhere: one that begins below is in the tier in part.
    """
    active_base = log.sealed[-1].end_offset if log.sealed else log.local_start_offset
    behind = sum(one.size for one in log.sealed if one.base_offset >= offset)
    return behind + (log.size - sum(one.size for one in log.sealed) if active_base >= offset else 0)


def bounding(manifest: Manifest | None, log: LogView) -> Generator[int, None, Offset]:
    """Return the offset below which local segments may be deleted: the tier has them, without a gap from the
    log start on. In steps.

    If it is below the first local offset, the tier lacks what it must have. Then nothing is decided: another
    store may have been configured by mistake.
    """
    bound, segments = log.log_start_offset, () if manifest is None else manifest.segments
    for some in in_lines(segments[bisect_right(segments, bound, key=_end_offset) :]):
        for segment in some:
            if segment.base_offset > bound:
                return bound
            bound = segment.last_offset + 1
        yield len(some)
    return bound


def next_log_start(gone: Sequence[RemoteSegment], log: LogView) -> Offset:
    """Return the log start offset once ``gone``, the oldest remote segments, are deleted."""
    return max(log.log_start_offset, gone[-1].end_offset) if gone else log.log_start_offset


def inherited_log_start(manifest: Manifest, log: LogView, leader_epoch: int, same_until: Offset) -> Offset:
    """Return the log start offset of the leader of ``leader_epoch``, by what an earlier one has written.

    If that is beyond where this leader began, an unclean election has lost the records between; those below
    were given up, so this leader has only what is in its log.

    ``same_until``: the end of what was compared and is the same as in the log. What is behind that on this
    leader's disk stays: another cluster may have written the manifest. It is copied again.
    """
    newest = log.epochs[-1] if log.epochs else (-1, 0)
    began = newest[1] if newest[0] == leader_epoch else log.log_end_offset
    is_within = manifest.log_start_offset <= began
    given_up = manifest.log_start_offset if is_within else log.local_start_offset
    return max(log.log_start_offset, min(given_up, max(log.local_start_offset, same_until)))


class LateManifest(NamedTuple):
    """A manifest that the store had long after it was made: the machine had stopped, or the store was slow.
    Until then readers were told that what it drops is there."""

    from_ms: int
    to_ms: int
    """It was made between these times, and says that what it drops was dropped then."""
    appeared_ms: int

    def drops_at(self, since_ms: int) -> bool:
        """Whether what is dropped since then may have been dropped by it."""
        return self.from_ms <= since_ms <= self.to_ms


def late_manifest(made_ms: int, appeared_ms: int, grace_ms: int) -> LateManifest | None:
    """Return the manifest if it is so late that the grace period has to begin when it appeared; else None."""
    tolerated_ms = grace_ms // LATE_SHARE
    if appeared_ms - made_ms <= tolerated_ms:
        return None
    return LateManifest(made_ms - tolerated_ms, made_ms, appeared_ms)


def due_removals(
    manifest: Manifest, now_ms: int, grace_ms: int, late: Sequence[LateManifest] = ()
) -> Generator[int, None, tuple[str, ...]]:
    """Return the names of dropped objects whose grace period is over: those that are removed next; in
    steps."""
    due, at_once = list[str](), max(REMOVED_AT_ONCE, len(manifest.dropped) // REMOVED_SHARE)
    waiting = [one for one in late if now_ms - one.appeared_ms < grace_ms]
    for some in in_lines(manifest.dropped):
        over = [one for one in some if now_ms - one.since_ms >= grace_ms]
        due += (one.name for one in over if not any(its.drops_at(one.since_ms) for its in waiting))
        if len(due) >= at_once:
            break
        yield len(some)
    return tuple(due[:at_once])


def redating(manifest: Manifest, now_ms: int, grace_ms: int) -> Generator[int, None, Manifest | None]:
    """Return the manifest in which what was dropped later than now, by more than the grace period, is dropped
    now: a clock was ahead, and it would stay for as long. None if nothing was; in steps."""
    dropped, is_other = list[Dropped](), False
    for some in in_lines(manifest.dropped):
        redated = [Dropped(one.name, now_ms) if one.since_ms > now_ms + grace_ms else one for one in some]
        is_other |= any(one is not other for one, other in zip(some, redated, strict=True))
        dropped += redated
        yield len(some)
    return structs.replace(manifest, dropped=tuple(dropped)) if is_other else None


def removing(manifest: Manifest, names: Sequence[str]) -> Generator[int, None, Manifest]:
    """Return the manifest after the objects called ``names`` were removed from the store; in steps."""
    gone, kept = set[str](), list[Dropped]()
    for some in in_lines(names):
        gone.update(some)
        yield len(some)
    for left in in_lines(manifest.dropped):
        kept += (one for one in left if one.name not in gone)
        yield len(left)
    return structs.replace(manifest, dropped=tuple(kept))


def orphans(manifest: Manifest, names: Iterable[str]) -> Generator[int, None, tuple[str, ...]]:
    """Return which of ``names`` are of no use, if they were listed before ``manifest`` was read; in steps.

    If it is the last one and the reader wrote it, nothing that was listed can still get into the chain.
    """
    mentioned = set[str]()
    for some in in_lines(manifest.dropped):
        mentioned.update(one.name for one in some)
        yield len(some)
    for some in in_lines(manifest.segments):
        mentioned.update(name for one in some for name in (one.log_name, one.index_name))
        yield len(some)
    found = list[str]()
    for part in in_lines(names):
        found += (one for one in part if not (one in mentioned or _is_of_the_chain(manifest, one)))
        yield len(part)
    return tuple(found)


def _is_of_the_chain(manifest: Manifest, name: str) -> bool:
    number = manifest_number(name)
    return name == HEAD or (number is not None and number >= manifest.oldest)


def _end_offset(segment: LocalSegment | RemoteSegment) -> Offset:
    return segment.end_offset


def _start_offset(entry: tuple[int, int]) -> Offset:
    return entry[1]
