"""The admin client for groups; ``nilometer group`` uses it.

Lists are requested from all brokers, everything else from the group's coordinator. Classic groups, groups of
the consumer protocol (KIP-848), share groups (KIP-932) and streams groups (KIP-1071) are described by the
same values. An operation on several groups returns one outcome per group: the result, or the group's
KafkaError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from nilometer.client.admin.group_descriptions import (
    CLASSIC,
    READ_BY_API,
    SHARE,
    STREAMS,
    GroupDescription,
    GroupListing,
    ShareOffset,
    alter_share_offsets_request,
    check_altered_share_offsets,
    classic_group,
    committed_offsets,
    delete_share_offsets_request,
    describe_share_offsets_request,
    read_deleted_share_offsets,
    read_share_offsets,
)
from nilometer.client.admin.requests import AdminRequests
from nilometer.client.group.committer import Committer
from nilometer.client.group.coordinator import Coordinator
from nilometer.client.group.group_exchange import (
    SEVERAL_GROUPS_SINCE,
    TOPIC_IDS_SINCE,
    MemberIdentity,
    OffsetAndMetadata,
    fetch_all_offsets_request,
    fetched_groups,
)
from nilometer.client.network.client import Client, no_such_topic, topic_exists
from nilometer.client.network.cluster_metadata import TopicPartition, numbers_by_topic
from nilometer.client.network.connection_pool import MAIN_CHANNEL
from nilometer.client.offset_queries import READ_COMMITTED, READ_UNCOMMITTED, list_offsets
from nilometer.client.positions import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from nilometer.wire.api_keys import AnyApiKey, ApiKey, NilometerApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError, UnsupportedVersion
from nilometer.wire.own_apis import RebalanceState, SharePartitionsOfTopic, SharePartitionState

T = TypeVar("T")

STATES_SINCE, TYPES_SINCE = 4, 5
_OF_ANOTHER_TYPE = frozenset({ErrorCode.group_id_not_found, ErrorCode.unsupported_version})
"""Error codes for a group of another type: from a broker that serves the type, and one that does not."""
GROUPS_AT_ONCE = 64
"""So many groups are asked for in one request, which brokers handle as a whole."""
PARTITIONS_AT_ONCE = 64
"""So many share partitions are described by one request."""


class GroupAdmin(AdminRequests):
    def __init__(self, client: Client, timeout_ms: int) -> None:
        super().__init__(client, timeout_ms)
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

        listed = {group.group_id: group for group in await self._all(ask)}
        return [
            group
            for _, group in sorted(listed.items())
            if (not states or group.state in states) and (not types or group.group_type in types)
        ]

    async def describe(self, group_ids: Sequence[str]) -> dict[str, GroupDescription | KafkaError]:
        return await self._of_coordinators(group_ids, self._describe)

    async def committed(
        self, group_id: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group, all or those of ``partitions``. Raises KafkaError.

        Only with ``partitions`` this waits for the first offset of a partition that a transaction has
        committed, and whose end is not written yet: brokers leave it out of all.
        """
        ask = partial(self._committed, partitions=partitions)
        found = (await self._of_coordinators((group_id,), ask))[group_id]
        if isinstance(found, KafkaError):
            raise found
        return found

    async def committed_of(
        self, group_ids: Sequence[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | KafkaError]:
        """Return all committed offsets of each group, or why they could not be read."""
        return await self._of_coordinators(group_ids, self._committed)

    async def share_offsets_of(
        self, group_ids: Sequence[str]
    ) -> dict[str, dict[TopicPartition, ShareOffset] | KafkaError]:
        """Return where each share group reads its partitions from, or why that could not be read."""
        return await self._of_coordinators(group_ids, self._share_offsets)

    async def share_partitions(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, SharePartitionState | KafkaError]:
        """Return which records of a share group's partitions each member has, and how often they were
        delivered, or why that is not known: the leaders are asked, each once.

        An error of a broker that is no Nilometer broker: UNSUPPORTED_VERSION.
        """
        await reachable(self._client, partitions)
        metadata = self._client.metadata
        found: dict[TopicPartition, SharePartitionState | KafkaError] = {}
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            leader = metadata.leader(partition)
            if leader is None:
                found[partition] = KafkaError(ErrorCode.leader_not_available, f"{partition} has no leader")
            else:
                by_leader.setdefault(leader.node_id, []).append(partition)
        asked = [
            (leader, of_leader[first : first + PARTITIONS_AT_ONCE])
            for leader, of_leader in by_leader.items()
            for first in range(0, len(of_leader), PARTITIONS_AT_ONCE)
        ]
        for answers in await asyncio.gather(*(self._share_partitions_of(group_id, *one) for one in asked)):
            found |= answers
        return found

    async def _share_partitions_of(
        self, group_id: str, broker_id: int, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, SharePartitionState | KafkaError]:
        topics = tuple(
            SharePartitionsOfTopic(topic=topic, partitions=tuple(numbers))
            for topic, numbers in numbers_by_topic(partitions).items()
        )
        try:
            response = await self._client.send_to(
                broker_id,
                NilometerApiKey.DESCRIBE_SHARE_PARTITIONS,
                lambda api: api.request(group_id=group_id, topics=topics),
            )
        except KafkaError as error:
            return dict.fromkeys(partitions, error)
        found: dict[TopicPartition, SharePartitionState | KafkaError] = {}
        states: Sequence[SharePartitionState] = response.partitions
        for one in states:
            place = TopicPartition(one.topic, one.partition)
            code = ErrorCode(one.error_code)
            found[place] = one if code == ErrorCode.none else KafkaError(code, str(place))
        code = ErrorCode(response.error_code or ErrorCode.unknown_server_error)
        missing = KafkaError(code, f"broker {broker_id} did not describe it")
        return {partition: found.get(partition, missing) for partition in partitions}

    async def alter_share_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the start offsets of a share group that has no members. Raises KafkaError."""
        coordinator = self._coordinator(group_id)

        async def ask() -> None:
            response = await coordinator.ask(
                ApiKey.ALTER_SHARE_GROUP_OFFSETS,
                lambda api: alter_share_offsets_request(api, group_id, offsets),
            )
            coordinator.check(response.error_code, response.error_message or "altering its offsets")
            check_altered_share_offsets(response)

        await self._client.retry(ask, self._timeout_ms)

    async def delete_share_offsets(
        self, group_id: str, topics: Sequence[str]
    ) -> dict[str, KafkaError | None]:
        """Forget where a share group without members reads topics from; return the outcome by topic.

        Raises KafkaError if the coordinator rejects the whole request.
        """
        coordinator = self._coordinator(group_id)

        async def ask() -> dict[str, KafkaError | None]:
            response = await coordinator.ask(
                ApiKey.DELETE_SHARE_GROUP_OFFSETS,
                lambda api: delete_share_offsets_request(api, group_id, topics),
            )
            coordinator.check(response.error_code, response.error_message or "deleting its offsets")
            return read_deleted_share_offsets(response)

        return await self._client.retry(ask, self._timeout_ms)

    async def positions(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return from where a group goes on: its committed offsets, or the start offsets of a share group.
        Raises KafkaError."""
        if not await self._is_shared(group_id):
            return await self.committed(group_id)
        found = (await self.share_offsets_of((group_id,)))[group_id]
        if isinstance(found, KafkaError):
            raise found
        return {
            partition: OffsetAndMetadata(one.start_offset)
            for partition, one in found.items()
            if one.start_offset is not None
        }

    async def set_positions(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Let a group without members go on from these offsets, whatever its type. Raises KafkaError."""
        if await self._is_shared(group_id):
            await self.alter_share_offsets(group_id, offsets)
        else:
            await self.alter_offsets(
                group_id, {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
            )

    async def _is_shared(self, group_id: str) -> bool:
        found = (await self.describe((group_id,)))[group_id]
        return isinstance(found, GroupDescription) and found.group_type == SHARE

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

    # --- the groups of one coordinator

    async def _committed(
        self,
        broker_id: int,
        group_ids: Sequence[str],
        partitions: Collection[TopicPartition] | None = None,
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | KafkaError]:
        connection = await self._client.connections.get(broker_id, MAIN_CHANNEL)
        # Topics by name, so that deleted ones can be reported.
        api_key, at_most = ApiKey.OFFSET_FETCH, TOPIC_IDS_SINCE - 1
        several = connection.api(api_key, at_most).version >= SEVERAL_GROUPS_SINCE
        found: list[Message] = []
        for asked in (tuple(group_ids),) if several else zip(group_ids):
            response = await connection.request(
                api_key,
                partial(fetch_all_offsets_request, group_ids=asked, partitions=partitions),
                at_most=at_most,
            )
            found += fetched_groups(response)
        return {
            group_id: committed_offsets(group_id, group)
            for group_id, group in zip(group_ids, found, strict=True)
        }

    async def _describe(
        self, broker_id: int, group_ids: Sequence[str]
    ) -> dict[str, GroupDescription | KafkaError]:
        described: dict[str, GroupDescription | KafkaError] = {}
        others: Sequence[str] = group_ids
        for api_key, read in READ_BY_API.items():
            if others:
                described |= await self._describe_typed(broker_id, api_key, others, read)
                others = _of_another_type(described)
        if others:
            described |= await self._describe_classic(broker_id, others)
        described |= await self._without_missing_partitions(described)
        there = [group_id for group_id, one in described.items() if isinstance(one, GroupDescription)]
        rebalances = await self._last_rebalances(broker_id, there)
        return {
            group_id: one
            if isinstance(one, KafkaError)
            else replace(one, last_rebalance=rebalances.get(group_id))
            for group_id, one in described.items()
        }

    async def _describe_typed(
        self,
        broker_id: int,
        api_key: AnyApiKey,
        group_ids: Sequence[str],
        read: Callable[[Message, int], GroupDescription | KafkaError],
    ) -> dict[str, GroupDescription | KafkaError]:
        """Ask with the API of one type of group."""
        try:
            response = await self._client.send_to(
                broker_id, api_key, lambda api: api.request(group_ids=tuple(group_ids))
            )
        except UnsupportedVersion as error:
            return dict.fromkeys(group_ids, error)
        return {group.group_id: read(group, broker_id) for group in response.groups}

    async def _without_missing_partitions(
        self, described: Mapping[str, GroupDescription | KafkaError]
    ) -> dict[str, GroupDescription | KafkaError]:
        """Return the streams groups of ``described``, each member with partitions that exist.

        A task has a number, and reads the partitions of that number of the source topics that have so many.
        """
        groups = {
            group_id: one
            for group_id, one in described.items()
            if isinstance(one, GroupDescription) and one.group_type == STREAMS
        }
        topics = {topic for one in groups.values() for member in one.members for topic in member.topics}
        if not topics:
            return {**groups}
        self._client.watch_topics(sorted(topics))
        metadata = await self._client.refresh()

        def there(partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
            return tuple(one for one in partitions if metadata.partition(one) is not None)

        return {
            group_id: replace(
                one,
                members=tuple(
                    replace(member, assignment=there(member.assignment), target=there(member.target or ()))
                    for member in one.members
                ),
            )
            for group_id, one in groups.items()
        }

    async def _share_offsets(
        self, broker_id: int, group_ids: Sequence[str]
    ) -> dict[str, dict[TopicPartition, ShareOffset] | KafkaError]:
        response = await self._client.send_to(
            broker_id,
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            lambda api: describe_share_offsets_request(api, group_ids),
        )
        return read_share_offsets(response)

    async def _describe_classic(
        self, broker_id: int, group_ids: Sequence[str]
    ) -> dict[str, GroupDescription | KafkaError]:
        response = await self._client.send_to(
            broker_id, ApiKey.DESCRIBE_GROUPS, lambda api: api.request(groups=tuple(group_ids))
        )
        return {group.group_id: classic_group(group, broker_id) for group in response.groups}

    async def _last_rebalances(self, broker_id: int, group_ids: Sequence[str]) -> dict[str, RebalanceState]:
        """Return the last rebalance of each group of which the coordinator remembers one; none if it is not a
        Nilometer broker. Raises KafkaError."""
        if not group_ids:
            return {}
        try:
            response = await self._client.send_to(
                broker_id,
                NilometerApiKey.DESCRIBE_REBALANCES,
                lambda api: api.request(groups=tuple(group_ids)),
            )
        except UnsupportedVersion:
            return {}
        states = [state for state in response.groups if isinstance(state, RebalanceState)]
        return {state.group_id: state for state in states if state.reason is not None}

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

    async def _of_coordinators(
        self,
        group_ids: Sequence[str],
        ask: Callable[[int, Sequence[str]], Awaitable[Mapping[str, T | KafkaError]]],
    ) -> dict[str, T | KafkaError]:
        """Return what ``ask`` returns of each group; it is called with a coordinator's broker id and some of
        its groups, and again for the groups whose error is retriable."""
        found: dict[str, T | KafkaError] = {}

        def missing() -> list[Coordinator]:
            return [
                self._coordinator(group_id)
                for group_id in group_ids
                if not _is_final(found.get(group_id, _NOT_ASKED))
            ]

        async def ask_some(broker_id: int, asked: Sequence[Coordinator]) -> None:
            try:
                answers = await ask(broker_id, [one.key for one in asked])
            except KafkaError as error:
                answers = dict.fromkeys((one.key for one in asked), error)
            for one in asked:
                answer = found[one.key] = answers[one.key]
                if isinstance(answer, KafkaError):
                    one.on_error(answer.code, broker_id)

        async def ask_all() -> None:
            asked = missing()
            found.update(await Coordinator.find_each(self._client, asked))
            by_broker: dict[int, list[Coordinator]] = {}
            for one in asked:
                if one.node_id is not None:
                    by_broker.setdefault(one.node_id, []).append(one)
            await asyncio.gather(
                *(
                    ask_some(broker_id, of_broker[first : first + GROUPS_AT_ONCE])
                    for broker_id, of_broker in by_broker.items()
                    for first in range(0, len(of_broker), GROUPS_AT_ONCE)
                )
            )
            for one in missing():
                error = found[one.key]
                assert isinstance(error, KafkaError)
                raise error

        try:
            await self._client.retry(ask_all, self._timeout_ms)
        except KafkaError as error:
            for one in missing():
                found[one.key] = error
        return {group_id: found[group_id] for group_id in group_ids}

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


def _of_another_type(described: Mapping[str, GroupDescription | KafkaError]) -> list[str]:
    return [
        group_id
        for group_id, one in described.items()
        if isinstance(one, KafkaError) and one.code in _OF_ANOTHER_TYPE
    ]


_NOT_ASKED = KafkaError(ErrorCode.request_timed_out)


def _is_final(answer: object) -> bool:
    return not (isinstance(answer, KafkaError) and answer.retriable)


# The lag of a group per partition, and the offsets that a reset would commit. Sends ListOffsets requests.
#
# *Lag* is the number of offsets from the committed offset to the high watermark; for a ``read_committed``
# reader, to the last stable offset. A partition without a leader (or of a deleted topic) has unknown log
# offsets: they are None.


@dataclass(frozen=True, slots=True)
class PartitionLag:
    partition: TopicPartition
    committed: int | None
    leader_epoch: int
    log_start_offset: int | None
    high_watermark: int | None
    last_stable_offset: int | None
    metadata: str = ""

    @property
    def lag(self) -> int | None:
        return _behind(self.committed, self.high_watermark)

    @property
    def stable_lag(self) -> int | None:
        return _behind(self.committed, self.last_stable_offset)


def _behind(committed: int | None, end: int | None) -> int | None:
    return None if committed is None or end is None else max(end - committed, 0)


async def lags(
    client: Client,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    also: Iterable[TopicPartition],
    timeout_ms: int,
) -> list[PartitionLag]:
    """Return the lag of each partition of ``committed`` and ``also``, sorted. Raises KafkaError."""
    wanted = sorted({*committed, *also})
    there = await reachable(client, wanted)
    starts = await _ends(client, there, EARLIEST_TIMESTAMP, READ_UNCOMMITTED, timeout_ms)
    high = await _ends(client, there, LATEST_TIMESTAMP, READ_UNCOMMITTED, timeout_ms)
    stable = await _ends(client, there, LATEST_TIMESTAMP, READ_COMMITTED, timeout_ms)
    found: list[PartitionLag] = []
    for partition in wanted:
        one = committed.get(partition)
        found.append(
            PartitionLag(
                partition,
                one.offset if one is not None else None,
                one.leader_epoch if one is not None else -1,
                starts.get(partition),
                high.get(partition),
                stable.get(partition),
                one.metadata if one is not None else "",
            )
        )
    return found


async def lags_by_topic(
    client: Client, committed: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]], timeout_ms: int
) -> dict[str, dict[str, int]]:
    """Return how far each group is behind the high watermarks of each topic that it has committed offsets of,
    without the partitions whose ends are not known.

    One look-up for the partitions of all groups. Raises KafkaError.
    """
    wanted = sorted({partition for offsets in committed.values() for partition in offsets})
    high = await _ends(
        client, await reachable(client, wanted), LATEST_TIMESTAMP, READ_UNCOMMITTED, timeout_ms
    )
    found: dict[str, dict[str, int]] = {}
    for group_id, offsets in committed.items():
        of_group = found[group_id] = dict[str, int]()
        for partition, one in offsets.items():
            behind = _behind(one.offset, high.get(partition))
            if behind is not None:
                of_group[partition.topic] = of_group.get(partition.topic, 0) + behind
    return found


async def reachable(client: Client, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Refresh the metadata and return those of ``partitions`` that exist and have a leader."""
    client.watch_topics(sorted({partition.topic for partition in partitions}))
    metadata = await client.refresh()
    return [partition for partition in partitions if metadata.leader(partition) is not None]


async def partitions_of(
    client: Client, topic: str, numbers: Sequence[int], timeout_ms: int
) -> list[TopicPartition]:
    """Return the partitions of ``topic`` with ``numbers``, or all if ``numbers`` is empty.

    Raises KafkaError if the topic or one of the partitions does not exist.
    """
    if not await topic_exists(client, topic, timeout_ms):
        raise no_such_topic(topic)
    found = await client.topic(topic, timeout_ms)
    count = len(found.partitions)
    for number in numbers:
        if number >= count:
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {topic} has {count} partitions; there is no partition {number}",
            )
    return [TopicPartition(topic, number) for number in (sorted(set(numbers)) or range(count))]


@dataclass(frozen=True, slots=True)
class ResetTo:
    """The target of an offset reset: exactly one field is set.

    ``shift_by`` is relative to the committed offset; ``timestamp_ms`` means the first record at or after it.
    """

    earliest: bool = False
    latest: bool = False
    current: bool = False
    offset: int | None = None
    shift_by: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedReset:
    partition: TopicPartition
    before: int | None
    after: int
    note: str = ""
    """Why ``after`` differs from the requested offset; empty if it does not."""


async def plan_reset(
    client: Client,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    to: ResetTo,
    timeout_ms: int,
) -> list[PlannedReset]:
    """Return the offset that a reset would commit for each partition, without committing it.

    An offset outside the log is replaced by the log start offset or the high watermark, whichever is nearer.
    Raises KafkaError.
    """
    starts = await _ends(client, partitions, EARLIEST_TIMESTAMP, READ_UNCOMMITTED, timeout_ms)
    ends = await _ends(client, partitions, LATEST_TIMESTAMP, READ_UNCOMMITTED, timeout_ms)
    times: Mapping[TopicPartition, int] = {}
    if to.timestamp_ms is not None:
        times = await _ends(client, partitions, to.timestamp_ms, READ_UNCOMMITTED, timeout_ms)
    return [
        planned(
            partition, committed.get(partition), to, starts[partition], ends[partition], times.get(partition)
        )
        for partition in partitions
    ]


def planned(
    partition: TopicPartition,
    committed: OffsetAndMetadata | None,
    to: ResetTo,
    start: int,
    end: int,
    by_time: int | None,
) -> PlannedReset:
    """Return the reset of one partition whose log is ``[start, end)``.

    ``by_time`` is the offset found for ``to.timestamp_ms``; negative or None if no record is that late.
    Raises KafkaError for a shift without a committed offset.
    """
    before = committed.offset if committed is not None else None
    if to.earliest:
        return PlannedReset(partition, before, start)
    if to.latest:
        return PlannedReset(partition, before, end)
    if to.timestamp_ms is not None:
        if by_time is None or by_time < 0:
            return PlannedReset(
                partition, before, end, "no record with this timestamp or a later one: end of the log"
            )
        return PlannedReset(partition, before, by_time)
    if to.current:
        note = "" if before is not None else "no committed offset: end of the log"
        return PlannedReset(partition, before, end if before is None else before, note)
    if to.shift_by is not None:
        if before is None:
            raise KafkaError(ErrorCode.invalid_request, f"{partition}: there is no committed offset to shift")
        wanted = before + to.shift_by
    else:
        assert to.offset is not None
        wanted = to.offset
    after = min(max(wanted, start), end)
    if after == wanted:
        return PlannedReset(partition, before, after)
    return PlannedReset(partition, before, after, f"{wanted} is outside the log [{start}, {end}]")


async def _ends(
    client: Client,
    partitions: Sequence[TopicPartition],
    timestamp: int,
    isolation_level: int,
    timeout_ms: int,
) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    found = await list_offsets(client, dict.fromkeys(partitions, timestamp), isolation_level, timeout_ms)
    return {partition: one.offset for partition, one in found.items()}
