"""What remote storage must have when a run is at rest: all that is sealed, and no object without a purpose.

That its records are the acknowledged ones is checked by the readers, who read every topic from its start.
"""

from __future__ import annotations

from nilometer.simulation.checkers.disks import StoredBatch, batches_with_positions
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.object_store import Bucket
from nilometer.tier.format import HEAD, Manifest, manifest_number

SHOWN = 3


def not_converged(cluster: Cluster, bucket: Bucket) -> tuple[str, ...]:
    """Return what is still to be copied or removed, or cannot be."""
    manifests: dict[str, Manifest | None] = {}
    found: list[str] = []
    for node in cluster.nodes.values():
        logs = None if node.broker is None else node.broker.parts.remote_logs
        for remote in () if logs is None else logs:
            if not remote.partition.is_led_here:
                continue
            manifests[remote.folder] = remote.manifest
            if remote.error is not None:
                found.append(f"not converged: the tier of {remote.partition}: {remote.error}")
            if remote.lag.sealed:
                found.append(f"not converged: {remote.partition} has {remote.lag.sealed} uncopied segments")
    orphans = [name for name in bucket.objects if not _is_named(name, manifests)]
    found += (f"not converged: the object {name} belongs to no manifest" for name in orphans[:SHOWN])
    return tuple(found)


def _is_named(name: str, manifests: dict[str, Manifest | None]) -> bool:
    folder, slash, own = name.rpartition("/")
    manifest = manifests.get(folder + slash)
    if manifest is None:
        return False
    number = manifest_number(own)
    return own == HEAD or own in manifest.objects or (number is not None and number >= manifest.oldest)


def remote_batches(leader: BrokerNode, bucket: Bucket, partition: str) -> list[StoredBatch]:
    """Return the batches of a partition that its leader has in remote storage, each once."""
    logs = None if leader.broker is None else leader.broker.parts.remote_logs
    found: list[StoredBatch] = []
    for remote in () if logs is None else logs:
        if str(remote.partition) != partition or remote.manifest is None:
            continue
        for segment in remote.manifest.segments:
            end = found[-1].last_offset + 1 if found else 0
            data = bucket.objects[remote.folder + segment.log_name]
            found += (batch for _, batch in batches_with_positions(data) if batch.base_offset >= end)
    return found
