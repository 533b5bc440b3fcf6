"""Connections to the other nodes of a metadata quorum. Implements
:class:`~nilometer.coordination.quorum.peers.Peers`.

A connection carries requests of one purpose: responses come in the order of the requests, and a vote must not
wait behind a fetch that waits for records.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from typing import Any

from nilometer.broker.quorum.key_file import QuorumKey, prove
from nilometer.broker.settings.quorum import QuorumSettings
from nilometer.client.network.connection import Connection
from nilometer.coordination.quorum.node import FETCH_BYTES_MAX, FETCH_WAIT_MS
from nilometer.coordination.quorum.peers import (
    Describe,
    Fetched,
    Identify,
    PeerRefused,
    PeerUnavailable,
    Proposal,
    Proposed,
    ReadIndex,
    Renewal,
    Request,
    SnapshotPartFetched,
)
from nilometer.identifiers import BrokerId, LeaderEpoch, Offset
from nilometer.raft import messages
from nilometer.raft.control_records import Endpoint, VoterEntry
from nilometer.raft.exchange import (
    BeginEpochRequest,
    EndEpochRequest,
    QuorumFetch,
    SnapshotFetch,
    VoteRequest,
)
from nilometer.raft.messages import FetchTerms
from nilometer.raft.voter_changes import (
    TIMEOUT_MS_MAX,
    AddVoter,
    RemoveVoter,
    UpdateVoter,
    change_request,
    read_change_response,
)
from nilometer.raft.voters import VoterKey
from nilometer.runtime import Runtime
from nilometer.wire import own_apis
from nilometer.wire.building import Message
from nilometer.wire.errors import ErrorCode, KafkaError

SETUP_TIMEOUT_MS = 1_000
CHANGE_TIMEOUT_MS = TIMEOUT_MS_MAX + 5_000
CLIENT_ID = "nilometer-quorum"


class Purpose(enum.Enum):
    ELECTION = enum.auto()
    FETCH = enum.auto()
    QUESTION = enum.auto()
    CHANGE = enum.auto()
    """Of the voters: the response waits until it is committed."""


class QuorumLinks:
    def __init__(self, settings: QuorumSettings, runtime: Runtime, key: QuorumKey | None) -> None:
        self._settings = settings
        self._runtime = runtime
        self._key = key
        self._listener = "" if not settings.listeners else settings.listeners[0].name
        self._connections: dict[tuple[str, int, Purpose], Connection] = {}
        self._opening: dict[tuple[str, int, Purpose], asyncio.Lock] = {}
        self.cluster_id: str | None = None
        """None as long as this node does not know it."""

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    @property
    def _own_endpoints(self) -> Sequence[Endpoint]:
        own = self._settings.own
        return () if own is None else (Endpoint(self._listener, own.host, own.port),)

    async def ask(self, to: VoterEntry, request: Request) -> Any:
        try:
            return await self._ask(to, request)
        except KafkaError as error:
            is_refused = isinstance(error.__cause__, ConnectionRefusedError)
            kind = PeerRefused if is_refused else PeerUnavailable
            raise kind(error.message or error.code.name) from error

    async def standing(self, host: str, port: int) -> own_apis.QuorumStanding:
        """Ask the node that listens there who it is. Raises PeerUnavailable."""
        try:
            answer = await self._question(host, port, own_apis.AskStanding())
        except KafkaError as error:
            raise PeerUnavailable(error.message or error.code.name) from error
        if answer.standing is None:
            raise PeerUnavailable("it does not say who it is")
        return answer.standing

    async def _ask(self, to: VoterEntry, request: Request) -> Any:
        cluster_id, timing = self.cluster_id, self._settings.timing
        if isinstance(request, QuorumFetch):
            terms = FetchTerms(FETCH_WAIT_MS, FETCH_BYTES_MAX)
            message = messages.fetch_request(request, cluster_id, terms)
            answer = await self._send(to, Purpose.FETCH, message, timing.fetch_ms)
            response, records = messages.read_fetch_response(answer)
            return Fetched(response, records, _leader(answer, response.leader))
        if isinstance(request, SnapshotFetch):
            message = messages.snapshot_request(request, cluster_id, FETCH_BYTES_MAX)
            answer = await self._send(to, Purpose.FETCH, message, timing.fetch_ms)
            return SnapshotPartFetched(*messages.read_snapshot_response(answer))
        if isinstance(request, VoteRequest):
            message = messages.vote_request(request, cluster_id)
            return messages.read_vote_response(await self._send_election(to, message))
        if isinstance(request, BeginEpochRequest):
            message = messages.begin_request(request, to.key, cluster_id, self._own_endpoints)
            return messages.read_epoch_response(await self._send_election(to, message))
        if isinstance(request, EndEpochRequest):
            message = messages.end_request(request, cluster_id, self._own_endpoints)
            return messages.read_epoch_response(await self._send_election(to, message))
        if isinstance(request, AddVoter | RemoveVoter | UpdateVoter):
            connection = await self._connection(*_address(to), Purpose.CHANGE)
            message = change_request(request, cluster_id)
            return read_change_response(await connection.send(message, timeout_ms=CHANGE_TIMEOUT_MS))
        return await self._question_of(to, request)

    async def _question_of(
        self, to: VoterEntry, request: Proposal | Renewal | ReadIndex | Describe | Identify
    ) -> Any:
        host, port = _address(to)
        if isinstance(request, Identify):
            standing = await self.standing(host, port)
            return VoterKey(BrokerId(standing.node_id), standing.directory_id)
        if isinstance(request, Proposal):
            answer = await self._question(host, port, own_apis.Propose(command=request.command))
            if answer.offset < 0:
                return Proposed(None)
            return Proposed(Offset(answer.offset), LeaderEpoch(answer.epoch))
        if isinstance(request, Renewal):
            broker_id, incarnation = request.session.broker_id, request.session.incarnation
            question = own_apis.RenewSession(broker_id=broker_id, incarnation=incarnation)
            return (await self._question(host, port, question)).renewed
        if isinstance(request, Describe):
            return (await self._question(host, port, own_apis.AskReplicas())).description
        answer = await self._question(host, port, own_apis.AskCommitted())
        return None if answer.offset < 0 else Offset(answer.offset)

    async def _question(
        self,
        host: str,
        port: int,
        question: own_apis.QuorumQuestion,
    ) -> own_apis.AskQuorumResponse:
        message = own_apis.AskQuorumRequest(question=question, cluster_id=self.cluster_id)
        connection = await self._connection(host, port, Purpose.QUESTION)
        answer: own_apis.AskQuorumResponse = await connection.send(
            message, timeout_ms=self._settings.session_timeout_ms
        )
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.message)
        return answer

    async def _send_election(self, to: VoterEntry, message: Message) -> Message:
        return await self._send(to, Purpose.ELECTION, message, self._settings.timing.election_ms)

    async def _send(self, to: VoterEntry, purpose: Purpose, message: Message, timeout_ms: int) -> Message:
        connection = await self._connection(*_address(to), purpose)
        answer = await connection.send(message, timeout_ms=timeout_ms)
        if answer.error_code is not ErrorCode.none:  # of the message, not of the partition
            raise KafkaError(answer.error_code, f"{connection.host}:{connection.port} refuses this node")
        return answer

    async def _connection(self, host: str, port: int, purpose: Purpose) -> Connection:
        place = host, port, purpose
        async with self._opening.setdefault(place, asyncio.Lock()):
            known = self._connections.get(place)
            if known is not None and not known.closed:
                return known
            key = self._key

            async def prove_key(connection: Connection) -> None:
                if key is not None:
                    await prove(connection, key, self._settings.node_id, self._runtime.entropy)

            self._connections[place] = made = await Connection.open(
                self._runtime,
                host,
                port,
                client_id=CLIENT_ID,
                setup_timeout_ms=SETUP_TIMEOUT_MS,
                before_use=prove_key,
                security=self._settings.security,
            )
            return made


def _address(to: VoterEntry) -> tuple[str, int]:
    """Raises PeerUnavailable if the log does not say where it listens."""
    if not to.endpoints:
        raise PeerUnavailable(f"it is not known where node {to.key} listens")
    return to.endpoints[0].host, to.endpoints[0].port


def _leader(answer: Message, leader_id: int) -> VoterEntry | None:
    for one in messages.leader_addresses(answer):
        if one.node_id == leader_id:
            return VoterEntry(VoterKey(one.node_id, ""), (Endpoint("", one.host, one.port),))
    return None
