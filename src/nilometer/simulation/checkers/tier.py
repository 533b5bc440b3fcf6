"""What remote storage must have when a run is at rest: all that is sealed, and no object without a purpose;
and what may happen in it at any time (:class:`RemoteChanges`).

That its records are the acknowledged ones is checked by the readers, who read every topic from its start.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter

from nilometer.runtime import Clock
from nilometer.simulation.checkers.logs import StoredBatch, batches_with_positions
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.object_store import Bucket
from nilometer.tier.chain import MANIFESTS_KEPT
from nilometer.tier.format import HEAD, Manifest, decode_manifest, manifest_name, manifest_number

SHOWN = 3
MANIFESTS_MAX = 2 * (MANIFESTS_KEPT + 1)
"""A folder has no more at rest. Requests that come late may create some again that were removed, and a leader
that stops before it removes old ones leaves them to the next one."""
GRACE_SLACK = 0.8
"""A request takes a while: so much of the grace period has to pass, by the clocks of those that ask."""


class RemoteChanges:
    """Checks each change of the store, without the product's decoder: ``violations`` are the findings.

    A manifest has one content for ever. A late request may create its number again when it was removed; then
    it counts no more: ``look`` checks that no broker takes it for the last one. What the last one names is
    there, and stays for the grace period after that. What is in it is stable: ``look`` compares the manifests
    of leaders with their logs.
    """

    def __init__(self, cluster: Cluster, bucket: Bucket, grace_ms: int, *, clocks_jump: bool) -> None:
        self._cluster = cluster
        self._bucket = bucket
        self._least_ms = -math.inf if clocks_jump else grace_ms * GRACE_SLACK
        self._manifests: dict[str, bytes] = {}
        """What was written first."""
        self._begun: dict[str, tuple[str, int]] = {}
        """The writer of that, and when it was written."""
        self._removed: set[str] = set()
        """The manifests that were removed."""
        self._named: dict[str, frozenset[str]] = {}
        """By folder, the objects of the segments that the last manifest names."""
        self._ranks: dict[str, tuple[int, int]] = {}
        """By folder, the claim and the leader epoch of that manifest."""
        self._left_ms: dict[str, int] = {}
        """When an object was in the last manifest for the last time, by the clock of the machine that wrote
        the next one: each runs at a rate of its own."""
        self._deleted: set[str] = set()
        """The folders of partitions that are gone: a request that comes late, or a broker that has not heard
        of it, may begin the chain again. No topic has its id any more, and a sweep removes what is there."""
        self.violations: list[str] = []
        before = bucket.on_change

        def on_change(name: str, clock: Clock | None) -> None:
            if before is not None:
                before(name, clock)
            assert clock is not None, "a machine has asked for it"
            self._on_change(name, clock.wall_ms())

        bucket.on_change = on_change

    def look(self) -> None:
        for node in self._cluster.nodes.values():
            logs = None if node.broker is None or not node.is_running else node.broker.parts.remote_logs
            for remote in () if logs is None else logs:
                partition, manifest = remote.partition, remote.manifest
                if manifest is None:
                    continue
                name = remote.folder + manifest_name(manifest.number)
                if remote.folder not in self._deleted and self._begun[name] != _written_by(manifest):
                    self._find(f"{node.name} goes on from {name}, which was created again late")
                if not manifest.segments or not self._cluster.leads(partition):
                    continue
                high_watermark = partition.replica.high_watermark
                if high_watermark < partition.log.epochs.entries[-1][1]:
                    continue  # a new leader does not know yet what was committed
                stable = partition.log.last_stable_offset(high_watermark)
                if manifest.leader_epoch == partition.leader_epoch and manifest.end_offset > stable:
                    self._find(
                        f"{partition} has {manifest.end_offset} records there, of which {stable} are stable"
                    )

    def _on_change(self, name: str, now_ms: int) -> None:
        folder, slash, own = name.rpartition("/")
        folder += slash
        data = self._bucket.objects.get(name)
        if own.startswith("manifest-"):
            if data is None:
                self._removed.add(name)
            else:
                self._on_manifest(folder, name, data, now_ms)
        elif data is None and name in self._named.get(folder, ()):
            self._find(f"{name} is removed, which the last manifest names")
        elif data is None and now_ms - self._left_ms.pop(name, -math.inf) < self._least_ms:
            self._find(f"{name} is removed before the grace period is over")

    def _on_manifest(self, folder: str, name: str, data: bytes, now_ms: int) -> None:
        if folder in self._deleted or name in self._removed:
            return
        if self._manifests.setdefault(name, data) != data:
            self._find(f"{name} is written a second time")
        head, *blocks, _ = data.splitlines()  # the last line is the CRC
        manifest = json.loads(head)
        self._begun[name] = manifest["writer"], manifest["written_ms"]
        rank = manifest.get("claim", 0), manifest["leader_epoch"]
        if rank < self._ranks.get(folder, rank):
            return  # a former leader's request that came late: no reader counts it
        self._ranks[folder] = rank
        if manifest.get("is_deleted", False):
            self._deleted.add(folder)
            self._named.pop(folder, None)
            self._left_ms = {one: at_ms for one, at_ms in self._left_ms.items() if not one.startswith(folder)}
            return
        segments = itertools.chain(manifest["segments"], *map(json.loads, blocks))
        stems = (f"{folder}{one[0]:020d}-{one[6]}" for one in segments)
        named = frozenset(stem + end for stem in stems for end in (".log", ".index"))
        if missing := sorted(named - self._bucket.objects.keys()):
            self._find(f"{name} names {missing[0]}, which is not there")
        for one in self._named.get(folder, frozenset()) - named:
            self._left_ms[one] = now_ms
        self._named[folder] = named

    def _find(self, what: str) -> None:
        self.violations.append(f"remote storage: {what}")


def _written_by(manifest: Manifest) -> tuple[str, int]:
    return manifest.writer, manifest.written_ms


def not_converged(cluster: Cluster, bucket: Bucket) -> tuple[str, ...]:
    """Return what is still to be copied or removed, or cannot be."""
    manifests: dict[str, Manifest | None] = {}
    found: list[str] = []
    for node in cluster.nodes.values():
        logs = None if node.broker is None else node.broker.parts.remote_logs
        for remote in () if logs is None else logs:
            if not cluster.leads(remote.partition):
                continue
            manifests[remote.folder] = remote.manifest
            if remote.error is not None:
                found.append(f"not converged: the tier of {remote.partition}: {remote.error}")
            if remote.manifest is not None and remote.manifest.is_deleted:
                found.append(
                    f"not converged: the tier of {remote.partition} has ended, and its topic has not"
                )
            if remote.lag.sealed:
                found.append(f"not converged: {remote.partition} has {remote.lag.sealed} uncopied segments")
    kept = Counter(name.rpartition("/")[0] for name in bucket.objects if "/manifest-" in name)
    found += (
        f"not converged: {folder} has {count} manifests, of which old ones should be removed"
        for folder, count in kept.items()
        if count > MANIFESTS_MAX
    )
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


def _last_manifest(bucket: Bucket, folder: str) -> Manifest | None:
    last: Manifest | None = None
    for name in sorted(bucket.objects):
        number = manifest_number(name.removeprefix(folder))
        if number is not None:
            found = decode_manifest(bucket.objects[name], number)
            last = found if last is None or found.rank >= last.rank else last
    return last


def remote_batches(leader: BrokerNode, bucket: Bucket, partition: str) -> list[StoredBatch]:
    """Return the batches of a partition that its leader has in remote storage, each once.

    By the last manifest there: a leader that was just elected may not know it yet.
    """
    logs = None if leader.broker is None else leader.broker.parts.remote_logs
    found: list[StoredBatch] = []
    for remote in () if logs is None else logs:
        manifest = _last_manifest(bucket, remote.folder) if str(remote.partition) == partition else None
        for segment in () if manifest is None else manifest.segments:
            end = found[-1].last_offset + 1 if found else 0
            data = bucket.objects[remote.folder + segment.log_name]
            found += (batch for _, batch in batches_with_positions(data) if batch.base_offset >= end)
    return found
