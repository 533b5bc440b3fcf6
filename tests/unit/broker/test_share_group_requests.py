"""ShareGroupHeartbeat and ShareGroupDescribe, from the bytes of a request to those of its response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from nilometer.broker.api import topic_configs
from nilometer.broker.api.spec import Request
from nilometer.broker.groups.group_coordinator import GroupCoordinator
from nilometer.broker.request_context import RequestContext
from nilometer.broker.responses import Response
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.sharing import share_groups
from nilometer.broker.turns import LongWork
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.records import ConfigResourceType
from nilometer.groups.requests import (
    DescribedShareGroup,
    DescribedShareGroupMember,
    DescribedTopicPartitions,
    GroupRequest,
    GroupResult,
    ShareGroupDescribeResult,
    ShareGroupHeartbeat,
    ShareGroupHeartbeatResult,
    TopicPartitions,
)
from nilometer.groups.settings import GroupConfig
from nilometer.groups.turn import InitializeShareState, ShareStateResult
from nilometer.security.principal import ANONYMOUS, SecurityProtocol
from nilometer.share.partition_events import SharePartitionView, SpanView
from nilometer.share.state_records import DeliveryState
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import RequestHeader, api, decode_response
from nilometer.wire.own_apis import DescribeSharePartitionsRequest, SharePartitionsOfTopic
from support.brokers.fake_rights import rights_of

TOPIC_ID = UUID(int=7)
HEARTBEAT = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "rack_id": None,
    "subscribed_topic_names": ("t", "u"),
}
DESCRIBED = DescribedShareGroup(
    "g",
    group_state="Stable",
    group_epoch=4,
    assignment_epoch=3,
    assignor_name="simple",
    members=(
        DescribedShareGroupMember(
            "m", "r", 3, "c", "/h", ("t",), (DescribedTopicPartitions(TOPIC_ID, "t", (0, 2)),)
        ),
    ),
)


class Access:
    """The rights of a client: operations on groups, and the topics that it may describe."""

    is_full = False

    def __init__(self, groups: Iterable[Operation] = (), topics: Iterable[str] = ()) -> None:
        self._groups, self._topics = set(groups), set(topics)

    def allows(self, operation: Operation, kind: ResourceType, name: str, *, report: bool = True) -> bool:
        assert kind is ResourceType.GROUP
        return operation in self._groups

    def allowed(self, operation: Operation, kind: ResourceType, names: Iterable[str]) -> set[str]:
        assert (operation, kind) == (Operation.DESCRIBE, ResourceType.TOPIC)
        return self._topics & set(names)


class Groups(GroupCoordinator):
    """A group coordinator without shards: notes what it is asked, and gives one reply."""

    def __init__(self, reply: GroupResult | None, *, serves: bool = True) -> None:
        self._serves = serves
        self.asked: list[tuple[str, GroupRequest]] = []
        self._reply = reply

    def serves(self, kind: str) -> bool:
        return self._serves

    def ask(
        self, asked: Sequence[tuple[str, GroupRequest]], respond: Callable[[Sequence[GroupResult]], Response]
    ) -> Response:
        self.asked += asked
        assert self._reply is not None
        return respond([self._reply] * len(asked))

    async def ask_in_turns(
        self, asked: Sequence[tuple[str, GroupRequest]], work: LongWork
    ) -> list[GroupResult]:
        self.asked += asked
        assert self._reply is not None
        return [self._reply] * len(asked)


def send(
    key: ApiKey, groups: Groups, access: Access | None, steps: list[int] | None = None, **fields: object
) -> Any:
    """``steps``: gets how many elements each step of long work had."""
    rights = SimpleNamespace(is_full=True, allowed=lambda *_: set(HEARTBEAT["subscribed_topic_names"]))  # type: ignore[arg-type]
    codec = api(key, 1)
    header = RequestHeader(key, 1, 1, "client", 0)
    context = RequestContext(principal=ANONYMOUS, security_protocol=SecurityProtocol.PLAINTEXT)
    connection = SimpleNamespace(peer=("10.0.0.1", 1))
    request = Request(header, codec.request(**fields), codec, cast(Any, connection), context)
    given = rights_of(access or rights)
    groups._rights = given
    tasks = SimpleNamespace(spawn=lambda work, kind: asyncio.run(work))
    turns = SimpleNamespace(now_us=lambda: 0, count=([] if steps is None else steps).append)
    parts = SimpleNamespace(groups=groups, rights=given, tasks=tasks, turns=turns)
    specs = share_groups.apis(cast(Any, parts))
    (handle,) = (spec.handle for spec in specs if spec.key is key)
    frame = handle(request)
    return decode_response(key, 1, b"".join(map(bytes, cast(Any, frame)))[4:])[1]


def test_a_heartbeat_reaches_the_group_and_its_reply_the_member() -> None:
    reply = ShareGroupHeartbeatResult(
        member_id="m",
        member_epoch=5,
        heartbeat_interval_ms=3_000,
        assignment=(TopicPartitions(TOPIC_ID, (0, 2)),),
    )
    groups = Groups(reply)
    response = send(ApiKey.SHARE_GROUP_HEARTBEAT, groups, None, **HEARTBEAT)
    assert groups.asked == [("g", ShareGroupHeartbeat("g", "m", 0, None, ("t", "u"), "client", "/10.0.0.1"))]
    assert (response.error_code, response.member_id, response.member_epoch) == (ErrorCode.none, "m", 5)
    assert response.heartbeat_interval.total_seconds() == 3
    [topic] = response.assignment.topic_partitions
    assert (topic.topic_id, topic.partitions) == (TOPIC_ID, (0, 2))


@pytest.mark.parametrize(
    ("access", "error"),
    [
        (Access(topics={"t", "u"}), ErrorCode.group_authorization_failed),
        (Access({Operation.DESCRIBE}, {"t", "u"}), ErrorCode.group_authorization_failed),
        (Access({Operation.READ}, {"t"}), ErrorCode.topic_authorization_failed),
        (Access({Operation.READ}, {"t", "u"}), ErrorCode.none),
    ],
)
def test_a_member_reads_the_group_and_describes_each_topic(access: Access, error: ErrorCode) -> None:
    groups = Groups(ShareGroupHeartbeatResult())
    response = send(ApiKey.SHARE_GROUP_HEARTBEAT, groups, access, **HEARTBEAT)
    assert response.error_code is error
    assert response.assignment is None
    assert len(groups.asked) == (error is ErrorCode.none)


def test_a_group_is_described() -> None:
    groups = Groups(ShareGroupDescribeResult((DESCRIBED,)))
    asked = {"group_ids": ("g",), "include_authorized_operations": False}
    [group] = send(ApiKey.SHARE_GROUP_DESCRIBE, groups, None, **asked).groups
    assert (group.group_id, group.group_state, group.group_epoch, group.assignment_epoch) == (
        "g",
        "Stable",
        4,
        3,
    )
    assert group.assignor_name == "simple"
    [member] = group.members
    assert (member.member_id, member.rack_id, member.member_epoch) == ("m", "r", 3)
    assert (member.client_id, member.client_host, member.subscribed_topic_names) == ("c", "/h", ("t",))
    [topic] = member.assignment.topic_partitions
    assert (topic.topic_id, topic.topic_name, topic.partitions) == (TOPIC_ID, "t", (0, 2))


@pytest.mark.parametrize(
    ("access", "error", "members"),
    [
        (Access({Operation.READ}, {"t"}), ErrorCode.group_authorization_failed, 0),
        (Access({Operation.DESCRIBE}), ErrorCode.topic_authorization_failed, 0),
        (Access({Operation.DESCRIBE}, {"t"}), ErrorCode.none, 1),
    ],
)
def test_only_groups_and_topics_that_the_client_may_describe_are_shown(
    access: Access, error: ErrorCode, members: int
) -> None:
    asked = {"group_ids": ("g",), "include_authorized_operations": False}
    groups = Groups(ShareGroupDescribeResult((DESCRIBED,)))
    [group] = send(ApiKey.SHARE_GROUP_DESCRIBE, groups, access, **asked).groups
    assert (group.group_id, group.error_code, len(group.members)) == ("g", error, members)


def test_the_topics_of_many_members_are_looked_through_in_steps() -> None:
    asked = {"group_ids": ("g",), "include_authorized_operations": False}
    many = replace(DESCRIBED, members=10 * tuple(DESCRIBED.members))
    steps: list[int] = []
    groups = Groups(ShareGroupDescribeResult((many,)))
    access = Access({Operation.DESCRIBE}, {"t"})
    [group] = send(ApiKey.SHARE_GROUP_DESCRIBE, groups, access, steps, **asked).groups
    assert (len(group.members), sum(steps), max(steps)) == (10, 20, 2)


def test_without_the_feature_there_are_no_share_groups() -> None:
    groups = Groups(None, serves=False)
    unsupported = ErrorCode.unsupported_version
    response = send(ApiKey.SHARE_GROUP_HEARTBEAT, groups, None, **HEARTBEAT)
    assert response.error_code is unsupported
    asked = {"group_ids": ("g", "h"), "include_authorized_operations": False}
    described = send(ApiKey.SHARE_GROUP_DESCRIBE, groups, None, **asked).groups
    assert [(group.group_id, group.error_code) for group in described] == [
        ("g", unsupported),
        ("h", unsupported),
    ]
    assert not groups.asked


# -- the coordinator's part ------------------------------------------------------------------------------

ACTION = InitializeShareState("g", 3, {TOPIC_ID: {0: -1, 1: -1}})


def coordinator(image: object = None) -> GroupCoordinator:
    made = GroupCoordinator.__new__(GroupCoordinator)
    made.__dict__.update(
        _metadata=SimpleNamespace(image=image),
        _config=SimpleNamespace(groups=GroupConfig()),
        _runtime=SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 1, wall_ms=lambda: 2)),
    )
    return made


def test_the_share_coordinators_answer_reaches_the_shard_that_asked() -> None:
    passed: list[ShareStateResult] = []
    shard = SimpleNamespace(on_share_state=lambda result, now_ms, wall_ms: passed.append(result))
    shell = SimpleNamespace(shard=shard, carry_out=lambda decide: decide())
    made = coordinator()
    answer = ShareStateResult(ACTION)

    async def succeeds(action: object) -> ShareStateResult:
        assert action is ACTION
        return answer

    made._share_states = succeeds
    asyncio.run(made._keep_share_state(cast(Any, shell), ACTION))
    assert passed == [answer]

    async def unloads(action: object) -> ShareStateResult:
        shell.shard = None
        return answer

    made._share_states = unloads
    asyncio.run(made._keep_share_state(cast(Any, shell), ACTION))
    assert passed == [answer], "another coordinator asks again"


def test_settings_of_a_group_come_from_the_image() -> None:
    settings = {"g": {"share.delivery.count.limit": "7", "errors.deadletterqueue.topic.name": "dlq.g"}}
    levels = {"share.version": 1}

    def config(kind: ConfigResourceType, name: str) -> dict[str, str]:
        assert kind is ConfigResourceType.GROUP
        return settings.get(name, {})

    made = coordinator(SimpleNamespace(config=config, feature_level=levels.__getitem__))
    assert made.share_group_config("g").delivery_count_limit == 7
    assert made.share_group_config("h").delivery_count_limit == 5
    assert made.share_group_config("g").dead_letter_topic == "", "earlier brokers cannot read the state"
    levels["share.version"] = 2
    assert made.share_group_config("g").dead_letter_topic == "dlq.g"
    assert made.share_group_config("h").dead_letter_topic == ""


def test_each_setting_of_a_group_is_described() -> None:
    own = {"share.auto.offset.reset": "earliest", "share.session.timeout.ms": "50000"}
    image = SimpleNamespace(config=lambda kind, name: own if kind is ConfigResourceType.GROUP else {})
    config = BrokerConfig({"node.id": "1", "group.share.heartbeat.interval.ms": "6000"})
    described = {each.key.name: each for each in topic_configs.group_config(cast(Any, image), config, "g")}
    assert {
        name: (described[name].text, described[name].source.name)
        for name in (
            "share.auto.offset.reset",
            "share.isolation.level",
            "share.renew.acknowledge.enable",
            "share.session.timeout.ms",
            "share.heartbeat.interval.ms",
            "share.delivery.count.limit",
        )
    } == {
        "share.auto.offset.reset": ("earliest", "DYNAMIC_GROUP"),
        "share.isolation.level": ("read_uncommitted", "DEFAULT"),
        "share.renew.acknowledge.enable": ("true", "DEFAULT"),
        "share.session.timeout.ms": ("50000", "DYNAMIC_GROUP"),
        "share.heartbeat.interval.ms": ("6000", "STATIC_BROKER"),
        "share.delivery.count.limit": ("5", "DEFAULT"),
    }


def test_the_ranges_of_one_share_partition_and_of_one_response_are_limited() -> None:
    spans = tuple(SpanView(at, at, DeliveryState.AVAILABLE, at % 2, None, None) for at in range(1_000))

    def core_of(ranges: int) -> SimpleNamespace:
        def view(limit: int, _members: int) -> SharePartitionView:
            return SharePartitionView(
                start_offset=0,
                end_offset=ranges,
                available=ranges,
                acquired=0,
                acknowledged=0,
                archiving=0,
                archived=0,
                delivery_complete_count=0,
                held=(),
                spans=spans[: min(limit, ranges)],
            )

        return SimpleNamespace(view=view, ranges=ranges)

    led = [
        SimpleNamespace(
            key=index,
            leader=None,
            replica=SimpleNamespace(high_watermark=1_000),
            partition=None,
            core=core_of(ranges),
            lag=0,
            end_locks=lambda: None,
        )
        for index, ranges in enumerate([1_000, 3, 1_000, 1_000, 1_000, 1_000, 1_000])
    ]
    for one in led:
        one.partition = one
    parts = SimpleNamespace(
        groups=Groups(None),
        rights=rights_of(),
        replicas=SimpleNamespace(partition=lambda topic, index: led[index]),
        share_partitions=SimpleNamespace(loaded=lambda group_id, key: led[key]),
        runtime=SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 0)),
    )
    asked = SharePartitionsOfTopic(topic="t", partitions=tuple(range(7)))
    request = SimpleNamespace(
        body=DescribeSharePartitionsRequest(group_id="g", topics=(asked,)), respond=lambda **found: found
    )
    found = cast(Any, share_groups.handle_describe_partitions(cast(Any, parts), cast(Any, request)))
    described = [(len(one.ranges), one.has_more_ranges) for one in found["partitions"]]
    assert described == [(200, True), (3, False), *[(200, True)] * 3, (197, True), (0, True)]
