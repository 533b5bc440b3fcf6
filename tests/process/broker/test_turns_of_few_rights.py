"""What a user of few rights can make large, or ask for, holds the event loop for no other client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.cluster.controller.access import REQUESTER_BYTES_MAX
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.secured_broker import PREFIX, SecuredBroker
from support.brokers.token_requests import SECRET_KEY, create, describe
from support.brokers.turns import TURN_MS_MAX, longest_turns_ms
from support.eventually import eventually
from support.wire.wire_peer import WirePeer, make

RENEWERS = 7_000
TOKENS = 20
TOPICS = 9_900
NAMES = 1_700_000
TOO_MANY = ErrorCode.inconsistent_group_protocol
"""What a classic member gets whose subscription has too many elements for a consumer group."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    settings = {"metrics.listener": "127.0.0.1:0", "delegation.token.secret.key": SECRET_KEY}
    with SecuredBroker(tmp_path_factory.mktemp("few-rights"), settings) as secured:
        yield secured
        assert "Traceback" not in secured.broker.output
        assert " ERROR " not in secured.broker.output


@pytest.fixture
def alice(secured: SecuredBroker) -> Iterator[WirePeer]:
    with secured.log_in(secured.sasl) as peer:
        yield peer


def test_tokens_of_thousands_of_renewers_are_few_and_described_in_short_turns(
    secured: SecuredBroker, alice: WirePeer
) -> None:
    created = [create(alice, renewers=("User:a",) * RENEWERS) for _ in range(TOKENS)]
    ids = {one.token_id for one in created if one.error_code == ErrorCode.none}
    errors = [one.error_code for one in created]
    assert errors == [ErrorCode.none] * len(ids) + [ErrorCode.policy_violation] * (TOKENS - len(ids))
    assert 0 < len(ids) * RENEWERS * len("User:a") < REQUESTER_BYTES_MAX
    described = describe(alice)
    assert described.error_code == ErrorCode.none
    assert {token.token_id for token in described.tokens} == ids
    assert {len(token.renewers) for token in described.tokens} == {RENEWERS}
    assert longest_turns_ms(secured.broker).get("DescribeDelegationToken", 0) < TURN_MS_MAX


def test_thousands_of_absent_topics_are_described_in_short_turns(
    secured: SecuredBroker, alice: WirePeer
) -> None:
    key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    names = sorted(f"{PREFIX}{number}" for number in range(TOPICS))
    asked = tuple(make(key, 0, "TopicRequest", name=name) for name in names)
    answer = alice.ask(key, 0, topics=asked, response_partition_limit=10, cursor=None)
    assert [topic.name for topic in answer.topics] == names
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.unknown_topic_or_partition}
    assert longest_turns_ms(secured.broker).get("DescribeTopicPartitions", 0) < TURN_MS_MAX


def test_a_change_of_megabytes_that_cannot_be_divided_is_refused_before_it_is_sent_on(
    alice: WirePeer,
) -> None:
    key, name = ApiKey.INCREMENTAL_ALTER_CONFIGS, f"{PREFIX}settings"
    for count, expected in ((10, ErrorCode.unknown_topic_or_partition), (100, ErrorCode.invalid_request)):
        settings = tuple(
            make(key, 1, "AlterableConfig", name=f"setting-{each}", config_operation=0, value="x" * 30_000)
            for each in range(count)
        )
        topic = make(key, 1, "AlterConfigsResource", resource_type=2, resource_name=name, configs=settings)
        [answer] = alice.ask(key, 1, resources=(topic,), validate_only=False).responses
        assert answer.error_code == expected, answer


def join(peer: WirePeer, group: str, metadata: bytes, member_id: str = "") -> Message:
    key, version = ApiKey.JOIN_GROUP, 5
    offered = make(key, version, "JoinGroupRequestProtocol", name="range", metadata=metadata)
    return peer.ask(
        key,
        version,
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=(offered,),
    )


def naming(count: int) -> bytes:
    """Return a subscription of so many names."""
    return b"\0\0" + count.to_bytes(4, "big") + b"\0\4name" * count + b"\xff" * 4


def heartbeat(peer: WirePeer, group: str, member_id: str, epoch: int) -> ErrorCode:
    return peer.ask(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=(f"{PREFIX}any",),
        topic_partitions=() if epoch == 0 else None,
    ).error_code


def test_subscriptions_of_millions_of_names_are_not_read(tmp_path: Path) -> None:
    """In a request of 10 MB: each rebalance, a heartbeat of another member, and one that leaves read all."""
    settings = {"metrics.listener": "127.0.0.1:0", "group.initial.rebalance.delay.ms": "0"}
    metadata = naming(NAMES)
    with NilometerBroker(tmp_path / "data", settings) as broker, WirePeer(broker.bootstrap) as peer:
        for group in ("classic", "consumer"):
            asked = lambda: peer.ask(ApiKey.FIND_COORDINATOR, 2, key=group, key_type=0).error_code  # noqa: B023, E731
            eventually(lambda: asked() == ErrorCode.none, "the group has a coordinator")  # noqa: B023
        first = join(peer, "classic", metadata)
        assert first.error_code == ErrorCode.member_id_required
        assert join(peer, "classic", metadata, first.member_id).error_code == ErrorCode.none
        assert heartbeat(peer, "classic", "m" * 22, 0) == ErrorCode.group_id_not_found
        assert heartbeat(peer, "consumer", "m" * 22, 0) == ErrorCode.none
        for count, error in ((NAMES, ErrorCode.unknown_server_error), (600_000, TOO_MANY)):
            assert join(peer, "consumer", naming(count)).error_code == error
        assert heartbeat(peer, "consumer", "m" * 22, -1) == ErrorCode.none
        assert max(longest_turns_ms(broker).values()) < TURN_MS_MAX
