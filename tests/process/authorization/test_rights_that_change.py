"""Rights that change while a client uses them, what the audit log says, and rights after a restart.

Clients differ by their addresses; the one of ``ADMIN_HOST`` has every right.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nilometer.cluster.acl import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from nilometer.wire.errors import ErrorCode
from support.authorization.prepared import AUTHORIZED, create_acls, delete_acl
from support.authorization.profiles import ADMIN_HOST, PRINCIPAL, everything
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.wire.wire_peer import WirePeer, make

CLIENT_HOST = "127.0.0.9"
DENIED = ErrorCode.topic_authorization_failed
K = ApiKey


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    settings = {**AUTHORIZED, "nilometer.audit.log.max.bytes": "1048576"}
    with NilometerBroker(tmp_path_factory.mktemp("changing-rights") / "data", settings) as running:
        admin = Side("admin", running.bootstrap, ADMIN_HOST)
        create_acls(admin, [*everything(ADMIN_HOST), *everything("127.0.0.1")])
        for topic in ("cached", "waiting", "kept"):
            admin.create(topic)
        admin.hang_up()
        yield running
    assert "Traceback" not in running.output


@pytest.fixture
def admin(broker: NilometerBroker) -> Iterator[Side]:
    side = Side("admin", broker.bootstrap, ADMIN_HOST)
    yield side
    side.hang_up()


@pytest.fixture
def client(broker: NilometerBroker) -> Iterator[WirePeer]:
    with WirePeer(broker.bootstrap, source=CLIENT_HOST) as peer:
        yield peer


def reading(topic: str) -> Acl:
    return Acl(
        ResourceType.TOPIC,
        topic,
        PatternType.LITERAL,
        PRINCIPAL,
        CLIENT_HOST,
        Operation.READ,
        Permission.ALLOW,
    )


def fetch_fields(topic: str | None, *, session: int, epoch: int, offset: int = 0, **fields: object) -> Any:
    topics: tuple[object, ...] = ()
    if topic is not None:
        part = make(K.FETCH, 12, "FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=1000)
        topics = (make(K.FETCH, 12, "FetchTopic", topic=topic, partitions=(part,)),)
    return {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "isolation_level": 0,
        "session_id": session,
        "session_epoch": epoch,
        "topics": topics,
        "forgotten_topics_data": (),
        **fields,
    }


def outcomes(answer: Any) -> list[tuple[ErrorCode, bool]]:
    """Return the error of each partition, and whether it has records."""
    assert answer.error_code is ErrorCode.none
    return [
        (partition.error_code, bool(partition.records))
        for topic in answer.responses
        for partition in topic.partitions
    ]


def test_the_partitions_of_a_fetch_session_follow_the_rights(admin: Side, client: WirePeer) -> None:
    right = reading("cached")
    create_acls(admin, [right])
    admin.append("cached", b"one")
    answer = client.ask(K.FETCH, 12, **fetch_fields("cached", session=0, epoch=0))
    session = answer.session_id
    assert session and outcomes(answer) == [(ErrorCode.none, True)]
    after = fetch_fields("cached", session=session, epoch=1, offset=1)
    assert outcomes(client.ask(K.FETCH, 12, **after)) in ([], [(ErrorCode.none, False)])
    delete_acl(admin, right)
    for epoch in (2, 3):  # the error is repeated, as in Kafka
        answer = client.ask(K.FETCH, 12, **fetch_fields(None, session=session, epoch=epoch))
        assert outcomes(answer) == [(DENIED, False)]
    create_acls(admin, [right])
    answer = client.ask(K.FETCH, 12, **fetch_fields(None, session=session, epoch=4))
    assert outcomes(answer) == [(ErrorCode.none, False)]
    delete_acl(admin, right)


def test_a_waiting_fetch_gets_nothing_after_its_right_is_gone(admin: Side, client: WirePeer) -> None:
    right = reading("waiting")
    create_acls(admin, [right])
    client.tell(K.FETCH, 12, **fetch_fields("waiting", session=0, epoch=-1, max_wait_ms=20_000))
    delete_acl(admin, right)
    admin.append("waiting", b"secret")
    assert outcomes(client.hear(K.FETCH, 12)) == [(DENIED, False)]


def test_a_member_gets_no_topic_that_it_may_not_describe(
    broker: NilometerBroker, admin: Side, client: WirePeer
) -> None:
    """Its regular expression selects both topics; it is assigned both, and shown the one it may describe.

    On a new connection its assignment is repeated if all of it may be shown: a member would take a part of
    it for a revocation of the rest.
    """
    for topic in ("regex-seen", "regex-hidden"):
        admin.create(topic)
    rights = [
        reading("regex-seen"),
        reading("regex")._replace(resource_type=ResourceType.GROUP),
    ]
    create_acls(admin, rights)
    member = {"group_id": "regex", "member_id": "regex-member", "subscribed_topic_regex": "regex-.*"}
    epoch, shown = 0, set[object]()

    def has_seen() -> bool:
        nonlocal epoch
        answer = client.ask(
            K.CONSUMER_GROUP_HEARTBEAT,
            1,
            **member,
            member_epoch=epoch,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=None,
            topic_partitions=(),
        )
        if answer.error_code in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress):
            client.ask(K.FIND_COORDINATOR, 3, key_type=0, key="regex")  # creates the topic of groups
            return False
        assert answer.error_code is ErrorCode.none, answer
        epoch = answer.member_epoch
        if answer.assignment is not None:
            shown.update(each.topic_id for each in answer.assignment.topic_partitions)
        return admin.topic_ids["regex-seen"] in shown

    eventually(has_seen, "the member has the topic that it may describe")
    assert shown == {admin.topic_ids["regex-seen"]}

    def repeated() -> set[object] | None:
        with WirePeer(broker.bootstrap, source=CLIENT_HOST) as peer:
            answer = peer.ask(
                K.CONSUMER_GROUP_HEARTBEAT,
                1,
                **{**member, "subscribed_topic_regex": None},
                member_epoch=epoch,
                rebalance_timeout_ms=-1,
                subscribed_topic_names=None,
                topic_partitions=None,
            )
        assert answer.error_code is ErrorCode.none, answer
        if answer.assignment is None:
            return None
        return {each.topic_id for each in answer.assignment.topic_partitions}

    assert repeated() is None
    rights.append(reading("regex-hidden"))
    create_acls(admin, rights[-1:])
    assert repeated() == {admin.topic_ids["regex-seen"], admin.topic_ids["regex-hidden"]}
    for right in rights:
        delete_acl(admin, right)


def test_what_only_nilometer_has_needs_describe_on_the_cluster(admin: Side, client: WirePeer) -> None:
    denied = int(ErrorCode.cluster_authorization_failed)
    key = NilometerApiKey.DESCRIBE_REPLICAS
    answer = client.ask(key, 0, topics=None, partitions=None)
    assert answer.error_code == denied and answer.replicas == () and answer.cluster_id == ""
    key = NilometerApiKey.DESCRIBE_REBALANCES
    [group] = client.ask(key, 0, groups=("g",)).groups
    assert group.error_code == denied
    describing = Acl(
        ResourceType.CLUSTER,
        CLUSTER_NAME,
        PatternType.LITERAL,
        PRINCIPAL,
        CLIENT_HOST,
        Operation.DESCRIBE,
        Permission.ALLOW,
    )
    create_acls(admin, [describing])
    answer = client.ask(NilometerApiKey.DESCRIBE_REPLICAS, 0, topics=None, partitions=None)
    assert answer.error_code == 0 and answer.replicas
    delete_acl(admin, describing)


def test_the_audit_log_has_denials_and_changes(
    broker: NilometerBroker, admin: Side, client: WirePeer
) -> None:
    joining = {"member_epoch": 0, "subscribed_topic_names": ("kept",)}
    for _ in range(3):
        client.ask(K.FETCH, 12, **fetch_fields("kept", session=0, epoch=-1))
        client.ask(K.CONSUMER_GROUP_HEARTBEAT, 1, group_id="not-mine", member_id="m", **joining)
        client.ask(K.SHARE_GROUP_HEARTBEAT, 1, group_id="not-mine", member_id="m", **joining)
    config = make(
        K.INCREMENTAL_ALTER_CONFIGS, 1, "AlterableConfig", name="retention.ms", config_operation=0, value="77"
    )
    resource = make(
        K.INCREMENTAL_ALTER_CONFIGS,
        1,
        "AlterConfigsResource",
        resource_type=2,
        resource_name="kept",
        configs=(config,),
    )
    admin.message(K.INCREMENTAL_ALTER_CONFIGS, 1, resources=(resource,), validate_only=False)
    part = make(K.DELETE_RECORDS, 2, "DeleteRecordsPartition", partition_index=0, offset=0)
    topic = make(K.DELETE_RECORDS, 2, "DeleteRecordsTopic", name="kept", partitions=(part,))
    admin.message(K.DELETE_RECORDS, 2, topics=(topic,), timeout_ms=10_000)
    path = broker.data_dir / ".audit" / "audit.log"

    def lines(**wanted: object) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in found if wanted.items() <= line.items()]

    denial = {
        "kind": "denied",
        "principal": PRINCIPAL,
        "client_address": CLIENT_HOST,
        "listener": "PLAINTEXT",
        "api": "FETCH",
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource": "kept",
    }
    for wanted in (
        denial,
        {"kind": "denied", "api": "CONSUMER_GROUP_HEARTBEAT"},
        {"kind": "denied", "api": "SHARE_GROUP_HEARTBEAT"},
    ):

        def count(wanted: dict[str, str] = wanted) -> int:
            return sum(line.get("count", 1) for line in lines(**wanted))

        eventually(lambda count=count: count() >= 3, "three denials are noted")
        assert count() == 3, "a heartbeat is one denial"
    change = {"kind": "changed", "client_address": ADMIN_HOST, "api": "INCREMENTAL_ALTER_CONFIGS"}
    eventually(lambda: len(lines(**change)) == 1, "the change is noted")
    eventually(lambda: len(lines(kind="changed", api="DELETE_RECORDS")) == 1, "the deletion is noted")
    [deletion] = lines(kind="changed", api="DELETE_RECORDS")
    assert deletion["changes"] == [{"topic": "kept", "offsets": {"0": 0}}]
    [line] = lines(**change)
    [made] = line["changes"]
    assert (made["resource_name"], made["key"], made["value"]) == ("kept", "retention.ms", "(hidden)")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_acls_are_in_force_after_a_restart(broker: NilometerBroker, admin: Side) -> None:
    create_acls(admin, [reading("kept")])
    broker.stop()
    broker.start()
    with WirePeer(broker.bootstrap, source=CLIENT_HOST) as client:
        for topic, error in (("kept", ErrorCode.none), ("cached", DENIED)):
            answer = client.ask(K.FETCH, 12, **fetch_fields(topic, session=0, epoch=-1))
            assert [code for code, _ in outcomes(answer)] == [error]
    with WirePeer(broker.bootstrap, source=ADMIN_HOST) as admin_again:
        assert (
            admin_again.ask(
                K.DESCRIBE_ACLS,
                3,
                resource_type_filter=1,
                resource_name_filter=None,
                pattern_type_filter=1,
                principal_filter=WILDCARD,
                host_filter=None,
                operation=1,
                permission_type=1,
            ).resources
            == ()
        )
