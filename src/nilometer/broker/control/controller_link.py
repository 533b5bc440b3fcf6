"""How this broker's requests, and those of its clients that it forwards, reach the controller.

:class:`ControllerChannel` has the connections to the controller, if that is another broker, and forwards the
requests of clients. :class:`ControllerLink` makes this broker's own requests: ISR changes, topics, offline
replicas, controlled shutdown. :class:`ProducerIds` requests blocks of producer ids through it, and allocates
from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from nilometer.broker.control import decision_log
from nilometer.broker.control.broker_peers import BrokerPeers
from nilometer.broker.control.controller import Controller, in_turn
from nilometer.broker.control.decision_queue import Client, DecisionQueue
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.request_context import RequestContext
from nilometer.broker.tasks import Tasks
from nilometer.client.network.connection import Connection, ConnectionLost
from nilometer.cluster.controller import isr_changes as decisions
from nilometer.cluster.controller.brokers import (
    ProducerIdBlock,
    decide_allocate_producer_ids,
    decide_controlled_shutdown,
)
from nilometer.cluster.controller.configs import InheritedOf, nothing_inherited
from nilometer.cluster.controller.decision import OK, Outcome, Steps
from nilometer.cluster.controller.isr_changes import decide_forfeit_replicas
from nilometer.cluster.controller.topics import (
    CreatedTopic,
    NewTopic,
    TopicDefaults,
    decide_create_topics,
    without_quota,
)
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    TopicIdPartition,
    topic_id_of,
    uuid_from_text,
)
from nilometer.replication.isr import AlterPartition, AlterPartitionResponse
from nilometer.runtime import Entropy
from nilometer.storage.topic_config import TOPIC_CONFIG
from nilometer.wire import own_apis as forfeit_replicas
from nilometer.wire import own_apis as forward_request
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import RequestHeader, api, decode_response, encode_request, encode_response

__all__ = ["ConnectionLost", "ControllerChannel"]


REQUEST_TIMEOUT_MS = 10_000
CLIENTS_AT_ONCE = 16
"""So many clients have a request under way to the controller at once."""
PROMPT_S = 0.25
"""A request that has waited at the controller for this long lets one of another client be sent, too."""
WAITING_MAX = 240
"""So many requests at once let others be sent while they wait."""
BLOCK_WAIT_MS = 1_000
"""So long a producer waits here for a block of producer ids: another broker may reach the controller."""


class _ControllerConnection:
    """A connection to the controller, opened when it is needed."""

    def __init__(self, client_id: str, peers: BrokerPeers, metadata: MetadataLog) -> None:
        self._client_id = client_id
        self._peers = peers
        self._metadata = metadata
        self._connection: Connection | None = None
        self._connected_to = -1
        self._connecting = asyncio.Lock()

    async def get(self) -> Connection:
        """Return the connection, to the controller of now. Raises KafkaError."""
        async with self._connecting:
            broker_id, host, port = self._endpoint()
            connection = self._connection
            if (
                connection is not None
                and not connection.closed
                and (self._connected_to, connection.host, connection.port) == (broker_id, host, port)
            ):
                return connection
            if connection is not None:
                connection.close()
            self._connection = await self._peers.connect(
                broker_id, host, port, client_id=self._client_id, request_timeout_ms=REQUEST_TIMEOUT_MS
            )
            self._connected_to = broker_id
            return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _endpoint(self) -> tuple[int, str, int]:
        """Return the controller's id, host and port. Raises KafkaError (NOT_CONTROLLER) if none is known."""
        image = self._metadata.image
        broker = image.broker(image.controller_id)
        endpoint = broker.endpoint(self._peers.listener) if broker is not None else None
        if endpoint is None:
            raise KafkaError(ErrorCode.not_controller, "no controller is known")
        return image.controller_id, endpoint.host, endpoint.port


class ControllerChannel:
    """This broker's own requests have a connection for themselves: the controller answers those of one
    connection one after another. Each of the clients that wait for an answer has one, too: a user at an
    address, ``CLIENTS_AT_ONCE`` at most, and ``WAITING_MAX`` that wait for long. Requests of one client are
    sent one after another; clients take turns."""

    def __init__(self, broker_id: int, peers: BrokerPeers, metadata: MetadataLog, tasks: Tasks) -> None:
        client_id = f"forwarded-by-broker-{broker_id}"  # versions without proofs check it
        self._new_connection = partial(_ControllerConnection, client_id, peers, metadata)
        self._own = self._new_connection()
        self._used: dict[_ControllerConnection, None] = {}
        """Those that a client has at the moment."""
        self._unused: list[_ControllerConnection] = []
        """Those of no client, at most ``CLIENTS_AT_ONCE``; the one that was used last is used next."""
        self._tasks = tasks
        self._queue = DecisionQueue(CLIENTS_AT_ONCE, passed_on_max=WAITING_MAX)

    async def forward(
        self, header: RequestHeader, body: Message, context: RequestContext, *, timeout_ms: int | None = None
    ) -> bytes:
        """Forward a client's request; returns the frame of its response, without the length.

        ``timeout_ms``: how long to wait for the response, at least ``REQUEST_TIMEOUT_MS``. Raises KafkaError;
        the outcome of the request is then unknown. Cancelling the caller takes back what is not sent yet;
        what is sent keeps its turn until it is answered.
        """
        within_ms = max(timeout_ms or 0, REQUEST_TIMEOUT_MS)
        client = Client.of(context, header.client_id)

        async def send() -> bytes:
            loop = asyncio.get_running_loop()
            waits_long = loop.call_later(PROMPT_S, self._queue.pass_on, client)
            to_controller = self._take()
            try:
                return await _forward(await to_controller.get(), header, body, context, within_ms)
            finally:
                self._give_back(to_controller)
                waits_long.cancel()

        return await in_turn(self._tasks, self._queue, client, send, "requests sent on to the controller")

    async def call(self, api_key: int, make: Callable[[Api], Message]) -> Message:
        """Send this broker's own request, in the newest version that both brokers know, and return the
        response. ``make`` builds the request for that version. Raises KafkaError."""
        connection = await self._own.get()
        return await connection.request(api_key, make)

    def close(self) -> None:
        for connection in (self._own, *self._used, *self._unused):
            connection.close()

    def _take(self) -> _ControllerConnection:
        taken = self._unused.pop() if self._unused else self._new_connection()
        self._used[taken] = None
        return taken

    def _give_back(self, connection: _ControllerConnection) -> None:
        del self._used[connection]
        if len(self._unused) < CLIENTS_AT_ONCE:
            self._unused.append(connection)
        else:
            connection.close()


async def _forward(
    connection: Connection,
    header: RequestHeader,
    body: Message,
    context: RequestContext,
    answer_timeout_ms: int,
) -> bytes:
    if (
        forward_request.FORWARD_REQUEST not in connection.versions
    ):  # a version without proofs expects the bare request
        answer = await connection.send(body, timeout_ms=answer_timeout_ms)
        return encode_response(header.correlation_id, header.api_key, header.api_version, answer)[4:]
    request = forward_request.ForwardedRequest(
        principal_type=context.principal.type,
        principal_name=context.principal.name,
        client_address=context.client_address,
        client_port=context.client_port,
        listener=context.listener,
        security_protocol=context.security_protocol.value,
        request=encode_request(header.correlation_id, header.client_id, body)[4:],
    )
    response: forward_request.ForwardedResponse = await connection.send(request, timeout_ms=answer_timeout_ms)
    if response.error_code:
        raise KafkaError(ErrorCode(response.error_code), response.message)
    return response.response


AlterPartitionRequests = Sequence[tuple[TopicIdPartition, AlterPartition]]
AlterPartitionResponses = dict[TopicIdPartition, AlterPartitionResponse]

AUTO_CREATION_VERSION = 7
"""The version of CreateTopics in which topics are created for a client: every broker serves it."""


class PartitionQuota(Protocol):
    """A client's quota for the partitions that are created for it."""

    def begin(self) -> None:
        """Take back what was taken since the last :meth:`keep`: a decision may be made again."""
        ...

    def keep(self) -> None:
        """The decision is in force; another one may follow."""
        ...

    def take(self, partitions: int) -> None:
        """Raises Refusal."""
        ...


class RequestingClient(NamedTuple):
    """The client whose request another request is made for."""

    client_id: str | None
    context: RequestContext
    quota: PartitionQuota | None = None
    """It counts if this broker is the controller; another one has its own."""


class ControllerLink:
    def __init__(
        self,
        broker_id: int,
        controller: Controller,
        channel: ControllerChannel,
        metadata: MetadataLog,
        inherited_of: InheritedOf = nothing_inherited,
    ) -> None:
        """``inherited_of``: what topics inherit from the settings of a broker."""
        self._broker_id = BrokerId(broker_id)
        self._inherited_of = inherited_of
        self._controller = controller
        self._channel = channel
        self._metadata = metadata

    @property
    def _broker_epoch(self) -> BrokerEpoch:
        epoch = self._metadata.image.broker_epoch(self._broker_id)
        return NO_BROKER_EPOCH if epoch is None else epoch

    async def alter_partitions(
        self, broker_epoch: int, requests: AlterPartitionRequests
    ) -> AlterPartitionResponses:
        """Request new ISRs; return the outcome by partition.

        ``broker_epoch`` is that of all ``requests``. A partition is missing if the response lacks it.
        """
        if self._controller.is_active:
            asked = [_decision_request(key, request) for key, request in requests]
            altered = await self._controller.decide(
                lambda image: decisions.decide_alter_partitions(
                    image, self._broker_id, BrokerEpoch(broker_epoch), asked
                ),
                decision_log.isr_request(self._broker_id),
            )
            return {one.partition: _answer_of(one) for one in altered}
        response = await self._channel.call(
            ApiKey.ALTER_PARTITION, lambda api: self._alter_partition_request(api, broker_epoch, requests)
        )
        if response.error_code is not ErrorCode.none:
            raise KafkaError(response.error_code, "the controller rejected AlterPartition")
        # This broker must have folded the metadata by which the controller decided (min.insync.replicas, live
        # brokers) before it uses the response; the store has it already.
        await self._metadata.catch_up_with_all()
        return {
            TopicIdPartition(topic_id_of(topic.topic_id), part.partition_index): AlterPartitionResponse(
                error=part.error_code,
                leader_epoch=part.leader_epoch,
                partition_epoch=part.partition_epoch,
                isr=tuple(part.isr),
            )
            for topic in response.topics
            for part in topic.partitions
        }

    async def create_topics(
        self, topics: Sequence[NewTopic], chance: Entropy, client: RequestingClient | None = None
    ) -> dict[str, ErrorCode]:
        """Create topics that have their counts set; return the error of each, by name.

        ``chance`` places the replicas. ``client``: whose request needs them; None: this broker needs them.
        This broker has folded the new topics when this returns.
        """
        if self._controller.is_active:
            cause, quota, asks = decision_log.internal_topic(self._broker_id), None, None
            if client is not None:
                asks = Client.of(client.context, client.client_id)
                cause = decision_log.auto_creation(decision_log.client_name(client.client_id, client.context))
                quota = client.quota

            def decide(image: ClusterImage) -> Steps[tuple[CreatedTopic, ...]]:
                if quota is not None:
                    quota.begin()
                return decide_create_topics.steps(
                    image,
                    topics,
                    config_definition=TOPIC_CONFIG,
                    chance=chance,
                    defaults=TopicDefaults(),
                    inherited_of=self._inherited_of,
                    take_quota=without_quota if quota is None else quota.take,
                )

            created = await self._controller.decide(decide, cause, asks)
            if quota is not None:
                quota.keep()
            return {topic.name: topic.outcome.error for topic in created}
        if client is None:
            response = await self._channel.call(
                ApiKey.CREATE_TOPICS, lambda api: _create_topics_request(api, topics)
            )
        else:
            response = await self._create_for(client, topics)
        await self._metadata.catch_up_with_all()
        return {topic.name: topic.error_code for topic in response.topics}

    async def _create_for(self, client: RequestingClient, topics: Sequence[NewTopic]) -> Message:
        """Forward a CreateTopics request in the client's name, and return its response."""
        codec = api(ApiKey.CREATE_TOPICS, AUTO_CREATION_VERSION)
        header = RequestHeader(codec.key, codec.version, 0, client.client_id, 0)
        frame = await self._channel.forward(header, _create_topics_request(codec, topics), client.context)
        _, response = decode_response(codec.key, codec.version, frame)
        return response

    async def forfeit_replica(self, partition: TopicIdPartition) -> Outcome:
        """Leave the ISR and the ELR of a partition; this broker has folded the change when it returns."""
        (outcome,) = await self._forfeit((partition,), offline=False)
        return outcome

    async def report_offline(self, partitions: Sequence[TopicIdPartition]) -> Sequence[Outcome]:
        """Report replicas that cannot be used any more; this broker has folded the change when it returns."""
        return await self._forfeit(partitions, offline=True)

    async def _forfeit(self, partitions: Sequence[TopicIdPartition], *, offline: bool) -> Sequence[Outcome]:
        if self._controller.is_active:
            forfeited = await self._controller.decide(
                lambda image: decide_forfeit_replicas(
                    image, self._broker_id, self._broker_epoch, partitions, offline=offline
                ),
                decision_log.forfeited_replicas(self._broker_id, offline=offline),
            )
            return [one.outcome for one in forfeited]
        replicas = tuple(
            forfeit_replicas.ReplicaOfPartition(topic_id=key.topic_id, partition=key.partition)
            for key in partitions
        )
        response: forfeit_replicas.ForfeitReplicasResponse = await self._channel.call(
            forfeit_replicas.FORFEIT_REPLICAS,
            lambda api: api.request(
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch,
                replicas=replicas,
                offline=offline,
            ),
        )
        if response.error_code or len(response.outcomes) != len(replicas):
            raise KafkaError(
                ErrorCode(response.error_code), response.message or "the controller rejected ForfeitReplicas"
            )
        await self._metadata.catch_up_with_all()
        return [Outcome(ErrorCode(one.error_code), one.message) for one in response.outcomes]

    async def allocate_producer_ids(self) -> ProducerIdBlock:
        if self._controller.is_active:
            return await self._controller.decide(
                lambda image: decide_allocate_producer_ids(image, self._broker_id, self._broker_epoch),
                decision_log.producer_ids(self._broker_id),
            )
        response = await self._channel.call(
            ApiKey.ALLOCATE_PRODUCER_IDS,
            lambda api: api.request(broker_id=self._broker_id, broker_epoch=self._broker_epoch),
        )
        outcome = OK if response.error_code is ErrorCode.none else Outcome(response.error_code, "rejected")
        return ProducerIdBlock(outcome, response.producer_id_start, response.producer_id_len)

    async def announce_shutdown(self) -> None:
        """Announce a controlled shutdown.

        When this returns, every leadership that can move has moved, and this broker has folded the changes.
        """
        if self._controller.is_active:
            progress = await self._controller.decide(
                lambda image: decide_controlled_shutdown.steps(image, self._broker_id, self._broker_epoch),
                decision_log.shutdown(self._broker_id),
            )
            outcome = progress.outcome
        else:
            response = await self._channel.call(ApiKey.BROKER_HEARTBEAT, self._shutdown_request)
            outcome = Outcome(response.error_code)
        if not outcome.ok:
            raise KafkaError(
                outcome.error, outcome.message or "the controller rejected the controlled shutdown"
            )
        await self._metadata.catch_up_with_all()

    def _shutdown_request(self, api: Api) -> Message:
        return api.request(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch,
            current_metadata_offset=self._metadata.image.number,
            want_fence=False,
            want_shut_down=True,
        )

    def _alter_partition_request(
        self, api: Api, broker_epoch: int, requests: AlterPartitionRequests
    ) -> Message:
        topics: dict[str, list[Message]] = {}
        for key, request in requests:
            topics.setdefault(key.topic_id, []).append(
                api.make_request(
                    "PartitionData",
                    partition_index=key.partition,
                    leader_epoch=request.leader_epoch,
                    new_isr_with_epochs=tuple(
                        api.make_request("BrokerState", broker_id=member, broker_epoch=epoch)
                        for member, epoch in request.new_isr
                    ),
                    leader_recovery_state=0,
                    partition_epoch=request.partition_epoch,
                )
            )
        return api.request(
            broker_id=self._broker_id,
            broker_epoch=broker_epoch,
            topics=tuple(
                api.make_request("TopicData", topic_id=uuid_from_text(topic_id), partitions=tuple(partitions))
                for topic_id, partitions in topics.items()
            ),
        )


def _create_topics_request(api: Api, topics: Sequence[NewTopic]) -> Message:
    return api.request(
        topics=tuple(_creatable_topic(api, topic) for topic in topics),
        timeout_ms=REQUEST_TIMEOUT_MS,
        validate_only=False,
    )


def _creatable_topic(api: Api, topic: NewTopic) -> Message:
    return api.make_request(
        "CreatableTopic",
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=(),
        configs=tuple(
            api.make_request("CreatableTopicConfig", name=name, value=value)
            for name, value in topic.configs.items()
        ),
    )


def _decision_request(key: TopicIdPartition, request: AlterPartition) -> decisions.IsrChange:
    return decisions.IsrChange(
        partition=key,
        leader_epoch=LeaderEpoch(request.leader_epoch),
        partition_epoch=PartitionEpoch(request.partition_epoch),
        new_isr=tuple(
            decisions.IsrMember(BrokerId(member), BrokerEpoch(epoch)) for member, epoch in request.new_isr
        ),
    )


def _answer_of(altered: decisions.AlteredPartition) -> AlterPartitionResponse:
    state = altered.state
    if state is None:
        return AlterPartitionResponse(error=altered.outcome.error)
    return AlterPartitionResponse(
        leader_epoch=state.leader_epoch, partition_epoch=state.partition_epoch, isr=state.isr
    )


# Producer ids for idempotent producers, taken from blocks that the controller allocates to brokers.


class ProducerIds:
    """Allocates producer ids from this broker's current block.

    Invariant: an id is allocated only once in a cluster; ids left in a block when the broker stops stay
    unused.
    """

    def __init__(self, link: ControllerLink, tasks: Tasks) -> None:
        self._link = link
        self._tasks = tasks
        self._next = 0
        self._left = 0
        self._refilling: asyncio.Task[None] | None = None

    async def next(self) -> int:
        """Return a producer id that was never allocated before.

        Raises KafkaError if no new block could be allocated within ``BLOCK_WAIT_MS``: retriable. A block that
        comes later is kept for the next who asks.
        """
        while not self._left:
            if self._refilling is None:
                self._refilling = self._tasks.spawn(self._refill())
            refilling = self._refilling
            done, _ = await asyncio.wait([refilling], timeout=BLOCK_WAIT_MS / 1000)
            if not done:
                raise KafkaError(ErrorCode.coordinator_load_in_progress, "the controller does not respond")
            if self._refilling is refilling:
                self._refilling = None
            refilling.result()
        self._left -= 1
        self._next += 1
        return self._next - 1

    async def _refill(self) -> None:
        block = await self._link.allocate_producer_ids()
        if not block.outcome.ok:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, block.outcome.message or "")
        self._next, self._left = block.first, block.count
