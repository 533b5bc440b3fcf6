"""Faults of the store on ZooKeeper: what is believed of its servers, and for how long."""

from __future__ import annotations

from planted_faults.planting import Patch, PlantedFault

from nilometer.coordination.zookeeper.ensemble import Disconnected, SessionEnded
from nilometer.coordination.zookeeper.registration import SESSION_EXPIRED, Registration, ZooKeeperSession
from nilometer.simulation.fault_kinds import Kind
from nilometer.simulation.plan import ZOOKEEPER
from nilometer.simulation.zookeeper.client import VirtualBridge


def renew_by_a_local_read(patch: Patch) -> None:
    async def renew(self: Registration, session: ZooKeeperSession) -> None:
        asked_ms = self._runtime.clock.monotonic_ms()
        try:
            node = await self._ensemble.exists(session.node)
        except SessionEnded:
            session.lose(SESSION_EXPIRED)
        except Disconnected:
            return
        else:
            if node is None:
                session.lose("ZooKeeper ended it: its node is gone")
            else:
                session.confirm(asked_ms)

    patch.setattr(Registration, "_renew", renew)


def believe_the_asked_timeout(patch: Patch) -> None:
    patch.setattr(VirtualBridge, "session_timeout_ms", property(lambda self: self._asked_ms))


LONG_S = 25.0
"""Longer than sessions and followers wait."""

FAULTS = (
    PlantedFault(
        name="renew-by-a-local-read",
        what="a lease of a session is renewed by a read, which a server answers that is cut off",
        plant=renew_by_a_local_read,
        kinds=(Kind.ZOOKEEPER_CUT,),
        seeds=20,
        store=ZOOKEEPER,
        minutes=1.0,
        longest_s=LONG_S,
    ),
    PlantedFault(
        name="believe-the-asked-timeout",
        what="the session timeout that was asked for counts, not the one that was granted",
        plant=believe_the_asked_timeout,
        kinds=(Kind.ZOOKEEPER_CUT_CLIENT,),
        seeds=20,
        store=ZOOKEEPER,
        minutes=1.0,
        longest_s=LONG_S,
    ),
)
