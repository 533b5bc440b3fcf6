"""What a log directory says of its node of the quorum, while the node runs or not. Nothing is changed."""

from __future__ import annotations

import posixpath

import msgspec

from nilometer.identifiers import Offset
from nilometer.raft.control_records import KRaftVoters, VoterEntry, read_control_batch
from nilometer.raft.exchange import Election
from nilometer.raft.quorum_state import FOLDER, read_election
from nilometer.raft.recovery import read_committed
from nilometer.raft.snapshot_files import find_snapshots, read_snapshot
from nilometer.raft.snapshots import SnapshotId
from nilometer.raft.voters import VoterSet
from nilometer.runtime import Disk
from nilometer.storage import names
from nilometer.storage.directories.log_directory import MetaProperties, read_meta_properties
from nilometer.storage.segments.batch_scan import scan
from nilometer.wire.errors import CorruptBatch


class NodeFolder(msgspec.Struct, frozen=True, kw_only=True):
    properties: MetaProperties
    """Of ``meta.properties``."""
    election: Election | None
    """None: it has not taken part in an election."""
    snapshot: SnapshotId | None
    log_end_offset: Offset
    committed: Offset
    """What is below was committed when this was written down last."""
    voters: tuple[VoterEntry, ...]
    """The last ones that the snapshot and the log name, committed or not."""
    damage: str | None
    """Why the end of the log cannot be read: it is being written, or damaged."""


def inspect(disk: Disk, directory: str) -> NodeFolder | None:
    """Return what a log directory has of a quorum's node; None if it has nothing. Blocks.

    Raises CorruptCheckpoint, OSError.
    """
    properties = read_meta_properties(disk, posixpath.join(directory, names.META_PROPERTIES))
    folder = posixpath.join(directory, FOLDER)
    if properties is None or not disk.is_directory(folder):
        return None
    snapshots = find_snapshots(disk, folder)
    entries = (
        {} if not snapshots else {one.key: one for one in read_snapshot(disk, folder, snapshots[-1]).entries}
    )
    voters = VoterSet.of(*entries) if entries else VoterSet(())
    end = snapshots[-1].end_offset if snapshots else Offset(0)
    damage: str | None = None
    logs = sorted(name for name in disk.list_directory(folder) if name.endswith(names.LOG_SUFFIX))
    for name in logs:
        file = disk.open(posixpath.join(folder, name), writable=False)
        try:
            for batch in scan(file, 0, file.size()):
                end = max(end, Offset(batch.header.next_offset))
                if not batch.header.is_control:
                    continue
                for _, record in read_control_batch(batch.buffer, batch.at, batch.header):
                    if isinstance(record, KRaftVoters):
                        voters = record.voters
                        entries.update((one.key, one) for one in record.entries)
        except CorruptBatch as error:
            damage = f"{name}: {error}"
        finally:
            file.close()
    return NodeFolder(
        properties=properties,
        election=read_election(disk, folder),
        snapshot=snapshots[-1] if snapshots else None,
        log_end_offset=end,
        committed=read_committed(disk, folder),
        voters=tuple(entries[key] for key in voters.voters),
        damage=damage,
    )
