"""A new queue is created when every broker knows it: workers may ask any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.client.admin.admin import ConfigEntry, ConfigSource
from nilometer.kafka import queue_settings
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
        return {
            name: ConfigEntry(name=name, value="1", source=source, read_only=False, sensitive=False)
            for name in NAMES
        }

    async def describe_topics(self, names: list[str]) -> dict[str, KafkaError]:
        return {name: KafkaError(UNKNOWN) for name in names}

    async def create_topics(self, topics: list[Any]) -> dict[str, None]:
        return {topic.name: None for topic in topics}

    async def incremental_alter_configs(self, *_: object) -> None: ...


def create(brokers: Brokers) -> None:
    asyncio.run(
        queue_settings.create(
            cast(Any, brokers),
            "jobs",
            max_deliveries=3,
            lock="30s",
            partitions=1,
            replication_factor=1,
            configs={},
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
