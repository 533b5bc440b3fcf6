"""`nilometer up` waits until every broker knows of all the others."""

from __future__ import annotations

import asyncio

from nilometer.local.local_cluster import BrokerProcess, wait_all_registered
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import Api
from support.scripted.scripted_broker import ScriptedBroker

UNTIL_KNOWN = 4


def test_a_cluster_is_ready_once_each_broker_knows_of_all() -> None:
    async def work() -> int:
        async with ScriptedBroker(1) as one, ScriptedBroker(2) as two:
            one.peers = [one, two]
            plain = two.handlers[ApiKey.METADATA]

            def metadata(request: object, codec: Api) -> object:
                if two.count(ApiKey.METADATA) >= UNTIL_KNOWN:
                    two.peers = [one, two]
                return plain(request, codec)

            two.handlers[ApiKey.METADATA] = metadata
            brokers = [
                BrokerProcess(broker.node_id, broker.host, broker.port, 1, "running") for broker in (one, two)
            ]
            await asyncio.to_thread(wait_all_registered, lambda: brokers)
            return two.count(ApiKey.METADATA)

    assert asyncio.run(work()) == UNTIL_KNOWN
