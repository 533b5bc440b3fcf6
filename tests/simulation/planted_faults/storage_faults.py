"""Faults of what is kept: flushing, recovery, damage at rest, producer state."""

from __future__ import annotations

from typing import Any

from planted_faults.planting import EAGER, Patch, PlantedFault

from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.replica_repair import ReplicaRepair
from nilometer.simulation.plan import Kind
from nilometer.storage import appending, reading, recovery
from nilometer.storage.flushing import FlushPlan
from nilometer.storage.leader_epoch_cache import LeaderEpochCache
from nilometer.storage.producers import ProducerStateEntry, ProducerUpdates

CRASHES_AND_CUTS = (Kind.CRASH, Kind.CUT, Kind.RESET, Kind.PAUSE)


def skip_fsync(patch: Patch) -> None:
    patch.setattr(FlushPlan, "run", lambda self: None)


def answer_before_group_commit(patch: Patch) -> None:
    patch.setattr(Partition, "counts_flushed", property(lambda self: False))


def believe_a_torn_tail(patch: Patch) -> None:
    patch.setattr(recovery, "check_batch", lambda *_: None)


def serve_damage(patch: Patch) -> None:
    patch.setattr(reading, "check_batch", lambda *_: None)


def leave_damage(patch: Patch) -> None:
    patch.setattr(ReplicaRepair, "begin", lambda self, partition, found: None)


def forget_epochs_that_were_not_written_in(patch: Patch) -> None:
    assign = LeaderEpochCache.assign

    def late(self: LeaderEpochCache, epoch: int, start_offset: int) -> bool:
        return assign(self, epoch, start_offset + 1)

    patch.setattr(LeaderEpochCache, "assign", late)


def accept_duplicates(patch: Patch) -> None:
    patch.setattr(appending, "_find_duplicate", lambda log, header: None)
    patch.setattr(ProducerUpdates, "_check_sequence", lambda self, entry, header: None)


def follow_without_producers(patch: Patch) -> None:
    judge = appending._judge_producer

    def leaders_only(updates: ProducerUpdates, batch: Any, offset: int, timestamp: int) -> None:
        if updates._origin is appending.AppendOrigin.CLIENT:
            judge(updates, batch, offset, timestamp)

    patch.setattr(appending, "_judge_producer", leaders_only)
    patch.setattr(ProducerUpdates, "_check_sequence", lambda self, entry, header: None)


def keep_only_last_batches(patch: Patch) -> None:
    every = ProducerStateEntry.to_snapshot
    patch.setattr(ProducerStateEntry, "to_snapshot", lambda self: [*every(self)][-1:])


FAULTS = (
    PlantedFault(
        name="keep-only-last-batches",
        what="a snapshot of the producers has the last batch of each alone, as that of Apache Kafka",
        plant=keep_only_last_batches,
        kinds=(Kind.CRASH_ALL,),
        seeds=20,
        foreign=EAGER,
    ),
    PlantedFault(
        name="skip-fsync",
        what="a flush syncs nothing",
        plant=skip_fsync,
        kinds=(Kind.POWER,),
        seeds=10,
    ),
    PlantedFault(
        name="answer-before-group-commit",
        what="`flush.messages=1`, and the answer does not wait for the fsync",
        plant=answer_before_group_commit,
        kinds=(Kind.POWER,),
        seeds=10,
        one_machine=True,
        flushes=True,
    ),
    PlantedFault(
        name="believe-a-torn-tail",
        what="recovery does not look at checksums",
        plant=believe_a_torn_tail,
        kinds=(Kind.POWER,),
        seeds=10,
    ),
    PlantedFault(
        name="serve-damage",
        what="reads do not look at checksums",
        plant=serve_damage,
        kinds=(Kind.DAMAGE,),
        seeds=10,
    ),
    PlantedFault(
        name="leave-damage",
        what="a replica that found damage in itself is not repaired",
        plant=leave_damage,
        kinds=(Kind.DAMAGE,),
        seeds=10,
    ),
    PlantedFault(
        name="epochs-begin-late",
        what="a leader notes its epoch one record too late (KAFKA-7415)",
        plant=forget_epochs_that_were_not_written_in,
        kinds=(Kind.CRASH, Kind.SLOW),
        seeds=10,
    ),
    PlantedFault(
        name="accept-duplicates",
        what="sequence numbers are not looked at",
        plant=accept_duplicates,
        kinds=CRASHES_AND_CUTS,
        seeds=10,
    ),
    PlantedFault(
        name="follow-without-producers",
        what="followers keep no producer state, and new leaders take what comes",
        plant=follow_without_producers,
        kinds=CRASHES_AND_CUTS,
        seeds=20,
    ),
)
