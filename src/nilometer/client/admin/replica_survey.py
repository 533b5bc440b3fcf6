"""A survey: the state of every replica of a cluster, as the broker that holds it describes it.

Sends DescribeReplicas to all brokers in parallel and merges the responses into one row per assigned replica,
also for replicas whose broker does not respond. Brokers are found through Metadata; a broker seen once is
queried again even when the cluster no longer lists it.

Invariants:
- a survey takes at most a few time-outs, however many brokers hang; one, if the brokers are known already;
- nothing is made up: a state that no broker reported is None, together with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from nilometer.client.network.cluster_metadata import (
    BrokerNode,
    ClusterMetadata,
    MetadataAnswer,
    metadata_request,
    read_metadata,
)
from nilometer.client.network.connection import Connection, ConnectionLost, MakeRequest, NotServed
from nilometer.client.settings import NO_SECURITY, ClientSecurity, parse_server
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.errors import ErrorCode, KafkaError, UnsupportedVersion
from nilometer.wire.own_apis import (
    DESCRIBE_REPLICAS,
    LEADER,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    RemoteReplicaState,
    ReplicaState,
)

T = TypeVar("T")
_Address = tuple[str, int]
_PartitionKey = tuple[str, int]

DEFAULT_TIMEOUT_MS = 2_000
REFUSALS = frozenset(
    {
        ErrorCode.sasl_authentication_failed,
        ErrorCode.unsupported_sasl_mechanism,
        ErrorCode.illegal_sasl_state,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.topic_authorization_failed,
    }
)
UNLISTED = "it is not in the cluster's metadata"


class NoBrokerResponds(ConnectionLost):
    """No bootstrap server responds."""

    def __init__(self, failures: Mapping[_Address, KafkaError]) -> None:
        super().__init__("; ".join(error.message or error.code.name for error in failures.values()))
        self.failures = failures
        """Why, by address (host, port)."""


@dataclass(frozen=True, slots=True)
class BrokerAnswer:
    broker_id: int
    node: BrokerNode | None
    """The broker's address as last listed; None if it was never listed."""
    answer: DescribeReplicasResponse | None
    failure: str | None
    """Why ``answer`` is None."""
    refuses: bool = False
    """Whether it responds, but does not describe its replicas to this user."""


class ReplicaRow(msgspec.Struct, frozen=True, gc=False):
    """One of many thousands: it refers to values only, so the collector need not visit it."""

    topic: str
    partition: int
    broker_id: int
    state: ReplicaState | None
    """The state that the replica's broker reports; None if it did not report the replica."""
    failure: str | None
    in_sync: bool | None
    """Whether the newest response's committed ISR contains the broker; None if no broker reports the ISR."""
    seen_by_leader: RemoteReplicaState | None
    """The follower's state as its leader sees it."""


@dataclass(frozen=True, slots=True)
class Survey:
    cluster_id: str | None
    controller_id: int
    brokers: tuple[BrokerAnswer, ...]
    rows: tuple[ReplicaRow, ...]
    missing_topics: tuple[str, ...]
    metadata: ClusterMetadata
    """The metadata of the broker that has applied the most entries of the metadata log."""

    @property
    def is_complete(self) -> bool:
        """Whether every replica was described by its own broker."""
        is_described = all(row.state is not None for row in self.rows)
        return is_described and not self.missing_topics and not any(one.refuses for one in self.brokers)

    def of_brokers(self, broker_ids: Sequence[int]) -> Survey:
        """Return the survey with only the replicas that these brokers hold."""
        return replace(
            self,
            brokers=tuple(one for one in self.brokers if one.broker_id in broker_ids),
            rows=tuple(row for row in self.rows if row.broker_id in broker_ids),
        )


@dataclass(frozen=True, slots=True)
class _Asked:
    broker: BrokerAnswer
    metadata: MetadataAnswer | None

    @property
    def metadata_number(self) -> int:
        answer = self.broker.answer
        return -1 if answer is None else answer.broker.metadata_number


@dataclass(slots=True)
class ReplicaSurvey:
    """Makes surveys, all over the same connections. Use as ``async with``.

    ``timeout_ms`` is the time that each broker gets to respond.
    """

    runtime: Runtime
    bootstrap: Sequence[str]
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    security: ClientSecurity = NO_SECURITY
    _connections: dict[_Address, Connection] = field(default_factory=dict[_Address, Connection])
    _nodes: dict[int, BrokerNode] = field(default_factory=dict[int, BrokerNode])

    async def __aenter__(self) -> ReplicaSurvey:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def look(
        self,
        topics: Sequence[str] | None = None,
        partitions: Sequence[int] | None = None,
        *,
        segments: bool = False,
    ) -> Survey:
        """Survey the replicas of ``topics`` and of the partitions with these indexes (None: of all).

        ``segments``: with the segments of their logs, of a few replicas. Raises KafkaError if no broker
        responds, or this user may not describe one of ``topics``.
        """
        wanted = DescribeReplicasRequest(
            topics=None if topics is None else tuple(topics),
            partitions=None if partitions is None else tuple(partitions),
            segments=segments,
        )
        asked = await self._ask_all(wanted)
        if not _answered(asked):
            await self._bootstrap()
            asked = await self._ask_all(wanted)
        if not _answered(asked):
            reasons = "; ".join(f"broker {id_}: {one.broker.failure}" for id_, one in asked.items())
            raise ConnectionLost(f"no broker of the cluster responds: {reasons}")
        return _survey(asked, partitions)

    async def _ask_all(self, wanted: DescribeReplicasRequest) -> dict[int, _Asked]:
        """Query all known brokers, and the brokers that their metadata lists; return the results by id."""
        asked: dict[int, _Asked] = {}
        while fresh := [node for node in self._nodes.values() if node.node_id not in asked]:
            for one in await asyncio.gather(*(self._ask(node, wanted) for node in fresh)):
                asked[one.broker.broker_id] = one
                self._learn(one.metadata)
        return asked

    async def _bootstrap(self) -> None:
        """Learn the brokers of the cluster from the bootstrap servers.

        Raises NoBrokerResponds, or the error of a server that refuses this client.
        """
        addresses = [parse_server(text) for text in self.bootstrap]
        outcomes = await asyncio.gather(
            *(self._attempt(address, self._metadata(address, ())) for address in addresses)
        )
        found = [outcome for outcome in outcomes if not isinstance(outcome, KafkaError)]
        for answer in found:
            self._learn(answer)
        if not found:
            failures = {
                address: outcome
                for address, outcome in zip(addresses, outcomes, strict=True)
                if isinstance(outcome, KafkaError)
            }
            for error in failures.values():
                if is_refusal(error):
                    raise error
            raise NoBrokerResponds(failures)

    def _learn(self, answer: MetadataAnswer | None) -> None:
        if answer is not None:
            self._nodes.update(answer.metadata.brokers)

    async def _metadata(self, address: _Address, topics: Sequence[str] | None) -> MetadataAnswer:
        connection = await self._connection(address)
        return read_metadata(
            await connection.request(ApiKey.METADATA, lambda api: metadata_request(api, topics))
        )

    async def _ask(self, node: BrokerNode, wanted: DescribeReplicasRequest) -> _Asked:
        """Request metadata and replica states from one broker."""
        address = (node.host, node.port)

        async def ask() -> tuple[MetadataAnswer, BrokerAnswer]:
            await self._connection(address)
            return await asyncio.gather(  # this side reads the metadata while the broker describes
                self._metadata(address, wanted.topics), self._describe(node, wanted)
            )

        outcome = await self._attempt(address, ask())
        if isinstance(outcome, KafkaError):
            reason = outcome.message or outcome.code.name
            return _Asked(BrokerAnswer(node.node_id, node, None, reason), None)
        metadata, described = outcome
        return _Asked(described, metadata)

    async def ask(self, node: BrokerNode, key: int, make: MakeRequest) -> Message | KafkaError:
        """Send another request to a broker; return its response, or the error after ``timeout_ms``."""
        address = (node.host, node.port)

        async def ask() -> Message:
            return await (await self._connection(address)).request(key, make)

        return await self._attempt(address, ask())

    async def _describe(self, node: BrokerNode, wanted: DescribeReplicasRequest) -> BrokerAnswer:
        """Return the broker's response, or the reason why it cannot be used. Raises KafkaError."""

        def without(reason: str, *, refuses: bool = False) -> BrokerAnswer:
            return BrokerAnswer(node.node_id, node, None, reason, refuses)

        connection = await self._connection((node.host, node.port))
        try:
            answer: DescribeReplicasResponse = await connection.request(
                DESCRIBE_REPLICAS, lambda _api: wanted
            )
        except UnsupportedVersion:
            return without(
                "it does not support DescribeReplicas: it is not a Nilometer broker, or an older version"
            )
        if answer.error_code:
            code = ErrorCode(answer.error_code)
            return without(
                f"it does not describe its replicas ({code.name.upper()}): "
                "the user needs DESCRIBE on the cluster",
                refuses=True,
            )
        if answer.broker.broker_id != node.node_id:
            return without(f"broker {answer.broker.broker_id} responds at its address")
        return BrokerAnswer(node.node_id, node, answer, None)

    async def _attempt(self, address: _Address, work: Coroutine[object, object, T]) -> T | KafkaError:
        """Return the result of ``work``, or its error. After a time-out the connection is closed."""
        try:
            async with asyncio.timeout(self.timeout_ms / 1000):
                return await work
        except TimeoutError:
            connection = self._connections.pop(address, None)
            if connection is not None:
                connection.close("no response in time")
            return ConnectionLost(f"no response from {address[0]}:{address[1]} within {self.timeout_ms} ms")
        except KafkaError as error:
            return error

    async def _connection(self, address: _Address) -> Connection:
        known = self._connections.get(address)
        if known is not None and not known.closed:
            return known
        connection = await Connection.open(self.runtime, *address, security=self.security)
        self._connections[address] = connection
        return connection


def is_refusal(error: KafkaError) -> bool:
    """Whether a broker runs, but refuses this client: it has no user, a wrong one, or few rights."""
    return isinstance(error, NotServed) or error.code in REFUSALS


def _answered(asked: Mapping[int, _Asked]) -> bool:
    return any(one.metadata is not None for one in asked.values())


def _survey(asked: Mapping[int, _Asked], partitions: Sequence[int] | None) -> Survey:
    answers = {broker_id: one.broker for broker_id, one in asked.items()}
    newest = max(
        (one for one in asked.values() if one.metadata is not None), key=lambda one: one.metadata_number
    )
    assert newest.metadata is not None
    for topic, code in newest.metadata.errors.items():
        if code is ErrorCode.topic_authorization_failed:
            raise KafkaError(code, f"topic {topic}: the user needs DESCRIBE on it")
    metadata = newest.metadata.metadata
    rows = _rows(metadata, answers, partitions)
    for broker_id in {row.broker_id: None for row in rows}:
        answers.setdefault(broker_id, BrokerAnswer(broker_id, None, None, UNLISTED))
    return Survey(
        metadata.cluster_id,
        metadata.controller_id,
        tuple(answers[broker_id] for broker_id in sorted(answers)),
        rows,
        tuple(sorted(newest.metadata.errors)),
        metadata,
    )


def _rows(
    metadata: ClusterMetadata, answers: Mapping[int, BrokerAnswer], partitions: Sequence[int] | None
) -> tuple[ReplicaRow, ...]:
    states: dict[_PartitionKey, dict[int, ReplicaState]] = {}
    for answer in answers.values():
        for state in answer.answer.replicas if answer.answer is not None else ():
            states.setdefault((state.topic, state.partition), {})[answer.broker_id] = state
    assigned: dict[_PartitionKey, tuple[int, ...]] = {
        (topic.name, part.partition): part.replicas
        for topic in metadata.topics.values()
        for part in topic.partitions
        if partitions is None or part.partition in partitions
    }
    rows: list[ReplicaRow] = []
    for key in sorted(assigned.keys() | states.keys()):
        known = states.get(key, {})
        replicas, isr = _newest_assignment(known.values()) or (assigned[key], None)
        leader = _leader(known.values())
        followers = leader.leader.followers if leader is not None and leader.leader is not None else ()
        others = () if known.keys() == set(replicas) else sorted(known.keys() - set(replicas))
        for broker_id in (*replicas, *others):
            state = known.get(broker_id)
            rows.append(
                ReplicaRow(
                    *key,
                    broker_id,
                    state,
                    None if state is not None else _why_unknown(answers.get(broker_id)),
                    None if isr is None else broker_id in isr,
                    next((one for one in followers if one.broker_id == broker_id), None),
                )
            )
    return tuple(rows)


def _why_unknown(answer: BrokerAnswer | None) -> str:
    if answer is None:
        return UNLISTED
    return answer.failure or "it does not host this replica yet"


def _newest_assignment(states: Iterable[ReplicaState]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    newest = max(states, key=lambda state: state.partition_epoch, default=None)
    return None if newest is None else (newest.replicas, newest.isr)


def _leader(states: Iterable[ReplicaState]) -> ReplicaState | None:
    """Return the leader with the highest epoch: one of an older epoch may not have stepped down yet."""
    leaders = [state for state in states if state.role == LEADER]
    return max(leaders, key=lambda state: state.leader_epoch, default=None)
