"""A client that moves partitions: it reassigns a partition's replicas to random brokers from time to time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nilometer.client.admin.admin import Admin
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.runtime import Runtime
from nilometer.simulation.workload.admin_program import AdminProgram
from nilometer.simulation.world import Host
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message

REPLICAS = 3


class Mover(AdminProgram):
    gap_s = (3.0, 20.0)

    def __init__(
        self,
        host: Host,
        bootstrap_servers: str,
        partitions: Sequence[TopicPartition],
        broker_ids: Callable[[], Sequence[int]],
    ) -> None:
        super().__init__("mover", host, bootstrap_servers)
        self.asked = 0
        self._partitions = list(partitions)
        self._broker_ids = broker_ids

    async def _step(self, runtime: Runtime, admin: Admin) -> None:
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
            raise KafkaError(response.error_code, "reassignment rejected")
        self.asked += 1
