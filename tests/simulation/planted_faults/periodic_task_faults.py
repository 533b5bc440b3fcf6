"""Faults of what a cluster is kept in order with: moving replicas, taking brokers out, deleting what is old,
and dropping what no request waits for any more."""

from __future__ import annotations

from typing import Any

from planted_faults.planting import Patch, PlantedFault

from nilometer.broker.api import features
from nilometer.broker.api.dispatcher import RequestDispatcher
from nilometer.broker.replicas.delayed_requests import DeleteOutcome, DeletionWaits
from nilometer.broker.replicas.fetch_session import FetchSessionCache
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.cluster.controller import partition_change
from nilometer.cluster.controller.decision import OK, Decision
from nilometer.replication.shell_interface import AdvanceLogStart, ReleaseProduce
from nilometer.simulation.plan import Kind
from nilometer.simulation.workload.membership import MembershipPlan
from nilometer.storage import removal
from nilometer.storage.log import Log
from nilometer.storage.segments.segment_files import FilePool

ONE_COMES = MembershipPlan(joins_at_s=4.0, leaves_at_s=None)
ONE_COMES_ONE_GOES = MembershipPlan(joins_at_s=3.0, leaves_at_s=9.0)
BY_SIZE = {"retention_bytes": 20_000, "segment_bytes": 4_000, "segment_ms": 5_000}
ALMOST_ALL = {"retention_bytes": 1_000, "segment_bytes": 500, "segment_ms": 5_000}
BY_TIME = {"retention_ms": 6_000, "segment_bytes": 4_000, "segment_ms": 3_000}


def complete_at_once(patch: Patch) -> None:
    def completed(assignment: Any) -> Any:
        replicas = tuple(r for r in assignment.replicas if r not in assignment.removing)
        if not assignment.adding or not replicas:
            return assignment
        return assignment._replace(replicas=replicas, isr=replicas, adding=(), removing=())

    patch.setattr(partition_change, "_completed", completed)


def unregister_no_broker(patch: Patch) -> None:
    patch.setattr(features, "decide_unregister_broker", lambda image, broker_id: Decision((), OK))


def delete_above_the_high_watermark(patch: Patch) -> None:
    careful = removal.delete_old_segments

    def careless(log: Any, high_watermark: int, wall_ms: int) -> list[str]:
        return careful(log, log.log_end_offset, wall_ms)

    patch.setattr(Log, "delete_old_segments", careless)


def delete_too_much(patch: Patch) -> None:
    def beyond_size(log: Any) -> Any:
        excess = log.size - log.config.retention_bytes
        return lambda segment, _: excess >= segment.size

    patch.setattr(removal, "_beyond_size", beyond_size)


def delete_too_soon(patch: Patch) -> None:
    def beyond_age(log: Any, wall_ms: int) -> Any:
        return lambda segment, _: wall_ms - segment.largest_timestamp() > log.config.retention_ms // 2

    patch.setattr(removal, "_beyond_age", beyond_age)


def keep_the_log_start(patch: Patch) -> None:
    carry_out = Partition._carry_out_one

    def but_not_that(self: Partition, effect: Any) -> None:
        if not isinstance(effect, AdvanceLogStart):
            carry_out(self, effect)

    patch.setattr(Partition, "_carry_out_one", but_not_that)


def answer_before_all_deleted(patch: Patch) -> None:
    def at_once(self: DeletionWaits, required_offset: int, outcome: DeleteOutcome, request: Any) -> None:
        outcome.low_watermark = required_offset

    patch.setattr(DeletionWaits, "hold", at_once)


def keep_waits(patch: Patch) -> None:
    carry_out = Partition._carry_out_one

    def keep(self: Partition, effect: Any) -> None:
        if isinstance(effect, ReleaseProduce):
            if (wait := self._produce_waits.get(effect.ticket)) is not None:
                wait.release(effect.outcome)
        else:
            carry_out(self, effect)

    patch.setattr(Partition, "_carry_out_one", keep)


def keep_fetch_sessions(patch: Patch) -> None:
    patch.setattr(FetchSessionCache, "_maybe_evict", lambda self, now_ms: True)


def keep_connections(patch: Patch) -> None:
    patch.setattr(RequestDispatcher, "connection_closed", lambda self, connection: None)


def keep_files_open(patch: Patch) -> None:
    def forget(self: FilePool, path: str) -> None:
        self._files.pop(path, None)

    patch.setattr(FilePool, "forget", forget)


FAULTS = (
    PlantedFault(
        name="complete-at-once",
        what="a reassignment is complete before the new replica is in sync",
        plant=complete_at_once,
        kinds=(Kind.PAUSE, Kind.ISOLATE),
        seeds=10,
        moves=True,
        membership=ONE_COMES,
    ),
    PlantedFault(
        name="unregister-no-broker",
        what="a broker that is taken out stays registered",
        plant=unregister_no_broker,
        kinds=(Kind.RESET,),
        seeds=5,
        membership=ONE_COMES_ONE_GOES,
    ),
    PlantedFault(
        name="delete-above-the-high-watermark",
        what="retention takes what is not replicated yet (KAFKA-5634)",
        plant=delete_above_the_high_watermark,
        kinds=(Kind.ISOLATE, Kind.PAUSE),
        seeds=10,
        deletes=ALMOST_ALL,
    ),
    PlantedFault(
        name="delete-too-much",
        what="retention by size does not count what it has taken already",
        plant=delete_too_much,
        kinds=(Kind.RESET,),
        seeds=10,
        deletes=BY_SIZE,
    ),
    PlantedFault(
        name="delete-too-soon",
        what="retention by time takes what is half as old as it has to be",
        plant=delete_too_soon,
        kinds=(Kind.RESET,),
        seeds=5,
        deletes=BY_TIME,
    ),
    PlantedFault(
        name="keep-the-log-start",
        what="followers do not begin where their leader does",
        plant=keep_the_log_start,
        kinds=(Kind.CRASH,),
        seeds=10,
        deletes=BY_SIZE,
    ),
    PlantedFault(
        name="answer-before-all-deleted",
        what="a deletion of records is answered when the leader has deleted",
        plant=answer_before_all_deleted,
        kinds=(Kind.RESET,),
        seeds=20,
        minutes=1.0,
        deletes={**BY_SIZE, "retention_bytes": 200_000},
    ),
    PlantedFault(
        name="keep-waits",
        what="a produce request that was answered waits on",
        plant=keep_waits,
        kinds=(Kind.RESET,),
        seeds=5,
    ),
    PlantedFault(
        name="keep-fetch-sessions",
        what="a full cache of fetch sessions takes one more",
        plant=keep_fetch_sessions,
        kinds=(Kind.CLIENT_CRASH,),
        seeds=5,
    ),
    PlantedFault(
        name="keep-connections",
        what="a broker does not let go of connections that ended",
        plant=keep_connections,
        kinds=(Kind.CLIENT_CRASH, Kind.RESET),
        seeds=5,
    ),
    PlantedFault(
        name="keep-files-open",
        what="files of segments that were deleted stay open",
        plant=keep_files_open,
        kinds=(Kind.RESET,),
        seeds=5,
        deletes=BY_SIZE,
    ),
)
