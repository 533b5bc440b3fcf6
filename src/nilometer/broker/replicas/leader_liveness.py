"""Whether the leaders that this broker fetches from are alive, so that Metadata does not name dead ones.

A client that loses its leader requests metadata within a millisecond, before any broker has noticed the death
and long before the controller has elected another leader. A response that named the dead leader again would
end the client's search: it asks next when its retry interval has passed, a second in librdkafka. No election
depends on what is found here.

So before Metadata names a leader, that leader is sent a small request on the fetch connection
(:meth:`LeaderLiveness.confirm`). If the connection is lost, the response says that the partition has no
leader, and does not list the broker. Clients ask again at short intervals then, 100 ms in librdkafka.

A broker that is alive although its connection was lost is named again once there is a new connection to it,
once it registers again, and after ``LOST_MAX_MS`` at the latest. While its address refuses connections, no
process is there, and it stays lost.

librdkafka closes down its part for a broker that a response does not list, and a partition that the same
response moves to another leader is left without any until the next interval. So a broker that has just been
fenced is listed a little longer, for clients that ask only after the election.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.client.network.connection import Connection
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.states import Broker
from nilometer.identifiers import BrokerEpoch, BrokerId
from nilometer.runtime.runtime import Clock
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import Message

PROBE_WAIT_MS = 100
"""A leader that has not answered by then is busy or paused, not dead."""
PROBE_VALID_MS = 5
"""An answer this young is not asked for again: many clients may request metadata at once."""
LOST_MAX_MS = 2_000
"""More than the longest pause between two attempts to connect, ``replica.fetch.backoff.ms``."""
FENCED_LISTED_MS = 500

Findings = tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]]
NOTHING_FOUND: Findings = ((), ())


class LeaderLiveness:
    def __init__(self, clock: Clock, metadata: MetadataLog, own_id: BrokerId) -> None:
        self._own_id = own_id
        self._clock = clock
        self._metadata = metadata
        self._connections: dict[BrokerId, Connection] = {}
        """The newest connection to each leader."""
        self._answered_ms: dict[BrokerId, int] = {}
        """When each leader last answered a probe (monotonic)."""
        self._probes: dict[BrokerId, asyncio.Future[Message]] = {}
        self._lost: dict[BrokerId, tuple[BrokerEpoch | None, int]] = {}
        """By broker: the broker epoch whose connection was lost, and until when that counts (monotonic)."""
        self._fenced_ms: dict[BrokerId, int] = {}
        """When each broker was fenced (monotonic), if that was a short time ago."""
        metadata.subscribe(self._on_delta, self._on_reload)

    def on_connected(self, broker_id: BrokerId, connection: Connection) -> None:
        """Note a new connection to a leader, which proves that the leader is alive: it is for fetches, or to
        the leader of the metadata quorum."""
        if connection.closed:
            return
        broker_epoch = self._metadata.image.broker_epoch(broker_id)
        self._connections[broker_id] = connection
        self._lost.pop(broker_id, None)
        before = connection.on_lost

        def on_lost(lost: Connection) -> None:
            if before is not None:
                before(lost)
            self._on_connection_lost(broker_id, broker_epoch, lost)

        connection.on_lost = on_lost

    def on_process_ended(self, broker_id: BrokerId) -> None:
        """Note that the broker has ended a connection, or that no process listens at its address."""
        self._note_lost(broker_id, self._metadata.image.broker_epoch(broker_id))

    def before_close(self, broker_id: BrokerId, connection: Connection) -> None:
        """Forget a fetch connection that this broker will close: its end says nothing about the leader."""
        if self._connections.get(broker_id) is connection:
            del self._connections[broker_id]

    def is_lost(self, broker_id: BrokerId) -> bool:
        """Whether the connection to the broker's present incarnation was lost a short time ago."""
        lost = self._lost.get(broker_id)
        if lost is None:
            return False
        broker_epoch, until_ms = lost
        is_same = self._metadata.image.broker_epoch(broker_id) == broker_epoch
        if is_same and self._clock.monotonic_ms() < until_ms:
            return True
        del self._lost[broker_id]
        return False

    @property
    def controller(self) -> BrokerId:
        """The broker that a response names as the controller: this one if the controller's connection was
        lost, since each sends on what the next controller will decide. A client would wait for the dead one,
        or for a controller that has a name: librdkafka, until its request has timed out."""
        controller_id = self._metadata.image.controller_id
        return self._own_id if self.is_lost(controller_id) else controller_id

    def findings(self) -> Findings:
        """Return the brokers for which a response now differs from the metadata: those that are lost, and
        those that were fenced a short time ago."""
        if not self._lost and not self._fenced_ms:
            return NOTHING_FOUND
        lost = tuple(sorted(filter(self.is_lost, tuple(self._lost))))
        return lost, tuple(sorted(broker.id for broker in self.recently_fenced()))

    def must_confirm(self, leaders: Iterable[BrokerId]) -> bool:
        """Whether :meth:`confirm` would wait for one of ``leaders``."""
        return any(map(self._needs_probe, leaders))

    async def confirm(self, leaders: Iterable[BrokerId]) -> None:
        """Find out which of ``leaders`` are lost: :meth:`is_lost` says so afterwards.

        Takes one round trip, and ``PROBE_WAIT_MS`` at most. A leader that this broker has no fetch
        connection to is not asked.
        """
        probes = [self._probe(leader) for leader in leaders if self._needs_probe(leader)]
        if probes:
            await asyncio.wait(probes, timeout=PROBE_WAIT_MS / 1000)

    def recently_fenced(self) -> list[Broker]:
        """Return the brokers that were fenced a short time ago and have not returned."""
        if not self._fenced_ms:
            return []
        listed_from_ms = self._clock.monotonic_ms() - FENCED_LISTED_MS
        for broker_id in [one for one, at_ms in self._fenced_ms.items() if at_ms <= listed_from_ms]:
            del self._fenced_ms[broker_id]
        found = (self._metadata.image.broker(broker_id) for broker_id in self._fenced_ms)
        return [broker for broker in found if broker is not None and broker.fenced]

    def _on_connection_lost(
        self, broker_id: BrokerId, broker_epoch: BrokerEpoch | None, connection: Connection
    ) -> None:
        if self._connections.get(broker_id) is connection:
            del self._connections[broker_id]
            if connection.ended_by_peer:
                self._note_lost(broker_id, broker_epoch)

    def _note_lost(self, broker_id: BrokerId, broker_epoch: BrokerEpoch | None) -> None:
        self._lost[broker_id] = (broker_epoch, self._clock.monotonic_ms() + LOST_MAX_MS)

    def _needs_probe(self, leader: BrokerId) -> bool:
        if leader not in self._connections:
            return False
        return self._clock.monotonic_ms() >= self._answered_ms.get(leader, 0) + PROBE_VALID_MS

    def _probe(self, leader: BrokerId) -> asyncio.Future[Message]:
        """Send the leader a request that it answers at once, unless one is under way; return the response's
        future."""
        probe = self._probes.get(leader)
        if probe is None:
            connection = self._connections[leader]
            probe = connection.send(connection.api(ApiKey.API_VERSIONS, 0).request())
            self._probes[leader] = probe
            probe.add_done_callback(lambda done: self._on_probed(leader, done))
        return probe

    def _on_probed(self, leader: BrokerId, probe: asyncio.Future[Message]) -> None:
        del self._probes[leader]
        if not probe.cancelled() and probe.exception() is None:
            self._answered_ms[leader] = self._clock.monotonic_ms()

    def _on_delta(self, delta: ImageDelta, image: ClusterImage) -> None:
        for broker_id, (before, after) in delta.brokers.items():
            if after is not None and after.fenced and before is not None and not before.fenced:
                self._fenced_ms[broker_id] = self._clock.monotonic_ms()

    def _on_reload(self, image: ClusterImage) -> None:
        self._fenced_ms.clear()
