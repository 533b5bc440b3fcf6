"""Checking replicas whose log directory failed while their broker continues with its other ones.

This is checked while only log directories are broken: each such replica must have lost the leadership and be
removed from the ISR, unless it is the only member. The location of replicas is read from the virtual disks.
"""

from __future__ import annotations

from collections.abc import Iterator

from nilometer.identifiers import BrokerId
from nilometer.simulation.cluster import BrokerNode, Cluster


def not_converged(cluster: Cluster) -> list[str]:
    """Return the brokers that do not serve although they have another directory, and the failed replicas that
    still lead or are in the ISR."""
    down = [
        f"failed log directory: {node.name} does not serve, although its other log directories work"
        for node in cluster.nodes.values()
        if len(node.folders) > 1 and not node.is_serving
    ]
    return down or [
        violation for node in cluster.nodes.values() for violation in _still_trusted(cluster, node)
    ]


def _still_trusted(cluster: Cluster, node: BrokerNode) -> Iterator[str]:
    image, failed = cluster.newest_image, tuple(node.failed_folders)
    if image is None or not failed:
        return
    for key, state in image.partitions_on(BrokerId(node.id)):
        topic = image.topic_by_id(key.topic_id)
        places = node.places_of(f"{topic.name}-{key.partition}") if topic is not None else []
        if not places or not all(
            place.startswith(tuple(f"{folder}/" for folder in failed)) for place in places
        ):
            continue
        if state.leader == node.id:
            yield f"failed log directory: {key} is led by {node.id}, whose log is in one of {failed}"
        elif node.id in state.isr and len(state.isr) > 1:
            yield f"failed log directory: {node.id}, whose log of {key} failed, is in the ISR {state.isr}"
