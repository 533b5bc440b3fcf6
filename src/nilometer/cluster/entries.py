"""The metadata log as JSON bytes: its entries of records, and the snapshot that replaces the oldest of them.

An entry has the controller epoch and incarnation of the controller that decided it. Entries of another term
than the current one are ignored, so an entry that a deposed controller still appends changes nothing.

Records are grouped in *units*: the records of one unit are applied together, so they must be in one entry.
Units are packed, in order, into entries of about :data:`ENTRY_BYTES_TARGET`. ZooKeeper's limit is 1 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from nilometer.cluster.records import (
    ACLS_FORMAT_VERSION,
    FEATURES_FORMAT_VERSION,
    FORMAT_VERSION,
    OLDEST_FORMAT_VERSION,
    QUOTAS_FORMAT_VERSION,
    SCRAM_FORMAT_VERSION,
    TOKENS_FORMAT_VERSION,
    AclCreated,
    ClientQuotaChanged,
    ConfigResourceType,
    ControllerElected,
    DelegationTokenChanged,
    PartitionChanged,
    PartitionCreated,
    Record,
    ScramCredentialChanged,
    format_version_of,
    format_version_of_config,
)
from nilometer.cluster.states import Broker, PartitionState
from nilometer.identifiers import NO_LEADER, BrokerId, ControllerEpoch, EntryNumber, Incarnation, TopicId

ENTRY_BYTES_TARGET = 256 * 1024
RECORDS_TARGET = 1_000
"""These are checked and applied at once, some 4 us each; what is to do for partitions is prepared before."""
ENTRY_BYTES_MAX = 900_000
"""Largest size of an entry, below ZooKeeper's limit of 1 MB for a node."""
_ENVELOPE_BYTES = 512

T = TypeVar("T")

Unit = tuple[Record, ...]


class BadEntry(Exception):
    """These bytes are not an entry that this version can read. No record of it may be applied."""


class EntryFromTheFuture(BadEntry):
    """The entry has a newer format: this broker must be upgraded."""


class UnitTooLarge(ValueError):
    """The records of one unit do not fit into one entry."""


class Controllership(NamedTuple):
    """A controller's term, which all its entries contain."""

    controller_id: BrokerId
    incarnation: Incarnation
    controller_epoch: ControllerEpoch

    @classmethod
    def begun_by(cls, record: ControllerElected) -> Controllership:
        """Return the term that ``record`` begins."""
        return cls(record.controller_id, record.incarnation, record.controller_epoch)


NO_CONTROLLERSHIP = Controllership(NO_LEADER, Incarnation(""), ControllerEpoch(0))


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    version: int = OLDEST_FORMAT_VERSION
    """The lowest format version that has all its records."""
    controller_id: BrokerId
    controller_incarnation: Incarnation
    controller_epoch: ControllerEpoch
    records: tuple[Record, ...]

    @property
    def controllership(self) -> Controllership:
        return Controllership(self.controller_id, self.controller_incarnation, self.controller_epoch)


class _Envelope(msgspec.Struct):
    version: int


_encoder = msgspec.json.Encoder()
_entry_decoder = msgspec.json.Decoder(Entry)
_envelope_decoder = msgspec.json.Decoder(_Envelope)


def encode_entry(entry: Entry) -> bytes:
    return _encoder.encode(entry)


def decode_entry(data: bytes | memoryview) -> Entry:
    """Parse an entry. Raises EntryFromTheFuture for a newer format, BadEntry if it is invalid."""
    return _decoded(data, _entry_decoder, "entry")


def _decoded(data: bytes | memoryview, decoder: msgspec.json.Decoder[T], what: str) -> T:
    try:
        version = _envelope_decoder.decode(data).version
        if version > FORMAT_VERSION:
            raise EntryFromTheFuture(
                f"Metadata {what} of format version {version}, but this broker reads versions up to "
                f"{FORMAT_VERSION}: upgrade this broker"
            )
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise BadEntry(f"Metadata {what} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise BadEntry(f"Metadata {what} is not UTF-8: {error}") from error
    except RecursionError as error:
        raise BadEntry(f"Metadata {what} is nested too deeply to be read") from error


def record_bytes(records: Iterable[Record]) -> int:
    """Return how many bytes ``records`` take in an entry."""
    listed = tuple(records)
    return len(_encoder.encode(listed)) - 1 if listed else 0  # each is followed by a comma or the bracket


def fits_one_entry(unit: Sequence[Record]) -> bool:
    return record_bytes(unit) + _ENVELOPE_BYTES <= ENTRY_BYTES_MAX


def entries_of(
    units: Iterable[Unit], controllership: Controllership, target: int = ENTRY_BYTES_TARGET
) -> Iterator[Entry]:
    """Yield entries with the units, in order; each of at most ``target`` bytes unless one unit is larger, and
    of at most ``RECORDS_TARGET`` records that are not about partitions.

    Raises UnitTooLarge if one unit exceeds :data:`ENTRY_BYTES_MAX`.
    """
    gathered: list[Record] = []
    size, others = _ENVELOPE_BYTES, 0
    for unit in units:
        more = sum(not isinstance(record, PartitionChanged | PartitionCreated) for record in unit)
        unit_size = record_bytes(unit)
        if unit_size + _ENVELOPE_BYTES > ENTRY_BYTES_MAX:
            raise UnitTooLarge(
                f"{len(unit)} records that belong together take {unit_size} bytes; "
                f"an entry holds {ENTRY_BYTES_MAX - _ENVELOPE_BYTES}"
            )
        if gathered and (size + unit_size > target or others + more > RECORDS_TARGET):
            yield sign(gathered, controllership)
            gathered, size, others = [], _ENVELOPE_BYTES, 0
        gathered.extend(unit)
        size += unit_size
        others += more
    if gathered:
        yield sign(gathered, controllership)


def sign(records: Iterable[Record], controllership: Controllership) -> Entry:
    """Return an entry with ``records`` for the controller of this term to append."""
    gathered = tuple(records)
    return Entry(
        version=format_version_of(gathered),
        controller_id=controllership.controller_id,
        controller_incarnation=controllership.incarnation,
        controller_epoch=controllership.controller_epoch,
        records=gathered,
    )


# A snapshot has the whole image after some entry, in one document.


class TopicSnapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    id: TopicId
    partitions: tuple[PartitionState, ...]
    tiered_since: int = -1
    """See :class:`Topic`. An older broker drops it, and learns of later entries only, as it did before: so it
    needs no higher format version."""


class ConfigSnapshot(msgspec.Struct, frozen=True):
    resource_type: ConfigResourceType
    resource_name: str
    values: dict[str, str]


class ImageSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    version: int = FORMAT_VERSION
    number: EntryNumber
    cluster_id: str | None
    controller_id: BrokerId
    controller_incarnation: Incarnation
    controller_epoch: ControllerEpoch
    next_producer_id: int
    unclean_elections: int
    last_known_elections: int
    brokers: tuple[Broker, ...]
    topics: tuple[TopicSnapshot, ...]
    configs: tuple[ConfigSnapshot, ...]
    features: dict[str, int] | None = None
    """Finalized levels; None if the metadata log has none yet. If set, the format version is at least 2."""
    acls: tuple[AclCreated, ...] = ()
    """All ACLs, by id. If there are any, the format version is at least `ACLS_FORMAT_VERSION`."""
    scram: tuple[ScramCredentialChanged, ...] = ()
    """The credentials of users. If there are any, the format version is at least `SCRAM_FORMAT_VERSION`."""
    quotas: tuple[ClientQuotaChanged, ...] = ()
    """The quotas of clients. If there are any, the format version is at least `QUOTAS_FORMAT_VERSION`."""
    tokens: tuple[DelegationTokenChanged, ...] = ()
    """The delegation tokens, by id. If there are any, the format version is at least
    `TOKENS_FORMAT_VERSION`."""

    @property
    def controllership(self) -> Controllership:
        return Controllership(self.controller_id, self.controller_incarnation, self.controller_epoch)


def in_lowest_format(snapshot: ImageSnapshot) -> ImageSnapshot:
    """Return ``snapshot`` with the lowest format version that has everything of it."""
    return msgspec.structs.replace(snapshot, version=_lowest_format(snapshot))


def _lowest_format(snapshot: ImageSnapshot) -> int:
    formats = {
        format_version_of_config(config.resource_type, key, value)
        for config in snapshot.configs
        for key, value in config.values.items()
    }
    return max({_lowest_format_without_configs(snapshot), *formats})


def _lowest_format_without_configs(snapshot: ImageSnapshot) -> int:
    if snapshot.tokens:
        return TOKENS_FORMAT_VERSION
    if snapshot.quotas:
        return QUOTAS_FORMAT_VERSION
    if snapshot.scram:
        return SCRAM_FORMAT_VERSION
    if snapshot.acls:
        return ACLS_FORMAT_VERSION
    return OLDEST_FORMAT_VERSION if snapshot.features is None else FEATURES_FORMAT_VERSION


_snapshot_decoder = msgspec.json.Decoder(ImageSnapshot)


def encode_snapshot(snapshot: ImageSnapshot) -> bytes:
    return _encoder.encode(snapshot)


def decode_snapshot(data: bytes | memoryview) -> ImageSnapshot:
    """Parse a snapshot. Raises EntryFromTheFuture for a newer format, BadEntry if it is invalid."""
    return _decoded(data, _snapshot_decoder, "snapshot")
