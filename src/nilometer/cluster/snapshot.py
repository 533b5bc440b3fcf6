"""A snapshot: the whole image after some entry as one JSON document, which replaces all entries up to it."""

from __future__ import annotations

import msgspec

from nilometer.cluster.entries import BadEntry, Controllership, EntryFromTheFuture
from nilometer.cluster.partition_state import PartitionState
from nilometer.cluster.records import (
    ACLS_FORMAT_VERSION,
    FEATURES_FORMAT_VERSION,
    FORMAT_VERSION,
    GROUP_CONFIGS_FORMAT_VERSION,
    OLDEST_FORMAT_VERSION,
    QUOTAS_FORMAT_VERSION,
    SCRAM_FORMAT_VERSION,
    TOKENS_FORMAT_VERSION,
    AclCreated,
    ClientQuotaChanged,
    ConfigResourceType,
    DelegationTokenChanged,
    ScramCredentialChanged,
)
from nilometer.cluster.registered_broker import Broker
from nilometer.identifiers import BrokerId, ControllerEpoch, EntryNumber, Incarnation, TopicId


class TopicSnapshot(msgspec.Struct, frozen=True):
    name: str
    id: TopicId
    partitions: tuple[PartitionState, ...]


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
    """The delegation tokens, by id. If there are any, the format version is `TOKENS_FORMAT_VERSION`."""

    @property
    def controllership(self) -> Controllership:
        return Controllership(self.controller_id, self.controller_incarnation, self.controller_epoch)


def in_lowest_format(snapshot: ImageSnapshot) -> ImageSnapshot:
    """Return ``snapshot`` with the lowest format version that has everything of it."""
    return msgspec.structs.replace(snapshot, version=_lowest_format(snapshot))


def _lowest_format(snapshot: ImageSnapshot) -> int:
    if snapshot.tokens:
        return TOKENS_FORMAT_VERSION
    if snapshot.quotas:
        return QUOTAS_FORMAT_VERSION
    if snapshot.scram:
        return SCRAM_FORMAT_VERSION
    if snapshot.acls:
        return ACLS_FORMAT_VERSION
    if any(config.resource_type is ConfigResourceType.GROUP for config in snapshot.configs):
        return GROUP_CONFIGS_FORMAT_VERSION
    return OLDEST_FORMAT_VERSION if snapshot.features is None else FEATURES_FORMAT_VERSION


class _Envelope(msgspec.Struct):
    version: int


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ImageSnapshot)
_envelope_decoder = msgspec.json.Decoder(_Envelope)


def encode_snapshot(snapshot: ImageSnapshot) -> bytes:
    return _encoder.encode(snapshot)


def decode_snapshot(data: bytes | memoryview) -> ImageSnapshot:
    """Parse a snapshot. Raises EntryFromTheFuture for a newer format, BadEntry if it is invalid."""
    try:
        version = _envelope_decoder.decode(data).version
        if version > FORMAT_VERSION:
            raise EntryFromTheFuture(
                f"Metadata snapshot of format version {version}, but this broker reads versions up to "
                f"{FORMAT_VERSION}: upgrade this broker"
            )
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise BadEntry(f"Metadata snapshot cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise BadEntry(f"Metadata snapshot is not UTF-8: {error}") from error
