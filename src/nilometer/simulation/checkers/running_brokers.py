"""Do the brokers of a running cluster agree with each other, stay within their bounds and keep their services
running, and have they converged after all faults ended?

They are checked without being changed: :class:`LeaderInvariants`, :class:`Bounds`, :class:`Services`, and
:func:`not_converged` and :func:`group_not_settled` at the end of a run.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from nilometer.broker.broker import Broker
from nilometer.broker.connection import BYTES_QUEUED_MAX, FRAMES_QUEUED_MAX, Connection
from nilometer.broker.control.metadata_log import ENTRIES_BETWEEN_SNAPSHOTS
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.tasks import Service
from nilometer.broker.turns import ELEMENTS_MAX
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.cluster.entries import encode_snapshot
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.states import PartitionState
from nilometer.identifiers import TopicIdPartition
from nilometer.replication.follower import FollowerRole
from nilometer.replication.leader import LeaderRole
from nilometer.replication.replica import NoRole
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.disk import FileNode, FolderNode
from nilometer.simulation.workload.consumers import GroupMember

# Comparing the state of running brokers, without changing it. The invariants:
#
# - *one leader per epoch*: no two brokers ever lead a partition in the same epoch;
# - *watermark order*: log start <= high watermark <= log end, on every replica;
# - *StrongIsr, by length*: every running member of the committed ISR has a log that reaches the leader's high
#   watermark (whether the records are the same is checked on the disks);
# - *leader completeness*: a leader of a later epoch has, when its epoch starts, all records that any earlier
#   leader had committed;
# - *sessions*: a broker that considers its session live, and so leads and serves, has one in the store;
# - *LeaderInIsr*: a committed leader is in the committed ISR;
# - *images agree*: two brokers that applied the same number of entries have the same metadata.


class LeaderInvariants:
    """Checks the invariants periodically; ``violations`` are the findings."""

    def __init__(self, cluster: Cluster, unpromised: Container[str] = ()) -> None:
        """``unpromised``: topics with arbitrary settings, which may lose records when machines lose power or
        by unclean elections."""
        self._cluster = cluster
        self._unpromised = unpromised
        self._leaders: dict[tuple[str, int, int], int] = {}
        self._committed: dict[tuple[str, int], dict[int, int]] = {}
        """Partition → leader epoch → the highest high watermark of its leader."""
        self.violations: list[str] = []
        self.looks = 0

    def look(self, damaged: Iterable[str]) -> None:
        """Check the invariants now; ``damaged``: machines that may have lost unsynced data."""
        self.looks += 1
        nodes = [node for node in self._cluster.nodes.values() if node.image is not None]
        newest = max((node.image for node in nodes if node.image), key=lambda i: i.number, default=None)
        if newest is None:
            return
        self._check_committed(newest)
        exempt = set(damaged)
        for node in nodes:
            if node.holds_ended_session():
                self._report(f"session: {node.name} considers a session live that the store has ended")
            self._check_watermarks(node)
            self._check_leaderships(node, nodes, newest, exempt)

    def compare_images(self) -> None:
        """Check that all images are equal, when the cluster is at rest and all entries are applied."""
        images = {node.name: node.image for node in self._cluster.nodes.values() if node.image is not None}
        snapshots = {
            name: (image.number, encode_snapshot(image.snapshot())) for name, image in images.items()
        }
        first = next(iter(snapshots.values()), None)
        for name, snapshot in snapshots.items():
            if snapshot != first:
                self.violations.append(f"metadata: {name} at entry {snapshot[0]} differs from the others")

    def _check_committed(self, image: ClusterImage) -> None:
        for key, state in image.partitions():
            if state.has_leader and state.leader not in state.isr:
                self._report(f"LeaderInIsr: {key} is led by {state.leader}, outside ISR {state.isr}")

    def _check_watermarks(self, node: BrokerNode) -> None:
        for partition in node.partitions:
            log, high_watermark = partition.log, partition.replica.high_watermark
            if not log.log_start_offset <= high_watermark <= log.log_end_offset:
                self._report(
                    f"watermark order: {partition} on {node.name}: {log.log_start_offset} <= "
                    f"{high_watermark} <= {log.log_end_offset} is violated"
                )

    def _check_leaderships(
        self, node: BrokerNode, nodes: list[BrokerNode], newest: ClusterImage, damaged: set[str]
    ) -> None:
        for partition in node.partitions:
            role = partition.replica.role
            if not isinstance(role, LeaderRole):
                continue
            claim = (partition.key.topic_id, partition.key.partition, role.leader_epoch)
            other = self._leaders.setdefault(claim, node.id)
            if other != node.id:
                self._report(
                    f"one leader per epoch: {partition} is led in epoch {role.leader_epoch} "
                    f"by {other} and by {node.id}"
                )
            if partition.topic not in self._unpromised:
                self._check_complete(partition, role, node)
            committed = newest.partition_by_id(partition.key.topic_id, partition.key.partition)
            if committed is None:
                continue
            for member in nodes:
                if member.id not in committed.isr or member.host.name in damaged or member is node:
                    continue
                for theirs in member.partitions:
                    if theirs.key != partition.key or isinstance(theirs.replica.role, NoRole):
                        continue
                    if theirs.log.log_end_offset < role.high_watermark:
                        self._report(
                            f"StrongIsr: {partition}: leader {node.id} in epoch {role.leader_epoch} has high "
                            f"watermark {role.high_watermark}, but {member.id} of the committed ISR "
                            f"{committed.isr} ends at {theirs.log.log_end_offset}"
                        )

    def _check_complete(self, partition: Partition, role: LeaderRole, node: BrokerNode) -> None:
        seen = self._committed.setdefault((partition.key.topic_id, partition.key.partition), {})
        seen[role.leader_epoch] = max(role.high_watermark, seen.get(role.leader_epoch, 0))
        for epoch, high_watermark in seen.items():
            if epoch < role.leader_epoch and high_watermark > role.epoch_start_offset:
                self._report(
                    f"leader completeness: {partition}: the leader of epoch {epoch} had committed all "
                    f"below {high_watermark}; {node.id} began epoch {role.leader_epoch} at "
                    f"{role.epoch_start_offset}"
                )

    def _report(self, violation: str) -> None:
        if violation not in self.violations and len(self.violations) < 50:
            self.violations.append(violation)


# Checks that each broker's queues, sessions, tasks, files and caches stay bounded, and its services alive.
#
# The bounds are checked periodically, and stricter ones once the cluster is at rest: no client sends any
# more, and all records are replicated. A leak exceeds one of the bounds sooner or later:
#
# - fetch sessions: the configured slots;
# - frames and responses that wait on one connection: the connection's own limits; at rest none but fetches;
# - connections that a broker holds: those that the network has open to it;
# - unfinished tasks: a few for the broker, each connection, each partition, one for each file to be removed;
# - produce requests that wait: at most as many as their connections may have in flight; at rest none, nor
#   tickets;
# - listeners of a partition for changes: one each of the sessions and waiting fetches;
# - open files: the existing files;
# - producers that a log remembers: those that ever wrote;
# - elements of requests that one turn of an event loop walks: a slice;
# - entries of the metadata log: about those between two snapshots.
#
# The numbers are counted in the broker; the bounds come from the simulation.

# pyright: reportPrivateUsage=false
# What is bounded is the inside of the broker's parts.


VIOLATIONS_MAX = 20
READ_AT_ONCE = 256 * 1024
"""How many bytes one read may add to a queue that was not full before."""
SMALLEST_FRAME = 14
TASKS_OF_A_BROKER = 80
TASKS_OF_A_CONNECTION = 4
TASKS_OF_A_PARTITION = 2
WAITS_OF_A_CONNECTION = 5 * FRAMES_QUEUED_MAX
OWED_AT_REST = 3
"""How many responses a connection may owe: a consumer's long poll, or its commits."""
CLOSING = 6
"""How many connections may have been closed that the broker has not noticed yet."""
ELEMENTS_OF_A_TURN = 2 * ELEMENTS_MAX
"""A slice ends after the step in which it is full."""
FILES_BESIDE_THOSE_ON_DISK = 16
DELETED = "delete"
"""A part of the names of files that are to be removed."""
PRODUCERS_PER_INCARNATION = 4
"""Bound of the producer ids per incarnation: one that was fenced, or lost its state, gets another id."""


class Bounds:
    """Checks the bounds. ``violations`` are the findings; ``highest`` the highest observed values by kind."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.violations: list[str] = []
        self.highest: dict[str, int] = {}

    def look(self, producers: int) -> None:
        """Check the bounds; ``producers`` is the number of producers so far."""
        self._look(producers, at_rest=False)

    def look_at_rest(self, producers: int) -> None:
        self._look(producers, at_rest=True)

    def waiting_at_rest(self) -> list[str]:
        """Return the numbers that are still above the bounds at rest."""
        return [
            f"not at rest: {_describe(node.name, kind, found, limit)}"
            for node, broker in self._serving()
            for kind, found, limit in _at_rest(broker)
            if found > limit
        ]

    def _look(self, producers: int, *, at_rest: bool) -> None:
        self._hold(
            "the store",
            "entries of the metadata log",
            self._cluster.store.entry_count(),
            2 * ENTRIES_BETWEEN_SNAPSHOTS,
        )
        for node, broker in self._serving():
            for kind, found, limit in self._always(node, broker, producers):
                self._hold(node.name, kind, found, limit)
            for kind, found, limit in _at_rest(broker) if at_rest else ():
                self._hold(node.name, f"{kind}, at rest", found, limit)

    def _serving(self) -> Iterator[tuple[BrokerNode, Broker]]:
        for node in self._cluster.nodes.values():
            if node.is_serving and node.broker is not None:
                yield node, node.broker

    def _hold(self, who: str, kind: str, found: int, limit: int) -> None:
        self.highest[kind] = max(found, self.highest.get(kind, 0))
        if found > limit and len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(f"bounds: {_describe(who, kind, found, limit)}")

    def _always(self, node: BrokerNode, broker: Broker, producers: int) -> Iterator[tuple[str, int, int]]:
        parts, connections = broker.parts, _connections(broker)
        partitions, fetch_sessions = list(parts.replication.replicas), parts.serving.fetch_sessions
        sessions, slots = len(fetch_sessions), fetch_sessions._slots
        yield "fetch sessions", sessions, slots
        yield "connections", len(connections), self._open_connections(node) + CLOSING
        tasks_max = _tasks_max(len(connections), len(partitions)) + _files(node, DELETED)
        yield "unfinished tasks", self._tasks(node), tasks_max
        yield "open files", self._open_files(node), _files(node) + FILES_BESIDE_THOSE_ON_DISK
        yield "elements walked in one turn", parts.given.turns.elements_longest, ELEMENTS_OF_A_TURN
        yield from _of_connections(connections)
        waits = sum(len(partition._produce_waits) + len(partition._flush_waits) for partition in partitions)
        yield "produce requests that wait", waits, WAITS_OF_A_CONNECTION * max(len(connections), 1)
        for partition in partitions:
            yield "readers to be notified", len(partition.fetch_waiters), sessions + len(connections)
            known = len(partition.log.producers.producers)
            yield "producers of one log", known, PRODUCERS_PER_INCARNATION * max(producers, 1)

    def _open_connections(self, node: BrokerNode) -> int:
        return sum(each.is_open_to(node.process) for each in self._cluster.world.network.connections)

    def _tasks(self, node: BrokerNode) -> int:
        return node.process.unfinished_tasks if node.process is not None else 0

    def _open_files(self, node: BrokerNode) -> int:
        return node.host.disk.open_files.get(node.process, 0) if node.process is not None else 0


def _describe(who: str, kind: str, found: int, limit: int) -> str:
    return f"{who} has {found} {kind}; the limit is {limit}"


def _connections(broker: Broker) -> list[Connection]:
    return list(broker.parts.dispatcher.connections)


def _tasks_max(connections: int, partitions: int) -> int:
    return TASKS_OF_A_BROKER + TASKS_OF_A_CONNECTION * connections + TASKS_OF_A_PARTITION * partitions


def _of_connections(connections: list[Connection]) -> Iterator[tuple[str, int, int]]:
    for connection in connections:
        most = FRAMES_QUEUED_MAX + READ_AT_ONCE // SMALLEST_FRAME
        yield "frames queued on one connection", len(connection._queue), most
        yield "bytes queued on one connection", connection._queued_bytes, BYTES_QUEUED_MAX + READ_AT_ONCE
        yield "responses pending on one connection", len(connection._waiting), FRAMES_QUEUED_MAX + 1


def _at_rest(broker: Broker) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, number, bound) at rest: 0 except for responses owed."""
    partitions = list(broker.parts.replication.replicas)
    yield "produce requests that wait", sum(len(each._produce_waits) for each in partitions), 0
    yield "writes that wait for a flush", sum(len(each._flush_waits) for each in partitions), 0
    yield "tickets that wait for a high watermark", sum(_tickets(each) for each in partitions), 0
    for connection in _connections(broker):
        yield "responses pending on one connection", len(connection._waiting), OWED_AT_REST


def _tickets(partition: Partition) -> int:
    role = partition.replica.role
    return len(role._tickets) if isinstance(role, LeaderRole) else 0


def _files(node: BrokerNode, named: str = "") -> int:
    folders = (node.host.disk.find(path) for path in node.folders)
    return sum(_count(folder, named) for folder in folders if isinstance(folder, FolderNode))


def _count(folder: FolderNode, named: str) -> int:
    """Count the files in a folder and its subfolders with ``named`` in their names or their folder's."""
    return sum(
        named in name if isinstance(each, FileNode) else _count(each, "" if named in name else named)
        for name, each in folder.entries.items()
    )


# Checking that every service (background task) of every broker is alive, and that periodic ones run.
#
# A service may end by an error, or stop its rounds, only together with its broker; this is checked all the
# time. Whether rounds are late is checked when the cluster is at rest: no process is paused then and no disk
# hangs, so a round that stays late will never happen.

LATE_S = 15.0
"""How long a round may take at rest, in addition to its interval or the pause after a failed round."""
SERVICE_VIOLATIONS_MAX = 10


class Services:
    """Checks the services; ``violations`` are the findings."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.violations: list[str] = []

    def look(self) -> None:
        self._note(
            f"services: {name} of {broker} has ended, and the broker keeps running: {service.last_failure}"
            for broker, services in self._running()
            for name, service in services.items()
            if has_died(service)
        )

    def look_at_rest(self) -> None:
        self.look()
        self._note(iter(self.late()))

    def late(self) -> list[str]:
        """Return which services made no round for too long. After a disk hung, a round may still run."""
        now_ms = self._cluster.world.loop.time() * 1000
        return [
            f"services: {name} of {broker} made no round for {late_ms / 1000:.0f} s"
            for broker, services in self._running()
            for name, service in services.items()
            if (late_ms := overdue_ms(service, now_ms)) > LATE_S * 1000
        ]

    def _running(self) -> Iterator[tuple[str, Mapping[str, Service]]]:
        for node in self._cluster.nodes.values():
            if node.is_serving and node.broker is not None and not node.broker.parts.given.tasks.is_stopping:
                yield node.name, node.broker.parts.given.tasks.services

    def _note(self, found: Iterator[str]) -> None:
        for violation in found:
            if len(self.violations) < SERVICE_VIOLATIONS_MAX and violation not in self.violations:
                self.violations.append(violation)


def has_died(service: Service) -> bool:
    """Return whether a service ended by an error, or is periodic and has ended.

    Others may end: they are started again when there is work.
    """
    return not service.is_alive and (bool(service.last_failure) or service.interval_ms is not None)


def overdue_ms(service: Service, now_ms: float) -> float:
    """Return for how many ms a round has been overdue; 0 or less if it is not. Considers pauses after
    failures.
    """
    if service.interval_ms is None:
        return 0
    last_ms = service.started_ms if service.last_round_ms is None else service.last_round_ms
    return now_ms - last_ms - service.pause_ms


# Checking whether a cluster, and a consumer group, have converged after all faults were healed.


def not_converged(cluster: Cluster) -> list[str]:
    """Return why the cluster has not converged; empty if it has.

    All members must serve, no other broker be registered, all have the same metadata, and every partition
    have a leader, all replicas in sync, and the same offsets on all of them, each in one log directory.
    """
    nodes = list(cluster.nodes.values())
    down = [f"not converged: {node.name} does not serve" for node in nodes if not node.is_serving]
    if down:
        return down
    images = [node.image for node in nodes if node.image is not None]
    members = [broker.id for broker in images[0].brokers()]
    if sorted(members) != sorted(cluster.nodes):
        return [f"not converged: brokers {members} are registered, of {sorted(cluster.nodes)}"]
    if len({image.number for image in images}) != 1:
        return [f"not converged: metadata known up to {[image.number for image in images]}"]
    found = (_partition_not_converged(cluster, key, state) for key, state in images[0].partitions())
    return [violation for violation in found if violation is not None]


def _partition_not_converged(cluster: Cluster, key: TopicIdPartition, state: PartitionState) -> str | None:
    if not state.has_leader or sorted(state.isr) != sorted(state.replicas) or state.is_reassigning:
        return f"not converged: {key}: leader {state.leader}, ISR {state.isr} of {state.replicas}"
    ends: dict[int, tuple[str, int, int]] = {}
    for node in cluster.nodes.values():
        for partition in node.partitions:
            if partition.key == key:
                places = node.places_of(str(partition))
                if len(places) > 1:  # a move ends when its log is durable, some time after the exchange
                    return f"not converged: {key} is in {places} of {node.name}"
                role = partition.replica.role
                kind = "leads" if isinstance(role, LeaderRole) else "follows"
                kind = kind if isinstance(role, LeaderRole | FollowerRole) else "has no role"
                ends[node.id] = (kind, partition.replica.high_watermark, partition.log.log_end_offset)
    offsets = {offset for _, *both in ends.values() for offset in both}
    kinds = {broker: kind for broker, (kind, _, _) in ends.items()}
    expected = {broker: "leads" if broker == state.leader else "follows" for broker in state.replicas}
    if len(offsets) > 1 or kinds != expected:
        return f"not converged: {key}: {state} has {ends}"
    return None


def group_not_settled(members: Sequence[GroupMember], partitions: Sequence[TopicPartition]) -> list[str]:
    """Return why the group has not settled; empty if all members are in one generation and share all
    partitions."""
    found = {member.name: member.consumer for member in members}
    generations = {
        name: consumer.group_identity().generation if consumer is not None else None
        for name, consumer in found.items()
    }
    if len(set(generations.values())) != 1 or None in generations.values():
        return [f"group not settled: its members are in generations {generations}"]
    shares = {name: sorted(consumer.assignment()) for name, consumer in found.items() if consumer is not None}
    if sorted(one for share in shares.values() for one in share) != sorted(partitions):
        return [f"group not settled: its members have {shares}"]
    return []
