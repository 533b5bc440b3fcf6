"""A program that moves partitions: it has their replicas reassigned to brokers drawn anew, now and then."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from nilometer.client.admin.admin import Admin
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.runtime import Runtime
from nilometer.simulation.world import Host, Process
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message

REPLICAS = 3
GAP_S = (3.0, 20.0)


class Mover:
    def __init__(
        self,
        host: Host,
        bootstrap_servers: str,
        partitions: Sequence[TopicPartition],
        broker_ids: Callable[[], Sequence[int]],
    ) -> None:
        self.name = "mover"
        self.problems: Counter[str] = Counter()
        self.asked = 0
        self.process: Process | None = None
        self._host = host
        self._bootstrap_servers = bootstrap_servers
        self._partitions = list(partitions)
        self._broker_ids = broker_ids
        self._stopping = False

    def start(self) -> Process:
        self.process = self._host.start(self.name, self._main)
        return self.process

    def stop(self) -> None:
        self._stopping = True

    async def _main(self, runtime: Runtime) -> None:
        settings = {
            "bootstrap.servers": self._bootstrap_servers,
            "client.id": self.name,
            "request.timeout.ms": 10_000,
            "default.api.timeout.ms": 20_000,
        }
        while not self._stopping:
            await asyncio.sleep(runtime.entropy.uniform(*GAP_S))
            try:
                async with Admin(runtime, settings) as admin:
                    await self._move(runtime, admin)
            except KafkaError as problem:
                self.problems[problem.code.name] += 1

    async def _move(self, runtime: Runtime, admin: Admin) -> None:
        partition = runtime.entropy.choice(self._partitions)
        left, replicas = list(self._broker_ids()), list[int]()
        while left and len(replicas) < REPLICAS:
            replicas.append(left.pop(runtime.entropy.below(len(left))))

        def make(api: Api) -> Message:
            part = api.make_request(
                "ReassignablePartition", partition_index=partition.partition, replicas=tuple(replicas)
            )
            topic = api.make_request("ReassignableTopic", name=partition.topic, partitions=(part,))
            return api.request(timeout_ms=20_000, topics=(topic,))

        response = await admin.client.send_to_controller(ApiKey.ALTER_PARTITION_REASSIGNMENTS, make)
        if response.error_code != ErrorCode.none:
            raise KafkaError(response.error_code, "reassignment refused")
        self.asked += 1
