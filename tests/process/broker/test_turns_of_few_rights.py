"""What a user of few rights can make large, or ask for, holds the event loop for no other client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nilometer.cluster.controller.access import REQUESTER_BYTES_MAX
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.secured_broker import PREFIX, SecuredBroker
from support.brokers.token_requests import SECRET_KEY, create, describe
from support.brokers.turns import TURN_MS_MAX, longest_turns_ms
from support.wire.wire_peer import WirePeer, make

RENEWERS = 7_000
TOKENS = 20
TOPICS = 9_900


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
