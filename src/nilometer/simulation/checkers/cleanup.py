"""What the cleanup of logs leaves: compaction keeps the newest value of each key, retention deletes only what
it may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.replication.follower import FollowerRole
from nilometer.replication.leader import LeaderRole
from nilometer.simulation.checkers.history import History, Outcome, Partition, Send
from nilometer.simulation.checkers.logs import (
    LOG_SUFFIX,
    StoredBatch,
    StoredReplica,
    batches_with_positions,
    read_replica,
)
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.disk import FileNode, FolderNode
from nilometer.simulation.plan import Plan
from nilometer.simulation.world import Process
from nilometer.wire.record_batch import read_header
from nilometer.wire.records import decode_records

# Checking a compacted partition at rest: every replica must have the same newest value of each key.
#
# Each replica compacts its log independently, so the batches on their disks differ, and only the table that a
# reader from the start gets is compared. Offsets must increase, and CRCs be correct.


def compare_cluster(
    cluster: Cluster, partition: TopicPartition, judge: Callable[[Mapping[str, str]], list[str]]
) -> list[str]:
    """Return the errors on the disks of a cluster at rest; ``judge`` returns those of one table."""
    name = f"{partition.topic}-{partition.partition}"
    image = next(node.image for node in cluster.nodes.values() if node.image is not None)
    state = image.partition(*partition)
    wrong: list[str] = []
    for broker_id in state.replicas if state else ():
        node = cluster.nodes[broker_id]
        for place in node.places_of(name):
            replica = read_replica(node.host.disk, place, node.id)
            if replica is None:
                wrong.append(f"compaction: {name} is missing on broker {node.id}")
                continue
            found = [*_inside(replica), *judge(table_of(replica))]
            wrong += [f"{error} (on the disk of broker {node.id})" for error in found]
    return wrong


def table_of(replica: StoredReplica) -> dict[str, str]:
    table: dict[str, str] = {}
    for batch in replica.batches:
        for record in decode_records(batch.data, 0, read_header(batch.data)):
            key = (record.key or b"").decode()
            if record.value is None:
                table.pop(key, None)
            else:
                table[key] = record.value.decode()
    return table


def _inside(replica: StoredReplica) -> list[str]:
    wrong: list[str] = []
    floor = 0
    for batch in replica.batches:
        if batch.base_offset < floor:
            wrong.append(f"compaction: offset {batch.base_offset} after {floor}")
        if not batch.is_sound:
            wrong.append(f"compaction: the CRC of the batch at {batch.base_offset} is wrong")
        floor = batch.last_offset + 1
    return wrong


class CompactionCounts:
    """How often all incarnations of all brokers have compacted a log; ``look`` updates the numbers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_incarnation: dict[tuple[int, int], tuple[int, int]] = {}
        """(broker id, incarnation) -> rounds that removed records, and records removed."""

    def look(self) -> None:
        for node in self._cluster.nodes.values():
            if node.broker is not None and node.is_running:
                report = node.broker.cleaner_report
                counts = report.rounds_that_removed, report.records_removed
                self._by_incarnation[node.id, node.incarnations] = counts

    def done(self) -> dict[str, int]:
        rounds = sum(count for count, _ in self._by_incarnation.values())
        records = sum(count for _, count in self._by_incarnation.values())
        return {"compaction rounds that removed records": rounds, "records compacted away": records}


# Checking that retention deletes only what it may, and, at rest, all that it must.
#
# The log start offset of each replica is checked periodically. A higher one than before must have a reason:
#
# - a client's DeleteRecords up to there, or further;
# - *by time*: every acknowledged record below it is older than ``retention.ms`` by the fastest clock since
#   the previous check of every broker (a starting broker deletes before it can be checked);
# - *by size*: the bytes above it, on the disk that has most of them, are at least ``retention.bytes``;
# - *by both* in one round: by size as far as the segments at the previous check allow, then by time.
#
# It must also be at or below the high watermark; :mod:`running_brokers` checks that. With a reason it
# becomes the *floor* of its partition: below the floor no record has to be found any more.
#
# Sizes and ages are read from the histories and the disks, not from the brokers' retention code.

SLACK_BYTES = 4_000
"""How many bytes a replica may have lost at its log's end since retention measured its size: two batches."""
SLACK_MS = 3_000
"""By how much a retention round may be late."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    retention_ms: int = -1
    retention_bytes: int = -1
    check_interval_ms: int = 5_000


def policies_of(plan: Plan) -> dict[Partition, Policy]:
    """Return the retention policy of each partition of the plan's topics that delete records."""
    check_interval_ms = int(plan.settings.get("log.retention.check.interval.ms", "300000"))
    return {
        f"{topic.name}-{index}": Policy(
            retention_ms=topic.retention_ms,
            retention_bytes=topic.retention_bytes,
            check_interval_ms=check_interval_ms,
        )
        for topic in plan.topics
        if topic.is_deleted
        for index in range(topic.partitions)
    }


@dataclass(slots=True)
class _Known:
    policy: Policy
    floor: int = 0
    asked: int = 0
    """The highest offset of a DeleteRecords request."""
    sends: list[Send] = field(default_factory=list[Send])


class Retention:
    """Checks retention; ``violations`` are the findings, the floors are the history's ``log_starts``."""

    def __init__(self, cluster: Cluster, history: History, policies: Mapping[Partition, Policy]) -> None:
        self._cluster = cluster
        self._history = history
        self._known = {partition: _Known(policy) for partition, policy in policies.items()}
        self._seen_sends = 0
        self._fastest_ms: dict[int, int] = {}
        """By broker, the highest wall clock time of any machine since the broker was last checked."""
        self._segments: dict[tuple[int, Partition], dict[int, int]] = {}
        """By broker and partition, each segment's size by base offset at the previous check."""
        self.violations: list[str] = []
        self.taken = 0
        """How often a log start offset increased."""

    def asked(self, partition: Partition, offset: int) -> None:
        """Record that DeleteRecords up to ``offset`` will be requested."""
        known = self._known[partition]
        known.asked = max(known.asked, offset)

    def members(self, partition: Partition) -> dict[int, Process]:
        """Return the processes with an in-sync replica of ``partition`` now, by broker id."""
        image = self._cluster.newest_image
        found: dict[int, Process] = {}
        for node in self._cluster.nodes.values():
            for each in node.partitions:
                state = image and image.partition_by_id(each.key.topic_id, each.key.partition)
                if str(each) == partition and state is not None and node.id in state.isr and node.process:
                    found[node.id] = node.process
        return found

    def deleted(self, partition: Partition, offset: int, before: Mapping[int, Process]) -> None:
        """Check a successful DeleteRecords: replicas in sync before and after it must have deleted.

        ``before``: the result of :meth:`members` before the request. A restarted broker is not checked.
        """
        now = self.members(partition)
        for node in self._cluster.nodes.values():
            if node.id not in now or now[node.id] is not before.get(node.id):
                continue
            for each in node.partitions:
                if str(each) == partition and each.log.log_start_offset < offset:
                    self.violations.append(
                        f"deletion of records: {partition} begins at {each.log.log_start_offset} on "
                        f"{node.name}, after the deletion up to {offset} was acknowledged"
                    )

    def look(self) -> None:
        if not self._known:
            return
        self._take_sends()
        nodes = self._cluster.nodes
        now_ms = max(node.host.clock.wall_ms() for node in self._cluster.known.values())
        before_ms = self._fastest_ms
        self._fastest_ms = {
            broker: now_ms if node.is_serving else max(now_ms, before_ms.get(broker, 0))
            for broker, node in nodes.items()
        }
        wall_ms = max((now_ms, *before_ms.values()))
        for node in nodes.values():
            for partition in node.partitions:
                name = str(partition)
                known = self._known.get(name)
                if known is not None and partition.log.log_start_offset > known.floor:
                    self._judge(name, known, partition.log.log_start_offset, node, wall_ms)
        for node in nodes.values():
            for partition in node.partitions:
                if str(partition) in self._known:
                    sizes = {segment.base_offset: segment.size for segment in partition.log.segments}
                    self._segments[node.id, str(partition)] = sizes

    def _take_sends(self) -> None:
        for operation in self._history.operations[self._seen_sends :]:
            if isinstance(operation, Send) and (known := self._known.get(operation.partition)):
                known.sends.append(operation)
        self._seen_sends = len(self._history.operations)

    def _judge(self, name: Partition, known: _Known, start: int, node: BrokerNode, wall_ms: int) -> None:
        is_due = (
            self._is_old(known, known.floor, start, wall_ms)
            or self._is_much(name, known, start)
            or self._is_old(known, self._beyond_size(name, known, start), start, wall_ms)
        )
        if start > known.asked and not is_due:
            self.violations.append(
                f"retention: {name} begins at {start} on {node.name}: its records from {known.floor} on were "
                f"neither deleted by a request nor due ({known.policy})"
            )
        self.taken += 1
        known.floor = start
        self._history.log_starts_at(name, start)
        known.sends = [send for send in known.sends if send.offset is None or send.offset >= start]

    @staticmethod
    def _is_old(known: _Known, first: int, start: int, wall_ms: int) -> bool:
        """Return whether retention by time may delete the records in ``[first, start)``."""
        limit = known.policy.retention_ms
        taken = [send for send in known.sends if send.outcome is Outcome.OK and send.offset is not None]
        youngest = max((send.at_ms for send in taken if first <= (send.offset or 0) < start), default=0)
        return limit >= 0 and wall_ms - youngest > limit

    def _beyond_size(self, name: Partition, known: _Known, start: int) -> int:
        """Return the offset, at most ``start``, up to which retention by size may delete on some replica."""
        if known.policy.retention_bytes < 0:
            return known.floor
        limit = known.policy.retention_bytes - SLACK_BYTES
        reached = [known.floor]
        for node in self._cluster.nodes.values():
            sizes = dict(self._segments.get((node.id, name), {}))
            for partition in node.partitions:
                if str(partition) == name:
                    sizes |= {segment.base_offset: segment.size for segment in partition.log.segments}
            reached.append(begin_of_last(sizes, limit, start))
        return max(reached)

    def _is_much(self, name: Partition, known: _Known, start: int) -> bool:
        limit = known.policy.retention_bytes
        kept = max(
            sum(len(batch.data) for batch in batches if batch.last_offset >= start)
            for batches in (_stored(node, name) for node in self._cluster.known.values())
        )
        return limit >= 0 and kept + SLACK_BYTES >= limit

    # ---- at rest

    def not_converged(self) -> list[str]:
        """Return followers' logs that start below their leader's, and segments that are kept too long."""
        return [
            violation
            for name, known in self._known.items()
            for violation in self._partition_not_converged(name, known.policy)
        ]

    def _partition_not_converged(self, name: Partition, policy: Policy) -> Sequence[str]:
        starts: dict[int, int] = {}
        leader: BrokerNode | None = None
        for node in self._cluster.nodes.values():
            for partition in node.partitions:
                if str(partition) == name and isinstance(partition.replica.role, LeaderRole | FollowerRole):
                    starts[node.id] = partition.log.log_start_offset
                    leader = node if isinstance(partition.replica.role, LeaderRole) else leader
        if leader is None:
            return ()  # another checker reports it
        behind = {broker: start for broker, start in starts.items() if start < starts[leader.id]}
        if behind:
            return (f"not converged: {name} begins at {starts[leader.id]} on its leader, but at {behind}",)
        due = _first_due(leader, name, policy)
        return () if due is None else (f"not converged: retention left {due} of {name} on {leader.name}",)


def begin_of_last(sizes: Mapping[int, int], limit: int, start: int) -> int:
    """Return the largest base offset up to ``start`` from which on segments have ``limit`` bytes; else 0."""
    kept = 0
    for base_offset in sorted(sizes, reverse=True):
        kept += sizes[base_offset]
        if kept >= limit and base_offset <= start:
            return base_offset
    return 0


def _first_due(node: BrokerNode, name: Partition, policy: Policy) -> str | None:
    """Return the first segment, unless it is the only one, if retention should have deleted it long ago.

    Ages are by the broker's own clock.
    """
    segments = _segments(node, name)
    if len(segments) < 2:
        return None
    first, data = segments[0]
    youngest = max((_largest_timestamp(batch) for _, batch in batches_with_positions(data)), default=0)
    limit_ms = policy.retention_ms + policy.check_interval_ms + SLACK_MS
    if policy.retention_ms >= 0 and youngest and node.host.clock.wall_ms() - youngest > limit_ms:
        return f"{first}, whose newest record has timestamp {youngest},"
    size = sum(len(each) for _, each in segments)
    if policy.retention_bytes >= 0 and size - len(data) >= policy.retention_bytes:
        return f"{first} and {size - len(data)} bytes after it"
    return None


def _largest_timestamp(batch: StoredBatch) -> int:
    return int.from_bytes(batch.data[35:43], "big", signed=True)


def _segments(node: BrokerNode, name: Partition) -> list[tuple[str, bytes]]:
    place = node.place_of(name)
    folder = None if place is None else node.host.disk.find(place)
    entries = sorted(folder.entries.items()) if isinstance(folder, FolderNode) else []
    return [
        (file, bytes(found.data))
        for file, found in entries
        if file.endswith(LOG_SUFFIX) and isinstance(found, FileNode)
    ]


def _stored(node: BrokerNode, name: Partition) -> list[StoredBatch]:
    return [batch for _, data in _segments(node, name) for _, batch in batches_with_positions(data)]
