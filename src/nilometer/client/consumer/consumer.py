"""The consumer: subscribe to topics or assign partitions, seek, poll records, commit (SPEC C-1, C-2).

``await consumer.poll(timeout_ms=…)`` returns the buffered records; ``async for record in consumer`` yields
records without end. The position of a partition is the offset of the next record to return; ``seek`` changes
it.

This module is the user's interface: ``fetcher`` fetches, ``positions`` keeps the positions and
``membership`` handles the group. Rebalances and their callbacks run within polls.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping

from nilometer.client.consumer.consumer_settings import CONSUMER_CONFIG_DEFINITION, ConsumerConfig
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.consumer.fetcher import Fetcher
from nilometer.client.group.group_exchange import GroupMetadata, MemberIdentity, OffsetAndMetadata
from nilometer.client.group.group_settings import GroupConfig
from nilometer.client.group.member import RebalanceListener, Subscription
from nilometer.client.group.membership import Membership, OnCommit
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.offset_queries import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ListedOffset, list_offsets
from nilometer.client.positions import EARLIEST, LATEST, OffsetReset, Positions
from nilometer.client.settings import ClientSettings, GivenConfig
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

FOREVER_MS = 3_600_000
"""The maximum of one wait for records in ``async for``, which has no timeout; then it waits again."""


class Consumer:
    """Use as ``async with Consumer(runtime, {"bootstrap.servers": …}) as consumer``."""

    def __init__(self, runtime: Runtime, config: GivenConfig) -> None:
        settings = ClientSettings(CONSUMER_CONFIG_DEFINITION, config)
        self.config = ConsumerConfig.of(settings)
        self.client = Client(runtime, settings)
        self.client.auto_create_topics = settings.boolean("allow.auto.create.topics")
        self._clock = runtime.clock
        self._positions = Positions(self.config.offset_reset)
        self._fetcher: Fetcher | None = None
        group = GroupConfig.of(settings)
        self._group = None if group is None else Membership(self.client, group, self._positions, self._attend)
        self._closed = False

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not GeneratorExit:  # else the coroutine is being destroyed and cannot await anything
            await self.close()

    async def start(self) -> None:
        """Connect to the cluster and start the fetcher. Raises ConnectionLost."""
        await self.client.start()
        self._fetcher = Fetcher(self.client, self.config, self._positions)
        if self._group is not None:
            self._fetcher.fetch_committed_by(self._group.committed)

    async def close(self, *, leave_group: bool | None = None) -> None:
        """Close the consumer. A group member first commits (with auto commit), and leaves the group.

        By default a static member (``group.instance.id``) does not leave, since it may come back (KIP-1092):
        ``leave_group=True`` has it leave as well. Raises the exception of a rebalance callback, once
        everything is closed.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._group is not None and self._fetcher is not None:
                self._fetcher.interrupt()
                await self._group.close(for_good=leave_group is True)
        finally:
            if self._fetcher is not None:
                await self._fetcher.close()
            await self.client.close()

    @property
    def closed(self) -> bool:
        return self._closed

    # --- subscription and assignment

    async def subscribe(
        self, topics: Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Subscribe to topics: by name, or to all whose whole name matches a pattern.

        The group assigns partitions in the next polls, and changes them as members join and leave;
        ``listener`` is called then. Raises KafkaError if partitions were assigned by :meth:`assign`.
        """
        group = self._member_of()
        if self._positions.entries() and not group.is_subscribed:
            raise KafkaError(
                ErrorCode.invalid_request,
                "partitions were assigned to this consumer: call unsubscribe() first",
            )
        if isinstance(topics, re.Pattern):
            subscription = Subscription(pattern=topics)
        else:
            subscription = Subscription(tuple(sorted(set(topics))))
        await group.subscribe(subscription, listener)

    async def unsubscribe(self) -> None:
        """Drop the subscription or the assigned partitions; a member leaves its group."""
        if self._group is not None and self._group.is_subscribed:
            await self._group.unsubscribe()
        else:
            self._positions.assign(())

    def subscription(self) -> Subscription:
        return self._group.subscription if self._group is not None else Subscription()

    def group_identity(self) -> MemberIdentity:
        """Return the identity with which this consumer commits now."""
        return self._member_of().identity

    def group_metadata(self) -> GroupMetadata:
        """Return what ``TransactionalProducer.send_offsets`` needs to commit this consumer's offsets.

        Call it before the records are processed. Raises KafkaError if the consumer has no group.
        """
        group = self._member_of()
        return GroupMetadata(group.config.group_id, group.identity)

    def enforce_rebalance(self, reason: str = "the application asked for it") -> None:
        """Have the next poll start a rebalance of the group; ``reason`` is logged by the coordinator."""
        self._member_of().request_rejoin(reason)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions; those assigned before keep their position.

        Raises KafkaError if the consumer subscribes to topics.
        """
        if self._group is not None and self._group.is_subscribed:
            raise KafkaError(
                ErrorCode.invalid_request, "this consumer subscribes to topics: call unsubscribe() first"
            )
        assigned = list(partitions)
        self._positions.assign(assigned)
        if self.client.watch_topics(sorted({partition.topic for partition in assigned})):
            self.client.request_refresh()
        self._wake()

    def assignment(self) -> list[TopicPartition]:
        return [partition for partition, _ in self._positions.entries()]

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic. Raises KafkaError."""
        found = await self.client.topic(topic, self.config.api_timeout_ms)
        return [TopicPartition(topic, part.partition) for part in found.partitions]

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of ``partitions`` until they are resumed; their positions stay."""
        for partition in partitions:
            self._positions.of(partition).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        for partition in partitions:
            self._positions.of(partition).paused = False
        self._wake()

    def paused(self) -> list[TopicPartition]:
        return [partition for partition, position in self._positions.entries() if position.paused]

    # --- positions

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        """Set the position to ``offset``; ``leader_epoch`` is that of the record before it, if known."""
        self._positions.seek(partition, offset, leader_epoch)
        self._wake()

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Set the positions of ``partitions`` (default: all assigned) to the log start offset."""
        self._seek_by(partitions, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Set the positions of ``partitions`` (default: all assigned) to the log's end, looked up later."""
        self._seek_by(partitions, LATEST)

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record, after looking it up if needed. Raises KafkaError."""
        fetcher = self._opened()
        deadline_ms = self._clock.monotonic_ms() + self.config.api_timeout_ms
        while not (position := self._positions.of(partition)).is_known:
            if position.is_missing:
                raise self._positions.missing_position(partition)
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                raise KafkaError(
                    ErrorCode.request_timed_out, f"the position of {partition} was not found in time"
                )
            fetcher.wake()
            await fetcher.wait(left_ms / 1000)
            fetcher.raise_error()
        return position.offset

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the high watermark of the last Fetch response; None if there was none."""
        known = self._positions.of(partition).high_watermark
        return known if known >= 0 else None

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))
        return {partition: one.offset for partition, one in found.items()}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of what this consumer can read: high watermark or last stable offset.

        Raises KafkaError.
        """
        found = await self._list_offsets(dict.fromkeys(partitions, LATEST_TIMESTAMP))
        return {partition: one.offset for partition, one in found.items()}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListedOffset | None]:
        """Return, per partition, the first offset with a timestamp at or after the given one, or None.

        Timestamps are in milliseconds. Raises KafkaError.
        """
        found = await self._list_offsets(timestamps)
        return {partition: one if one.offset >= 0 else None for partition, one in found.items()}

    # --- reading

    async def poll(
        self, max_records: int | None = None, timeout_ms: int = 0, *, max_bytes: int | None = None
    ) -> list[ConsumerRecord]:
        """Return buffered records, at most ``max_records``; wait up to ``timeout_ms`` for the first one.

        ``max_bytes``: records of further batches are left for the next poll once those that are returned have
        so many bytes, decompressed.
        Records of one partition are in the order of offsets. An error of a partition is raised as KafkaError
        after the records before it were returned, and again at the next poll unless the position was changed.
        """
        fetcher, group = self._opened(), self._group
        count = self.config.max_poll_records if max_records is None else max_records
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        if group is None:
            return await self._take(fetcher, count, deadline_ms, max_bytes)
        group.on_poll_begun()
        try:
            return await self._take(fetcher, count, deadline_ms, max_bytes)
        finally:
            group.on_poll_ended()

    async def _take(
        self, fetcher: Fetcher, count: int, deadline_ms: int, max_bytes: int | None
    ) -> list[ConsumerRecord]:
        group = self._group
        fetcher.wake()
        while True:
            if group is not None:
                await group.poll(deadline_ms)
            self._check_positions()
            records = [] if self._closed else fetcher.take(count, max_bytes)
            if records:
                if fetcher.has_work:
                    await self._fetch_ahead(records)
                return records
            now_ms = self._clock.monotonic_ms()
            if self._closed:
                return []
            if now_ms >= deadline_ms:
                await asyncio.sleep(0)  # a loop of polls must let the event loop do I/O
                return fetcher.take(count, max_bytes)
            until_ms = deadline_ms
            if group is not None and (wake_ms := group.next_wake_ms()) is not None:
                until_ms = max(min(until_ms, wake_ms), now_ms + 1)
            await fetcher.wait((until_ms - now_ms) / 1000)

    async def _fetch_ahead(self, records: list[ConsumerRecord]) -> None:
        """Request the next records while the user handles ``records``. If the poll is cancelled, give them
        back: the next poll returns them."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            first = {TopicPartition(one.topic, one.partition): one for one in reversed(records)}
            for partition, record in first.items():
                if partition in self._positions:
                    self.seek(partition, record.offset, record.leader_epoch)
            raise

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while not self._closed:
            fetcher = self._opened()
            here = [] if fetcher.has_work or self._group is not None else fetcher.take(1)
            if not here:
                here = await self.poll(1, timeout_ms=FOREVER_MS)
            if here:
                return here[0]
        raise StopAsyncIteration

    # --- committed offsets

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commit ``offsets`` (of the next records to read), or this consumer's positions.

        Raises CommitFailed if another member may own the partitions already, or another KafkaError.
        """
        await self._member_of().commit(_offsets(offsets))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        on_done: OnCommit | None = None,
    ) -> None:
        """Commit in the background; ``on_done`` is called with the offsets and the error or None."""
        self._member_of().commit_async(_offsets(offsets), on_done)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset of each partition; None if there is none. Raises KafkaError."""
        return await self._member_of().committed(list(partitions))

    # --- helpers

    def _member_of(self) -> Membership:
        if self._group is None:
            raise KafkaError(ErrorCode.invalid_group_id, "this operation needs a group.id")
        return self._group

    def _attend(self) -> None:
        """Wake the waiting poll: the group has work for it."""
        if self._fetcher is not None:
            self._fetcher.wake()
            self._fetcher.interrupt()

    def _opened(self) -> Fetcher:
        if self._fetcher is None or self._closed:
            raise KafkaError(ErrorCode.network_exception, "the consumer is not open: use it in `async with`")
        return self._fetcher

    def _wake(self) -> None:
        if self._fetcher is not None:
            self._fetcher.wake()

    def _check_positions(self) -> None:
        for partition, position in self._positions.entries():
            if position.is_missing:
                raise self._positions.missing_position(partition)

    def _seek_by(self, partitions: tuple[TopicPartition, ...], reset: OffsetReset) -> None:
        for partition in partitions or self.assignment():
            self._positions.seek_by(partition, reset)
        self._wake()

    async def _list_offsets(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListedOffset]:
        return await list_offsets(
            self.client, timestamps, self.config.limits.isolation_level, self.config.api_timeout_ms
        )


def _offsets(
    given: Mapping[TopicPartition, OffsetAndMetadata | int] | None,
) -> dict[TopicPartition, OffsetAndMetadata] | None:
    if given is None:
        return None
    return {
        partition: OffsetAndMetadata(one) if isinstance(one, int) else one for partition, one in given.items()
    }
