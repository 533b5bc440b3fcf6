"""Faults of leaders and followers: what is counted, what is cut, who is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs
from planted_faults.planting import Patch, PlantedFault

from nilometer.broker.replicas.fetch_reader import FetchReader
from nilometer.broker.replicas.fetch_session import FetchSession
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.replication import leader as leader_module
from nilometer.replication.epochs import NO_DIVERGENCE
from nilometer.replication.follower import FollowerRole
from nilometer.replication.followers import IsrMembership
from nilometer.replication.isr import IsrNegotiation
from nilometer.replication.leader import LeaderRole
from nilometer.replication.shell_interface import NO_EFFECTS
from nilometer.simulation.plan import Kind

LATE_AND_DEAD = (Kind.CRASH, Kind.SLOW)
CRASHES_AND_CUTS = (Kind.CRASH, Kind.CUT, Kind.RESET, Kind.PAUSE)


def acknowledge_what_is_written(patch: Patch) -> None:
    patch.setattr(Partition, "acknowledge_when_committed", Partition.acknowledge_when_written)


def acknowledge_without_the_slowest(patch: Patch) -> None:
    def committable(self: LeaderRole, now_ms: int) -> int:
        ends = sorted(
            remote.log_end_offset
            for remote in self._followers.all()
            if self._membership.counts(remote, self.log_end_offset, now_ms)
        )
        end = self.flushed_end_offset if self.counts_flushed else self.log_end_offset
        return min([end, *ends[1:]])

    patch.setattr(LeaderRole, "_committable_offset", committable)


def shrink_without_waiting(patch: Patch) -> None:
    propose = IsrNegotiation.propose_shrink

    def at_once(self: IsrNegotiation, members: Any) -> Any:
        request = propose(self, members)
        self.state = structs.replace(self.state, maximal=frozenset(members))  # type: ignore[arg-type]
        return request

    patch.setattr(IsrNegotiation, "propose_shrink", at_once)


def let_any_replica_join(patch: Patch) -> None:
    def may_join(self: IsrMembership, remote: Any, *_: int) -> bool:
        eligible = self._followers.is_eligible(remote) and remote.broker_epoch != remote.refused_broker_epoch
        known = remote.assigned and not remote.is_silent
        return known and eligible and remote.broker_id not in self._negotiation.state.maximal

    patch.setattr(IsrMembership, "may_join", may_join)


def ignore_divergence(patch: Patch) -> None:
    patch.setattr(leader_module, "diverging_epoch", lambda *_: NO_DIVERGENCE)


def keep_what_diverges(patch: Patch) -> None:
    patch.setattr(FollowerRole, "_on_diverging", lambda self, diverging: NO_EFFECTS)


def read_above_the_high_watermark(patch: Patch) -> None:
    end = FetchReader._end_for_consumer

    def log_end(self: FetchReader, partition: Partition, outcome: Any) -> int:
        return max(end(self, partition, outcome), partition.log.log_end_offset)

    patch.setattr(FetchReader, "_end_for_consumer", log_end)


def forget_epochs_in_sessions(patch: Patch) -> None:
    find = FetchReader._end_for_replica

    def whatever_epoch(self: FetchReader, partition: Partition, outcome: Any) -> Any:
        asked = outcome.asked
        outcome.asked = replace(asked, current_leader_epoch=partition.leader_epoch, last_fetched_epoch=-1)
        return find(self, partition, outcome)

    patch.setattr(FetchReader, "_end_for_replica", whatever_epoch)


def lose_marks_of_sessions(patch: Patch) -> None:
    patch.setattr(FetchSession, "mark_dirty", lambda self, key: None)


FAULTS = (
    PlantedFault(
        name="acknowledge-what-is-written",
        what="acks=all is answered when the leader has it",
        plant=acknowledge_what_is_written,
        kinds=(Kind.CRASH, Kind.ISOLATE),
        seeds=10,
    ),
    PlantedFault(
        name="acknowledge-without-the-slowest",
        what="the high watermark does not wait for the slowest member of the ISR",
        plant=acknowledge_without_the_slowest,
        kinds=CRASHES_AND_CUTS,
        seeds=5,
    ),
    PlantedFault(
        name="shrink-without-waiting",
        what="who leaves the ISR is not waited for, before that is decided (KIP-497)",
        plant=shrink_without_waiting,
        kinds=(Kind.ISOLATE,),
        seeds=20,
    ),
    PlantedFault(
        name="let-any-replica-join",
        what="followers join the ISR at any log end offset (KAFKA-7128)",
        plant=let_any_replica_join,
        kinds=LATE_AND_DEAD,
        seeds=10,
    ),
    PlantedFault(
        name="ignore-divergence",
        what="a leader lets every log follow on its own",
        plant=ignore_divergence,
        kinds=LATE_AND_DEAD,
        seeds=5,
    ),
    PlantedFault(
        name="keep-what-diverges",
        what="a follower that is told where the logs part does not truncate",
        plant=keep_what_diverges,
        kinds=LATE_AND_DEAD,
        seeds=5,
    ),
    PlantedFault(
        name="read-above-the-high-watermark",
        what="consumers read to the log's end",
        plant=read_above_the_high_watermark,
        kinds=LATE_AND_DEAD,
        seeds=5,
    ),
    PlantedFault(
        name="forget-epochs-in-sessions",
        what="a fetch session forgets its partitions' epochs (KAFKA-9338)",
        plant=forget_epochs_in_sessions,
        kinds=LATE_AND_DEAD,
        seeds=5,
    ),
    PlantedFault(
        name="lose-marks-of-sessions",
        what="a fetch session misses what changed",
        plant=lose_marks_of_sessions,
        kinds=(Kind.CRASH,),
        seeds=5,
    ),
)
