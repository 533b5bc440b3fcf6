"""A client that sends random admin requests, valid and invalid, to every broker.

No broker may end, log a traceback, or respond with UNKNOWN_SERVER_ERROR; all brokers must have the same
metadata, and the cluster must converge after the program stops. It only changes its own topics, and broker
settings are only validated, so that other topics are not affected. Its last request to each broker is a large
one, for the bound of what one turn of an event loop walks (:mod:`nilometer.simulation.checkers.bounds`).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import cast

from nilometer.broker.api.registry import ranges
from nilometer.client.network.connection import Connection
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.workload.random_admin_requests import AdminRequest, Subjects, random_admin_request
from nilometer.simulation.world import Host, Process
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import api

GAP_S = (0.02, 1.0)
TIMEOUT_MS = 10_000
REQUESTS_OF_A_CONNECTION = 8
WRITE_SHARE = 0.1
"""How often it writes a few records instead, so that its topics have data."""
LARGE_ELEMENTS = 5_000
TOPICS = ("random-0", "random-1", "random-2")
VIOLATIONS_MAX = 10


class RandomAdministrator:
    def __init__(self, host: Host, cluster: Cluster) -> None:
        self.name = "random-admin"
        self.violations: list[str] = []
        self.answers: Counter[str] = Counter()
        """Number of responses by API and error code."""
        self.error_counts: Counter[str] = Counter()
        self.process: Process | None = None
        self._host = host
        self._cluster = cluster
        self._stopping = False

    def start(self) -> Process:
        self.process = self._host.start(self.name, self._main)
        return self.process

    def stop(self) -> None:
        self._stopping = True

    async def _main(self, runtime: Runtime) -> None:
        chance = random.Random(runtime.entropy.bytes(16))
        while not self._stopping:
            await asyncio.sleep(chance.uniform(*GAP_S))
            try:
                if chance.random() < WRITE_SHARE:
                    await self._write(runtime, chance)
                else:
                    await self._ask_one_broker(runtime, chance)
            except KafkaError as error:
                self.error_counts[error.code.name] += 1
        for node in self._cluster.nodes.values():
            if node.is_serving:
                await self._ask_much(runtime, node)

    async def _ask_much(self, runtime: Runtime, node: BrokerNode) -> None:
        """Describe thousands of groups, none of which exists."""
        request = api(ApiKey.DESCRIBE_GROUPS, 0).request(groups=tuple(f"g{n}" for n in range(LARGE_ELEMENTS)))
        try:
            connection = await Connection.open(
                runtime, node.host.name, node.port, client_id=self.name, request_timeout_ms=TIMEOUT_MS
            )
            try:
                described = await connection.send(request)
            finally:
                connection.close()
        except KafkaError as error:
            self.error_counts[error.code.name] += 1
            return
        if len(described.groups) != LARGE_ELEMENTS:
            self.violations.append(f"administrator: {node.name} described {len(described.groups)} groups")

    async def _ask_one_broker(self, runtime: Runtime, chance: random.Random) -> None:
        node = chance.choice(list(self._cluster.nodes.values()))
        connection = await Connection.open(
            runtime, node.host.name, node.port, client_id=self.name, request_timeout_ms=TIMEOUT_MS
        )
        try:
            for _ in range(chance.randint(1, REQUESTS_OF_A_CONNECTION)):
                request = random_admin_request(chance, self._subjects(), ranges(for_brokers=False))
                self._note(request, node.name, await connection.send(request.message))
        finally:
            connection.close()

    def _subjects(self) -> Subjects:
        return Subjects(
            topics=TOPICS,
            brokers=sorted(self._cluster.open_to_replicas),
            new_topics=TOPICS,
            internal_topics=(),
            unregister=False,
            only_own=True,
        )

    def _note(self, request: AdminRequest, broker: str, answer: object) -> None:
        for code in error_codes(answer):
            self.answers[f"{request.key.name} {code}"] += 1
            if code == ErrorCode.unknown_server_error.name and len(self.violations) < VIOLATIONS_MAX:
                self.violations.append(f"administrator: {broker} failed without a fault at {request.message}")

    async def _write(self, runtime: Runtime, chance: random.Random) -> None:
        settings = {
            "bootstrap.servers": self._cluster.bootstrap_servers,
            "client.id": self.name,
            "acks": "1",
            "enable.idempotence": False,
            "allow.auto.create.topics": False,
            "max.block.ms": 3_000,
            "request.timeout.ms": 3_000,
            "delivery.timeout.ms": 6_000,
        }
        topic = chance.choice(TOPICS)
        async with Producer(runtime, settings) as producer:
            for number in range(chance.randint(1, 5)):
                key, value = str(number).encode(), bytes(chance.randint(0, 500))
                await (await producer.send(topic, value, key=key))


def error_codes(message: object) -> Iterator[str]:
    """Yield the names of all error codes in a response, at any depth."""
    code = getattr(message, "error_code", None)
    if code is not None:
        yield ErrorCode(code).name
    for name in getattr(message, "__slots__", ()):
        value = getattr(message, name)
        for item in cast("tuple[object, ...]", value) if isinstance(value, tuple) else ():
            if hasattr(item, "__slots__"):
                yield from error_codes(item)
