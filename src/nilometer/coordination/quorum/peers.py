"""What the nodes of a metadata quorum ask each other, and how: the transport is the owner's."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from nilometer.coordination.store import SessionName
from nilometer.identifiers import LeaderEpoch, Offset
from nilometer.raft.control_records import VoterEntry
from nilometer.raft.exchange import (
    BeginEpochRequest,
    EndEpochRequest,
    QuorumFetch,
    QuorumFetchResponse,
    SnapshotFetch,
    SnapshotFetchResponse,
    VoteRequest,
)
from nilometer.raft.voter_changes import AddVoter, RemoveVoter, UpdateVoter


class PeerUnavailable(Exception):
    """No response came from another node. Whether it acted is not known."""


class PeerRefused(PeerUnavailable):
    """No process listens where the node is to be: the request was not sent."""


class Proposal(NamedTuple):
    """A command that the leader is to append, encoded."""

    command: bytes


class Proposed(NamedTuple):
    """``offset``: where the leader has appended it, in ``epoch``; None: that node does not lead, and has
    not."""

    offset: Offset | None
    epoch: LeaderEpoch = LeaderEpoch(-1)


class Renewal(NamedTuple):
    """The leader is asked to renew a session; the response is whether it has:
    :meth:`~nilometer.coordination.quorum.node.QuorumNode.renew`."""

    session: SessionName


class ReadIndex(NamedTuple):
    """The leader is asked how far the log is committed; the response is an offset, None if it does not
    lead."""


class Describe(NamedTuple):
    """The leader is asked for a :class:`~nilometer.wire.own_apis.QuorumDescription`; None if it does not
    lead."""


class Identify(NamedTuple):
    """A node is asked who it is; the response is a :class:`~nilometer.raft.voters.VoterKey`."""


class Fetched(NamedTuple):
    response: QuorumFetchResponse
    records: bytes
    leader: VoterEntry | None = None
    """Where the leader listens, as far as the node that was asked knows it."""


class SnapshotPartFetched(NamedTuple):
    response: SnapshotFetchResponse
    part: bytes


Request = (
    VoteRequest
    | BeginEpochRequest
    | EndEpochRequest
    | QuorumFetch
    | SnapshotFetch
    | Proposal
    | Renewal
    | ReadIndex
    | Describe
    | Identify
    | AddVoter
    | RemoveVoter
    | UpdateVoter
)


class Peers(Protocol):
    """The other nodes."""

    async def ask(self, to: VoterEntry, request: Request) -> Any:
        """Return the response of ``QuorumNode.serve`` there. Raises PeerUnavailable."""
        ...
