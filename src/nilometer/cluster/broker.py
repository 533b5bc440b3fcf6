"""A broker as the cluster knows it."""

from __future__ import annotations

import msgspec

from nilometer.cluster.identifiers import BrokerEpoch, BrokerId, Incarnation
from nilometer.cluster.records import Endpoint


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

    @property
    def is_active(self) -> bool:
        """Whether it may lead and be in sync."""
        return not self.fenced and not self.in_controlled_shutdown

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((point for point in self.endpoints if point.listener == listener), None)
