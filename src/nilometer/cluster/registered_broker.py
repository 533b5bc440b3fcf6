"""The state of a registered broker in the metadata."""

from __future__ import annotations

import msgspec

from nilometer.cluster.records import (
    BrokerFenced,
    BrokerInControlledShutdown,
    BrokerRegistered,
    BrokerUnregistered,
    Endpoint,
    SupportedFeature,
)
from nilometer.identifiers import BrokerEpoch, BrokerId, EntryNumber, Incarnation
from nilometer.invariants import InvariantBroken

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
    """The features that the broker supports, by name; empty: a version that did not register features."""

    @property
    def is_active(self) -> bool:
        """Whether its replicas may lead and be in an ISR."""
        return not self.fenced and not self.in_controlled_shutdown

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((point for point in self.endpoints if point.listener == listener), None)


def broker_after(before: Broker | None, record: BrokerRecord, number: EntryNumber) -> Broker | None:
    """Return the broker's state after ``record``, of entry ``number``; None if it is unregistered.

    Raises InvariantBroken if the record does not fit the state ``before``.
    """
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
        raise InvariantBroken(f"{record} does not fit {before}")
    match record:
        case BrokerFenced():
            return msgspec.structs.replace(before, fenced=True)
        case BrokerInControlledShutdown():
            return msgspec.structs.replace(before, in_controlled_shutdown=True)
        case BrokerUnregistered():
            return None
