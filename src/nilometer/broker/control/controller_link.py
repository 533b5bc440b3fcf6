"""How does this broker make its own requests to the controller, be that itself or another broker?

:class:`ControllerLink` requests ISR changes, topics, blocks of producer ids and a controlled shutdown, and
reports offline replicas. It decides with the controller of this broker if that is active, and otherwise sends
the request through the :class:`~.controller_channel.ControllerChannel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from nilometer.broker.control import decision_log
from nilometer.broker.control.controller import Controller
from nilometer.broker.control.controller_channel import REQUEST_TIMEOUT_MS, ControllerChannel
from nilometer.broker.control.decision_queue import Client
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.request_context import RequestContext
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
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import RequestHeader, api, decode_response

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
