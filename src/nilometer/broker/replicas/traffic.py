"""What was written to and read from partitions, in bytes and records, since the broker started.

A partition counts bytes where it handles them anyway; its records are counted from its log end offset, when a
scrape reads them. The counts of a partition that is no longer hosted here are added to those of its topic, so
that no count ever decreases.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class PartitionTraffic:
    """The traffic of one hosted partition. Bytes are those of record batches, as they are in the log."""

    __slots__ = (
        "_bytes_in_published",
        "_led_from",
        "_messages_in_before",
        "bytes_in",
        "bytes_out",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        """Bytes appended as leader: by producers, coordinators and as markers."""
        self.bytes_out = 0
        """Bytes sent to consumers."""
        self.replication_bytes_in = 0
        """Bytes appended as follower."""
        self.replication_bytes_out = 0
        """Bytes sent to followers."""
        self._bytes_in_published = 0
        self._messages_in_before = 0
        self._led_from: int | None = None

    def take_published(self) -> int:
        """Return the bytes appended as leader since the last call."""
        published, self._bytes_in_published = self._bytes_in_published, self.bytes_in
        return self.bytes_in - published

    def on_role(self, *, leads: bool, log_end_offset: int) -> None:
        """Note a new role: from here on records are appended as leader, or no longer."""
        self._messages_in_before = self.messages_in(log_end_offset)
        self._led_from = log_end_offset if leads else None

    def messages_in(self, log_end_offset: int) -> int:
        """Return how many records were appended as leader: a leader's log has no gaps above the offset from
        which it leads."""
        if self._led_from is None:
            return self._messages_in_before
        return self._messages_in_before + max(0, log_end_offset - self._led_from)


class TrafficTotals(msgspec.Struct):
    """The traffic of several partitions."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0

    def add_partition(self, traffic: PartitionTraffic, log_end_offset: int) -> None:
        self.messages_in += traffic.messages_in(log_end_offset)
        self.bytes_in += traffic.bytes_in
        self.bytes_out += traffic.bytes_out
        self.replication_bytes_in += traffic.replication_bytes_in
        self.replication_bytes_out += traffic.replication_bytes_out

    def copy(self) -> TrafficTotals:
        return TrafficTotals(
            self.messages_in,
            self.bytes_in,
            self.bytes_out,
            self.replication_bytes_in,
            self.replication_bytes_out,
        )


class BrokerTraffic:
    """The traffic of partitions that are no longer hosted here, and requests that failed."""

    def __init__(self) -> None:
        self.departed = TrafficTotals()
        self.departed_by_topic: dict[str, TrafficTotals] = {}
        """By topic; only topics that exist."""
        self.failed_produces = 0
        """Partitions of Produce requests that got an error."""
        self.failed_fetches = 0
        """Partitions of Fetch requests that got an error."""

    def on_departed(self, topic: str, traffic: PartitionTraffic, log_end_offset: int) -> None:
        """Keep the counts of a partition that is no longer hosted."""
        self.departed.add_partition(traffic, log_end_offset)
        self.departed_by_topic.setdefault(topic, TrafficTotals()).add_partition(traffic, log_end_offset)

    def keep_topics(self, exists: Callable[[str], bool]) -> None:
        """Forget the topics that were deleted; their traffic stays in the sum of all topics."""
        for topic in [topic for topic in self.departed_by_topic if not exists(topic)]:
            del self.departed_by_topic[topic]
