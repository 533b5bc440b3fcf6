"""Faults of tiered topics: what is deleted, kept, named and read, in the log and in remote storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planted_faults.planting import Patch, PlantedFault

from nilometer.broker.tiering.remote_partition import RemotePartition
from nilometer.simulation.plan import Kind
from nilometer.storage import removal
from nilometer.tier import plan
from nilometer.tier.format import Manifest


def delete_before_the_manifest(patch: Patch) -> None:
    def note_all(self: RemotePartition) -> None:
        self.partition.log.note_tiered(self.partition.log.segments.active.base_offset)

    patch.setattr(RemotePartition, "_note_tiered", note_all)


def remove_what_is_named(patch: Patch) -> None:
    def all_but_the_last(manifest: Manifest, now_ms: int, grace_ms: int) -> tuple[str, ...]:
        return tuple(one.log_name for one in manifest.segments[:-1])

    patch.setattr(plan, "due_removals", all_but_the_last)


def leave_failed_uploads(patch: Patch) -> None:
    async def nothing(self: RemotePartition, epoch: int) -> None:
        return None

    patch.setattr(RemotePartition, "_sweep", nothing)


def move_the_log_start(patch: Patch) -> None:
    patch.setattr(removal, "_delete_locally", removal._delete)


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
)
