"""The listeners of controllers: what the other nodes of a metadata quorum ask of this one.

A connection is served nothing before it is let in (:class:`~nilometer.broker.settings.quorum.Admittance`).
One whose other side only asks who listens gets that response, and is closed.
Its requests are answered in their order, each as soon as it can be; how many wait is limited by the
connection.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from typing_extensions import Buffer

from nilometer.broker.authentication.handshakes import ListenerHandshakes, UnauthenticatedConnections
from nilometer.broker.authentication.sasl import (
    AUTHENTICATE_VERSIONS,
    HANDSHAKE_VERSIONS,
    SaslGate,
    SaslListener,
)
from nilometer.broker.connection import Connection, Dispatcher, ServedConnection
from nilometer.broker.connection_memory import RequestMemory, ResponseMemory
from nilometer.broker.quorum.description import (
    controllers_response,
    metadata_partition,
    quorum_fields,
    unavailable_partition,
    voting_nodes,
)
from nilometer.broker.quorum.key_file import Proving, QuorumKey, address_text
from nilometer.broker.rejected_batches import RejectedTotal
from nilometer.broker.request_context import RequestContext
from nilometer.broker.responses import CloseConnection, Response
from nilometer.broker.settings.listeners import Endpoint
from nilometer.broker.settings.quorum import Admittance, QuorumSettings
from nilometer.broker.turns import Turns
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.quorum.node import QuorumNode
from nilometer.coordination.quorum.peers import (
    Describe,
    PeerUnavailable,
    Proposal,
    ReadIndex,
    Renewal,
    Request,
)
from nilometer.coordination.store import SessionName, StoreUnavailable
from nilometer.raft import messages as quorum_messages
from nilometer.raft.control_records import VoterEntry
from nilometer.raft.exchange import BeginEpochRequest
from nilometer.raft.messages import NodeAddress, Received
from nilometer.raft.voter_changes import (
    CHANGE_VERSIONS,
    audited,
    change_response,
    other_cluster,
    read_change_request,
)
from nilometer.raft.voters import VoterKey
from nilometer.runtime import Runtime
from nilometer.runtime.handshakes import Admitted, HandshakeGate
from nilometer.security.principal import BROKER, USER, Principal, subject_of
from nilometer.wire import messages, own_apis
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import NONE, ErrorCode, KafkaError, MalformedMessage

logger = logging.getLogger("nilometer.broker.quorum")
connections_logger = logging.getLogger("nilometer.broker.connections")
"""Its lines are bounded: who has proved nothing causes them."""

CONNECTIONS_MAX = 1_000
"""Of those that are let in."""
UNPROVED_MAX = 500
"""How many connections may be open that are not let in yet: the oldest one is closed for one more."""
HANDSHAKES_MAX = 500
"""How many TLS handshakes a listener may have: the oldest one ends for one more."""
PER_ADDRESS_MAX = 50
"""How many connections that are not let in yet an address may have."""
PROOF_TIMEOUT_S = 5.0
FRAME_BYTES_BEFORE = 4 * 1024
FRAME_BYTES_MAX = 16 << 20
REQUEST_BYTES_MAX = 8 * 1024
"""Of a request of Kafka's, which is about one partition: a larger one may name a million, and all are decoded
and answered at once."""
API_VERSIONS_NEWEST = 4
UNKNOWN_NODE = 1 << 30
"""The id of a node in its connection's context, if it is let in without saying who it is."""

SERVED: dict[int, tuple[int, int]] = {
    int(ApiKey.API_VERSIONS): (0, API_VERSIONS_NEWEST),
    **{int(key): (version, version) for key, version in quorum_messages.VERSIONS.items()},
    **{int(key): versions for key, versions in CHANGE_VERSIONS.items()},
    int(ApiKey.DESCRIBE_QUORUM): (0, 2),
    int(ApiKey.DESCRIBE_CLUSTER): (1, 1),
    int(own_apis.PROVE_BROKER): (0, 0),
    int(own_apis.ASK_QUORUM): (0, 0),
}
SERVED_WITH_SASL = {
    **SERVED,
    int(ApiKey.SASL_HANDSHAKE): HANDSHAKE_VERSIONS,
    int(ApiKey.SASL_AUTHENTICATE): AUTHENTICATE_VERSIONS,
}
"""The requests that a listener with SASL names; those of SASL are for its gate."""


class _HandshakeLimit:
    """Implements :class:`~nilometer.broker.authentication.handshakes.Admission`: of all addresses together a
    listener has ``HANDSHAKES_MAX`` handshakes, and the oldest one ends for one more, so that silent
    connections keep no node out."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        """By listener."""

    def begin(self, listener: str, address: str) -> Admitted:
        is_full = self._open[listener] >= HANDSHAKES_MAX
        self._open[listener] += 1
        return Admitted(replaces_oldest=is_full)

    def end(self, listener: str, address: str) -> None:
        self._open[listener] -= 1


StandingOf = Callable[[], own_apis.QuorumStanding]
MayAct = Callable[[RequestContext], bool]
NoteChange = Callable[[RequestContext, str, Iterable[dict[str, object]]], None]


class QuorumService:
    """Implements :class:`~nilometer.broker.listening.Connections` and
    :class:`~nilometer.broker.connection.Dispatcher`."""

    def __init__(
        self, settings: QuorumSettings, runtime: Runtime, key: QuorumKey | None, own: VoterKey, turns: Turns
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._key = key
        self._own = own
        self._turns = turns
        clock_ms = runtime.clock.monotonic_ms
        self._requests, self._memory = RequestMemory(clock_ms), ResponseMemory(clock_ms)
        self._rejected = RejectedTotal()
        self._waiting = UnauthenticatedConnections(PER_ADDRESS_MAX)
        self._handshakes = _HandshakeLimit()
        self._sasl = {
            name: SaslListener(one, ClusterImage, bytes, runtime) for name, one in settings.sasl.items()
        }
        self._fetching_keys: list[asyncio.Task[None]] = []
        self._proving: dict[Connection, tuple[Proving | None, asyncio.TimerHandle]] = {}
        """The connections that are not let in yet."""
        self._let_in_now: dict[Connection, None] = {}
        self.standing: StandingOf | None = None
        self.node: QuorumNode | None = None
        """None before this node takes part."""
        self.cluster_id: str | None = None
        self.may_act: MayAct | None = None
        """Whether an ACL lets a user act as a node; None as long as the ACLs are not known here."""
        self.note_change: NoteChange | None = None
        """Notes a change of the voters that came by this listener; None if there is no audit log."""

    async def open(self) -> None:
        """Fetch the keys by which tokens are validated, and go on fetching them. Call it before the listeners
        are opened."""
        for sasl in self._sasl.values():
            keys = None if sasl.tokens is None else sasl.tokens.fetched
            if keys is not None:
                await keys.fetch()
                self._fetching_keys.append(asyncio.create_task(keys.run()))

    def close(self) -> None:
        for fetching in self._fetching_keys:
            fetching.cancel()
        for connection in (*self._proving, *self._let_in_now):
            connection.close()

    # ── connections ─────────────────────────────────────────────────────────────────────────────
    def new_connection(self, endpoint: Endpoint) -> ServedConnection:
        context = RequestContext(listener=endpoint.name, security_protocol=endpoint.protocol)
        shared = self._turns, self._memory, self._rejected
        gate: Dispatcher = self
        sasl = self._sasl.get(endpoint.name)
        if sasl is not None:
            gate = SaslGate(sasl, self, FRAME_BYTES_MAX)
        return ServedConnection(
            gate, self._bytes_before(sasl), connections_logger.info, self._requests, context, *shared
        )

    @staticmethod
    def _bytes_before(sasl: SaslListener | None) -> int:
        """How long a request may be before the connection has proved anything: a token is longer."""
        return FRAME_BYTES_BEFORE if sasl is None else sasl.settings.receive_bytes_max

    def handshakes(self, endpoint: Endpoint) -> HandshakeGate:
        return ListenerHandshakes(endpoint.name, self._waiting, self._handshakes)

    def connection_opened(self, connection: Connection) -> bool:
        address = connection.peer[0]
        if not self._waiting.take(address):
            return False
        if len(self._proving) >= UNPROVED_MAX:
            oldest = next(iter(self._proving))
            self._end_proving(oldest)
            oldest.abort("it has not proved itself, and too many connections wait to")
        loop = asyncio.get_running_loop()
        timer = loop.call_later(PROOF_TIMEOUT_S, connection.close, "it did not prove itself in time")
        self._proving[connection] = self._new_proving(), timer
        if self._settings.admittance is Admittance.LOOPBACK:
            return self._let_in(connection, UNKNOWN_NODE)
        if self._settings.admittance is Admittance.CERTIFICATE:
            user = self._user_of(connection)
            if user is None or str(user) not in self._settings.accepted_users:
                connections_logger.warning(
                    "%s:%d is not let in: its user, %.200r, is none of super.users",
                    *connection.peer,
                    None if user is None else str(user),
                )
                return False
            return self._let_in(connection, UNKNOWN_NODE, user)
        return True

    def _new_proving(self) -> Proving | None:
        own = self._settings.own
        if self._key is None:
            return None
        address = "" if own is None else address_text(own.host, own.port)
        runtime = self._runtime
        return Proving(self._key, runtime.entropy, self._settings.node_id, address, runtime.with_secret)

    def _user_of(self, connection: Connection) -> Principal | None:
        tls = self._settings.tls.get(connection.context.listener)
        if connection.certificate is None or tls is None:
            return None
        try:
            return Principal(USER, tls.mapping.name_of(subject_of(connection.certificate)))
        except ValueError:
            return None

    def _let_in(self, connection: Connection, node_id: int, user: Principal | None = None) -> bool:
        """Let a connection send every request from now on; return false if ``CONNECTIONS_MAX`` are let in
        already. ``user``: the one that its certificate names; None if it was let in otherwise."""
        self._end_proving(connection)
        if len(self._let_in_now) >= CONNECTIONS_MAX:
            return False
        self._let_in_now[connection] = None
        has_sasl = connection.context.listener in self._sasl
        known = connection.context.principal if has_sasl else user
        principal = known or Principal(BROKER, "unknown" if node_id == UNKNOWN_NODE else str(node_id))
        connection.context = dataclasses.replace(connection.context, broker_id=node_id, principal=principal)
        if not has_sasl:  # else a session has it, which may end
            connection.hand_over(self, FRAME_BYTES_MAX)
        return True

    def _end_proving(self, connection: Connection) -> None:
        found = self._proving.pop(connection, None)
        if found is not None:
            found[1].cancel()
            self._waiting.release(connection.peer[0])

    def connection_closed(self, connection: Connection) -> None:
        self._let_in_now.pop(connection, None)
        self._end_proving(connection)

    # ── requests ────────────────────────────────────────────────────────────────────────────────
    def may_pipeline(self, frame: Buffer) -> bool:
        return True

    def request_failed(self, error: BaseException) -> None:
        logger.error("A request of another node of the metadata quorum failed", exc_info=error)

    def dispatch(self, frame: Buffer, connection: Connection) -> asyncio.Future[Response] | Response:
        try:
            context = connection.context
            has_sasl = context.listener in self._sasl
            if has_sasl and not context.must_authenticate and not context.is_broker:
                self._on_login(connection)
            header = messages.decode_request_header(frame)  # type: ignore[arg-type]
            connection.last_api = key = header.api_key
            version = header.api_version
            served = SERVED_WITH_SASL if has_sasl else SERVED
            low, high = SERVED.get(key, (1, 0))
            if key == ApiKey.API_VERSIONS and version > high:
                return (messages.encode_unsupported_api_versions(header.correlation_id, served),)
            if not low <= version <= high:
                raise CloseConnection(f"version {version} of API {key} is not served by controllers")
            size = memoryview(frame).nbytes
            if size > REQUEST_BYTES_MAX and key != own_apis.ASK_QUORUM:
                raise CloseConnection(f"a request of {size} bytes (at most {REQUEST_BYTES_MAX})")
            is_open = key in (ApiKey.API_VERSIONS, own_apis.PROVE_BROKER)
            is_let_in = connection.context.is_broker
            if not is_open and not is_let_in and not (key == own_apis.ASK_QUORUM and self._asks(connection)):
                raise CloseConnection("it asked before it proved itself")
            _, body = messages.decode_request(frame)  # type: ignore[arg-type]
        except MalformedMessage as error:
            raise CloseConnection(f"malformed request: {error.message}") from None
        if key == ApiKey.API_VERSIONS:
            return _reply(header, _versions(version, served))
        if key == own_apis.PROVE_BROKER:
            return _reply(header, self._prove(connection, body))
        if not is_let_in:
            return _reply(header, self._who_it_is(connection, body))
        return asyncio.ensure_future(self._answered(header, body, connection.context))

    def _on_login(self, connection: Connection) -> None:
        """Let a user in that has logged in, or have it prove the key as well. Raises CloseConnection."""
        user = str(connection.context.principal)
        may_act = user in self._settings.accepted_users or (
            self.may_act is not None and self.may_act(connection.context)
        )
        if not may_act:
            connections_logger.warning(
                "%s:%d is not let in: its user, %.200r, is none of super.users and has no CLUSTER_ACTION",
                *connection.peer,
                user,
            )
            raise CloseConnection("its user may not act as a node")
        if self._key is None and not self._let_in(connection, UNKNOWN_NODE):
            raise CloseConnection("too many connections of nodes")

    def _prove(
        self, connection: Connection, request: own_apis.ProveBrokerRequest
    ) -> own_apis.ProveBrokerResponse:
        proving = self._proving.get(connection, (None, None))[0]
        answer = None if proving is None else proving.answer(request)
        if proving is None or answer is None:
            connections_logger.warning(
                "%s:%d is not let in: it does not have the key of nilometer.quorum.secret.file",
                *connection.peer,
            )
            raise CloseConnection("its proof is wrong")
        if answer.error_code:
            self._close_after_response(connection)
        elif proving.is_proved and not proving.only_asks and not self._let_in(connection, proving.node_id):
            raise CloseConnection("too many connections of nodes")
        return answer

    def _asks(self, connection: Connection) -> bool:
        """Whether the other side has proved that it is a node which asks who this one is."""
        proving = self._proving.get(connection, (None, None))[0]
        return proving is not None and proving.is_proved

    def _who_it_is(
        self, connection: Connection, asked: own_apis.AskQuorumRequest
    ) -> own_apis.AskQuorumResponse:
        if not isinstance(asked.question, own_apis.AskStanding):
            raise CloseConnection("it may ask who listens, and nothing else")
        self._close_after_response(connection)
        return self._own_standing()

    def _close_after_response(self, connection: Connection) -> None:
        self._end_proving(connection)
        asyncio.get_running_loop().call_soon(connection.close)

    async def _answered(self, header: messages.RequestHeader, body: Any, context: RequestContext) -> Response:
        try:
            if header.api_key == own_apis.ASK_QUORUM:
                return _reply(header, await self._answer_question(body))
            key = ApiKey(header.api_key)
            if key in CHANGE_VERSIONS:
                return _reply(header, await self._change(key, header.api_version, body, context))
            if key in (ApiKey.DESCRIBE_QUORUM, ApiKey.DESCRIBE_CLUSTER):
                return _reply(header, await self._describe(messages.api(key, header.api_version), body))
            return _reply(header, await self._serve(key, body))
        except (PeerUnavailable, KafkaError) as error:
            raise CloseConnection(f"no response: {error}") from error

    async def _serve(self, key: ApiKey, message: Any) -> Message:
        read, write = _FORMS[key]
        received: Received[Any] = read(message)
        error = quorum_messages.refusal(received, self._own, self.cluster_id)
        if error is not NONE:
            return quorum_messages.refused(key, error)
        node = self._taking_part()
        if isinstance(received.request, BeginEpochRequest):
            node.on_announced(received.request, received.endpoints)
        return write(await node.serve(received.request), node)

    async def _change(self, key: ApiKey, version: int, message: Any, context: RequestContext) -> Message:
        node = self._taking_part()
        result = other_cluster(message.cluster_id, self.cluster_id)
        if result is None:
            change = read_change_request(key, message)
            result = await node.serve(change)
            noted = audited(change, result)
            if noted is not None and self.note_change is not None:
                self.note_change(context, key.name, (noted,))
        return change_response(key, version, result, node.epoch, _leader(node))

    async def _describe(self, api: Api, message: Any) -> Message:
        """As Kafka's admin client asks that is given controllers (KIP-919)."""
        node = self._taking_part()
        if api.key == ApiKey.DESCRIBE_CLUSTER:
            return controllers_response(api, message, self.cluster_id, node.leader(), node.voters())
        try:
            found = metadata_partition(api, await node.describe(), self._runtime.clock.wall_ms())
        except StoreUnavailable as error:
            found = unavailable_partition(api, str(error))
        return api.response(**quorum_fields(api, message, found, voting_nodes(api, node.voters())))

    def _taking_part(self) -> QuorumNode:
        if self.node is None:
            raise PeerUnavailable("this node does not take part yet")
        return self.node

    def _own_standing(self) -> own_apis.AskQuorumResponse:
        return own_apis.AskQuorumResponse(standing=None if self.standing is None else self.standing())

    async def _answer_question(self, asked: own_apis.AskQuorumRequest) -> own_apis.AskQuorumResponse:
        question = asked.question
        if isinstance(question, own_apis.AskStanding):
            return self._own_standing()
        if None not in (asked.cluster_id, self.cluster_id) and asked.cluster_id != self.cluster_id:
            return own_apis.AskQuorumResponse(
                error_code=int(ErrorCode.inconsistent_cluster_id),
                message=f"this is a node of cluster {self.cluster_id}",
            )
        return await _answer_to(question, self._taking_part())


async def _answer_to(
    question: own_apis.Propose | own_apis.RenewSession | own_apis.AskCommitted | own_apis.AskReplicas,
    node: QuorumNode,
) -> own_apis.AskQuorumResponse:
    request: Request
    if isinstance(question, own_apis.Propose):
        request = Proposal(question.command)
        proposed = await node.serve(request)
        offset = -1 if proposed.offset is None else proposed.offset
        return own_apis.AskQuorumResponse(offset=offset, epoch=proposed.epoch)
    if isinstance(question, own_apis.RenewSession):
        request = Renewal(SessionName(question.broker_id, question.incarnation))
        return own_apis.AskQuorumResponse(renewed=await node.serve(request))
    if isinstance(question, own_apis.AskReplicas):
        return own_apis.AskQuorumResponse(description=await node.serve(Describe()))
    committed = await node.serve(ReadIndex())
    return own_apis.AskQuorumResponse(offset=-1 if committed is None else committed)


# ── forms of the messages ───────────────────────────────────────────────────────────────────────
def _write_fetch(answer: Any, node: QuorumNode) -> Message:
    start = node.replica.log_start_offset
    return quorum_messages.fetch_response(answer.response, answer.records, start, _leader(node))


def _write_snapshot(answer: Any, node: QuorumNode) -> Message:
    return quorum_messages.snapshot_response(answer.response, answer.part, _leader(node))


_FORMS: dict[ApiKey, tuple[Callable[[Any], Received[Any]], Callable[[Any, QuorumNode], Message]]] = {
    ApiKey.VOTE: (
        quorum_messages.read_vote_request,
        lambda answer, node: quorum_messages.vote_response(answer, _leader(node)),
    ),
    ApiKey.BEGIN_QUORUM_EPOCH: (
        quorum_messages.read_begin_request,
        lambda answer, node: quorum_messages.begin_response(answer, _leader(node)),
    ),
    ApiKey.END_QUORUM_EPOCH: (
        quorum_messages.read_end_request,
        lambda answer, node: quorum_messages.end_response(answer, _leader(node)),
    ),
    ApiKey.FETCH: (quorum_messages.read_fetch_request, _write_fetch),
    ApiKey.FETCH_SNAPSHOT: (quorum_messages.read_snapshot_request, _write_snapshot),
}


def _leader(node: QuorumNode) -> NodeAddress | None:
    entry: VoterEntry | None = node.leader()
    if entry is None or not entry.endpoints:
        return None
    return NodeAddress(entry.key.node_id, entry.endpoints[0].host, entry.endpoints[0].port)


def _versions(version: int, served: Mapping[int, tuple[int, int]]) -> Message:
    api = messages.api(int(ApiKey.API_VERSIONS), version)
    keys = tuple(
        api.make("ApiVersion", api_key=key, min_version=low, max_version=high)
        for key, (low, high) in sorted(served.items())
    )
    return api.response(error_code=NONE, api_keys=keys)


def _reply(header: messages.RequestHeader, response: Message) -> Response:
    return (messages.encode_response(header.correlation_id, header.api_key, header.api_version, response),)
