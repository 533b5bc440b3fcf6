"""The connections of a node of the metadata quorum to the others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from nilometer.broker.quorum.links import Purpose, QuorumLinks
from nilometer.client.network.connection import Connection
from nilometer.identifiers import BrokerId
from nilometer.raft.control_records import Endpoint, VoterEntry
from nilometer.raft.voters import VoterKey
from nilometer.wire.errors import ErrorCode, KafkaError

NODE = VoterEntry(VoterKey(BrokerId(1), "folder"), (Endpoint("CONTROLLER", "host", 9093),))


class Links(QuorumLinks):
    """Opens connections that are none."""

    def __init__(self) -> None:
        super().__init__(cast(Any, SimpleNamespace(listeners=())), cast(Any, None), None)
        self.opened = 0
        self.is_reachable = True

    async def _open(self, host: str, port: int, expected_id: int = -1, asked_at: str = "") -> Connection:
        await asyncio.sleep(0)
        if not self.is_reachable:
            raise KafkaError(ErrorCode.network_exception)
        self.opened += 1
        return cast(Any, SimpleNamespace(closed=False, on_lost=None))


async def test_requests_for_one_purpose_share_a_connection_and_leave_nothing_else() -> None:
    links = Links()
    asked = [links._connection(NODE, purpose) for purpose in (Purpose.FETCH, Purpose.ELECTION) * 3]
    assert len({id(one) for one in await asyncio.gather(*asked)}) == links.opened == 2
    assert links._opening == {}


async def test_a_node_that_is_not_reached_leaves_nothing() -> None:
    links = Links()
    links.is_reachable = False
    asked = [links._connection(NODE, Purpose.FETCH) for _ in range(3)]
    assert all(isinstance(one, KafkaError) for one in await asyncio.gather(*asked, return_exceptions=True))
    assert links._opening == links._connections == {}
