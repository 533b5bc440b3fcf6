"""The records of the quorum itself, among those of its state machine: as bytes in Kafka's schema.

A log has them in control batches: LeaderChange begins an epoch; KRaftVersion and KRaftVoters follow it in the
same batch at the beginning of a log, and KRaftVoters comes alone with each change of the voters. A snapshot
begins with SnapshotHeader, KRaftVersion and KRaftVoters, and ends with SnapshotFooter.

The quorum's ``kraft.version`` is 1: voters are known by id and directory (KIP-853).
"""

from __future__ import annotations

import struct
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from kio.schema.k_raft_version_record.v0.data import KRaftVersionRecord
from kio.schema.leader_change_message.v0.data import LeaderChangeMessage
from kio.schema.leader_change_message.v0.data import Voter as ChangeVoter
from kio.schema.snapshot_footer_record.v0.data import SnapshotFooterRecord
from kio.schema.snapshot_header_record.v0.data import SnapshotHeaderRecord
from kio.schema.voters_record.v0.data import Endpoint as RecordEndpoint
from kio.schema.voters_record.v0.data import KRaftVersionFeature, VotersRecord
from kio.schema.voters_record.v0.data import Voter as RecordVoter
from kio.serial import entity_reader

from nilometer.identifiers import UNKNOWN_OFFSET, BrokerId, LeaderEpoch, Offset, uuid_from_text, uuid_to_text
from nilometer.raft.voters import VoterKey, VoterSet
from nilometer.wire.building import build
from nilometer.wire.compression import Bytes
from nilometer.wire.encoder import writer
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.record_batch import BatchHeader
from nilometer.wire.records import BatchBuilder, ControlType, control_type, decode_records

KRAFT_VERSION: Final = 1


class Endpoint(NamedTuple):
    listener: str
    host: str
    port: int


class VoterEntry(msgspec.Struct, frozen=True):
    """A voter as the log names it: with where it listens, and the versions of the protocol that it knows."""

    key: VoterKey
    endpoints: tuple[Endpoint, ...] = ()
    versions: tuple[int, int] = (0, KRAFT_VERSION)


class LeaderChange(msgspec.Struct, frozen=True):
    leader: BrokerId
    voters: tuple[BrokerId, ...]
    granting: tuple[BrokerId, ...]
    """Those who voted for the leader."""


class KRaftVersion(msgspec.Struct, frozen=True):
    level: int = KRAFT_VERSION


class KRaftVoters(msgspec.Struct, frozen=True):
    entries: tuple[VoterEntry, ...]

    @property
    def voters(self) -> VoterSet:
        return VoterSet.of(*(entry.key for entry in self.entries))


class VoterEntries:
    """What the log says of its voters. The newest count, also before their record is committed."""

    __slots__ = ("_records",)

    def __init__(self, first: Iterable[VoterEntry]) -> None:
        """``first``: those of the newest snapshot."""
        self._records = [(UNKNOWN_OFFSET, _by_key(first))]

    def of(self, voter: VoterKey, below: Offset | None = None) -> VoterEntry:
        """Return what the records, or those below an offset, say last of ``voter``, also of a former one."""
        for offset, entries in reversed(self._records):
            if (below is None or offset < below) and (entry := entries.get(voter)) is not None:
                return entry
        return VoterEntry(voter)

    def add(self, offset: Offset, entries: Iterable[VoterEntry]) -> None:
        """Take those of the record at ``offset``, the end of the log."""
        self._records.append((offset, _by_key(entries)))

    def truncate_to(self, offset: Offset) -> None:
        """Forget what the records at or above ``offset`` say: the log has lost them."""
        del self._records[self._position_of(offset) :]

    def trim_to(self, offset: Offset) -> None:
        """Forget where the records below ``offset`` were."""
        position = self._position_of(offset)
        for _, entries in self._records[1:position]:
            self._records[0][1].update(entries)
        del self._records[1:position]

    def learn(self, entries: Iterable[VoterEntry]) -> None:
        """Take those of a snapshot, which are committed."""
        self._records[0][1].update(_by_key(entries))

    def _position_of(self, offset: Offset) -> int:
        return bisect_left(self._records, max(offset, 0), key=itemgetter(0))


def _by_key(entries: Iterable[VoterEntry]) -> dict[VoterKey, VoterEntry]:
    return {entry.key: entry for entry in entries}


class SnapshotHeader(msgspec.Struct, frozen=True):
    last_timestamp: int
    """Of the last record that the snapshot contains, in ms since the epoch."""


class SnapshotFooter(msgspec.Struct, frozen=True):
    """Without it a snapshot is not complete."""


ControlRecord: TypeAlias = LeaderChange | KRaftVersion | KRaftVoters | SnapshotHeader | SnapshotFooter


def control_batch(
    records: Iterable[ControlRecord], base_offset: Offset, epoch: LeaderEpoch, wall_ms: int
) -> bytes:
    """Return the records as one batch."""
    builder = BatchBuilder()
    for record in records:
        kind, message = _message(record)
        pieces: list[Any] = []
        schema: Any = message.__class__
        writer(schema)(pieces, message)
        builder.append(wall_ms, _KEY.pack(_VERSION, kind), b"".join(pieces))
    return builder.build(base_offset, control=True, partition_leader_epoch=epoch)


def read_control_batch(
    buffer: Bytes, position: int, header: BatchHeader
) -> list[tuple[Offset, ControlRecord]]:
    """Return the records of a control batch with their offsets; without those of types that are not the
    quorum's. Raises CorruptBatch."""
    found: list[tuple[Offset, ControlRecord]] = []
    for record in decode_records(buffer, position, header):
        kind = control_type(record)
        if (form := _READERS.get(kind)) is not None:
            found.append((record.offset, _read(kind, record.value or b"", *form)))
    return found


_KEY = struct.Struct(">hh")
_VERSION = 0


def _message(record: ControlRecord) -> tuple[ControlType, Any]:
    match record:
        case LeaderChange(leader, voters, granting):
            return ControlType.LEADER_CHANGE, build(
                LeaderChangeMessage,
                version=_VERSION,
                leader_id=leader,
                voters=tuple(build(ChangeVoter, voter_id=voter) for voter in voters),
                granting_voters=tuple(build(ChangeVoter, voter_id=voter) for voter in granting),
            )
        case KRaftVersion(level):
            return ControlType.KRAFT_VERSION, build(
                KRaftVersionRecord, version=_VERSION, k_raft_version=level
            )
        case KRaftVoters(entries):
            voters_of_record = tuple(map(_voter, entries))
            return ControlType.KRAFT_VOTERS, build(VotersRecord, version=_VERSION, voters=voters_of_record)
        case SnapshotHeader(timestamp):
            return ControlType.SNAPSHOT_HEADER, build(
                SnapshotHeaderRecord, version=_VERSION, last_contained_log_timestamp=timestamp
            )
        case SnapshotFooter():
            return ControlType.SNAPSHOT_FOOTER, build(SnapshotFooterRecord, version=_VERSION)


def _voter(entry: VoterEntry) -> Any:
    lowest, highest = entry.versions
    return build(
        RecordVoter,
        voter_id=entry.key.node_id,
        voter_directory_id=directory_uuid(entry.key.directory_id),
        endpoints=tuple(
            build(RecordEndpoint, name=one.listener, host=one.host, port=one.port) for one in entry.endpoints
        ),
        k_raft_version_feature=build(
            KRaftVersionFeature, min_supported_version=lowest, max_supported_version=highest
        ),
    )


def _entry(voter: Any) -> VoterEntry:
    feature = voter.k_raft_version_feature
    return VoterEntry(
        VoterKey(voter.voter_id, directory_text(voter.voter_directory_id)),
        tuple(Endpoint(one.name, one.host, one.port) for one in voter.endpoints),
        (feature.min_supported_version, feature.max_supported_version),
    )


def directory_uuid(text: str) -> uuid.UUID | None:
    """Return a directory id as messages have it; None for "". Raises ValueError."""
    return uuid_from_text(text) if text else None


def directory_text(directory: uuid.UUID | None) -> str:
    """Return a directory id of a message in Kafka's text form; "" without one."""
    return "" if directory is None else uuid_to_text(directory)


def _kraft_voters(message: Any) -> KRaftVoters:
    entries = tuple(map(_entry, message.voters))
    if not len({entry.key.node_id for entry in entries}) == len(entries) > 0:
        raise ValueError("voters without ids of their own")
    return KRaftVoters(entries)


def _leader_change(message: Any) -> LeaderChange:
    return LeaderChange(
        message.leader_id,
        tuple(voter.voter_id for voter in message.voters),
        tuple(voter.voter_id for voter in message.granting_voters),
    )


_Form: TypeAlias = tuple[Any, Callable[[Any], ControlRecord]]
_READERS: Final[dict[ControlType, _Form]] = {
    ControlType.LEADER_CHANGE: (LeaderChangeMessage, _leader_change),
    ControlType.KRAFT_VERSION: (KRaftVersionRecord, lambda one: KRaftVersion(one.k_raft_version)),
    ControlType.KRAFT_VOTERS: (VotersRecord, _kraft_voters),
    ControlType.SNAPSHOT_HEADER: (
        SnapshotHeaderRecord,
        lambda one: SnapshotHeader(one.last_contained_log_timestamp),
    ),
    ControlType.SNAPSHOT_FOOTER: (SnapshotFooterRecord, lambda one: SnapshotFooter()),
}


def _read(
    kind: ControlType, value: bytes, schema: Any, convert: Callable[[Any], ControlRecord]
) -> ControlRecord:
    try:
        message, _ = entity_reader(schema)(value, 0)
        return convert(message)
    except Exception as error:
        raise CorruptBatch(f"control record {kind.name} cannot be read: {error}") from error
