"""The folder of a replica of the quorum: made, and opened after a crash with what was durable, or refused.

The log is checked from its first byte to its last at each start, and ends before the first that is damaged.
Then it and the newest snapshot are brought together: a snapshot that is newer than the log, or that the log
contradicts, was fetched from a leader, and replaces it; else the log keeps what comes after the oldest
snapshot that it reaches back to.

Also here: the offset up to which all is committed, and how one voter goes on if a majority is lost for good.
"""

from __future__ import annotations

import errno
import posixpath
import uuid
from collections.abc import Sequence
from typing import Final

import msgspec

from nilometer.identifiers import NO_LEADER_EPOCH, LeaderEpoch, Offset
from nilometer.invariants import check
from nilometer.raft import snapshot_files
from nilometer.raft.control_records import (
    KRaftVoters,
    VoterEntries,
    VoterEntry,
    control_batch,
    read_control_batch,
)
from nilometer.raft.exchange import Election
from nilometer.raft.quorum_state import has_metadata, read_election, write_election
from nilometer.raft.snapshot_files import BOOTSTRAP
from nilometer.raft.snapshots import BEGINNING, Snapshot, SnapshotId
from nilometer.raft.voters import NO_VOTERS, VoterHistory, VoterKey, VoterRecord
from nilometer.runtime import Disk
from nilometer.runtime.disk import sync_ancestors
from nilometer.storage import checkpoints, names
from nilometer.storage.directories.log_directory import METADATA_TOPIC
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.batch_scan import scan
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig

METADATA_LOG: Final = TopicPartition(METADATA_TOPIC, 0)
TOPIC_ID: Final = uuid.UUID(int=1)
"""Kafka's id of the topic."""
_PARTITION_METADATA: Final = checkpoints.encode_partition_metadata(TOPIC_ID)
LOG_CONFIG: Final = LogConfig(retention_ms=-1, retention_bytes=-1)


class QuorumDamaged(Exception):
    """The log has lost committed records: under its name the quorum could lose them, too."""

    def __init__(self, folder: str, log_end_offset: Offset, committed: Offset) -> None:
        super().__init__(
            f"{folder}: the log ends at offset {log_end_offset}, but records up to {committed} were "
            "committed and durable here. Remove this voter from the quorum, empty its log directory, and add "
            "it again"
        )
        self.log_end_offset = log_end_offset
        self.committed = committed


class Recovered(msgspec.Struct, frozen=True):
    """What the folder has; all of it is durable."""

    log: Log
    election: Election
    voters: VoterHistory
    entries: VoterEntries
    origin: SnapshotId
    snapshot: Snapshot | None
    committed: Offset


def format_folder(disk: Disk, folder: str, entries: Sequence[VoterEntry], wall_ms: int) -> None:
    """Make the folder of a replica of a new quorum, which has these voters. Blocks.

    A replica that is to join a quorum later needs none. Raises FileExistsError if the folder has records, a
    vote or a snapshot, OSError.
    """
    _make_folder(disk, folder)
    if has_metadata(disk, folder):
        raise FileExistsError(errno.EEXIST, "the folder belongs to a quorum already", folder)
    snapshot_files.write_snapshot(disk, folder, BOOTSTRAP, entries, (), wall_ms=wall_ms)


def _make_folder(disk: Disk, folder: str) -> None:
    """Make the folder, and the log directory that it is in, durably."""
    if not disk.is_directory(folder):
        disk.make_directories(folder)
    sync_ancestors(disk, folder)


def recover(disk: Disk, folder: str, config: LogConfig, wall_ms: int) -> Recovered:
    """Open the folder, which may be empty. Blocks.

    Raises CorruptCheckpoint, QuorumDamaged, OSError: then the replica must not start.
    """
    _make_folder(disk, folder)
    _name_topic(disk, folder)
    for name in disk.list_directory(folder):
        if name.endswith((snapshot_files.PART_SUFFIX, names.DELETED_SUFFIX)):
            disk.remove(posixpath.join(folder, name))
    known = snapshot_files.find_snapshots(disk, folder)
    newest = snapshot_files.read_snapshot(disk, folder, known[-1]) if known else None
    options = OpenOptions(clean=False, wall_ms=wall_ms)
    log = Log.open(SegmentFiles.on(disk), folder, METADATA_LOG, config, options)
    log.resolve_gap(wall_ms=wall_ms)
    first_offset, reached = log.segments.first.base_offset, known[-1].end_offset if known else 0
    if first_offset > reached:
        reason = f"the log begins at offset {first_offset}, and no snapshot reaches it: one was removed"
        raise CorruptCheckpoint(folder, reason)
    snapshot = None if newest is None or newest.snapshot.id == BOOTSTRAP else newest.snapshot
    if snapshot is not None and not _continues(log, snapshot.id):
        removable = log.truncate_fully_and_start_at(snapshot.id.end_offset, wall_ms=wall_ms).removable
        for path in removable:
            disk.remove(path)
    origin = _origin(log, known)
    log.move_log_start(origin.end_offset)
    for one in known:
        if origin != BEGINNING and one < origin:
            disk.remove(snapshot_files.snapshot_path(folder, one))
    plan = log.flush_plan()
    plan.run()
    log.mark_flushed(plan, wall_ms=wall_ms)
    committed = read_committed(disk, folder)
    if log.log_end_offset < committed:
        raise QuorumDamaged(folder, log.log_end_offset, committed)
    entries = VoterEntries(() if newest is None else newest.entries)
    records: list[VoterRecord] = []
    for offset, found in _voters_in(log):
        records.append(VoterRecord(offset, found.voters))
        entries.add(offset, found.entries)
    voters = NO_VOTERS if newest is None else newest.snapshot.voters
    return Recovered(
        log,
        _election(disk, folder, log, origin),
        VoterHistory(voters, tuple(records)),
        entries,
        origin,
        snapshot,
        committed,
    )


def _name_topic(disk: Disk, folder: str) -> None:
    """Write ``partition.metadata`` as a whole, since its only content is known: a torn one is replaced."""
    path, content = posixpath.join(folder, names.PARTITION_METADATA), _PARTITION_METADATA
    if not disk.exists(path) or disk.read_file(path) != content:
        disk.replace_file(path, content)


def _continues(log: Log, snapshot: SnapshotId) -> bool:
    """Whether the log has the records after the snapshot, or may get them: it agrees with it on the last
    record before its end, if that is still there."""
    end, epoch = snapshot
    if end > log.log_end_offset:
        return False
    return end == log.segments.first.base_offset or log.epochs.epoch_for_offset(end - 1) == epoch


def _origin(log: Log, known: list[SnapshotId]) -> SnapshotId:
    """Return the oldest snapshot that the log reaches back to; BEGINNING if it has all its records."""
    first = log.segments.first.base_offset
    if not first:
        return next((one for one in known if one != BOOTSTRAP), BEGINNING)
    return next(one for one in known if one.end_offset >= first)


def _election(disk: Disk, folder: str, log: Log, origin: SnapshotId) -> Election:
    """Return the stored election. A log may have a later epoch than it: then no vote was sent in that."""
    stored = read_election(disk, folder) or Election(LeaderEpoch(0))
    latest = max(log.latest_epoch, origin.epoch, NO_LEADER_EPOCH)
    return stored if latest <= stored.epoch else Election(LeaderEpoch(latest))


def _voters_in(log: Log) -> list[tuple[Offset, KRaftVoters]]:
    found: list[tuple[Offset, KRaftVoters]] = []
    for segment in log.segments:
        for batch in scan(segment.open_log(), 0, segment.size):
            if batch.header.is_control and batch.header.base_offset >= log.log_start_offset:
                records = read_control_batch(batch.buffer, batch.at, batch.header)
                found += [(offset, one) for offset, one in records if isinstance(one, KRaftVoters)]
    return found


# ── the committed offset ────────────────────────────────────────────────────────────────────────
# It is written now and then, so it may be behind; it is never above what is committed and durable here.
def read_committed(disk: Disk, folder: str) -> Offset:
    """Return it; 0 if there is none. Raises CorruptCheckpoint."""
    path = posixpath.join(folder, names.REPLICATION_OFFSET_CHECKPOINT)
    return checkpoints.read_offsets(disk, path).get(METADATA_LOG, 0)


def write_committed(disk: Disk, folder: str, committed: Offset) -> None:
    """Make it durable. Blocks. Raises OSError."""
    path = posixpath.join(folder, names.REPLICATION_OFFSET_CHECKPOINT)
    checkpoints.write_offsets(disk, path, {METADATA_LOG: committed})


# A majority is lost for good: one voter goes on without it.


def become_only_voter(disk: Disk, folder: str, own: VoterKey, wall_ms: int) -> None:
    """Let the records of the log remove all voters but ``own``, whose folder it is. Blocks.

    No majority has agreed to it: what was committed without ``own`` is lost, and the others must never run
    again with their folders. Its process must not run: hold ``LOCK``. If this is interrupted, do it again.

    Raises CorruptCheckpoint, QuorumDamaged, OSError.
    """
    found = recover(disk, folder, LOG_CONFIG, wall_ms)
    log, voters = found.log, found.voters.latest
    check(own in voters, "a voter goes on without the others", own, voters)
    others = [voter for voter in voters.voters if voter != own]
    epoch = LeaderEpoch(found.election.epoch + 1)
    try:
        write_election(disk, folder, Election(epoch, own))
        for other in others:  # one at a time, as all replicas demand it
            voters = voters.without(other)
            record = KRaftVoters(tuple(map(found.entries.of, voters.voters)))
            log.append_as_follower(
                control_batch([record], log.log_end_offset, epoch, wall_ms), wall_ms=wall_ms
            )
        plan = log.flush_plan()
        plan.run()
        log.mark_flushed(plan, wall_ms=wall_ms)
    finally:
        log.files.pool.close()
