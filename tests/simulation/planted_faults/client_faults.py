"""Faults of clients, and of those who look after groups of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planted_faults.planting import EAGER, Patch, PlantedFault

from nilometer.broker.rejected_batches import RejectedBatches
from nilometer.client.group import committer as committer_module
from nilometer.client.group.assignors import RangeAssignor
from nilometer.client.group.membership import Membership
from nilometer.client.positions import Positions
from nilometer.client.producer.idempotence import IdempotenceState, next_sequence
from nilometer.groups.records import OffsetCommitKey
from nilometer.groups.shard import GroupShard
from nilometer.simulation.plan import Kind
from nilometer.simulation.workload.consumers import GroupPlan

THREE = GroupPlan(members=3, assignor="range", static=False, auto_commit=False)
IN_BACKGROUND = replace(THREE, commits_in_background=True)
COMING_AND_GOING = (Kind.CRASH, Kind.CLIENT_CRASH)


def renumber_retries(patch: Patch) -> None:
    begin = IdempotenceState.begin

    def renumber(self: IdempotenceState, batch: Any) -> None:
        state = self._state_of(batch)
        if batch.has_sequence and state is not None:
            batch.set_sequence(state.producer_id, state.producer_epoch, state.next_sequence)
            state.next_sequence = next_sequence(state.next_sequence, batch.records_count)
        begin(self, batch)

    patch.setattr(IdempotenceState, "begin", renumber)


def forget_rejected_batches(patch: Patch) -> None:
    patch.setattr(RejectedBatches, "note", lambda *_: None)


def begin_behind_the_commit(patch: Patch) -> None:
    told = Positions.on_committed

    def one_further(self: Positions, partition: Any, generation: int, committed: Any, *rest: Any) -> Any:
        return told(self, partition, generation, committed + 1 if committed else committed, *rest)

    patch.setattr(Positions, "on_committed", one_further)


def forget_commits(patch: Patch) -> None:
    replay = GroupShard.replay

    def without_offsets(self: GroupShard, record: Any) -> None:
        if not isinstance(record.key, OffsetCommitKey):
            replay(self, record)

    patch.setattr(GroupShard, "replay", without_offsets)


def commit_as_who_it_is_by_then(patch: Patch) -> None:
    async def again_and_again(self: Membership, commit_identity: Any, offsets: Any) -> None:
        committer = self._committer

        async def once() -> None:
            await committer._commit_once(
                committer_module._Attempt(dict(offsets), committer.commit_identity())
            )

        await self._client.retry(once, self.config.api_timeout_ms)
        self._note_committed(offsets)

    patch.setattr(Membership, "_commit_as", again_and_again)


def give_partitions_twice(patch: Patch) -> None:
    fair = RangeAssignor.assign

    def greedy(self: RangeAssignor, task: Any) -> Any:
        found = fair(self, task)
        first = min(found)
        return {**found, first: [one for partitions in found.values() for one in partitions]}

    patch.setattr(RangeAssignor, "assign", greedy)


FAULTS = (
    PlantedFault(
        name="renumber-retries",
        what="a batch that is sent again gets new sequence numbers",
        plant=renumber_retries,
        kinds=(Kind.RESET, Kind.CUT),
        seeds=10,
    ),
    PlantedFault(
        name="forget-rejected-batches",
        what="a batch behind a rejected one is appended, as the first of a new producer",
        plant=forget_rejected_batches,
        kinds=(Kind.SESSION, Kind.STOP, Kind.STORE_STALL),
        seeds=40,
        foreign=EAGER,
        mean_gap_s=0.5,
        longest_s=2.0,
    ),
    PlantedFault(
        name="forget-commits",
        what="a coordinator that takes over does not load committed offsets",
        plant=forget_commits,
        kinds=COMING_AND_GOING,
        seeds=10,
        group=THREE,
    ),
    PlantedFault(
        name="begin-behind-the-commit",
        what="who takes a partition over leaves its first record out",
        plant=begin_behind_the_commit,
        kinds=COMING_AND_GOING,
        seeds=10,
        group=THREE,
    ),
    PlantedFault(
        name="commit-as-who-it-is-by-then",
        what="a commit in the background is tried again in whatever generation its member is by then",
        plant=commit_as_who_it_is_by_then,
        kinds=(Kind.PAUSE, Kind.CRASH, Kind.CLIENT_CRASH),
        seeds=40,
        minutes=1.0,
        group=IN_BACKGROUND,
        longest_s=12.0,
        mean_gap_s=3.0,
    ),
    PlantedFault(
        name="give-partitions-twice",
        what="a group's leader gives one member what others have",
        plant=give_partitions_twice,
        kinds=COMING_AND_GOING,
        seeds=5,
        group=THREE,
    ),
)
