"""Faults of what a log directory keeps beside its logs: checkpoint lines, who writes them, what fails."""

from __future__ import annotations

import asyncio
import posixpath
from types import SimpleNamespace
from typing import Any

from planted_faults.planting import Patch, PlantedFault

from nilometer.broker.replica_moves import ReplicaMove, ReplicaMoves
from nilometer.broker.replicas.file_work import CheckpointWriter, LogDisposal
from nilometer.broker.replicas.hosted_logs import HostedLogs
from nilometer.broker.replicas.replica_failures import OfflineReplicas
from nilometer.cluster.controller import isr_changes
from nilometer.cluster.controller.partition_change import PartitionDraft
from nilometer.cluster.records import PartitionChanged
from nilometer.identifiers import BrokerId, PartitionEpoch, TopicIdPartition
from nilometer.simulation.disk import VirtualDisk
from nilometer.simulation.fault_kinds import Kind
from nilometer.simulation.loop import Pace
from nilometer.storage import checkpoints, copying
from nilometer.storage.copying import StepKind, next_step
from nilometer.storage.directories.checkpoint_files import CheckpointFiles
from nilometer.storage.directories.log_manager import LogCheckpoints, LogManager
from nilometer.storage.log import Log


def believe_lines_of_earlier_topics(patch: Patch) -> None:
    begin = LogDisposal.__init__

    def without_requests(self: LogDisposal, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        self._checkpoints = SimpleNamespace(request=lambda directory: None)  # type: ignore[assignment]

    patch.setattr(LogDisposal, "__init__", without_requests)
    patch.setattr(CheckpointFiles, "may_have_line", lambda self, key: False)


def write_checkpoints_at_once(patch: Patch) -> None:
    def one_temporary_name(self: VirtualDisk, path: str, data: bytes, *, sync: bool = True) -> None:
        file = self.open(f"{path}.tmp", create=True)
        try:
            file.truncate(0)
            file.append([data])
            if sync:
                file.sync()
        finally:
            file.close()
        self.rename(f"{path}.tmp", path)
        if sync:
            self.sync_directory(posixpath.dirname(path))

    def at_once(self: CheckpointWriter, directory: str) -> asyncio.Future[None]:
        async def write() -> None:
            for plan in self._logs.plan_checkpoints(self._high_watermarks(), directory):
                await self._write_plan(plan)

        return self._tasks.spawn(write())

    patch.setattr(VirtualDisk, "replace_file", one_temporary_name)
    patch.setattr(CheckpointWriter, "request", at_once)


def append_before_the_checkpoint(patch: Patch) -> None:
    for name in ("hold_if_exceeded", "hold_truncated"):
        patch.setattr(LogCheckpoints, name, lambda self, log: None)


def open_below_the_checkpoint(patch: Patch) -> None:
    patch.setattr(LogCheckpoints, "lower", lambda self, directory, *, writes: None)


def take_over_earlier_logs(patch: Patch) -> None:
    def adopt(self: HostedLogs, wanted: Any) -> None:
        log = self._manager.get(wanted.name)
        if log is not None:
            log.topic_id = wanted.topic_id

    patch.setattr(HostedLogs, "_remove_earlier", adopt)
    patch.setattr(HostedLogs, "_is_missing", lambda self, wanted: self._manager.get(wanted.name) is None)


def leave_topic_ids_unsynced(patch: Patch) -> None:
    patch.setattr(checkpoints, "sync_partition_metadata", lambda disk, folder: None)


def use_folders_that_were_not_synced(patch: Patch) -> None:
    patch.setattr(LogManager, "_sync_topic_ids", lambda self, directory: None)


def take_over_records_without_topic_id(patch: Patch) -> None:
    is_missing, make_stray = HostedLogs._is_missing, HostedLogs._remove_earlier

    def adopt(self: HostedLogs, wanted: Any) -> None:
        log = self._manager.get(wanted.name)
        if log is not None and log.topic_id is None:
            checkpoints.write_partition_metadata(self._runtime.disk, log.folder, wanted.topic_id)
            checkpoints.sync_partition_metadata(self._runtime.disk, log.folder)
            log.topic_id = wanted.topic_id
        make_stray(self, wanted)

    def is_missing_unless_adopted(self: HostedLogs, wanted: Any) -> bool:
        adopt(self, wanted)
        return is_missing(self, wanted)

    patch.setattr(LogManager, "take_out_unidentified", lambda self: [])
    patch.setattr(HostedLogs, "_remove_earlier", adopt)
    patch.setattr(HostedLogs, "_is_missing", is_missing_unless_adopted)


def keep_failed_folders_quiet(patch: Patch) -> None:
    patch.setattr(OfflineReplicas, "add", lambda self, key, reason: self._reasons.setdefault(key, reason))
    patch.setattr(OfflineReplicas, "on_image", lambda self, image: None)


def keep_offline_replicas_in_sync(patch: Patch) -> None:
    def in_place(draft: PartitionDraft, broker_id: BrokerId, key: TopicIdPartition) -> None:
        """It is noted as offline, and that is all."""
        state = draft.image.partition_by_id(*key)
        if state is not None and broker_id not in state.offline:
            record = PartitionChanged(
                topic_id=key.topic_id,
                partition=key.partition,
                partition_epoch=PartitionEpoch(state.partition_epoch + 1),
                offline=(*state.offline, broker_id),
            )
            draft._units.append((record,))

    patch.setattr(isr_changes, "_take_offline", in_place)


def exchange_before_the_copy_has_caught_up(patch: Patch) -> None:
    def at_end(self: ReplicaMoves, move: ReplicaMove, log: Log, copy: Log) -> bool:
        """As if compaction had removed what is missing."""
        if next_step(log, copy).kind is StepKind.COPY:
            copying.extend_over_gap(log, copy, wall_ms=self._runtime.clock.wall_ms())
        return next_step(log, copy).kind is StepKind.NOTHING

    patch.setattr(ReplicaMoves, "_is_at_end", at_end)


FAULTS = (
    PlantedFault(
        name="exchange-before-the-copy-has-caught-up",
        what="a replica that moves to another log directory uses its new folder without the last records",
        plant=exchange_before_the_copy_has_caught_up,
        kinds=(Kind.CRASH,),
        seeds=10,
        folders=(2, 3),
        moves_folders=True,
        pace=Pace(pause_share=0.3, pause_ms=(1.0, 20.0), sync_ms=(20.0, 80.0)),
    ),
    PlantedFault(
        name="believe-lines-of-earlier-topics",
        what="a checkpoint line of a deleted topic counts for the next one of its name",
        plant=believe_lines_of_earlier_topics,
        kinds=(Kind.CRASH_ALL,),
        seeds=40,
        reuses_names=True,
        mean_gap_s=3.0,
        settings={"replica.high.watermark.checkpoint.interval.ms": "5000"},
    ),
    PlantedFault(
        name="write-checkpoints-at-once",
        what="two writers of one checkpoint file share a temporary name",
        plant=write_checkpoints_at_once,
        kinds=(Kind.CRASH,),
        seeds=10,
        reuses_names=True,
        settings={"replica.high.watermark.checkpoint.interval.ms": "200"},
        pace=Pace(pause_share=0.2, pause_ms=(0.01, 3.0), sync_ms=(5.0, 40.0)),
    ),
    PlantedFault(
        name="append-before-the-checkpoint",
        what="a truncated log is appended to while a checkpoint file has a higher offset",
        plant=append_before_the_checkpoint,
        kinds=(Kind.CRASH, Kind.PAUSE, Kind.CUT),
        seeds=20,
        flushes=True,
        settings={"replica.high.watermark.checkpoint.interval.ms": "1000"},
    ),
    PlantedFault(
        name="open-below-the-checkpoint",
        what="a log that was truncated and killed before its checkpoint is appended to as it is opened",
        plant=open_below_the_checkpoint,
        kinds=(Kind.CRASH, Kind.SESSION, Kind.CUT),
        seeds=60,
        flushes=True,
        mean_gap_s=0.7,
        settings={"replica.high.watermark.checkpoint.interval.ms": "3000"},
        pace=Pace(pause_share=0.3, pause_ms=(1.0, 20.0), sync_ms=(20.0, 80.0)),
    ),
    PlantedFault(
        name="take-over-earlier-logs",
        what="a log that an earlier topic left under its name counts as the new topic's",
        plant=take_over_earlier_logs,
        kinds=(Kind.CRASH,),
        seeds=20,
        reuses_names=True,
    ),
    PlantedFault(
        name="leave-topic-ids-unsynced",
        what="`partition.metadata` of a new replica is not synced",
        plant=leave_topic_ids_unsynced,
        kinds=(Kind.POWER,),
        seeds=10,
        reuses_names=True,
    ),
    PlantedFault(
        name="use-folders-that-were-not-synced",
        what="an empty log whose folder a killed process had not synced takes records at once",
        plant=use_folders_that_were_not_synced,
        kinds=(Kind.CRASH, Kind.LOG_DIR_ERROR),
        seeds=40,
        folders=(2, 3),
        reuses_names=True,
        pace=Pace(pause_share=0.2, pause_ms=(0.01, 3.0), sync_ms=(5.0, 40.0)),
    ),
    PlantedFault(
        name="take-over-records-without-topic-id",
        what="records beside a torn `partition.metadata` count as those of the topic that has the name now",
        plant=take_over_records_without_topic_id,
        kinds=(Kind.CHECKPOINT_DAMAGE,),
        seeds=120,
        reuses_names=True,
    ),
    PlantedFault(
        name="keep-failed-folders-quiet",
        what="a log directory that failed is not reported to the controller",
        plant=keep_failed_folders_quiet,
        kinds=(Kind.LOG_DIR_ERROR, Kind.LOG_DIR_FULL),
        seeds=20,
        folders=(2, 3),
        mean_gap_s=8.0,
    ),
    PlantedFault(
        name="keep-offline-replicas-in-sync",
        what="a replica whose log directory failed keeps its place in the ISR, and its leadership",
        plant=keep_offline_replicas_in_sync,
        kinds=(Kind.LOG_DIR_ERROR, Kind.LOG_DIR_FULL),
        seeds=20,
        folders=(2, 3),
        mean_gap_s=8.0,
    ),
)
