"""Internal topics of streams groups (KIP-1071) are created with the rights of the member that needs them.

Clients differ by their addresses; the one of ``ADMIN_HOST`` has every right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nilometer.cluster.acl import Acl, Operation, PatternType, Permission, ResourceType
from nilometer.groups.streams_topology import Status
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.authorization.prepared import AUTHORIZED, create_acls
from support.authorization.profiles import ADMIN_HOST, PRINCIPAL, everything
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.quota_requests import alter
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.wire.wire_peer import WirePeer, make

HOST = "127.0.0.9"
KEY = ApiKey.STREAMS_GROUP_HEARTBEAT
NONE = ErrorCode.none


def right(kind: ResourceType, name: str, operation: Operation) -> Acl:
    return Acl(kind, name, PatternType.PREFIXED, PRINCIPAL, HOST, operation, Permission.ALLOW)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    settings = {**AUTHORIZED, "group.streams.initial.rebalance.delay.ms": "0"}
    with NilometerBroker(tmp_path_factory.mktemp("streams-requests") / "data", settings) as running:
        admin = Side("admin", running.bootstrap, ADMIN_HOST)
        create_acls(admin, [*everything(ADMIN_HOST), *everything("127.0.0.1")])
        rights = (
            right(ResourceType.GROUP, "app", Operation.READ),
            right(ResourceType.TOPIC, "app", Operation.DESCRIBE),
            right(ResourceType.TOPIC, "app-may", Operation.CREATE),
        )
        create_acls(admin, rights)
        admin.create("app-words", 2)
        admin.hang_up()
        yield running
    assert "Traceback" not in running.output


class Member:
    def __init__(
        self,
        broker: NilometerBroker,
        group: str,
        *changelogs: str,
        client_id: str = "test",
        **configs: str,
    ) -> None:
        self.peer = WirePeer(broker.bootstrap, client_id, source=HOST)
        with WirePeer(broker.bootstrap, source=ADMIN_HOST) as admin:
            found = admin.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=(group,))
            assert found
        pairs = tuple(
            make(KEY, 1, "KeyValue", key=key.replace("_", "."), value=value) for key, value in configs.items()
        )
        logs = tuple(make(KEY, 1, "TopicInfo", name=name, topic_configs=pairs) for name in changelogs)
        subtopology = make(
            KEY,
            1,
            "Subtopology",
            subtopology_id="0",
            source_topics=("app-words",),
            state_changelog_topics=logs,
        )
        self.topology = make(KEY, 1, "Topology", epoch=0, subtopologies=(subtopology,))
        self.group, self.epoch = group, 0

    def beat(self) -> Any:
        joins = self.epoch == 0
        roles = dict.fromkeys(("active_tasks", "standby_tasks", "warmup_tasks"), () if joins else None)
        unchanged = dict.fromkeys(("client_tags", "task_offsets", "task_end_offsets"))
        told = self.peer.ask(
            KEY,
            1,
            group_id=self.group,
            member_id="m",
            member_epoch=self.epoch,
            rebalance_timeout_ms=1_000 if joins else -1,
            process_id="p",
            topology=self.topology if joins else None,
            **roles,
            **unchanged,
        )
        if told.error_code is NONE:
            self.epoch = told.member_epoch
        return told

    def join(self) -> Any:
        told = [self.beat()]

        def has_joined() -> bool:
            if told[-1].error_code in (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available):
                told.append(self.beat())  # the coordinator's topic is being created
            return told[-1].error_code is NONE

        eventually(has_joined, "the member has joined")
        return told[-1]


def detail(told: Any) -> str:
    return "".join(
        each.status_detail for each in told.status if each.status_code == Status.MISSING_INTERNAL_TOPICS
    )


def test_a_client_that_may_create_its_topics_gets_tasks(broker: NilometerBroker) -> None:
    member = Member(broker, "app-1", "app-may-log", cleanup_policy="compact")
    member.join()
    with WirePeer(broker.bootstrap, source=ADMIN_HOST) as admin:
        eventually(lambda: bool(member.beat().active_tasks), "the member has tasks")
        asked = make(ApiKey.METADATA, 12, "MetadataRequestTopic", name="app-may-log")
        [topic] = admin.ask(ApiKey.METADATA, 12, topics=(asked,)).topics
    assert len(topic.partitions) == 2


def test_a_client_that_may_not_is_told_so(broker: NilometerBroker) -> None:
    member = Member(broker, "app-2", "app-denied-log")
    expected = "Internal topics are missing: app-denied-log; Unauthorized to CREATE on topics app-denied-log."
    assert detail(member.join()) == expected
    assert detail(member.beat()) == expected


def test_a_client_without_many_topics_is_told_some_of_them(broker: NilometerBroker) -> None:
    """A string of the response may have 32,767 bytes: Java's clients cannot read a longer one."""
    names = [f"app-{number:03}-{'n' * 200}" for number in range(200)]
    some = f"{', '.join(names[:3])} and 197 additional topics"
    expected = f"Internal topics are missing: {some}; Unauthorized to CREATE on topics {some}."
    assert detail(Member(broker, "app-5", *names).join()) == expected


def test_why_a_topic_cannot_be_created(broker: NilometerBroker) -> None:
    member = Member(broker, "app-3", "app-may-be-wrong", cleanup_policy="shred")
    member.join()
    eventually(
        lambda: detail(member.beat()).endswith("; Creation failed: app-may-be-wrong (INVALID_CONFIG)."),
        "the member is told",
    )


def test_topics_of_a_client_count_for_its_quota_on_the_controller_itself(broker: NilometerBroker) -> None:
    alter(broker.bootstrap, {"client-id": "slow"}, controller_mutation_rate=0.01)
    member = Member(broker, "app-6", "app-may-first", "app-may-second", client_id="slow")
    member.join()
    eventually(
        lambda: detail(member.beat()).endswith(
            "; Creation failed: app-may-second (THROTTLING_QUOTA_EXCEEDED)."
        ),
        "the second topic has to wait",
    )


def test_a_topology_with_topics_that_the_client_may_not_describe(broker: NilometerBroker) -> None:
    member = Member(broker, "app-4", "other-log")
    told = [member.beat()]
    assert told[-1].error_code is ErrorCode.topic_authorization_failed
    member = Member(broker, "other", "app-may-log")
    assert member.beat().error_code is ErrorCode.group_authorization_failed
