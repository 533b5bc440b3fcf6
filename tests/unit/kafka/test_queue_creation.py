"""A new queue is created when every broker knows it: workers may ask any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.client.admin.admin import ConfigChange, ConfigEntry, ConfigSource, NewTopic
from nilometer.kafka import queue_settings
from nilometer.kafka.errors import InvalidSetting
from nilometer.kafka.queue_settings import Duration
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import api

UNKNOWN = ErrorCode.unknown_topic_or_partition
NAMES = (queue_settings.LIMIT, queue_settings.LOCK, queue_settings.START, queue_settings.ISOLATION)


class Brokers:
    """Three brokers, and what each answers when it is asked for the queue: at last that it knows it."""

    def __init__(self, **answers: list[ErrorCode | None]) -> None:
        """``None``: it does not answer."""
        self.answers = answers
        self.asked: list[int] = []
        self.topics: list[str] = []
        self.settings: dict[str, str] = {}
        self.described = 0
        self.late_until = 0
        """So many times settings are described as they were before."""
        self.client = SimpleNamespace(
            metadata=SimpleNamespace(brokers={1: None, 2: None, 3: None}),
            connections=SimpleNamespace(features=SimpleNamespace(level=lambda _name: 1)),
            send_to=self._send_to,
            retry=self._retry,
        )

    async def _retry(self, attempt: Callable[[], Awaitable[None]], _timeout_ms: int) -> None:
        for _ in range(3):
            try:
                return await attempt()
            except KafkaError as error:
                assert error.retriable
        raise KafkaError(ErrorCode.request_timed_out)

    async def _send_to(self, node_id: int, key: int, make: Callable[[Any], Any]) -> object:
        assert [topic.name for topic in make(api(key, 12)).topics] == ["jobs"]
        self.asked.append(node_id)
        left = self.answers.get(f"broker_{node_id}", [])
        error = left.pop(0) if left else ErrorCode.none
        if error is None:
            raise KafkaError(ErrorCode.network_exception)
        topic = SimpleNamespace(name="jobs", topic_id=None, error_code=error, partitions=())
        return SimpleNamespace(topics=(topic,), brokers=())

    # --- what an admin client is asked beside

    async def describe_configs(self, *_: object) -> dict[str, ConfigEntry]:
        source = ConfigSource.DEFAULT_CONFIG
        self.described += 1
        is_late = self.described <= self.late_until
        shown = dict.fromkeys(NAMES, "1") | ({} if is_late else self.settings)
        return {
            name: ConfigEntry(name=name, value=value, source=source, read_only=False, sensitive=False)
            for name, value in shown.items()
        }

    async def describe_topics(self, names: list[str]) -> dict[str, KafkaError]:
        return {name: KafkaError(UNKNOWN) for name in names}

    async def list_topics(self) -> dict[str, None]:
        return dict.fromkeys(self.topics)

    async def ensure_topic(self, topic: NewTopic) -> None:
        self.topics.append(topic.name)

    async def incremental_alter_configs(self, _kind: object, _name: str, changes: list[ConfigChange]) -> None:
        self.settings |= {change.name: change.value or "" for change in changes}


def create(brokers: Brokers, retry_after: Sequence[Duration] = ()) -> None:
    asyncio.run(
        queue_settings.create(
            cast(Any, brokers),
            "jobs",
            max_deliveries=3,
            lock="30s",
            partitions=1,
            replication_factor=1,
            configs={},
            retry_after=retry_after,
        )
    )


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ({}, [1, 2, 3]),
        ({"broker_2": [UNKNOWN, UNKNOWN]}, [1, 2, 3] * 3),
        ({"broker_3": [None]}, [1, 2, 3]),
        ({"broker_1": [ErrorCode.leader_not_available]}, [1, 2, 3]),
        ({"broker_1": [UNKNOWN] * 10}, [1, 2, 3] * 3),  # the time is over
    ],
)
def test_brokers_that_answer_are_asked_until_they_know_it(
    answers: dict[str, list[ErrorCode | None]], asked: list[int]
) -> None:
    brokers = Brokers(**answers)
    create(brokers)
    assert brokers.asked == asked


def test_a_queue_is_made_when_a_broker_shows_its_settings():
    brokers = Brokers()
    brokers.late_until = 3  # the first time they are asked for before anything is changed
    create(brokers)
    assert brokers.described == 4


def test_a_retry_topic_is_there_before_the_queue_is():
    brokers = Brokers()
    create(brokers, ["90s", 3600, "1d"])
    assert brokers.topics == ["dlq.jobs", "retry.jobs.90", "retry.jobs.3600", "retry.jobs.86400", "jobs"]


def test_a_creation_that_was_cut_off_is_finished_and_other_retry_topics_are_refused():
    brokers = Brokers()
    brokers.topics = ["retry.jobs.90", "retry.others.7"]
    create(brokers, [90, 100])
    assert brokers.topics[2:] == ["dlq.jobs", "retry.jobs.90", "retry.jobs.100", "jobs"]
    with pytest.raises(InvalidSetting, match=r"retry_after is 90 s, 100 s, not 90 s$"):
        create(brokers, [90])


@pytest.mark.parametrize(
    ("retry_after", "said"),
    [
        ([0], "whole seconds, from one to 30 days, not 0 s"),
        (["1500ms"], "not 1.5 s"),
        (["31d"], "from one to 30 days"),
        (["soon"], "retry_after is a duration such as '30s'"),
        ([60, 60], "begins with the shortest pause, not 60 s, 60 s"),
        (["2h", "1h"], "begins with the shortest pause, not 7200 s, 3600 s"),
    ],
)
def test_wrong_pauses_are_refused_before_anything_is_created(retry_after: list[Duration], said: str):
    brokers = Brokers()
    with pytest.raises(InvalidSetting, match=said):
        create(brokers, retry_after)
    assert brokers.topics == []
