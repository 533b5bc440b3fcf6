"""A broker as the cluster knows it."""

from __future__ import annotations

import msgspec

from nilometer.cluster.identifiers import BrokerEpoch, BrokerId, EntryNumber, Incarnation
from nilometer.cluster.partition import BrokenInvariant
from nilometer.cluster.records import (
    BrokerFenced,
    BrokerInControlledShutdown,
    BrokerRegistered,
    BrokerUnregistered,
    Endpoint,
    SupportedFeature,
)

BrokerRecord = BrokerRegistered | BrokerFenced | BrokerInControlledShutdown | BrokerUnregistered


class Broker(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One registered broker. It stays registered when its session ends (*fenced*): it may return."""

    id: BrokerId
    incarnation: Incarnation
    epoch: BrokerEpoch
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    log_dirs: tuple[str, ...] = ()
    fenced: bool = False
    in_controlled_shutdown: bool = False
    features: tuple[SupportedFeature, ...] = ()
    """What it supports, by name; empty: a version from before features were kept."""

    @property
    def is_active(self) -> bool:
        """Whether it may lead and be in sync."""
        return not self.fenced and not self.in_controlled_shutdown

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((point for point in self.endpoints if point.listener == listener), None)


def broker_after(before: Broker | None, record: BrokerRecord, number: EntryNumber) -> Broker | None:
    """The broker once ``record``, of entry ``number``, is folded. Raises BrokenInvariant."""
    if isinstance(record, BrokerRegistered):
        return Broker(
            id=record.broker_id,
            incarnation=record.incarnation,
            epoch=BrokerEpoch(number),
            endpoints=record.endpoints,
            rack=record.rack,
            log_dirs=record.log_dirs,
            features=record.features,
        )
    if before is None or before.epoch != record.broker_epoch:
        raise BrokenInvariant(f"{record} does not fit {before}")
    match record:
        case BrokerFenced():
            return msgspec.structs.replace(before, fenced=True)
        case BrokerInControlledShutdown():
            return msgspec.structs.replace(before, in_controlled_shutdown=True)
        case BrokerUnregistered():
            return None
