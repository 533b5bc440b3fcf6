"""Connections to the other nodes of a metadata quorum. Implements
:class:`~nilometer.coordination.quorum.peers.Peers`.

A connection carries requests of one purpose: responses come in the order of the requests, and a vote must not
wait behind a fetch that waits for records.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from nilometer.broker.quorum.key_file import ANY_NODE, QuorumKey, address_text, prove
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
from nilometer.runtime.network import is_loopback
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


class _Place(NamedTuple):
    """What a connection is for. One that was opened to any node is not used as one to a certain node."""

    host: str
    port: int
    node_id: int
    purpose: Purpose


class _Opening:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Watch(Protocol):
    """Learns which nodes are alive."""

    def on_connected(self, broker_id: BrokerId, connection: Connection) -> None:
        """A node was connected to, for questions that it answers at once."""
        ...

    def on_process_ended(self, broker_id: BrokerId) -> None:
        """A node has ended a connection, or no process listens at its address."""
        ...


class NotWatched:
    def on_connected(self, broker_id: BrokerId, connection: Connection) -> None:
        pass

    def on_process_ended(self, broker_id: BrokerId) -> None:
        pass


class QuorumLinks:
    def __init__(self, settings: QuorumSettings, runtime: Runtime, key: QuorumKey | None) -> None:
        self._settings = settings
        self._runtime = runtime
        self._key = key
        self._listener = "" if not settings.listeners else settings.listeners[0].name
        self._connections: dict[_Place, Connection] = {}
        """Those that are open."""
        self._opening: dict[_Place, _Opening] = {}
        """While one is opened or asked for."""
        self.cluster_id: str | None = None
        """None as long as this node does not know it."""
        self.watch: Watch = NotWatched()

    def close(self) -> None:
        for connection in list(self._connections.values()):
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
            if is_refused:
                self.watch.on_process_ended(to.key.node_id)
            kind = PeerRefused if is_refused else PeerUnavailable
            raise kind(error.message or error.code.name) from error

    async def standing(self, host: str, port: int) -> own_apis.QuorumStanding:
        """Ask the node that listens there who it is, on a connection for this question only: anyone may
        listen there. Raises PeerUnavailable."""
        try:
            connection = await self._open(host, port, asked_at=address_text(host, port))
            try:
                answer = await self._answer(connection, own_apis.AskStanding())
            finally:
                connection.close()
        except KafkaError as error:
            raise PeerUnavailable(error.message or error.code.name) from error
        if answer.standing is None:
            raise PeerUnavailable(
                f"{address_text(host, port)} answers, but not with its node.id and directory.id: see the log "
                "and the version of that node"
            )
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
            connection = await self._connection(to, Purpose.CHANGE)
            message = change_request(request, cluster_id)
            return read_change_response(await connection.send(message, timeout_ms=CHANGE_TIMEOUT_MS))
        return await self._question_of(to, request)

    async def _question_of(
        self, to: VoterEntry, request: Proposal | Renewal | ReadIndex | Describe | Identify
    ) -> Any:
        if isinstance(request, Identify):
            standing = await self.standing(*_address(to))
            return VoterKey(BrokerId(standing.node_id), standing.directory_id)
        if isinstance(request, Proposal):
            answer = await self._question(to, own_apis.Propose(command=request.command))
            if answer.offset < 0:
                return Proposed(None)
            return Proposed(Offset(answer.offset), LeaderEpoch(answer.epoch))
        if isinstance(request, Renewal):
            broker_id, incarnation = request.session.broker_id, request.session.incarnation
            question = own_apis.RenewSession(broker_id=broker_id, incarnation=incarnation)
            return (await self._question(to, question)).renewed
        if isinstance(request, Describe):
            return (await self._question(to, own_apis.AskReplicas())).description
        answer = await self._question(to, own_apis.AskCommitted())
        return None if answer.offset < 0 else Offset(answer.offset)

    async def _question(
        self, to: VoterEntry, question: own_apis.QuorumQuestion
    ) -> own_apis.AskQuorumResponse:
        return await self._answer(await self._connection(to, Purpose.QUESTION), question)

    async def _answer(
        self, connection: Connection, question: own_apis.QuorumQuestion
    ) -> own_apis.AskQuorumResponse:
        message = own_apis.AskQuorumRequest(question=question, cluster_id=self.cluster_id)
        answer: own_apis.AskQuorumResponse = await connection.send(
            message, timeout_ms=self._settings.session_timeout_ms
        )
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), answer.message)
        return answer

    async def _send_election(self, to: VoterEntry, message: Message) -> Message:
        return await self._send(to, Purpose.ELECTION, message, self._settings.timing.election_ms)

    async def _send(self, to: VoterEntry, purpose: Purpose, message: Message, timeout_ms: int) -> Message:
        connection = await self._connection(to, purpose)
        answer = await connection.send(message, timeout_ms=timeout_ms)
        if answer.error_code is not ErrorCode.none:  # of the message, not of the partition
            raise KafkaError(answer.error_code, f"{connection.host}:{connection.port} refuses this node")
        return answer

    async def _connection(self, to: VoterEntry, purpose: Purpose) -> Connection:
        place = _Place(*_address(to), to.key.node_id, purpose)
        opening = self._opening.setdefault(place, _Opening())
        opening.users += 1
        try:
            async with opening.lock:
                known = self._connections.get(place)
                if known is not None and not known.closed:
                    return known
                made = await self._open(place.host, place.port, place.node_id)
                made.on_lost = partial(self._forget, place)
                self._connections[place] = made
                if purpose is Purpose.QUESTION:
                    self.watch.on_connected(BrokerId(place.node_id), made)
                return made
        finally:
            opening.users -= 1
            if not opening.users:
                del self._opening[place]

    def _forget(self, place: _Place, connection: Connection) -> None:
        if self._connections.get(place) is connection:
            del self._connections[place]
            if connection.ended_by_peer:
                self.watch.on_process_ended(BrokerId(place.node_id))

    async def _open(
        self, host: str, port: int, expected_id: int = ANY_NODE, asked_at: str = ""
    ) -> Connection:
        key, own_id, entropy = self._key, self._settings.node_id, self._runtime.entropy
        security = self._settings.security
        if security.mechanism is not None and security.tls is None and not is_loopback(host):
            raise KafkaError(
                ErrorCode.cluster_authorization_failed,
                f"{host}:{port} is on another machine, where this node logs in by TLS only: its listener of "
                "controllers is SASL_PLAINTEXT",
            )

        async def prove_key(connection: Connection) -> None:
            if key is not None:
                await prove(
                    connection,
                    key,
                    own_id,
                    entropy,
                    expected_id=expected_id,
                    asked_at=asked_at,
                    with_secret=self._runtime.with_secret,
                )

        return await Connection.open(
            self._runtime,
            host,
            port,
            client_id=CLIENT_ID,
            setup_timeout_ms=SETUP_TIMEOUT_MS,
            before_use=prove_key,
            security=security,
        )


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
