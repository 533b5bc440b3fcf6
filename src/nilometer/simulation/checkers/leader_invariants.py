"""Comparing the state of running brokers, without changing it. The invariants:

- *one leader per epoch*: no two brokers ever lead a partition in the same epoch;
- *watermark order*: log start <= high watermark <= log end, on every replica;
- *StrongIsr, by length*: every running member of the committed ISR has a log that reaches the leader's high
  watermark (whether the records are the same is checked on the disks);
- *leader completeness*: a leader of a later epoch has, when its epoch starts, all records that any earlier
  leader had committed;
- *sessions*: a broker that considers its session live, and so leads and serves, has one in the store;
- *LeaderInIsr*: a committed leader is in the committed ISR;
- *images agree*: two brokers that applied the same number of entries have the same metadata.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.cluster.entries import encode_snapshot
from nilometer.cluster.image import ClusterImage
from nilometer.replication.leader import LeaderRole
from nilometer.replication.replica import NoRole
from nilometer.simulation.cluster import BrokerNode, Cluster


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
