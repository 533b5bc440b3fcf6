"""Replication throttling: how many bytes a second may be sent to, or fetched for, replicas being moved.

Kafka's settings (KIP-73) apply: the topic names the replicas (``leader.replication.throttled.replicas`` and
``follower.…``, lists of ``partition:broker``), the broker has its rate (``….replication.throttled.rate``).
Only replicas that are not in sync are throttled; the bytes of all named ones are counted. The leader's and
the follower's side each have a :class:`ReplicationQuota`, a token bucket: one response may overdraw it, and
the next ones wait until it is refilled, so the rate holds over time whatever the size of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION, BrokerConfig
from nilometer.broker.settings.config_keys import LONG_MAX
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.runtime import Clock
from nilometer.storage.topic_config import TOPIC_CONFIG

UNLIMITED = LONG_MAX
BURST_MS = 1_000
"""The capacity of the bucket, as time at the full rate."""
EVERY_PARTITION: frozenset[int] = frozenset({-1})


class ReplicationQuota:
    """The token bucket of one side. Invariant: ``_tokens`` (bytes) is at most ``BURST_MS`` at full rate."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.bytes_per_second = UNLIMITED
        self._tokens = 0.0
        self._filled_ms = 0
        self._throttled: dict[str, frozenset[int]] = {}
        """By topic: the partitions whose replica on this broker is named in the topic's setting."""

    def set_rate(self, bytes_per_second: int) -> None:
        if bytes_per_second != self.bytes_per_second:
            self.bytes_per_second = bytes_per_second
            self._tokens = self._capacity
            self._filled_ms = self._clock.monotonic_ms()

    def set_throttled(self, topic: str, partitions: frozenset[int]) -> None:
        if partitions:
            self._throttled[topic] = partitions
        else:
            self._throttled.pop(topic, None)

    def throttles(self, topic: str, partition: int) -> bool:
        """Whether a rate is set and the topic's setting names this partition's replica on this broker.

        Then its bytes count, and it has to wait while it is not in sync and the quota is used up.
        """
        if self.bytes_per_second == UNLIMITED or (named := self._throttled.get(topic)) is None:
            return False
        return named is EVERY_PARTITION or partition in named

    @property
    def is_limited(self) -> bool:
        return self.bytes_per_second != UNLIMITED

    def record(self, byte_count: int) -> None:
        """Count ``byte_count`` bytes of named replicas that were sent or received."""
        self._refill()
        self._tokens -= byte_count

    def wait_ms(self) -> int:
        """Return how long (ms) throttled replicas have to wait; 0 if they may be served now."""
        self._refill()
        if self._tokens > 0:
            return 0
        if self.bytes_per_second == 0:
            return BURST_MS
        return int(-self._tokens * 1000 / self.bytes_per_second) + 1

    @property
    def _capacity(self) -> float:
        return self.bytes_per_second * BURST_MS / 1000

    def _refill(self) -> None:
        now_ms = self._clock.monotonic_ms()
        earned = self.bytes_per_second * (now_ms - self._filled_ms) / 1000
        self._filled_ms = now_ms
        self._tokens = min(self._capacity, self._tokens + earned)


class ReplicationQuotas:
    """Both quotas of one broker, kept in line with the metadata log."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._broker_id = config.node_id
        self.leader = ReplicationQuota(clock)
        self.follower = ReplicationQuota(clock)
        self._sides = (("leader", self.leader), ("follower", self.follower))
        self.moves = ReplicationQuota(clock)
        """Of the replicas that are moved between log directories of this broker (KIP-113): all of them."""
        self._topics: dict[str, None] = {}
        self._read_rates(ClusterImage())

    def on_delta(self, delta: ImageDelta, image: ClusterImage) -> None:
        for resource in delta.configs:
            if resource.type is ConfigResourceType.TOPIC:
                self._read_topic(resource.name, image)
            elif resource.type is ConfigResourceType.BROKER:
                self._read_rates(image)
        for topic in delta.topics_deleted.values():
            self._read_topic(topic.name, image)

    def on_reload(self, image: ClusterImage) -> None:
        self._read_rates(image)
        for name in [*self._topics, *(topic.name for topic in image.topics())]:
            self._read_topic(name, image)

    def _read_rates(self, image: ClusterImage) -> None:
        keys = [(f"{side}.replication.throttled.rate", quota) for side, quota in self._sides]
        for key, quota in (*keys, ("replica.alter.log.dirs.io.max.bytes.per.second", self.moves)):
            rate = self._config.integer(key)
            for name in ("", str(self._broker_id)):  # the later one wins, if it can be read
                dynamic = BROKER_CONFIG_DEFINITION.readable(image.config(ConfigResourceType.BROKER, name))
                rate = cast(int, dynamic.get(key, rate))
            quota.set_rate(rate)

    def _read_topic(self, name: str, image: ClusterImage) -> None:
        given = image.config(ConfigResourceType.TOPIC, name)
        for side, quota in self._sides:
            named = _named_partitions(given, f"{side}.replication.throttled.replicas", self._broker_id)
            quota.set_throttled(name, named)
            if named:
                self._topics[name] = None


def _named_partitions(given: Mapping[str, str], key: str, broker_id: int) -> frozenset[int]:
    if key not in given:
        return frozenset()
    items = cast(tuple[str, ...], TOPIC_CONFIG.readable({key: given[key]}).get(key, ()))
    if items == ("*",):
        return EVERY_PARTITION
    pairs = (item.split(":") for item in items)
    return frozenset(int(partition) for partition, broker in pairs if int(broker) == broker_id)
