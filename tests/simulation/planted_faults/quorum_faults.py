"""Faults of the metadata quorum: of its votes, its log, its leader's sessions, and its voters."""

from __future__ import annotations

import posixpath
from typing import Any

from planted_faults.planting import Patch, PlantedFault

from nilometer.coordination.quorum import sessions as sessions_module
from nilometer.coordination.quorum.commands import AppliedState, Command, Outcome
from nilometer.coordination.quorum.node import QuorumNode
from nilometer.coordination.quorum.sessions import SessionBook, SessionKeeper
from nilometer.raft import durable
from nilometer.raft.quorum_state import identify
from nilometer.raft.replica import RaftReplica
from nilometer.raft.voters import VoterKey
from nilometer.simulation import quorum
from nilometer.simulation.fault_kinds import Kind
from nilometer.simulation.plan import QUORUM
from nilometer.storage.directories.log_directory import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)


def leave_votes_unsynced(patch: Patch) -> None:
    written = durable.write_election

    def write(disk: Any, folder: str, election: Any) -> None:
        class Unsynced:
            @staticmethod
            def replace_file(path: str, data: bytes) -> None:
                disk.replace_file(path, data, sync=False)

        written(Unsynced(), folder, election)

    patch.setattr(durable, "write_election", write)


def renew_before_a_majority_has_confirmed(patch: Patch) -> None:
    async def renew(self: SessionKeeper, name: Any) -> bool:
        book = self._book
        return book is not None and book.renew(name, self._clock.monotonic_ms())

    patch.setattr(SessionKeeper, "renew", renew)


def end_sessions_at_the_election(patch: Patch) -> None:
    def book(timeout_ms: int, live: Any, elected_ms: int) -> SessionBook:
        return SessionBook(timeout_ms, live, elected_ms - timeout_ms)

    patch.setattr(sessions_module, "SessionBook", book)


def apply_by_node(patch: Patch) -> None:
    """As a state does that depends on its own process: here, on how many commands it has applied."""
    apply = AppliedState.apply
    counts: dict[AppliedState, int] = {}

    def sometimes(self: AppliedState, offset: Any, command: Command) -> Outcome:
        counts[self] = counts.get(self, 0) + 1
        return Outcome.REFUSED if counts[self] % 40 == 0 else apply(self, offset, command)

    patch.setattr(AppliedState, "apply", sometimes)


def leave_sessions_out_of_snapshots(patch: Patch) -> None:
    from_bytes = AppliedState.from_bytes

    def without(data: bytes) -> AppliedState:
        state = from_bytes(data)
        state._sessions.clear()
        return state

    patch.setattr(AppliedState, "from_bytes", without)


def acknowledge_what_is_appended(patch: Patch) -> None:
    async def outcome(self: QuorumNode, offset: Any, epoch: Any) -> Outcome:
        return Outcome.DONE

    patch.setattr(QuorumNode, "_outcome", outcome)


def vote_again_after_a_wipe(patch: Patch) -> None:
    known: dict[int, str] = {}

    def as_before(disk: Any, directory: str, node_id: Any, cluster_id: Any, random: Any) -> VoterKey:
        path = posixpath.join(directory, "meta.properties")
        if node_id in known and read_meta_properties(disk, path) is None:
            write_meta_properties(disk, path, MetaProperties(node_id, None, known[node_id]))
        key = identify(disk, directory, node_id, cluster_id, random)
        known[node_id] = key.directory_id
        return key

    patch.setattr(quorum, "identify", as_before)


def keep_what_diverges_in_the_metadata_log(patch: Patch) -> None:
    patch.setattr(RaftReplica, "_truncate", lambda self, diverging: [])


LONG_S = 15.0
"""Longer than sessions last."""

FAULTS = (
    PlantedFault(
        name="leave-votes-unsynced",
        what="the vote and the epoch of a voter of the metadata quorum are not synced",
        plant=leave_votes_unsynced,
        kinds=(Kind.CRASH_ALL, Kind.QUORUM_CRASH),
        seeds=40,
        store=QUORUM,
        one_machine=False,
    ),
    PlantedFault(
        name="renew-before-a-majority-has-confirmed",
        what="a leader answers the renewal of a session before a majority has fetched",
        plant=renew_before_a_majority_has_confirmed,
        kinds=(Kind.QUORUM_PAUSE, Kind.QUORUM_CUT, Kind.ISOLATE),
        seeds=20,
        store=QUORUM,
        one_machine=False,
        minutes=1.0,
        longest_s=LONG_S,
    ),
    PlantedFault(
        name="end-sessions-at-the-election",
        what="a new leader ends the sessions that it has not renewed itself",
        plant=end_sessions_at_the_election,
        kinds=(Kind.QUORUM_CRASH,),
        seeds=10,
        store=QUORUM,
    ),
    PlantedFault(
        name="apply-by-node",
        what="what a command comes to depends on the node that applies it",
        plant=apply_by_node,
        kinds=(Kind.CRASH,),
        seeds=10,
        store=QUORUM,
        churn=True,
    ),
    PlantedFault(
        name="leave-sessions-out-of-snapshots",
        what="a node that begins with a snapshot of the metadata log knows no sessions",
        plant=leave_sessions_out_of_snapshots,
        kinds=(Kind.CRASH,),
        seeds=20,
        store=QUORUM,
        churn=True,
    ),
    PlantedFault(
        name="acknowledge-what-is-appended",
        what="a command is acknowledged when the leader has appended it",
        plant=acknowledge_what_is_appended,
        kinds=(Kind.QUORUM_CRASH, Kind.QUORUM_CUT),
        seeds=10,
        store=QUORUM,
        one_machine=False,
    ),
    PlantedFault(
        name="vote-again-after-a-wipe",
        what="a voter that has lost its disk votes under its former directory id",
        plant=vote_again_after_a_wipe,
        kinds=(Kind.QUORUM_WIPE, Kind.QUORUM_CUT, Kind.ISOLATE),
        seeds=40,
        store=QUORUM,
        one_machine=False,
    ),
    PlantedFault(
        name="keep-what-diverges-in-the-metadata-log",
        what="a voter does not truncate where the leader's log diverges from its own",
        plant=keep_what_diverges_in_the_metadata_log,
        kinds=(Kind.QUORUM_CUT, Kind.QUORUM_PAUSE, Kind.QUORUM_CRASH),
        seeds=20,
        store=QUORUM,
        one_machine=False,
    ),
)
