"""Remote storage in a folder, filled from the files of a log, without the code by which brokers copy them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import structs

from nilometer.steps import at_once
from nilometer.storage.producers import SnapshotEntry, encode_snapshot
from nilometer.tier.format import (
    HEAD,
    IndexSections,
    Manifest,
    RemoteSegment,
    TopicFacts,
    encode_index,
    encode_manifest,
    manifest_name,
)
from nilometer.tier.plan import epochs_within, first_manifest

from ..logs.folder_logs import FolderLog
from .archives import SUFFIXES

CLUSTER = "cluster"


class FolderTier:
    """`tier = FolderTier(root); tier.copy(log, 0, 100)`: the segments at 0 and 100 are in the tier."""

    def __init__(
        self,
        root: Path,
        topic: str = "events",
        partition: int = 0,
        *,
        letter: str = "a",
        cluster_id: str = CLUSTER,
    ) -> None:
        facts = TopicFacts(cluster_id, letter * 21 + "A", topic, partition, 1, {}, 1)
        self.root = root
        self.folder = root / facts.cluster_id / facts.topic_id / str(partition)
        self.folder.mkdir(parents=True)
        self.manifest = structs.replace(first_manifest(facts, 0), number=-1)

    def copy(self, log: FolderLog, *bases: int, attempt: str = "a", **open_since: int) -> None:
        """Copy these segments, and name them in the next manifest.

        ``open_since``: by the producer (``p7``) the first offset of its transaction at their end.
        """
        for base in bases:
            self.manifest = at_once(self.manifest.adding(self._copied(log, base, attempt, open_since), 0))
        self.write(self.manifest)

    def write(self, manifest: Manifest, **changes: Any) -> None:
        """Write the next manifest, which has these changes."""
        self.manifest = structs.replace(manifest, number=self.manifest.number + 1, **changes)
        (self.folder / manifest_name(self.manifest.number)).write_bytes(encode_manifest(self.manifest))
        if self.manifest.leader_epoch >= manifest.leader_epoch:
            (self.folder / HEAD).write_bytes(b"%d" % self.manifest.number)

    def objects(self, base: int) -> list[Path]:
        return sorted(self.folder.glob(f"{base:020d}-*"))

    def _copied(self, log: FolderLog, base: int, attempt: str, open_since: dict[str, int]) -> RemoteSegment:
        end = min(int(path.stem) for path in log.folder.glob("*.log") if int(path.stem) > base)
        files = {
            suffix: path.read_bytes() if (path := log.path(suffix, base)).exists() else b""
            for suffix in SUFFIXES
        }
        snapshot = encode_snapshot([_entry(int(name[1:]), first) for name, first in open_since.items()])
        index = encode_index(
            IndexSections(files[".index"], files[".timeindex"], files[".txnindex"], snapshot)
        )
        segment = RemoteSegment(
            base,
            end - 1,
            1_000 + end - 1,
            len(files[".log"]),
            len(index),
            bool(files[".txnindex"]),
            attempt,
            epochs_within(log.epochs, base, end),
        )
        (self.folder / segment.log_name).write_bytes(files[".log"])
        (self.folder / segment.index_name).write_bytes(index)
        return segment


def _entry(producer_id: int, first_offset: int) -> SnapshotEntry:
    return SnapshotEntry(
        producer_id=producer_id, producer_epoch=0, last_sequence=0, last_offset=first_offset, offset_delta=0,
        timestamp=1, coordinator_epoch=0, current_txn_first_offset=first_offset,
    )  # fmt: skip
