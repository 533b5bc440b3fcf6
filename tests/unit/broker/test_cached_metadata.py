"""Metadata is encoded once for all clients that ask the same, and a kept response hides nothing."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from nilometer.broker.api import metadata
from nilometer.broker.api.access import Rights
from nilometer.broker.api.metadata import ResponseCache
from nilometer.broker.api.spec import Request
from nilometer.broker.authorizer import AclAccess
from nilometer.broker.replicas.leader_liveness import NOTHING_FOUND
from nilometer.broker.request_context import RequestContext
from nilometer.broker.turns import ELEMENTS_MAX, Turns
from nilometer.cluster.acl import Acl, Operation, PatternType, Permission, ResourceType
from nilometer.cluster.acl_table import AclIndex
from nilometer.cluster.records import Endpoint
from nilometer.cluster.states import Broker, PartitionState, Topic
from nilometer.identifiers import BrokerEpoch, BrokerId, Incarnation, LeaderEpoch, topic_id_of
from nilometer.security.principal import Principal
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message, RequestHeader, api, decode_response
from support.brokers.fake_rights import rights_of
from support.brokers.listings_at_once import ListingsAtOnce
from support.step_clock import StepClock

VERSION = 12
ONE, TWO = BrokerId(1), BrokerId(2)


class FakeLiveness:
    controller = BrokerId(1)

    def __init__(self) -> None:
        self.lost: set[BrokerId] = set()
        self.must_probe = False
        self.dies_when_probed = False
        self.expires_after: int | None = None
        """The finding expires after this many questions."""

    def findings(self) -> object:
        return (tuple(self.lost), ()) if self.lost else NOTHING_FOUND

    def is_lost(self, broker_id: BrokerId) -> bool:
        if self.expires_after is not None:
            self.expires_after -= 1
            if self.expires_after < 0:
                self.lost.clear()
        return broker_id in self.lost

    def must_confirm(self, leaders: set[BrokerId]) -> bool:
        return self.must_probe and TWO in leaders

    async def confirm(self, leaders: set[BrokerId]) -> None:
        self.must_probe = False
        if self.dies_when_probed:
            self.lost |= leaders

    def recently_fenced(self) -> list[Broker]:
        return []


class FakeParts:
    """A broker that knows two brokers, and a topic that broker 2 leads."""

    cluster_id = "cluster"

    def __init__(self) -> None:
        self.rights = rights_of()
        self.metadata_responses = ResponseCache()
        self.leader_liveness = FakeLiveness()
        self.config = SimpleNamespace(boolean=lambda _: True)
        self.tasks = SimpleNamespace(spawn=lambda work, kind="": asyncio.ensure_future(work))
        self.turns = Turns(StepClock())
        self.listings = ListingsAtOnce(self.turns)
        self.topic = Topic("t", topic_id_of(uuid.UUID(int=5)))
        self.topic.partitions.append(PartitionState((ONE, TWO), (ONE, TWO), TWO))
        self.made = 0
        brokers = [
            Broker(
                broker_id,
                Incarnation("first"),
                BrokerEpoch(7),
                (Endpoint("PLAINTEXT", "127.0.0.1", port), Endpoint("OTHER", "127.0.0.1", port + 10)),
            )
            for broker_id, port in ((ONE, 9001), (TWO, 9002))
        ]
        self.metadata = SimpleNamespace(image=self._image(brokers))

    def _image(self, brokers: Sequence[Broker]) -> SimpleNamespace:
        return SimpleNamespace(
            number=3,
            controller_id=ONE,
            topic=self._find,
            topics=lambda: [self.topic],
            topic_by_uuid=self._find_by_id,
            live_brokers=lambda: brokers,
            broker=lambda broker_id: next(each for each in brokers if each.id == broker_id),
        )

    def _find(self, name: str) -> Topic | None:
        self.made += 1
        return self.topic if name == "t" else None

    def _find_by_id(self, value: uuid.UUID) -> Topic | None:
        self.made += 1
        return self.topic if value == self.topic.uuid else None

    def elect(self, leader: BrokerId) -> None:
        state = self.topic.partitions[0]
        self.topic.partitions[0] = msgspec.structs.replace(
            state, leader=leader, leader_epoch=LeaderEpoch(state.leader_epoch + 1)
        )
        self.metadata.image.number += 1

    def ask(self, *names: str, **given: Any) -> Message:
        return asyncio.run(self.ask_now(*names, **given))

    async def ask_now(
        self,
        *names: str,
        by_id: Sequence[tuple[str | None, uuid.UUID]] = (),
        correlation_id: int = 1,
        listener: str = "PLAINTEXT",
        user: str = "alice",
        host: str = "10.0.0.1",
        version: int = VERSION,
        **fields: object,
    ) -> Message:
        codec = api(ApiKey.METADATA, version)
        topics = (
            *(codec.make_request("MetadataRequestTopic", name=name) for name in names),
            *(codec.make_request("MetadataRequestTopic", name=name, topic_id=value) for name, value in by_id),
        )
        body = codec.request(topics=topics or None, allow_auto_topic_creation=False, **fields)
        header = RequestHeader(ApiKey.METADATA, version, correlation_id, "test", 0)
        context = RequestContext(listener=listener, principal=Principal("User", user), client_address=host)
        reply = metadata.handle(cast(Any, self), Request(header, body, codec, cast(Any, None), context))
        if isinstance(reply, asyncio.Future):
            reply = await reply
        assert reply is not None
        frame = b"".join(reply)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        answered_id, response = decode_response(ApiKey.METADATA, version, frame[4:])
        assert answered_id == correlation_id
        return response


def leader(response: Message) -> int:
    return response.topics[0].partitions[0].leader_id


def test_a_repeated_request_is_not_handled_again_until_the_metadata_changes() -> None:
    parts = FakeParts()
    first = parts.ask("t")
    handled = parts.made
    assert parts.ask("t", correlation_id=99) == first
    assert parts.made == handled
    parts.elect(ONE)
    assert leader(parts.ask("t")) == ONE
    assert parts.made > handled


def test_another_request_has_its_own_response() -> None:
    parts = FakeParts()
    plain = parts.ask("t")
    assert parts.ask("t", listener="OTHER").brokers[0].port == plain.brokers[0].port + 10
    assert parts.ask("t", include_topic_authorized_operations=True) != plain
    assert [topic.name for topic in parts.ask().topics] == ["t"]
    assert parts.ask("t") == plain


def test_a_missing_topic_is_looked_for_each_time() -> None:
    parts = FakeParts()
    parts.ask("t", "missing")
    handled = parts.made
    parts.ask("t", "missing")
    assert parts.made > handled


class Denials:
    """Counts what the audit log would have."""

    def __init__(self) -> None:
        self.count = 0

    def denied(self, *_: object) -> None:
        self.count += 1


def with_acls(parts: FakeParts) -> Denials:
    """Let alice describe the topic, and no one else."""
    acls, audit = AclIndex(), Denials()
    topic, allow = ResourceType.TOPIC, Permission.ALLOW
    acls.add(Acl(topic, "t", PatternType.LITERAL, "User:alice", "*", Operation.DESCRIBE, allow))

    def access(context: RequestContext, api: str) -> AclAccess:
        return AclAccess(acls, context, api, cast(Any, audit), if_no_acl=False)

    parts.rights = Rights(cast(Any, SimpleNamespace(access=access)), accepts_unproved_brokers=False)
    return audit


@pytest.mark.parametrize("names", [("t",), ()])
def test_where_there_are_acls_a_response_is_kept_for_who_asked(names: tuple[str, ...]) -> None:
    parts = FakeParts()
    with_acls(parts)
    first = parts.ask(*names)
    assert [topic.name for topic in first.topics] == ["t"]
    lists = list[object]()
    image_topics = parts.metadata.image.topics
    parts.metadata.image.topics = lambda: lists.append(None) or image_topics()
    handled = parts.made
    assert parts.ask(*names) == first
    assert (parts.made, lists) == (handled, [])
    assert parts.ask(*names, host="10.0.0.2") == first
    assert parts.made > handled or lists
    bobs = parts.ask(*names, user="bob")
    assert [topic.error_code for topic in bobs.topics] == [ErrorCode.topic_authorization_failed] * len(names)


def test_all_topics_are_looked_through_for_those_that_a_client_may_describe_in_slices() -> None:
    parts, count, slices = FakeParts(), 4 * ELEMENTS_MAX, list[int]()
    with_acls(parts)
    parts.metadata.image.topics = lambda: [parts.topic] * count
    wait_next = parts.turns.wait_next

    async def end_slice() -> None:
        slices.append(parts.turns.elements)
        parts.turns.elements = 0
        await wait_next()

    parts.turns.wait_next = end_slice  # type: ignore[method-assign]
    assert parts.ask(user="bob").topics == ()
    assert slices == [ELEMENTS_MAX] * 4


def test_each_denial_is_reported() -> None:
    parts = FakeParts()
    audit = with_acls(parts)
    for count in (1, 2):
        parts.ask("t", user="bob")
        assert audit.count == count


def test_a_denied_question_for_the_rights_on_the_cluster_is_reported_each_time() -> None:
    parts = FakeParts()
    audit = with_acls(parts)
    for count in (1, 2):
        parts.ask("t", version=8, include_cluster_authorized_operations=True)
        assert audit.count == count


def test_a_leader_is_confirmed_before_a_kept_response_names_it() -> None:
    parts = FakeParts()
    assert leader(parts.ask("t")) == TWO
    parts.leader_liveness.must_probe = parts.leader_liveness.dies_when_probed = True
    assert leader(parts.ask("t")) == -1
    parts.leader_liveness.lost.clear()
    assert leader(parts.ask("t")) == TWO


def test_requests_that_wait_for_one_probe_share_a_response() -> None:
    parts = FakeParts()
    parts.leader_liveness.must_probe = True

    async def ask_many() -> list[Message]:
        return await asyncio.gather(*(parts.ask_now("t", correlation_id=each) for each in range(50)))

    responses = asyncio.run(ask_many())
    assert parts.made < 2 * len(responses), "each looked for its leaders, and one made the response"
    parts.leader_liveness.must_probe = True
    made = parts.made
    assert asyncio.run(ask_many()) == responses
    assert parts.made == made, "the leaders to confirm are kept, too"
    assert all(response == responses[0] for response in responses)
    assert leader(responses[0]) == TWO


def test_a_topic_by_id_has_one_response_whatever_name_is_beside_it() -> None:
    """The name is ignored, and may be long: keeping it would fill the memory."""
    parts = FakeParts()
    found = parts.ask(by_id=[(None, parts.topic.uuid)])
    assert found.topics[0].name == "t"
    made = parts.made
    assert parts.ask(by_id=[("x" * 40_000, parts.topic.uuid)] * 2) == found
    assert parts.made == made


def test_requests_for_many_topics_are_not_kept() -> None:
    parts = FakeParts()
    parts.ask(*["t"] * metadata.CACHED_TOPICS_MAX)
    made = parts.made
    parts.ask("t")
    assert parts.made == made
    parts.ask(*["t"] * (metadata.CACHED_TOPICS_MAX + 1))
    assert parts.made > made


@pytest.mark.parametrize("questions", range(6))
def test_what_is_found_of_a_leader_may_expire_at_any_moment(questions: int) -> None:
    """The response is then not kept: it belongs to neither state."""
    parts = FakeParts()
    parts.leader_liveness.lost.add(TWO)
    parts.leader_liveness.expires_after = questions
    parts.ask("t")
    parts.leader_liveness.expires_after = None
    for lost, expected in (({TWO}, -1), (set[BrokerId](), TWO), ({TWO}, -1)):
        parts.leader_liveness.lost = lost
        assert leader(parts.ask("t")) == expected
