"""Metadata: the brokers' endpoints and the partitions' leaders. Every client's first request.

Brokers are named by their endpoints of the listener that the client is connected to.

Versions: 0 lists all topics for an empty list, later ones for null; 4 can disable auto-creation; 6 has an
error for leaders without that listener; 10 returns topic ids, but takes none; 12 takes them, and answers no
names beside ids; 13 has an error for the whole response. A topic that exists never has an empty partition
list (SPARK-41375).

Before a response names leaders, they are confirmed to be alive where that is cheap: see
:mod:`nilometer.broker.replicas.leader_liveness`.

A response without errors of topics is kept in its encoded form until the metadata, and with it the ACLs, or
the findings about leaders change; where there are ACLs, for the principal and the host that asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence, Set
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from nilometer.broker.api.access import Rights
from nilometer.broker.api.listings import Listings
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.api.topics import MissingTopics
from nilometer.broker.control.controller_link import RequestingClient
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.quotas import ClientQuotas
from nilometer.broker.replicas.leader_liveness import LeaderLiveness
from nilometer.broker.responses import Response
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.states import INTERNAL_TOPICS, Broker, PartitionState, Topic, why_invalid_name
from nilometer.identifiers import NO_LEADER, BrokerId
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated

# Encoded responses that are sent again for as long as the state that they were made of stays the same.
#
# Many clients send the same request at once, above all when a leader has died and they look for the next one.
# The response to each would take milliseconds of the event loop if it names thousands of partitions.
#
# Different requests are few; a client that sends many of them only empties the cache.

ENTRIES_MAX = 256
BYTES_MAX = 4 * 1024 * 1024
_CORRELATION_ID_AT, _CORRELATION_ID_END = 4, 8
"""In a response frame with its length."""


class CachedResponse(NamedTuple):
    frame: bytes
    leaders: Set[BrokerId]
    """The brokers to confirm before it is sent again; none for a response about all topics."""

    def to(self, correlation_id: int) -> bytes:
        """Return the frame as the response to the request with this correlation id."""
        frame = self.frame
        return b"".join(
            (
                frame[:_CORRELATION_ID_AT],
                correlation_id.to_bytes(4, "big", signed=True),
                frame[_CORRELATION_ID_END:],
            )
        )


class ResponseCache:
    def __init__(self) -> None:
        self._state: Hashable = None
        self._responses: dict[Hashable, CachedResponse] = {}
        self._bytes = 0

    def find(self, state: Hashable, request: Hashable) -> CachedResponse | None:
        """Return the response that was made for such a request in this state."""
        return self._responses.get(request) if state == self._state else None

    def put(self, state: Hashable, request: Hashable, response: CachedResponse) -> None:
        """Keep a response, and forget those of another state. One is not kept if it is larger than the
        cache, or if ``request`` is None."""
        size = len(response.frame)
        if size > BYTES_MAX or request is None or self.find(state, request) is not None:
            return
        if state != self._state or len(self._responses) >= ENTRIES_MAX or self._bytes + size > BYTES_MAX:
            self._state = state
            self._responses.clear()
            self._bytes = 0
        self._responses[request] = response
        self._bytes += size


class Parts(msgspec.Struct, frozen=True):
    config: BrokerConfig
    tasks: Tasks
    listings: Listings
    metadata: MetadataLog
    missing_topics: MissingTopics
    leader_liveness: LeaderLiveness
    metadata_responses: ResponseCache
    cluster_id: str
    client_quotas: ClientQuotas
    rights: Rights


_DESCRIBE, _TOPIC = Operation.DESCRIBE, ResourceType.TOPIC
Errors = dict[str, ErrorCode]
"""By topic name."""
AskedTopic = tuple[str | None, UUID | None]
"""The name or the id of a requested topic; the other one is None."""
OPERATIONS_NOT_ASKED = -(1 << 31)
FIRST_WITH_LISTENER_ERRORS = 6
FIRST_WITH_IDS = 10
FIRST_BY_ID = 12
CACHED_TOPICS_MAX = 100
"""Responses to requests for more topics are not kept: a request takes more memory than its bytes."""
NO_LEADERS: frozenset[BrokerId] = frozenset()


def handle(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    cached = _cached(parts, request)
    if cached is not None:
        if parts.leader_liveness.must_confirm(cached.leaders):
            return parts.tasks.spawn(_confirm_then_respond(parts, request, cached.leaders, {}))
        return (cached.to(request.header.correlation_id),)
    if _asks_for_all(request):
        if parts.rights.access(request).is_full:
            return _respond_with_all(parts, request, _state(parts), parts.metadata.image.topics())
        return parts.listings.answer(request, partial(_respond_with_visible, parts))
    if _is_malformed(request):
        return _reject(request)
    missing, refused = _missing_names(parts, request)
    if missing:
        return parts.tasks.spawn(_create_then_respond(parts, request, missing, refused))
    leaders = _leaders(parts, request)
    if parts.leader_liveness.must_confirm(leaders):
        return parts.tasks.spawn(_confirm_then_respond(parts, request, leaders, refused))
    return _respond(parts, request, refused)


def _cached(parts: Parts, request: Request) -> CachedResponse | None:
    return parts.metadata_responses.find(_state(parts), _cache_key(parts, request))


def _state(parts: Parts) -> Hashable:
    """Return what a response is made of, beside the request."""
    return parts.metadata.image.number, parts.leader_liveness.findings()


def _cache_key(parts: Parts, request: Request) -> Hashable:
    """Return what a response depends on in its request; None if the response is not to be kept.

    The key has nothing else of the request's body, so that a client cannot make it large: only existing
    topics, each once. A response with the client's rights on the cluster is not kept, since each denial is
    reported.
    """
    asks_for_all = _asks_for_all(request)
    if not asks_for_all and len(request.body.topics) > CACHED_TOPICS_MAX:
        return None
    who = parts.rights.access(request).who
    if who is not None and request.field("include_cluster_authorized_operations", False):
        return None
    return (
        who,
        request.version,
        request.context.listener,
        request.field("include_topic_authorized_operations", False),
        request.field("include_cluster_authorized_operations", False),
        None if asks_for_all else _asked_once(request),
    )


def _asks_for_all(request: Request) -> bool:
    asked = request.body.topics
    return asked is None or (request.version == 0 and not asked)


def _is_malformed(request: Request) -> bool:
    """Whether a topic has no name where it needs one, or an id in a version that takes none.

    A topic without an id beside one with an id is ignored, as its name is.
    """
    if _ids(request):
        return False
    return any(
        asked.name is None or (request.version >= FIRST_WITH_IDS and asked.topic_id)
        for asked in request.body.topics
    )


def _reject(request: Request) -> Response:
    """Answer a malformed request as Kafka does: an error for each of its topics, and no brokers."""
    error = ErrorCode.invalid_request
    topics = tuple(
        request.make(
            "MetadataResponseTopic",
            error_code=error,
            name=asked.name or "",
            topic_id=asked.topic_id,
            is_internal=False,
            partitions=(),
            topic_authorized_operations=OPERATIONS_NOT_ASKED,
        )
        for asked in request.body.topics
    )
    return request.respond(
        brokers=(),
        cluster_id=None,
        controller_id=NO_LEADER,
        topics=topics,
        cluster_authorized_operations=OPERATIONS_NOT_ASKED,
        error_code=error,
    )


def _leaders(parts: Parts, request: Request) -> set[BrokerId]:
    """Return the leaders that the response names now. Who asks for no topic looks for the controller."""
    if not request.body.topics:
        return {parts.metadata.image.controller_id}
    topics = [_find_topic(parts.metadata.image, *asked) for asked in _asked_once(request)]
    return {state.leader for topic in topics if topic is not None for state in topic.partitions}


async def _confirm_then_respond(
    parts: Parts, request: Request, leaders: Set[BrokerId], refused: Errors
) -> Response:
    await parts.leader_liveness.confirm(leaders)
    cached = _cached(parts, request)
    if cached is not None:
        return (cached.to(request.header.correlation_id),)
    return _respond(parts, request, refused)


def _missing_names(parts: Parts, request: Request) -> tuple[list[str], Errors]:
    """Return the topics to create, and the errors of those that the client may describe but not create."""
    if not request.field("allow_auto_topic_creation", True):
        return [], {}
    if not parts.config.boolean("auto.create.topics.enable"):
        return [], {}
    names = [name for name, _ in _asked_once(request) if name is not None]
    missing = [name for name in names if parts.metadata.image.topic(name) is None]
    access = parts.rights.access(request)
    if missing and not access.is_full:
        missing = [name for name in missing if access.allows(_DESCRIBE, _TOPIC, name, report=False)]
    creatable = set(missing)
    if missing and not access.on_cluster(Operation.CREATE, report=False):
        creatable = access.allowed(Operation.CREATE, _TOPIC, missing)
    refused = {name: ErrorCode.topic_authorization_failed for name in missing if name not in creatable}
    return [name for name in missing if name in creatable and why_invalid_name(name) is None], refused


async def _create_then_respond(
    parts: Parts, request: Request, missing: Sequence[str], refused: Errors
) -> Response:
    client_id, context = request.header.client_id, request.context
    quota = parts.client_quotas.mutations(context, client_id, strict=True)
    client = RequestingClient(client_id, context, quota)
    errors = await parts.missing_topics.create(missing, client)
    return _respond(parts, request, {**refused, **errors})


def _asked_topics(parts: Parts, request: Request, errors: Errors) -> list[Any]:
    image, access = parts.metadata.image, parts.rights.access(request)
    answers: list[Any] = []
    for name, topic_id in _asked_once(request):
        topic = _find_topic(image, name, topic_id)
        known_name = name if topic is None else topic.name
        if known_name is not None and not access.allows(_DESCRIBE, _TOPIC, known_name):
            denied = ErrorCode.topic_authorization_failed
            answers.append(_topic_error(request, name, topic_id, denied, is_internal=False))
        elif topic is not None:
            answers.append(_topic(parts, request, topic))
        else:
            answers.append(_unknown_topic(parts, request, name, topic_id, errors))
    return answers


def _asked_once(request: Request) -> tuple[AskedTopic, ...]:
    """Return the requested topics, each once: by id, as soon as one is, otherwise by name."""
    ids = dict.fromkeys(_ids(request))
    if ids:
        return tuple((None, topic_id) for topic_id in ids)  # Java's clients put "" beside an id
    return tuple((name, None) for name in dict.fromkeys(asked.name for asked in request.body.topics))


def _ids(request: Request) -> list[UUID]:
    if request.version < FIRST_BY_ID:
        return []
    return [asked.topic_id for asked in request.body.topics if asked.topic_id]


def _find_topic(image: ClusterImage, name: str | None, topic_id: UUID | None) -> Topic | None:
    if name is not None:
        return image.topic(name)
    return image.topic_by_uuid(topic_id) if topic_id else None


def _unknown_topic(
    parts: Parts, request: Request, name: str | None, topic_id: UUID | None, errors: Errors
) -> object:
    if name is None:
        error = ErrorCode.unknown_topic_id
    elif name in errors:
        error = errors[name]
    elif why_invalid_name(name) is not None:
        error = ErrorCode.invalid_topic_exception
    else:
        error = ErrorCode.unknown_topic_or_partition
    is_denied = name is None or error is ErrorCode.topic_authorization_failed
    operations = OPERATIONS_NOT_ASKED if is_denied else _operations(parts, request, name or "")
    return _topic_error(
        request, name, topic_id, error, is_internal=name in INTERNAL_TOPICS, operations=operations
    )


def _topic_error(
    request: Request,
    name: str | None,
    topic_id: UUID | None,
    error: ErrorCode,
    *,
    is_internal: bool,
    operations: int = OPERATIONS_NOT_ASKED,
) -> object:
    """Return an error for a topic: with its name if it was requested by name, else with its id."""
    if name is None and request.version < FIRST_BY_ID:
        name = ""
    return request.make(
        "MetadataResponseTopic",
        error_code=error,
        name=name,
        topic_id=topic_id if name is None else None,
        is_internal=is_internal,
        partitions=(),
        topic_authorized_operations=operations,
    )


def _operations(parts: Parts, request: Request, name: str) -> int:
    """Return the authorized-operations field of a topic."""
    if not request.field("include_topic_authorized_operations", False):
        return OPERATIONS_NOT_ASKED
    return parts.rights.access(request).operations(_TOPIC, name)


def _topic(parts: Parts, request: Request, topic: Topic) -> object:
    elsewhere = _without_listener(parts, request)
    partitions = LazySequence(
        lambda index: _partition(parts, request, index, topic.partitions[index], elsewhere),
        range(len(topic.partitions)),
    )
    return request.make(
        "MetadataResponseTopic",
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.uuid,
        is_internal=topic.is_internal,
        partitions=partitions,
        topic_authorized_operations=_operations(parts, request, topic.name),
    )


def _without_listener(parts: Parts, request: Request) -> list[BrokerId]:
    """Return the live brokers that have no listener of the name by which the client is connected."""
    listener = request.context.listener
    return [broker.id for broker in parts.metadata.image.live_brokers() if broker.endpoint(listener) is None]


def _partition(
    parts: Parts, request: Request, index: int, state: PartitionState, elsewhere: Sequence[BrokerId]
) -> object:
    has_leader = state.has_leader and not parts.leader_liveness.is_lost(state.leader)
    error = ErrorCode.none if has_leader else ErrorCode.leader_not_available
    if has_leader and state.leader in elsewhere:
        has_leader = False
        known = request.version >= FIRST_WITH_LISTENER_ERRORS
        error = ErrorCode.listener_not_found if known else ErrorCode.leader_not_available
    return request.make(
        "MetadataResponsePartition",
        error_code=error,
        partition_index=index,
        leader_id=state.leader if has_leader else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
        offline_replicas=offline_replicas(parts.metadata.image, state),
    )


def offline_replicas(image: ClusterImage, state: PartitionState) -> tuple[int, ...]:
    """Return the replicas (broker ids) whose broker is not registered, is fenced, or cannot use the log."""
    return tuple(
        replica
        for replica in state.replicas
        if (broker := image.broker(replica)) is None or broker.fenced or replica in state.offline
    )


def _listed_brokers(parts: Parts, request: Request) -> list[Broker]:
    """Return the live brokers; if the request names topics, without those whose connection was lost, and with
    those that were fenced just now."""
    live, liveness = parts.metadata.image.live_brokers(), parts.leader_liveness
    if not request.body.topics:
        return live
    return [broker for broker in live if not liveness.is_lost(broker.id)] + liveness.recently_fenced()


async def _respond_with_visible(parts: Parts, request: Request, work: LongWork) -> Response:
    """Respond with the topics that the client may describe; no others exist for it."""
    state, access = _state(parts), parts.rights.access(request)
    visible = list[Topic]()
    for topic in parts.metadata.image.topics():
        if access.allows(_DESCRIBE, _TOPIC, topic.name, report=False):
            visible.append(topic)
        await work.step(1)
    return _respond_with_all(parts, request, state, visible)


def _respond_with_all(parts: Parts, request: Request, state: Hashable, topics: Sequence[Topic]) -> Response:
    """``state``: what it was when ``topics`` were found."""
    described = LazySequence(partial(_topic, parts, request), topics)
    return _encode(parts, request, state, described, NO_LEADERS)


def _respond(parts: Parts, request: Request, errors: Errors) -> Response:
    """Respond to a request that names its topics; ``errors``: of those that do not exist, by name."""
    state, topics = _state(parts), _asked_topics(parts, request, errors)
    # A request for a topic that does not exist may create it, so each is handled.
    is_kept = all(topic.error_code is ErrorCode.none for topic in topics)
    return _encode(parts, request, state, tuple(topics), _leaders(parts, request) if is_kept else None)


def _encode(
    parts: Parts, request: Request, state: Hashable, topics: Sequence[Any], leaders: Set[BrokerId] | None
) -> Response:
    """Encode the response. It is kept with the leaders to confirm before it is sent again, or not if None."""
    brokers = tuple(
        request.make(
            "MetadataResponseBroker",
            node_id=broker.id,
            host=endpoint.host,
            port=endpoint.port,
            rack=broker.rack,
        )
        for broker in _listed_brokers(parts, request)
        if (endpoint := broker.endpoint(request.context.listener)) is not None
    )
    operations = OPERATIONS_NOT_ASKED
    if request.field("include_cluster_authorized_operations", False):
        operations = parts.rights.access(request).cluster_operations()
    response = request.encode(
        brokers=brokers,
        cluster_id=parts.cluster_id,
        controller_id=parts.leader_liveness.controller,
        topics=topics,
        cluster_authorized_operations=operations,
    )
    if leaders is not None:
        key = _cache_key(parts, request)

        def keep(frame: bytes) -> None:
            if state == _state(parts):  # a finding about a leader may have expired while it was encoded
                parts.metadata_responses.put(state, key, CachedResponse(frame, leaders))

        response.on_frame(keep)
    return response.ready()


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.METADATA,
            versions=(0, 13),
            handle=partial(handle, parts),
            divisions=(Division(("topics",), ("topics",), repeated=Repeated.AT_MOST_TWICE),),
            rights=(
                Right(Operation.DESCRIBE, ResourceType.TOPIC),
                Right(Operation.CREATE, ResourceType.TOPIC),
                Right(Operation.CREATE, ResourceType.CLUSTER),
            ),
        ),
    )
