"""Asks all brokers of a cluster for what its health depends on.

A broker that does not respond is a finding, not an error. The brokers are asked in parallel, and each request
has ``timeout_ms``: a check ends within about five time-outs, whatever the brokers do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from nilometer.client.admin.admin import ADMIN_CONFIG_DEFINITION, Admin
from nilometer.client.admin.cluster_health import FailedLogDirectory, Findings, RegisteredNode
from nilometer.client.admin.quorum_admin import QuorumView, describe_request, read_view
from nilometer.client.admin.reassignments import OngoingMove
from nilometer.client.admin.replica_survey import (
    DEFAULT_TIMEOUT_MS,
    BrokerAnswer,
    ReplicaSurvey,
    Survey,
    is_refusal,
)
from nilometer.client.admin.transaction_admin import OpenTransaction, TransactionAdmin
from nilometer.client.network.cluster_metadata import BrokerNode, TopicPartition
from nilometer.client.network.connection import NotServed
from nilometer.client.settings import ClientSettings, GivenConfig, client_security
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError

HANGING_AFTER_MS = 15 * 60_000
"""The default of the brokers' ``transaction.max.timeout.ms``: coordinators abort older transactions."""
FENCED_BROKERS_SINCE = 2
"""The first version of DescribeCluster that lists fenced brokers."""


class HealthCheck:
    """Checks one cluster, over the same connections each time. Use as ``async with``, or :meth:`close` it."""

    def __init__(
        self,
        runtime: Runtime,
        bootstrap: Sequence[str],
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        hanging_after_ms: int = HANGING_AFTER_MS,
        connection: GivenConfig | None = None,
    ) -> None:
        """``bootstrap``: ``host:port`` each. ``timeout_ms``: how long each broker gets to respond.
        ``hanging_after_ms``: how old the last record of a hanging transaction is at least.
        ``connection``: Kafka's settings of clients, those of security for example. Raises ConfigError."""
        self._runtime = runtime
        self._timeout_ms = timeout_ms
        self._hanging_after_ms = hanging_after_ms
        self._connection = {**(connection or {}), "bootstrap.servers": ",".join(bootstrap)}
        security = client_security(ClientSettings(ADMIN_CONFIG_DEFINITION, self._connection))
        self._survey = ReplicaSurvey(runtime, bootstrap, timeout_ms, security)

    async def __aenter__(self) -> HealthCheck:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._survey.close()

    async def check(self, look: Callable[[], Awaitable[Survey]] | None = None) -> Findings:
        """``look``: used in place of :meth:`look`."""
        try:
            survey = await (look or self.look)()
        except KafkaError as error:
            if is_refusal(error):
                return Findings(survey=None, refused=error.message or error.name)
            return Findings(survey=None, unknown=(f"No broker responds: {error.message}",))
        answered = [one for one in survey.brokers if one.answer is not None]
        unknown: list[str] = []
        if refusing := next((one for one in survey.brokers if one.refuses), None):
            refused = f"broker {refusing.broker_id}: {refusing.failure}"
            if not answered:
                return Findings(
                    survey=survey, registered=await self._registered(refusing, unknown), refused=refused
                )
        elif not answered:
            return Findings(survey=survey, unknown=("No broker describes its replicas",))
        else:
            refused = None
        newest = max(answered, key=_metadata_number)
        registered, moves, directories, quorum = await asyncio.gather(
            self._registered(newest, unknown),
            self._moves(newest, unknown),
            self._failed_directories(answered, survey, unknown),
            self._quorum(newest, unknown),
        )
        hanging = await self._hanging(survey, unknown)
        return Findings(
            survey=survey,
            registered=registered,
            moves=moves,
            failed_directories=directories,
            hanging=hanging,
            unknown=tuple(unknown),
            quorum=quorum,
            refused=refused,
        )

    async def look(self) -> Survey:
        """Survey all replicas. Raises KafkaError."""
        try:
            return await self._survey.look()
        except NotServed:  # as by a broker that is stopping: it cannot be connected to any more
            return await self._survey.look()

    async def _ask(self, broker: BrokerAnswer, key: ApiKey, make: Callable[[Api], Message]) -> Message:
        """Raises KafkaError."""
        assert broker.node is not None, "a broker that responded has an address"
        outcome = await self._survey.ask(broker.node, key, make)
        if isinstance(outcome, KafkaError):
            raise outcome
        return outcome

    async def _registered(self, broker: BrokerAnswer, unknown: list[str]) -> tuple[RegisteredNode, ...]:
        def make(api: Api) -> Message:
            fenced_too = {"include_fenced_brokers": True} if api.version >= FENCED_BROKERS_SINCE else {}
            return api.request(include_cluster_authorized_operations=False, **fenced_too)

        try:
            response = await self._ask(broker, ApiKey.DESCRIBE_CLUSTER, make)
        except KafkaError as error:
            unknown.append(f"Which brokers are registered is not known: {error.message}")
            return ()
        return tuple(
            RegisteredNode(
                id=one.broker_id, host=one.host, port=one.port, is_fenced=getattr(one, "is_fenced", False)
            )
            for one in response.brokers
        )

    async def _quorum(self, broker: BrokerAnswer, unknown: list[str]) -> QuorumView | str | None:
        try:
            found = read_view(await self._ask(broker, ApiKey.DESCRIBE_QUORUM, describe_request))
        except KafkaError as error:
            if error.code is ErrorCode.leader_not_available:
                return error.message
            unknown.append(f"The metadata quorum is not known: {error.message}")
            return None
        return found if found.is_of_brokers else None

    async def _moves(self, broker: BrokerAnswer, unknown: list[str]) -> Mapping[TopicPartition, OngoingMove]:
        def make(api: Api) -> Message:
            return api.request(topics=None, timeout_ms=self._timeout_ms)

        try:
            response = await self._ask(broker, ApiKey.LIST_PARTITION_REASSIGNMENTS, make)
        except KafkaError as error:
            unknown.append(f"The reassignments are not known: {error.message}")
            return {}
        return {
            TopicPartition(topic.name, part.partition_index): OngoingMove(
                tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
            )
            for topic in response.topics
            for part in topic.partitions
        }

    async def _failed_directories(
        self, brokers: Sequence[BrokerAnswer], survey: Survey, unknown: list[str]
    ) -> tuple[FailedLogDirectory, ...]:
        async def ask(broker: BrokerAnswer) -> list[FailedLogDirectory]:
            try:
                response = await self._ask(
                    broker, ApiKey.DESCRIBE_LOG_DIRS, lambda api: api.request(topics=())
                )
            except KafkaError as error:
                unknown.append(
                    f"The log directories of broker {broker.broker_id} are not known: {error.message}"
                )
                return []
            return [
                FailedLogDirectory(
                    broker_id=broker.broker_id,
                    path=one.log_dir,
                    reason=_why_failed(survey, broker.broker_id, one.log_dir),
                )
                for one in response.results
                if one.error_code != ErrorCode.none
            ]

        found = await asyncio.gather(*map(ask, brokers))
        return tuple(one for several in found for one in several)

    async def _hanging(self, survey: Survey, unknown: list[str]) -> tuple[OpenTransaction, ...]:
        """Return the transactions that are open in a partition, but unknown to their coordinator."""
        places = list(_with_open_transactions(survey))
        if not places:
            return ()
        nodes = [one.node for one in survey.brokers if one.answer is not None and one.node is not None]
        try:
            async with asyncio.timeout(self._timeout_ms / 1000), self._admin(nodes) as admin:
                transactions = TransactionAdmin(admin.client, self._timeout_ms)
                hanging, problems = await transactions.find_hanging(places, self._hanging_after_ms)
        except TimeoutError:
            unknown.append(f"Hanging transactions are not known: no response within {self._timeout_ms} ms")
            return ()
        except KafkaError as error:
            unknown.append(f"Hanging transactions are not known: {error.message}")
            return ()
        unknown.extend(
            f"Hanging transactions of {place} are not known: {error.message}"
            for place, error in problems.items()
        )
        return tuple(hanging)

    def _admin(self, nodes: Iterable[BrokerNode]) -> Admin:
        servers = ",".join(_server(node) for node in nodes)
        own = {"bootstrap.servers": servers, "default.api.timeout.ms": self._timeout_ms}
        return Admin(self._runtime, {**self._connection, **own})


def _server(node: BrokerNode) -> str:
    return f"[{node.host}]:{node.port}" if ":" in node.host else f"{node.host}:{node.port}"


def _metadata_number(broker: BrokerAnswer) -> int:
    return -1 if broker.answer is None else broker.answer.broker.metadata_number


def _with_open_transactions(survey: Survey) -> Iterable[TopicPartition]:
    """Yield the partitions in which a transaction is open: their last stable offset is held back."""
    for row in survey.rows:
        state = row.state
        if state is not None and state.leader is not None and state.last_stable_offset < state.high_watermark:
            yield TopicPartition(row.topic, row.partition)


def _why_failed(survey: Survey, broker_id: int, path: str) -> str:
    """Return the error of a failed log directory, as the broker reports it of a replica in there."""
    for row in survey.rows:
        for problem in row.state.problems if row.state is not None and row.broker_id == broker_id else ():
            if path in problem:
                return problem
    return "the broker's log has the error"
