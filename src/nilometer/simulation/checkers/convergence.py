"""Checking whether a cluster, and a consumer group, have converged after all faults were healed."""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.cluster.states import PartitionState
from nilometer.identifiers import TopicIdPartition
from nilometer.replication.follower import FollowerRole
from nilometer.replication.leader import LeaderRole
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.workload.members import GroupMember


def not_converged(cluster: Cluster) -> list[str]:
    """Return why the cluster has not converged; empty if it has.

    All members must serve, no other broker be registered, all have the same metadata, and every partition
    have a leader, all replicas in sync, and the same offsets on all of them.
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
