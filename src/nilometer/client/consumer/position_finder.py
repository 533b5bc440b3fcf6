"""Looks up positions: committed offsets, offset resets, and validation after a change of leader.

Part of the fetcher: it sends the requests for which :mod:`~nilometer.client.offsets.positions` waits, and
reports errors to the user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nilometer.client.consumer.consumer_config import ConsumerConfig
from nilometer.client.group.group_exchange import OffsetAndMetadata
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.network.jobs import Jobs
from nilometer.client.offsets.offset_queries import LATEST_TIMESTAMP, ListedOffset, epoch_ends, list_offsets
from nilometer.client.offsets.offset_reset import OffsetReset
from nilometer.client.offsets.positions import Positions
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.wire.errors import KafkaError

FetchCommitted = Callable[[list[TopicPartition]], Awaitable[dict[TopicPartition, OffsetAndMetadata | None]]]
"""Fetches a group's committed offsets; None for a partition without one. Raises KafkaError."""

Generations = dict[TopicPartition, int]
"""The generation of each position when the job about it began (see ``positions``)."""

Report = Callable[[TopicPartition, KafkaError], None]
"""Reports an error of a partition to the user and pauses its lookups."""


class PositionFinder:
    def __init__(
        self, client: Client, config: ConsumerConfig, positions: Positions, jobs: Jobs, report: Report
    ) -> None:
        self._client = client
        self._config = config
        self._positions = positions
        self._jobs = jobs
        self._report = report
        self.fetch_committed: FetchCommitted | None = None

    def settle(self, now_ms: int) -> None:
        """Start the jobs that look up or validate positions; skip partitions that pause at ``now_ms``.

        The generations are recorded here: when a job runs, its partition may no longer be assigned.
        """
        resets: dict[TopicPartition, OffsetReset] = {}
        epochs: dict[TopicPartition, int] = {}
        committed: list[TopicPartition] = []
        generations: Generations = {}
        metadata = self._client.metadata
        for partition, position in self._positions.entries():
            if metadata.partition(partition) is None:
                self._client.request_refresh()
            elif position.retry_at_ms > now_ms:
                continue
            elif position.committed_wanted:
                committed.append(partition)
            elif position.reset is not None:
                resets[partition] = position.reset
            elif self._positions.on_leader_epoch(partition, metadata.leader_epoch(partition)):
                epochs[partition] = self._positions.of(partition).offset_epoch
            generations[partition] = self._positions.of(partition).generation
        if committed:
            self._jobs.start("committed", lambda: self._take_committed(committed, generations))
        if resets:
            self._jobs.start("look-up", lambda: self._look_up(resets, generations))
        if epochs:
            self._jobs.start("validate", lambda: self._validate(epochs, generations))

    def out_of_range(self, partition: TopicPartition) -> None:
        """Handle OFFSET_OUT_OF_RANGE: reset the position, or report the error if there is no reset."""
        try:
            self._positions.on_out_of_range(partition, "is not in the log")
        except KafkaError as error:
            self._report(partition, error)

    async def _take_committed(self, partitions: list[TopicPartition], generations: Generations) -> None:
        assert self.fetch_committed is not None
        try:
            found = await self.fetch_committed(partitions)
        except KafkaError as error:
            for partition in partitions:
                self._report(partition, error)
            return
        for partition, one in found.items():
            offset, epoch = (one.offset, one.leader_epoch) if one is not None else (None, NO_LEADER_EPOCH)
            self._positions.on_committed(partition, generations[partition], offset, epoch)

    async def _look_up(self, resets: dict[TopicPartition, OffsetReset], generations: Generations) -> None:
        now_ms = self._client.runtime.clock.wall_ms()
        timestamps = {partition: reset.timestamp_at(now_ms) for partition, reset in resets.items()}
        try:
            found = await self._list(timestamps)
            late = [partition for partition, one in found.items() if one.offset < 0]
            if late:  # no record has a timestamp that late: use the end
                found |= await self._list(dict.fromkeys(late, LATEST_TIMESTAMP))
        except KafkaError as error:
            for partition in resets:
                self._report(partition, error)
            return
        for partition, one in found.items():
            epoch = max(one.leader_epoch, self._client.metadata.leader_epoch(partition))
            self._positions.on_looked_up(partition, generations[partition], one.offset, epoch)

    async def _list(self, timestamps: dict[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        isolation_level = self._config.limits.isolation_level
        return await list_offsets(self._client, timestamps, isolation_level, self._config.api_timeout_ms)

    async def _validate(self, epochs: dict[TopicPartition, int], generations: Generations) -> None:
        metadata = self._client.metadata
        asked = {partition: metadata.leader_epoch(partition) for partition in epochs}
        try:
            ends = await epoch_ends(self._client, epochs, self._config.api_timeout_ms)
        except KafkaError as error:
            for partition in epochs:
                self._report(partition, error)
            return
        for partition, end in ends.items():
            generation, epoch = generations[partition], asked[partition]
            try:
                self._positions.on_validated(partition, generation, epoch, end.leader_epoch, end.end_offset)
            except KafkaError as error:
                self._report(partition, error)
