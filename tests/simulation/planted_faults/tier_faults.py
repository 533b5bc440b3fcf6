"""Faults of tiered topics: what is deleted, kept, named and read, in the log and in remote storage."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from msgspec import structs
from planted_faults.planting import Patch, PlantedFault
from planted_faults.transaction_faults import PLAN

from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.tiering import remote_partition, segment_upload
from nilometer.broker.tiering.partition_reads import PartitionReads
from nilometer.broker.tiering.remote_logs import RemoteLogs
from nilometer.broker.tiering.remote_partition import RemotePartition
from nilometer.runtime import Disk
from nilometer.runtime.object_store import ObjectStoreError
from nilometer.simulation.object_store import VirtualObjectStore
from nilometer.simulation.plan import Kind
from nilometer.storage import removal
from nilometer.storage.log_state import LogState
from nilometer.storage.tiering import (
    IndexesOfBatches,
    SealedSegment,
    SideFiles,
    read_side_files,
    sealed_segments,
)
from nilometer.tier import plan
from nilometer.tier.format import Manifest


def delete_before_the_manifest(patch: Patch) -> None:
    async def note_all(self: RemotePartition) -> None:
        self.partition.log.note_tiered(self.partition.log.segments.active.base_offset)

    patch.setattr(RemotePartition, "_note_tiered", note_all)


def remove_what_is_named(patch: Patch) -> None:
    def all_but_the_last(manifest: Manifest, *_: int) -> Generator[int, None, tuple[str, ...]]:
        yield 1
        return tuple(one.log_name for one in manifest.segments[:-1])

    patch.setattr(plan, "due_removals", all_but_the_last)


def leave_failed_uploads(patch: Patch) -> None:
    async def nothing(self: RemotePartition, epoch: int) -> None:
        return None

    patch.setattr(RemotePartition, "_sweep", nothing)


def move_the_log_start(patch: Patch) -> None:
    patch.setattr(removal, "_delete_locally", removal._delete)


def copy_what_is_undecided(patch: Patch) -> None:
    def up_to_the_active(log: LogState, from_offset: int, stable_offset: int) -> Iterator[SealedSegment]:
        return sealed_segments(log, from_offset, log.log_end_offset)

    def first_uncopied(manifest: Manifest, log: plan.LogView) -> plan.LocalSegment | None:
        tiered = manifest.end_offset if manifest.segments else log.log_start_offset
        return next((one for one in log.sealed if one.end_offset > tiered and one.size > 0), None)

    patch.setattr(remote_partition, "sealed_segments", up_to_the_active)
    patch.setattr(plan, "next_to_copy", first_uncopied)


def leave_producers_out(patch: Patch) -> None:
    def without_producers(
        disk: Disk, sealed: SealedSegment, indexes: IndexesOfBatches, *, wall_ms: int
    ) -> SideFiles:
        side = read_side_files(disk, sealed, indexes, wall_ms=wall_ms)
        return structs.replace(side, producers=b"")

    patch.setattr(segment_upload, "read_side_files", without_producers)


def remove_at_once(patch: Patch) -> None:
    def all_dropped(manifest: Manifest, *_: int) -> Generator[int, None, tuple[str, ...]]:
        yield 1
        return tuple(one.name for one in manifest.dropped)

    patch.setattr(plan, "due_removals", all_dropped)


def skip_what_was_aborted(patch: Patch) -> None:
    read = PartitionReads.read

    async def read_all(self: PartitionReads, offset: int, max_bytes: int, *, read_committed: bool) -> Any:
        return (await read(self, offset, max_bytes, read_committed=read_committed))[0], []

    patch.setattr(PartitionReads, "read", read_all)


def name_what_was_not_uploaded(patch: Patch) -> None:
    put = VirtualObjectStore.put

    async def once(self: VirtualObjectStore, name: str, data: bytes) -> None:
        try:
            await put(self, name, data)
        except ObjectStoreError:
            if not name.endswith(".index"):
                raise

    patch.setattr(VirtualObjectStore, "put", once)


def begin_with_what_is_local(patch: Patch) -> None:
    start = Partition.start_in_tier

    def start_late(self: Partition, role: Any, offset: int, log_start_offset: int, *rest: Any) -> None:
        start(self, role, offset, offset, *rest)

    patch.setattr(Partition, "start_in_tier", start_late)


def leave_deleted_topics(patch: Patch) -> None:
    async def nothing(self: RemoteLogs, *_: Any) -> None:
        return None

    patch.setattr(RemoteLogs, "_delete", nothing)
    patch.setattr(RemoteLogs, "sweep", nothing)


def sweep_what_was_dropped(patch: Patch) -> None:
    orphans = plan.orphans

    def with_dropped(manifest: Manifest, listed: Iterable[str]) -> Generator[int, None, tuple[str, ...]]:
        return orphans(structs.replace(manifest, dropped=()), listed)

    patch.setattr(plan, "orphans", with_dropped)


def expire_before_the_log_start_moves(patch: Patch) -> None:
    async def expire(self: RemotePartition, epoch: int) -> None:
        config = self.partition.log.config
        retention = plan.Retention(config.retention_ms, config.retention_bytes)

        def remaining(manifest: Manifest) -> remote_partition.Decision:
            gone = yield from plan.expiring(manifest, self.view(), retention, self._now_ms)
            return (yield from manifest.dropping(gone, self._now_ms)) if gone else None

        await self._write(epoch, remaining)

    patch.setattr(RemotePartition, "_expire", expire)


def _fault(name: str, what: str, plant: Callable[[Patch], None], **more: Any) -> PlantedFault:
    values = {"kinds": (Kind.CRASH, Kind.ISOLATE), "seeds": 12} | more
    return PlantedFault(name=name, what=what, plant=plant, tiered=True, **values)


FAULTS = (
    _fault(
        "tier-delete-before-the-manifest",
        "local segments are deleted before a manifest names them",
        delete_before_the_manifest,
    ),
    _fault(
        "tier-remove-what-is-named",
        "objects are removed that a manifest names",
        remove_what_is_named,
    ),
    _fault(
        "tier-leave-failed-uploads",
        "what failed attempts uploaded stays in the store",
        leave_failed_uploads,
        seeds=20,
    ),
    _fault(
        "tier-move-the-log-start",
        "the log starts behind segments that were deleted because they are in remote storage",
        move_the_log_start,
    ),
    _fault(
        "tier-copy-what-is-undecided",
        "segments with open transactions are copied",
        copy_what_is_undecided,
        transactions=PLAN,
    ),
    _fault(
        "tier-leave-producers-out",
        "a replica that begins behind remote storage knows no producers",
        leave_producers_out,
        kinds=(Kind.CRASH, Kind.RESET, Kind.PAUSE),
        seeds=20,
    ),
    _fault(
        "tier-remove-at-once",
        "objects are removed before the grace period is over",
        remove_at_once,
        deletes={"retention_ms": 8_000},
    ),
    _fault(
        "tier-skip-what-was-aborted",
        "readers are not told of transactions that were aborted in remote storage",
        skip_what_was_aborted,
        transactions=PLAN,
    ),
    _fault(
        "tier-name-what-was-not-uploaded",
        "a manifest names a segment without its index",
        name_what_was_not_uploaded,
    ),
    _fault(
        "tier-begin-with-what-is-local",
        "a replica that begins behind remote storage takes that for the start of the log",
        begin_with_what_is_local,
        seeds=20,
    ),
    _fault(
        "tier-leave-deleted-topics",
        "the objects of deleted topics stay",
        leave_deleted_topics,
        reuses_names=True,
    ),
    _fault(
        "tier-sweep-what-was-dropped",
        "objects that have left the manifest are taken for those of failed attempts",
        sweep_what_was_dropped,
        deletes={"retention_ms": 8_000},
    ),
    _fault(
        "tier-expire-before-the-log-start-moves",
        "records leave remote storage although they may be read",
        expire_before_the_log_start_moves,
        deletes={"retention_ms": 8_000},
    ),
)
