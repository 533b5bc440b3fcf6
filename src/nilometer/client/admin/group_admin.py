"""The admin client for consumer groups; ``nilometer group`` uses it.

Lists are requested from all brokers, everything else from the group's coordinator. Classic groups and groups
of the consumer protocol (KIP-848) are described by the same values. An operation on several groups returns
one outcome per group: the result, or the group's KafkaError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nilometer.client.group.committer import Committer
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_exchange import (
    TOPIC_IDS_SINCE,
    MemberIdentity,
    OffsetAndMetadata,
    fetch_offsets_request,
    read_fetched_offsets,
)
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition, numbers_by_topic
from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from nilometer.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from nilometer.wire.describe_rebalances import RebalanceState
from nilometer.wire.errors import ErrorCode, KafkaError, MalformedMessage
from nilometer.wire.messages import Api, Message

T = TypeVar("T")

CLASSIC, CONSUMER = "classic", "consumer"
STATES_SINCE, TYPES_SINCE = 4, 5
DEAD, EMPTY = "Dead", "Empty"
STATES = (
    *(EMPTY, "Stable", "PreparingRebalance", "CompletingRebalance"),
    *("Assigning", "Reconciling", DEAD),  # the first two are of the consumer protocol alone
)
_NOT_A_CONSUMER_GROUP = frozenset({ErrorCode.group_id_not_found, ErrorCode.unsupported_version})
"""Error codes of ConsumerGroupDescribe for a classic group: from a broker with and without KIP-848."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    group_type: str
    state: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    topics: tuple[str, ...] = ()
    """The subscribed topics; empty if the member's metadata is not in Kafka's consumer format."""
    target: tuple[TopicPartition, ...] | None = None
    """The target assignment of the consumer protocol (KIP-848); None for a classic group."""
    epoch: int | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    group_type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator_id: int
    members: tuple[MemberDescription, ...]
    epoch: int | None = None
    assignment_epoch: int | None = None
    last_rebalance: RebalanceState | None = None
    """The group's last rebalance; None from a coordinator that is not a Nilometer broker."""

    def owner(self, partition: TopicPartition) -> MemberDescription | None:
        return next((member for member in self.members if partition in member.assignment), None)


class GroupAdmin:
    def __init__(self, client: Client, timeout_ms: int) -> None:
        self._client = client
        self._timeout_ms = timeout_ms
        self._coordinators: dict[str, Coordinator] = {}

    async def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        """Return the groups of all brokers, sorted by group id. Raises KafkaError.

        ``states`` and ``types``, if not empty, limit the result to groups in one of these.
        """

        def make(api: Api) -> Message:
            return api.request(
                **({"states_filter": tuple(states)} if api.version >= STATES_SINCE else {}),
                **({"types_filter": tuple(types)} if api.version >= TYPES_SINCE else {}),
            )

        async def ask(broker_id: int) -> list[GroupListing]:
            response = await self._client.send_to(broker_id, ApiKey.LIST_GROUPS, make)
            if response.error_code != ErrorCode.none:
                raise KafkaError(response.error_code, f"listing the groups of broker {broker_id}")
            return [
                GroupListing(
                    group.group_id,
                    getattr(group, "group_type", "").lower() or CLASSIC,
                    getattr(group, "group_state", ""),
                    group.protocol_type,
                )
                for group in response.groups
            ]

        async def ask_all() -> list[GroupListing]:
            brokers = sorted(self._client.metadata.brokers)
            found = await asyncio.gather(*(ask(broker_id) for broker_id in brokers))
            return [one for several in found for one in several]

        listed = {group.group_id: group for group in await self._client.retry(ask_all, self._timeout_ms)}
        return [
            group
            for _, group in sorted(listed.items())
            if (not states or group.state in states) and (not types or group.group_type in types)
        ]

    async def describe(self, group_ids: Sequence[str]) -> dict[str, GroupDescription | KafkaError]:
        return await self._each(group_ids, self._describe)

    async def committed(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all committed offsets of a group. Raises KafkaError."""
        coordinator = self._coordinator(group_id)

        async def ask() -> dict[TopicPartition, OffsetAndMetadata]:
            response = await coordinator.ask(
                ApiKey.OFFSET_FETCH,
                lambda api: fetch_offsets_request(api, group_id, None, {}, MemberIdentity()),
                at_most=TOPIC_IDS_SINCE - 1,  # names, so that deleted topics can be reported
            )
            code, found = read_fetched_offsets(response, {})
            coordinator.check(code, "fetching committed offsets")
            for partition, (part_code, _) in found.items():
                if part_code != ErrorCode.none:
                    raise KafkaError(part_code, f"committed offset of {partition}")
            return {partition: one for partition, (_, one) in sorted(found.items()) if one is not None}

        return await self._client.retry(ask, self._timeout_ms)

    async def alter_offsets(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit ``offsets`` for a group that has no active members. Raises KafkaError."""
        committer = Committer(
            self._client, self._coordinator(group_id), MemberIdentity, lambda _code, _identity: None
        )
        await committer.commit(offsets, self._timeout_ms)

    async def delete(self, group_ids: Sequence[str]) -> dict[str, KafkaError | None]:
        return await self._each(group_ids, self._delete)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Delete committed offsets of topics that no member subscribes to; return the outcome per partition.

        Raises KafkaError if the coordinator rejects the whole request.
        """
        by_topic = numbers_by_topic(partitions)

        def make(api: Api) -> Message:
            return api.request(
                group_id=group_id,
                topics=tuple(
                    api.make_request(
                        "OffsetDeleteRequestTopic",
                        name=topic,
                        partitions=tuple(
                            api.make_request("OffsetDeleteRequestPartition", partition_index=number)
                            for number in numbers
                        ),
                    )
                    for topic, numbers in by_topic.items()
                ),
            )

        coordinator = self._coordinator(group_id)

        async def ask() -> dict[TopicPartition, KafkaError | None]:
            response = await coordinator.ask(ApiKey.OFFSET_DELETE, make)
            coordinator.check(response.error_code, "deleting offsets")
            return {
                (place := TopicPartition(topic.name, part.partition_index)): None
                if part.error_code == ErrorCode.none
                else KafkaError(part.error_code, str(place))
                for topic in response.topics
                for part in topic.partitions
            }

        return await self._client.retry(ask, self._timeout_ms)

    # --- one group

    async def _describe(self, group_id: str) -> GroupDescription:
        coordinator = self._coordinator(group_id)

        async def ask() -> GroupDescription:
            try:
                return await self._describe_consumer(coordinator)
            except KafkaError as error:
                if error.code not in _NOT_A_CONSUMER_GROUP:
                    raise
            return await self._describe_classic(coordinator)

        return await self._client.retry(ask, self._timeout_ms)

    async def _describe_consumer(self, coordinator: Coordinator) -> GroupDescription:
        response = await coordinator.ask(
            ApiKey.CONSUMER_GROUP_DESCRIBE, lambda api: api.request(group_ids=(coordinator.key,))
        )
        (group,) = response.groups
        coordinator.check(group.error_code, group.error_message or "describing it")
        return GroupDescription(
            group_id=group.group_id,
            group_type=CONSUMER,
            state=group.group_state,
            protocol_type=PROTOCOL_TYPE,
            assignor=group.assignor_name,
            coordinator_id=await coordinator.find(),
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    host=member.client_host,
                    assignment=_partitions(member.assignment),
                    topics=tuple(member.subscribed_topic_names),
                    target=_partitions(member.target_assignment),
                    epoch=member.member_epoch,
                    rack=member.rack_id,
                )
                for member in group.members
            ),
            epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
            last_rebalance=await self._last_rebalance(coordinator),
        )

    async def _describe_classic(self, coordinator: Coordinator) -> GroupDescription:
        response = await coordinator.ask(
            ApiKey.DESCRIBE_GROUPS, lambda api: api.request(groups=(coordinator.key,))
        )
        (group,) = response.groups
        coordinator.check(group.error_code, getattr(group, "error_message", None) or "describing it")
        if group.group_state == DEAD:
            raise KafkaError(ErrorCode.group_id_not_found, f"group {group.group_id} not found")
        return GroupDescription(
            group_id=group.group_id,
            group_type=CLASSIC,
            state=group.group_state,
            protocol_type=group.protocol_type,
            assignor=group.protocol_data,
            coordinator_id=await coordinator.find(),
            members=tuple(_classic_member(member, group.protocol_type) for member in group.members),
            last_rebalance=await self._last_rebalance(coordinator),
        )

    async def _last_rebalance(self, coordinator: Coordinator) -> RebalanceState | None:
        """Return the group's last rebalance, or None.

        None if the coordinator is not a Nilometer broker or remembers no rebalance. Raises KafkaError.
        """
        try:
            response = await coordinator.ask(
                NilometerApiKey.DESCRIBE_REBALANCES, lambda api: api.request(groups=(coordinator.key,))
            )
        except KafkaError as error:
            if error.code != ErrorCode.unsupported_version:
                raise
            return None
        state = next(iter(response.groups), None)
        return state if isinstance(state, RebalanceState) and state.reason is not None else None

    async def _delete(self, group_id: str) -> None:
        coordinator = self._coordinator(group_id)

        async def ask() -> None:
            response = await coordinator.ask(
                ApiKey.DELETE_GROUPS, lambda api: api.request(groups_names=(group_id,))
            )
            coordinator.check(response.results[0].error_code, "deleting it")

        await self._client.retry(ask, self._timeout_ms)

    # --- helpers

    def _coordinator(self, group_id: str) -> Coordinator:
        return self._coordinators.setdefault(group_id, Coordinator(self._client, group_id))

    async def _each(
        self, group_ids: Sequence[str], work: Callable[[str], Awaitable[T]]
    ) -> dict[str, T | KafkaError]:
        async def attempt(group_id: str) -> T | KafkaError:
            try:
                return await work(group_id)
            except KafkaError as error:
                return error

        outcomes = await asyncio.gather(*(attempt(group_id) for group_id in group_ids))
        return dict(zip(group_ids, outcomes, strict=True))


def _partitions(assignment: Message) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, number)
        for topic in assignment.topic_partitions
        for number in sorted(topic.partitions)
    )


def _classic_member(member: Message, protocol_type: str) -> MemberDescription:
    assignment: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    if protocol_type == PROTOCOL_TYPE:
        try:
            found = decode_assignment(member.member_assignment).partitions
            assignment = tuple(sorted(TopicPartition(topic, number) for topic, number in found))
            topics = decode_subscription(member.member_metadata).topics if member.member_metadata else ()
        except MalformedMessage:
            pass  # The client writes its own format under this protocol name: describe the rest.
    return MemberDescription(
        member_id=member.member_id,
        instance_id=getattr(member, "group_instance_id", None),
        client_id=member.client_id,
        host=member.client_host,
        assignment=assignment,
        topics=topics,
    )
