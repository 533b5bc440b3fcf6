"""Assigns each followed partition to a fetcher, by leader and fetcher index (``num.replica.fetchers``)."""

from __future__ import annotations

import asyncio

from nilometer.broker.control.broker_peers import BrokerPeers
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.leader_liveness import LeaderLiveness
from nilometer.broker.replicas.replica_failures import ReplicaFailures
from nilometer.broker.replicas.replica_fetcher import ReplicaFetcher
from nilometer.broker.replicas.replication_quota import ReplicationQuota
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.identifiers import BrokerId
from nilometer.replication import FollowerRole
from nilometer.runtime import Runtime


class ReplicaFetchers:
    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        metadata: MetadataLog,
        tasks: Tasks,
        quota: ReplicationQuota,
        failures: ReplicaFailures,
        peers: BrokerPeers,
        leader_liveness: LeaderLiveness,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._metadata = metadata
        self._tasks = tasks
        self._quota = quota
        self._failures = failures
        self._peers = peers
        self._leader_liveness = leader_liveness
        self._fetchers_per_leader = config.integer("num.replica.fetchers")
        self._fetchers: dict[tuple[BrokerId, int], ReplicaFetcher] = {}
        self._runs: dict[tuple[BrokerId, int], asyncio.Task[None]] = {}
        self._by_partition: dict[Partition, ReplicaFetcher] = {}

    def assign(self, partition: Partition) -> None:
        """Fetch the partition from the leader that its role follows; stop fetching it if there is none."""
        role = partition.replica.role
        if not isinstance(role, FollowerRole) or not role.has_leader:
            self.forget(partition)
            return
        fetcher = self._fetcher(role.leader, partition.key.partition % self._fetchers_per_leader)
        if self._by_partition.get(partition) is not fetcher:
            self.forget(partition)
            self._by_partition[partition] = fetcher
        fetcher.follow(partition)

    def forget(self, partition: Partition) -> None:
        fetcher = self._by_partition.pop(partition, None)
        if fetcher is not None:
            fetcher.forget(partition)

    def resume(self, partition: Partition) -> None:
        """Fetch the partition again: its records are flushed now, or its checkpoint is written."""
        fetcher = self._by_partition.get(partition)
        if fetcher is not None:
            fetcher.resume(partition)

    def stop(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.stop()

    def _fetcher(self, leader_id: BrokerId, fetcher_index: int) -> ReplicaFetcher:
        fetcher = self._fetchers.get((leader_id, fetcher_index))
        if fetcher is None:
            fetcher = ReplicaFetcher(
                leader_id,
                fetcher_index,
                self._config,
                self._runtime,
                lambda: self._locate(leader_id),
                self._quota,
                self._failures,
                self._peers,
                self._leader_liveness,
            )
            self._fetchers[leader_id, fetcher_index] = fetcher
            self._runs[leader_id, fetcher_index] = self._tasks.service(
                f"fetcher {fetcher_index} of broker {leader_id}", fetcher.run()
            )
        return fetcher

    def _locate(self, leader_id: BrokerId) -> tuple[str, int] | None:
        broker = self._metadata.image.broker(leader_id)
        if broker is None or broker.fenced:
            return None
        endpoint = broker.endpoint(self._peers.listener)
        return None if endpoint is None else (endpoint.host, endpoint.port)
