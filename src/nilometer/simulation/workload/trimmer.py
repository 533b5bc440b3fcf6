"""A client that deletes records: it moves the log start offset of a partition up to a random offset.

Sometimes it requests an offset above the log end, which must be rejected.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.client.admin.admin import Admin
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.offsets.positions import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from nilometer.runtime import Runtime
from nilometer.simulation.checkers.retention import Retention
from nilometer.simulation.workload.admin_program import AdminProgram
from nilometer.simulation.world import Host
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Api, Message

NEVER_WRITTEN = 1_000_000
TOO_FAR_OF = 8


class Trimmer(AdminProgram):
    gap_s = (4.0, 30.0)

    def __init__(
        self, host: Host, bootstrap_servers: str, partitions: Sequence[TopicPartition], retention: Retention
    ) -> None:
        super().__init__("trimmer", host, bootstrap_servers)
        self.violations: list[str] = []
        self.trimmed = 0
        self._partitions = list(partitions)
        self._retention = retention

    async def _step(self, runtime: Runtime, admin: Admin) -> None:
        partition = runtime.entropy.choice(self._partitions)
        first = (await admin.list_offsets({partition: EARLIEST_TIMESTAMP}))[partition].offset
        last = (await admin.list_offsets({partition: LATEST_TIMESTAMP}))[partition].offset
        too_far = runtime.entropy.below(TOO_FAR_OF) == 0
        offset = last + NEVER_WRITTEN if too_far else first + runtime.entropy.below(max(last - first, 0) + 1)
        if not too_far:
            self._retention.asked(str(partition), offset)
        before = self._retention.members(str(partition))
        code = await self._delete(admin, partition, offset)
        if code is not ErrorCode.none:
            self.error_counts[code.name] += 1
        elif too_far:
            self.violations.append(f"records of {partition} up to {offset} were deleted; its end was {last}")
        else:
            self._retention.deleted(str(partition), offset, before)
            self.trimmed += 1

    @staticmethod
    async def _delete(admin: Admin, partition: TopicPartition, offset: int) -> ErrorCode:
        def make(api: Api) -> Message:
            part = api.make_request(
                "DeleteRecordsPartition", partition_index=partition.partition, offset=offset
            )
            topic = api.make_request("DeleteRecordsTopic", name=partition.topic, partitions=(part,))
            return api.request(timeout_ms=10_000, topics=(topic,))

        await admin.client.topic(partition.topic, 10_000)
        response = await admin.client.send_to_leader(partition, ApiKey.DELETE_RECORDS, make)
        return response.topics[0].partitions[0].error_code
