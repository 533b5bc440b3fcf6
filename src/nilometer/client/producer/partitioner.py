"""The choice of the partition for a record. Pure; randomness and queue lengths are arguments.

Named partitioners: ``default`` (hash of the key; records without one stick to a partition for a batch's
worth of bytes), ``uniform_sticky`` (the same, keys ignored), ``round_robin``. A user's own is any callable
``(topic, key, value, cluster) -> partition``.

Invariant: a key gets the partition that Java's producer chooses: ``murmur2(key) & 0x7fffffff`` modulo the
number of partitions, whether these have a leader or not.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

from nilometer.client.network.cluster_metadata import ClusterMetadata
from nilometer.runtime import Entropy

PartitionFunction = Callable[[str, bytes | None, bytes | None, ClusterMetadata], int]
QueueLengths = Callable[[str, Sequence[int]], list[int]]
"""Returns, for a topic and some of its partitions, the number of queued batches of each."""

HASHES_KEPT = 4096
"""The number of keys whose hashes are cached."""

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFF_FFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Java's ``Utils.murmur2``, as an unsigned number."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        k = k * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if whole < length:
        h ^= int.from_bytes(data[whole:], "little")
        h = h * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ (h >> 15)


@functools.lru_cache(HASHES_KEPT)
def positive_hash(key: bytes) -> int:
    return murmur2(key) & 0x7FFF_FFFF


def partition_for_key(key: bytes, partition_count: int) -> int:
    return positive_hash(key) % partition_count


class Partitioner(Protocol):
    def partition(self, topic: str, key: bytes | None, value: bytes | None, cluster: ClusterMetadata) -> int:
        """Return the partition index for a record; ``cluster`` must know the topic."""
        ...

    def on_appended(self, topic: str, partition: int, size: int, room: int, cluster: ClusterMetadata) -> None:
        """Note that a record of ``size`` bytes was added to a batch with ``room`` bytes left."""
        ...


class UserPartitioner:
    """Calls the user's function; raises ValueError if its result is not a partition of the topic."""

    def __init__(self, choose: PartitionFunction) -> None:
        self._choose = choose

    def partition(self, topic: str, key: bytes | None, value: bytes | None, cluster: ClusterMetadata) -> int:
        chosen = self._choose(topic, key, value, cluster)
        count = cluster.partition_count(topic)
        if not isinstance(chosen, int) or not 0 <= chosen < count:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"the partitioner chose partition {chosen!r} of topic {topic}, which has {count}"
            )
        return chosen

    def on_appended(self, topic: str, partition: int, size: int, room: int, cluster: ClusterMetadata) -> None:
        pass


class RoundRobinPartitioner:
    """Sends each record to the next partition that has a leader, and ignores keys."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, value: bytes | None, cluster: ClusterMetadata) -> int:
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + 1
        candidates = _candidates(topic, cluster)
        return candidates[turn % len(candidates)]

    def on_appended(self, topic: str, partition: int, size: int, room: int, cluster: ClusterMetadata) -> None:
        pass


class _Sticky:
    __slots__ = ("checked_in", "partition", "produced")

    def __init__(self, partition: int, checked_in: ClusterMetadata) -> None:
        self.partition = partition
        self.produced = 0
        self.checked_in = checked_in
        """The metadata in which the partition was last found usable."""


class StickyPartitioner:
    """Sends records with a key by its hash, the others to one partition for ``batch_size`` bytes (KIP-794).

    Then it draws another partition at random; with ``queue_lengths``, one with a shorter queue is more
    likely, so that a slow broker gets fewer of the records without a key.
    """

    def __init__(
        self,
        entropy: Entropy,
        batch_size: int,
        *,
        ignore_keys: bool = False,
        queue_lengths: QueueLengths | None = None,
    ) -> None:
        self._entropy = entropy
        self._batch_size = max(batch_size, 1)
        self._ignore_keys = ignore_keys
        self._queue_lengths = queue_lengths
        self._current: dict[str, _Sticky] = {}

    def partition(self, topic: str, key: bytes | None, value: bytes | None, cluster: ClusterMetadata) -> int:
        if key is not None and not self._ignore_keys:
            return positive_hash(key) % cluster.partition_count(topic)
        current = self._current.get(topic)
        if current is None or (
            current.checked_in is not cluster and not self._is_usable(topic, current.partition, cluster)
        ):
            current = self._current[topic] = _Sticky(self._draw(topic, cluster), cluster)
        current.checked_in = cluster
        return current.partition

    def on_appended(self, topic: str, partition: int, size: int, room: int, cluster: ClusterMetadata) -> None:
        current = self._current.get(topic)
        if current is None or current.partition != partition:
            return
        current.produced += size
        # Switch where a batch ends: otherwise the next batch of this partition would linger with one record.
        at_boundary = room < size and current.produced + size > self._batch_size
        if at_boundary or current.produced >= 2 * self._batch_size:
            self._current[topic] = _Sticky(self._draw(topic, cluster), cluster)

    def _is_usable(self, topic: str, partition: int, cluster: ClusterMetadata) -> bool:
        available = cluster.topics[topic].available
        return partition < cluster.partition_count(topic) and (not available or partition in available)

    def _draw(self, topic: str, cluster: ClusterMetadata) -> int:
        candidates = _candidates(topic, cluster)
        if len(candidates) == 1:
            return candidates[0]
        if self._queue_lengths is None:
            return self._entropy.choice(candidates)
        lengths = self._queue_lengths(topic, candidates)
        longest = max(lengths) + 1
        cumulative = list(accumulate(longest - length for length in lengths))
        drawn = self._entropy.below(cumulative[-1])
        return next(candidates[i] for i, bound in enumerate(cumulative) if drawn < bound)


def _candidates(topic: str, cluster: ClusterMetadata) -> Sequence[int]:
    known = cluster.topics[topic]
    return known.available or range(len(known.partitions))


def make_partitioner(
    name: str,
    entropy: Entropy,
    batch_size: int,
    *,
    ignore_keys: bool = False,
    queue_lengths: QueueLengths | None = None,
) -> Partitioner:
    """Return the partitioner with this value of ``partitioner.class``. Raises ValueError if unknown."""
    match name:
        case "round_robin":
            return RoundRobinPartitioner()
        case "uniform_sticky":
            return StickyPartitioner(entropy, batch_size, ignore_keys=True, queue_lengths=queue_lengths)
        case "default":
            return StickyPartitioner(
                entropy, batch_size, ignore_keys=ignore_keys, queue_lengths=queue_lengths
            )
        case _:
            raise ValueError(f"there is no partitioner named {name}")
