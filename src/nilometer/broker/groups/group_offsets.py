"""The offsets of groups: OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import asdict

from nilometer.broker.api.access import Rights
from nilometer.broker.api.listings import Listings
from nilometer.broker.api.spec import ApiSpec, Request, Right, of_message
from nilometer.broker.authorizer import Access
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.coordinator_shells import coordinator_error
from nilometer.broker.groups.group_coordinator import GroupCoordinator
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.responses import Response
from nilometer.broker.tasks import Tasks
from nilometer.broker.transactions.verification import Asker, TransactionVerification
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import GROUP_METADATA_TOPIC, Topic
from nilometer.coordinators import Producer
from nilometer.groups.requests import (
    GroupResult,
    OffsetCommit,
    OffsetCommitPartition,
    OffsetCommitPartitionResult,
    OffsetCommitResult,
    OffsetCommitTopic,
    OffsetCommitTopicResult,
    OffsetDelete,
    OffsetDeletePartitionResult,
    OffsetDeleteResult,
    OffsetDeleteTopic,
    OffsetDeleteTopicResult,
    OffsetFetch,
    OffsetFetchPartitionResult,
    OffsetFetchResult,
    OffsetFetchTopic,
    OffsetFetchTopicResult,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message, milliseconds
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated


class Parts(msgspec.Struct, frozen=True):
    tasks: Tasks
    turns: Turns
    listings: Listings
    metadata: MetadataLog
    replicas: ReplicaManager
    groups: GroupCoordinator
    verification: TransactionVerification
    rights: Rights


# OffsetCommit: commits a group's offsets. The response is sent when all in-sync replicas have them.
#
# Versions: 2 to 4 may set a retention time; 6 has leader epochs; 7 static members; 9 member epochs (KIP-848);
# 10 topics by id. Topics and partitions that do not exist are rejected here, before the group decides. A
# connection may have several commits in flight: they are decided in order, and wait for the replicas
# together.

FIRST_WITH_MEMBER_EPOCHS = 9
OFFSET_COMMIT_FIRST_BY_ID = 10


def handle_offset_commit(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    body = request.body
    known: list[OffsetCommitTopic] = []
    refused: list[OffsetCommitTopicResult] = []
    if not parts.rights.access(request).allows(Operation.READ, ResourceType.GROUP, body.group_id):
        return _respond_offset_commit(request, _deny(request))
    for asked in body.topics:
        _sort_by_outcome(parts, request, asked, known, refused)
    if not known:
        return _respond_offset_commit(request, refused)
    retention_time = request.field("retention_time")
    commit = of_message(
        OffsetCommit,
        body,
        topics=tuple(known),
        retention_time_ms=-1 if retention_time is None else milliseconds(retention_time),
        knows_member_epochs=request.version >= FIRST_WITH_MEMBER_EPOCHS,
    )
    return parts.groups.ask_one(
        commit.group_id,
        commit,
        OffsetCommitResult,
        lambda result: _respond_offset_commit(request, [*refused, *result.topics]),
    )


def _deny(request: Request) -> list[OffsetCommitTopicResult]:
    denied = ErrorCode.group_authorization_failed
    return [
        OffsetCommitTopicResult(
            getattr(topic, "name", None) or "",
            tuple(OffsetCommitPartitionResult(each.partition_index, denied) for each in topic.partitions),
            getattr(topic, "topic_id", None),
        )
        for topic in request.body.topics
    ]


def _sort_by_outcome(
    parts: Parts,
    request: Request,
    asked: Message,
    known: list[OffsetCommitTopic],
    refused: list[OffsetCommitTopicResult],
) -> None:
    """Add the partitions of topic ``asked`` that exist to ``known``, and an error for each other one to
    ``refused``."""
    topic, name, topic_id, unknown = _find(parts, request, asked)
    found: list[OffsetCommitPartition] = []
    missing: list[OffsetCommitPartitionResult] = []
    for partition in asked.partitions:
        index = partition.partition_index
        if topic is None:
            missing.append(OffsetCommitPartitionResult(index, unknown))
        elif topic.partition(index) is None:
            missing.append(OffsetCommitPartitionResult(index, ErrorCode.unknown_topic_or_partition))
        else:
            found.append(
                OffsetCommitPartition(
                    index,
                    partition.committed_offset,
                    getattr(partition, "committed_leader_epoch", -1),
                    partition.committed_metadata,
                )
            )
    if found:
        known.append(OffsetCommitTopic(name, tuple(found), topic_id))
    if missing:
        refused.append(OffsetCommitTopicResult(name, tuple(missing), topic_id))


def _find(parts: Parts, request: Request, asked: Message) -> tuple[Topic | None, str, UUID | None, ErrorCode]:
    """Return the topic, its name and id as far as they are known, and the error to return if the topic does
    not exist for this client."""
    if request.version >= OFFSET_COMMIT_FIRST_BY_ID:
        topic = parts.metadata.image.topic_by_uuid(asked.topic_id) if asked.topic_id is not None else None
        name = "" if topic is None else topic.name
        if topic is not None and not _may_read(parts, request, name):
            return None, "", asked.topic_id, ErrorCode.topic_authorization_failed
        return topic, name, asked.topic_id, ErrorCode.unknown_topic_id
    if not _may_read(parts, request, asked.name):
        return None, asked.name, None, ErrorCode.topic_authorization_failed
    topic = parts.metadata.image.topic(asked.name)
    return topic, asked.name, None if topic is None else topic.uuid, ErrorCode.unknown_topic_or_partition


def _may_read(parts: Parts, request: Request, topic: str) -> bool:
    return parts.rights.access(request).allows(Operation.READ, ResourceType.TOPIC, topic)


def _respond_offset_commit(request: Request, topics: Sequence[OffsetCommitTopicResult]) -> Response:
    gathered: dict[tuple[str, UUID | None], list[OffsetCommitPartitionResult]] = {}
    for topic in topics:
        gathered.setdefault((topic.name, topic.topic_id), []).extend(topic.partitions)
    return request.respond(
        topics=tuple(
            request.make(
                "OffsetCommitResponseTopic",
                name=name,
                topic_id=topic_id,
                partitions=tuple(
                    request.make("OffsetCommitResponsePartition", **asdict(each)) for each in partitions
                ),
            )
            for (name, topic_id), partitions in gathered.items()
        )
    )


# TxnOffsetCommit: offsets of a group that count once the producer's transaction is committed.
#
# Versions: 2 has leader epochs; 3 the member and its generation (KIP-447), which fence a member that lost its
# partitions; 4 knows TRANSACTION_ABORTABLE; 5 adds the group's partition of ``__consumer_offsets`` to the
# transaction (KIP-890); 6 names topics by id, and knows the errors of member epochs (KIP-1319). As with a
# produced batch, it is first verified with the transaction's coordinator that the group's partition is part
# of the transaction.

FIRST_WITH_LOADING = 2
FIRST_WITH_ABORTABLE = 4
FIRST_THAT_ADDS = 5
TXN_OFFSET_COMMIT_FIRST_BY_ID = 6

Errors = Mapping[tuple[str | UUID | None, int], ErrorCode]
"""By topic, as the request names it, and partition."""


def handle_txn_offset_commit(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    body, access = request.body, parts.rights.access(request)
    if not access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id):
        return _respond_txn_offset_commit(
            request, _everything(request, ErrorCode.transactional_id_authorization_failed)
        )
    if not access.allows(Operation.READ, ResourceType.GROUP, body.group_id):
        return _respond_txn_offset_commit(request, _everything(request, ErrorCode.group_authorization_failed))
    known, refused = _sorted_topics(parts, request, access)
    if not known:
        return _respond_txn_offset_commit(request, refused)
    return parts.tasks.spawn(_answer(parts, request, known, refused))


def _sorted_topics(
    parts: Parts, request: Request, access: Access
) -> tuple[tuple[OffsetCommitTopic, ...], Errors]:
    """Return the offsets to commit of those topics and partitions that exist and that the client may read;
    and the errors of the other topics."""
    known: list[OffsetCommitTopic] = []
    refused: dict[tuple[str | UUID | None, int], ErrorCode] = {}
    by_id = request.version >= TXN_OFFSET_COMMIT_FIRST_BY_ID
    for asked in request.body.topics:
        key = _named(asked)
        found = parts.metadata.image.topic_by_uuid(key) if isinstance(key, UUID) else None
        if not by_id:
            found = parts.metadata.image.topic(asked.name)
        error = ErrorCode.unknown_topic_id if by_id and found is None else ErrorCode.none
        name = asked.name if not by_id else "" if found is None else found.name
        if error is ErrorCode.none and not access.allows(Operation.READ, ResourceType.TOPIC, name):
            error = ErrorCode.topic_authorization_failed
        if error is not ErrorCode.none:
            refused |= {(key, partition.partition_index): error for partition in asked.partitions}
        elif found is not None and (partitions := _existing(found, asked)):
            known.append(OffsetCommitTopic(name, partitions, found.uuid))
    return tuple(known), refused


def _named(topic: Message) -> str | UUID | None:
    """Return what names the topic in a request: its name, or its id."""
    return topic.topic_id if hasattr(topic, "topic_id") else topic.name


def _existing(topic: Topic, asked: Message) -> tuple[OffsetCommitPartition, ...]:
    return tuple(
        OffsetCommitPartition(
            partition.partition_index,
            partition.committed_offset,
            getattr(partition, "committed_leader_epoch", -1),
            partition.committed_metadata,
        )
        for partition in asked.partitions
        if topic.partition(partition.partition_index) is not None
    )


def _everything(request: Request, error: ErrorCode) -> Errors:
    return {
        (_named(topic), partition.partition_index): error
        for topic in request.body.topics
        for partition in topic.partitions
    }


async def _answer(
    parts: Parts, request: Request, known: tuple[OffsetCommitTopic, ...], refused: Errors
) -> Response:
    body, by_id = request.body, request.version >= TXN_OFFSET_COMMIT_FIRST_BY_ID
    error = await _verify(parts, request)
    if error is not ErrorCode.none:
        everywhere = {
            (topic.topic_id if by_id else topic.name, partition.partition_index): error
            for topic in known
            for partition in topic.partitions
        }
        return _respond_txn_offset_commit(request, {**everywhere, **refused})
    commit = of_message(
        OffsetCommit,
        body,
        topics=known,
        generation_id_or_member_epoch=request.field("generation_id", -1),
        knows_member_epochs=by_id,
        producer=Producer(body.producer_id, body.producer_epoch),
    )
    result = await parts.groups.answer(commit.group_id, commit)
    assert isinstance(result, OffsetCommitResult)
    errors: dict[tuple[str | UUID | None, int], ErrorCode] = {
        (topic.topic_id if by_id else topic.name, partition.partition_index): partition.error_code
        for topic in result.topics
        for partition in topic.partitions
    }
    return _respond_txn_offset_commit(request, {**errors, **refused})


async def _verify(parts: Parts, request: Request) -> ErrorCode:
    """Return the error if the group's partition is not part of the transaction, or if the producer is
    fenced; else ``none``."""
    body = request.body
    asker = Asker(
        knows_abortable=request.version >= FIRST_WITH_ABORTABLE, adds=request.version >= FIRST_THAT_ADDS
    )
    try:
        index = parts.groups.partition_for(body.group_id)
        partition = parts.replicas.partition(GROUP_METADATA_TOPIC, index)
        _ = partition.leader  # raises where another broker leads
    except KafkaError:
        return ErrorCode.not_coordinator
    guard = parts.verification.guard(partition, body.producer_id, body.producer_epoch, asker)
    if guard is not None:
        verified = await parts.verification.verify(body.transactional_id, (guard,), asker)
        try:
            partition = parts.replicas.partition(GROUP_METADATA_TOPIC, index)
        except KafkaError:
            return ErrorCode.not_coordinator
        error = verified.error(partition, body.producer_id, body.producer_epoch)
        if error is not ErrorCode.none:
            return coordinator_error(error)
    producer = partition.log.producers.producers.get(body.producer_id)
    is_fenced = producer is not None and body.producer_epoch < producer.producer_epoch
    return ErrorCode.invalid_producer_epoch if is_fenced else ErrorCode.none


def _respond_txn_offset_commit(request: Request, errors: Errors) -> Response:
    """Make the response, in the order of the request; a partition missing in ``errors`` does not exist."""
    return request.respond(
        topics=tuple(
            request.make(
                "TxnOffsetCommitResponseTopic",
                name=getattr(topic, "name", ""),
                topic_id=getattr(topic, "topic_id", None),
                partitions=tuple(
                    request.make(
                        "TxnOffsetCommitResponsePartition",
                        partition_index=partition.partition_index,
                        error_code=_known_to(request, errors.get((_named(topic), partition.partition_index))),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.body.topics
        )
    )


def _known_to(request: Request, error: ErrorCode | None) -> ErrorCode:
    """Return the error that the producer understands; None is that of a partition that does not exist."""
    if error is None:
        return ErrorCode.unknown_topic_or_partition
    if error is ErrorCode.coordinator_load_in_progress and request.version < FIRST_WITH_LOADING:
        return ErrorCode.coordinator_not_available  # older producers do not retry on loading (KAFKA-7296)
    return error


# OffsetFetch: the committed offsets of groups.
#
# Versions: 1 repeats an error of the group at each partition; 2 may request all committed offsets; 7 stable
# offsets only; 8 many groups; 9 has member epochs (KIP-848); 10 topics by id.

FIRST_WITH_GROUP_ERROR = 2
FIRST_WITH_MANY_GROUPS = 8
OFFSET_FETCH_FIRST_BY_ID = 10

_NO_ID = UUID(int=0)
DENIED = ErrorCode.topic_authorization_failed
SHOWN_AT_ONCE = 128
"""Of all topics with offsets, so many are looked at in one step."""


class _Asked(NamedTuple):
    fetch: OffsetFetch
    unknown: tuple[OffsetFetchTopicResult, ...]
    """The response's entries for topics that do not exist for this client."""


def handle_offset_fetch(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    body = request.body
    groups: Sequence[Message] = body.groups if request.version >= FIRST_WITH_MANY_GROUPS else (body,)
    asked = [_asked(parts, request, group) for group in groups]
    if any(one.fetch.topics is None for one in asked):
        return parts.listings.answer(request, partial(_all_offsets, parts, asked))
    return parts.groups.ask_groups(
        request,
        Operation.DESCRIBE,
        [(one.fetch.group_id, one.fetch) for one in asked],
        lambda results: _respond_offset_fetch(parts, request, asked, results),
    )


async def _all_offsets(parts: Parts, asked: Sequence[_Asked], request: Request, work: LongWork) -> Response:
    """Respond with all offsets of groups, slice by slice."""
    of_groups = [(one.fetch.group_id, one.fetch) for one in asked]
    results = await parts.groups.ask_groups_in_turns(request, Operation.DESCRIBE, of_groups, work)
    shown: list[GroupResult] = []
    for one, result in zip(asked, results, strict=True):
        assert isinstance(result, OffsetFetchResult)
        if one.fetch.topics is None and result.error_code is ErrorCode.none:
            topics: list[OffsetFetchTopicResult] = []
            for first in range(0, len(result.topics), SHOWN_AT_ONCE):
                some = result.topics[first : first + SHOWN_AT_ONCE]
                topics += _described(parts, request, some)
                await work.step(len(some))
            result = OffsetFetchResult(result.group_id, topics=topics)
        shown.append(result)
    await parts.turns.wait_next()
    return _respond_offset_fetch(parts, request, asked, shown)


def _described(
    parts: Parts, request: Request, topics: Sequence[OffsetFetchTopicResult]
) -> Sequence[OffsetFetchTopicResult]:
    """Return those of all topics with offsets that the client may describe, with the ids of its version."""
    access, shown = parts.rights.access(request), [*topics]
    if not access.is_full:
        names = [topic.name for topic in shown]
        described = access.allowed(Operation.DESCRIBE, ResourceType.TOPIC, names)
        shown = [topic for topic in shown if topic.name in described]
    if request.version < OFFSET_FETCH_FIRST_BY_ID:
        return shown
    return [topic for each in shown if (topic := _with_id(parts, each)) is not None]


def _asked(parts: Parts, request: Request, group: Message) -> _Asked:
    topics: tuple[OffsetFetchTopic, ...] | None = None
    unknown: tuple[OffsetFetchTopicResult, ...] = ()
    if group.topics is not None and request.version >= OFFSET_FETCH_FIRST_BY_ID:
        topics, unknown = _topics_by_id(parts, request, group.topics)
    elif group.topics is not None:
        topics, unknown = _topics_by_name(parts, request, group.topics)
    stable = request.field("require_stable", False)
    return _Asked(of_message(OffsetFetch, group, topics=topics, require_stable=stable), unknown)


def _topics_by_name(
    parts: Parts, request: Request, asked: Sequence[Message]
) -> tuple[tuple[OffsetFetchTopic, ...], tuple[OffsetFetchTopicResult, ...]]:
    access = parts.rights.access(request)
    may = [access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name) for topic in asked]
    known = tuple(
        OffsetFetchTopic(topic.name, tuple(topic.partition_indexes))
        for allowed, topic in zip(may, asked, strict=True)
        if allowed
    )
    denied = tuple(
        OffsetFetchTopicResult(topic.name, _all_offset_fetch(topic.partition_indexes, DENIED))
        for allowed, topic in zip(may, asked, strict=True)
        if not allowed
    )
    return known, denied


def _topics_by_id(
    parts: Parts, request: Request, asked: Sequence[Message]
) -> tuple[tuple[OffsetFetchTopic, ...], tuple[OffsetFetchTopicResult, ...]]:
    known: list[OffsetFetchTopic] = []
    unknown: list[OffsetFetchTopicResult] = []
    access = parts.rights.access(request)
    for each in asked:
        topic_id: UUID = each.topic_id or _NO_ID
        indexes = tuple(each.partition_indexes)
        topic = parts.metadata.image.topic_by_uuid(topic_id)
        if topic is not None and not access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            unknown.append(OffsetFetchTopicResult("", _all_offset_fetch(indexes, DENIED), topic_id))
        elif topic is not None:
            known.append(OffsetFetchTopic(topic.name, indexes, topic_id))
        else:
            unknown.append(
                OffsetFetchTopicResult("", _all_offset_fetch(indexes, ErrorCode.unknown_topic_id), topic_id)
            )
    return tuple(known), tuple(unknown)


def _all_offset_fetch(indexes: Sequence[int], error: ErrorCode) -> tuple[OffsetFetchPartitionResult, ...]:
    return tuple(OffsetFetchPartitionResult(index, error_code=error) for index in indexes)


def _respond_offset_fetch(
    parts: Parts, request: Request, asked: Sequence[_Asked], results: Sequence[GroupResult]
) -> Response:
    answers: list[OffsetFetchResult] = []
    for one, result in zip(asked, results, strict=True):
        assert isinstance(result, OffsetFetchResult)
        answers.append(_complete(parts, request, one, result))
    if request.version >= FIRST_WITH_MANY_GROUPS:
        return request.respond(
            groups=tuple(
                request.make(
                    "OffsetFetchResponseGroup",
                    group_id=answer.group_id,
                    error_code=answer.error_code,
                    topics=LazySequence(partial(_topic_of_group, request), answer.topics),
                )
                for answer in answers
            )
        )
    (answer,) = answers
    return request.respond(
        error_code=answer.error_code,
        topics=LazySequence(partial(_topic_of_only_group, request), answer.topics),
    )


def _complete(parts: Parts, request: Request, asked: _Asked, result: OffsetFetchResult) -> OffsetFetchResult:
    """Adapt the group's result to the request's version: where errors are, and whether topics have ids."""
    if result.error_code is not ErrorCode.none:
        if request.version >= FIRST_WITH_GROUP_ERROR:
            return result
        topics = tuple(
            OffsetFetchTopicResult(topic.name, _all_offset_fetch(topic.partition_indexes, result.error_code))
            for topic in asked.fetch.topics or ()
        )
        topics += tuple(
            OffsetFetchTopicResult(
                topic.name,
                _all_offset_fetch([each.partition_index for each in topic.partitions], result.error_code),
            )
            for topic in asked.unknown
        )
        return OffsetFetchResult(result.group_id, result.error_code, topics)
    if asked.fetch.topics is None:
        return result
    if request.version < OFFSET_FETCH_FIRST_BY_ID:
        return OffsetFetchResult(result.group_id, topics=(*result.topics, *asked.unknown))
    named = (_with_id(parts, topic) for topic in result.topics)
    topics = tuple(topic for topic in named if topic is not None)
    return OffsetFetchResult(result.group_id, topics=(*asked.unknown, *topics))


def _with_id(parts: Parts, result: OffsetFetchTopicResult) -> OffsetFetchTopicResult | None:
    """Add the topic's current id to a result that has only its name; None if the topic does not exist, since
    a response by ids cannot name it."""
    if result.topic_id is not None:
        return result
    topic = parts.metadata.image.topic(result.name)
    return None if topic is None else OffsetFetchTopicResult(result.name, result.partitions, topic.uuid)


def _topic_of_group(request: Request, topic: OffsetFetchTopicResult) -> Message:
    return request.make(
        "OffsetFetchResponseTopics",
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=_partitions(request, "OffsetFetchResponsePartitions", topic),
    )


def _topic_of_only_group(request: Request, topic: OffsetFetchTopicResult) -> Message:
    return request.make(
        "OffsetFetchResponseTopic",
        name=topic.name,
        partitions=_partitions(request, "OffsetFetchResponsePartition", topic),
    )


def _partitions(request: Request, kind: str, topic: OffsetFetchTopicResult) -> Sequence[Message]:
    return LazySequence(partial(_partition, request, kind), topic.partitions)


def _partition(request: Request, kind: str, partition: OffsetFetchPartitionResult) -> Message:
    return request.make(kind, **asdict(partition))


# OffsetDelete: delete a group's offsets of topics that it is not subscribed to.


def handle_offset_delete(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    known: list[OffsetDeleteTopic] = []
    refused: list[OffsetDeleteTopicResult] = []
    access = parts.rights.access(request)
    for asked in request.body.topics:
        indexes = [partition.partition_index for partition in asked.partitions]
        if not access.allows(Operation.READ, ResourceType.TOPIC, asked.name, report=False):
            denied = ErrorCode.topic_authorization_failed
            refused.append(OffsetDeleteTopicResult(asked.name, _all_offset_delete(indexes, denied)))
            continue
        topic = parts.metadata.image.topic(asked.name)
        found = [index for index in indexes if topic is not None and topic.partition(index) is not None]
        missing = [index for index in indexes if index not in found]
        if found:
            known.append(OffsetDeleteTopic(asked.name, tuple(found)))
        if missing:
            refused.append(
                OffsetDeleteTopicResult(
                    asked.name, _all_offset_delete(missing, ErrorCode.unknown_topic_or_partition)
                )
            )
    delete = OffsetDelete(request.body.group_id, tuple(known))
    return parts.groups.ask_group(
        request,
        Operation.DELETE,
        delete,
        OffsetDeleteResult,
        lambda result: _audit_and_respond(parts, request, result, refused),
    )


def _all_offset_delete(indexes: Sequence[int], error: ErrorCode) -> tuple[OffsetDeletePartitionResult, ...]:
    return tuple(OffsetDeletePartitionResult(index, error) for index in indexes)


def _audit_and_respond(
    parts: Parts, request: Request, result: OffsetDeleteResult, refused: Sequence[OffsetDeleteTopicResult]
) -> Response:
    for topic in result.topics:
        deleted = [each.partition_index for each in topic.partitions if each.error_code is ErrorCode.none]
        if deleted:
            group = request.body.group_id
            parts.rights.audit_own_change(request, group_id=group, topic=topic.name, partitions=deleted)
    return _respond_offset_delete(request, result, refused)


def _respond_offset_delete(
    request: Request, result: OffsetDeleteResult, refused: Sequence[OffsetDeleteTopicResult]
) -> Response:
    """Make the response from the group's result and the partitions that do not exist (``refused``).

    If the result has an error for the whole group, the response has no topics.
    """
    gathered: dict[str, list[OffsetDeletePartitionResult]] = {}
    for topic in (*refused, *result.topics) if result.error_code is ErrorCode.none else ():
        gathered.setdefault(topic.name, []).extend(topic.partitions)
    return request.respond(
        error_code=result.error_code,
        topics=tuple(
            request.make(
                "OffsetDeleteResponseTopic",
                name=name,
                partitions=tuple(
                    request.make("OffsetDeleteResponsePartition", **asdict(each)) for each in partitions
                ),
            )
            for name, partitions in gathered.items()
        ),
    )


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.OFFSET_COMMIT,
            versions=(2, 10),
            handle=partial(handle_offset_commit, parts),
            pipelined=True,
            divisions=(Division(("topics", "partitions"), ("topics", "partitions")),),
            rights=(
                Right(Operation.READ, ResourceType.GROUP),
                Right(Operation.READ, ResourceType.TOPIC),
            ),
        ),
        ApiSpec(
            key=ApiKey.TXN_OFFSET_COMMIT,
            versions=(0, 6),
            handle=partial(handle_txn_offset_commit, parts),
            divisions=(Division(("topics", "partitions"), ("topics", "partitions")),),
            rights=(
                Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
                Right(Operation.READ, ResourceType.GROUP),
                Right(Operation.READ, ResourceType.TOPIC),
            ),
        ),
        ApiSpec(
            key=ApiKey.OFFSET_FETCH,
            versions=(1, 10),
            handle=partial(handle_offset_fetch, parts),
            divisions=(
                Division(
                    ("groups", "topics", "partition_indexes"),
                    ("groups", "topics", "partitions"),
                    repeated=Repeated.AT_MOST_TWICE,
                ),
                Division(
                    ("topics", "partition_indexes"), ("topics", "partitions"), repeated=Repeated.AT_MOST_TWICE
                ),
            ),
            rights=(
                Right(Operation.DESCRIBE, ResourceType.GROUP),
                Right(Operation.DESCRIBE, ResourceType.TOPIC),
            ),
        ),
        ApiSpec(
            key=ApiKey.OFFSET_DELETE,
            versions=(0, 0),
            handle=partial(handle_offset_delete, parts),
            divisions=(Division(("topics", "partitions"), ("topics", "partitions")),),
            rights=(
                Right(Operation.DELETE, ResourceType.GROUP),
                Right(Operation.READ, ResourceType.TOPIC),
            ),
        ),
    )
