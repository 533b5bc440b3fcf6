"""Followers whose next records their leader has in remote storage only: they go on behind these.

The leader tells where its own log begins (ListOffsets -4), and remote storage what a log needs to begin
there: the leader epochs and the producers of the records below. The leader is asked again after that: to a
replica it answers only while what remote storage has is of its own log, so what was read before is, too, and
no record is left out that the leader has and another cluster's segment does not. What the follower had is
dropped. An attempt that fails is begun again by the next fetch, a while later; an attempt of an earlier role
has no effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nilometer.broker.control.broker_peers import BrokerPeers
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.remote_reading import RemoteReads
from nilometer.broker.tasks import Tasks
from nilometer.identifiers import BrokerId
from nilometer.replication.follower import FollowerRole
from nilometer.storage.errors import LogFenced
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger("nilometer.broker.replicas")

EARLIEST_LOCAL = -4
RETRY_S = 1.0
_WORK = "start behind remote storage"

Locate = Callable[[BrokerId], tuple[str, int] | None]


class RemoteStarts:
    def __init__(
        self, broker_id: BrokerId, tasks: Tasks, peers: BrokerPeers, reads: RemoteReads, locate: Locate
    ) -> None:
        """``locate`` returns the present host and port of a broker, or None if they are not known."""
        self._broker_id = broker_id
        self._tasks = tasks
        self._peers = peers
        self._reads = reads
        self._locate = locate

    def begin(self, partition: Partition, log_start_offset: int) -> None:
        """Let the follower ``partition`` go on behind remote storage; its leader's log has this start."""
        role = partition.replica.role
        assert isinstance(role, FollowerRole), "a follower fetches"
        work = self._start(partition, role, log_start_offset)
        self._tasks.spawn(work, name=f"start of {partition} behind remote storage", kind="remote start")

    async def _start(self, partition: Partition, role: FollowerRole, log_start_offset: int) -> None:
        try:
            local_start = await self._leaders_start(partition, role)
            state = await self._reads.state_at(partition, local_start)
            await self._leaders_start(partition, role)
            if partition.replica.role is role:
                partition.start_in_tier(
                    role, state.start_offset, log_start_offset, state.epochs, state.producers
                )
        except Exception as error:  # whatever failed, it must be tried again
            if isinstance(error, KafkaError) and not isinstance(error, LogFenced):
                logger.info("%s cannot go on behind remote storage yet: %s", partition, error)
            else:
                partition.on_failure(_WORK, error)
            await asyncio.sleep(RETRY_S)
            if partition.replica.role is role:
                partition.give_up_start_in_tier(role)
        else:
            partition.on_success(_WORK)

    async def _leaders_start(self, partition: Partition, role: FollowerRole) -> int:
        """Ask the leader for the first offset in its own segments. Raises KafkaError, also if remote storage
        has other records than the leader."""
        endpoint = self._locate(role.leader)
        if endpoint is None:
            raise KafkaError(ErrorCode.broker_not_available, f"broker {role.leader} is not registered")
        client_id = f"broker-{self._broker_id}-remote-start"
        connection = await self._peers.connect(role.leader, *endpoint, client_id=client_id)
        try:
            api = connection.api(ApiKey.LIST_OFFSETS)
            asked = api.make_request(
                "ListOffsetsPartition",
                partition_index=partition.key.partition,
                current_leader_epoch=role.leader_epoch,
                timestamp=EARLIEST_LOCAL,
            )
            topic = api.make_request("ListOffsetsTopic", name=partition.topic, partitions=(asked,))
            request = api.request(
                replica_id=self._broker_id, isolation_level=0, timeout_ms=0, topics=(topic,)
            )
            ((found,),) = ((await connection.send(request)).topics[0].partitions,)
        finally:
            connection.close()
        if found.error_code is not ErrorCode.none:
            raise KafkaError(
                found.error_code, f"broker {role.leader} did not tell where its log of {partition} begins"
            )
        return found.offset
