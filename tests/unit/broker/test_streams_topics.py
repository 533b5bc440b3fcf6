"""How the internal topics of streams groups are created, and what members are told if they cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.groups.streams_groups import CREATED_AT_ONCE, KNOWN_MAX, TOLD_FOR_MS, StreamsTopics
from nilometer.broker.tasks import Tasks
from nilometer.cluster.controller.topics import NewTopic
from nilometer.groups.streams_topology import InternalTopic, KeyValue
from nilometer.wire.errors import ErrorCode, KafkaError

CLIENT = cast(Any, None)
DEFAULT = 3


class World:
    """The controller answers with ``answer``, or raises it; the clock stands."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.asked: list[NewTopic] = []
        self.answer: ErrorCode | Exception = ErrorCode.none
        clock = SimpleNamespace(monotonic_ms=lambda: self.now_ms)
        runtime = cast(Any, SimpleNamespace(clock=clock, entropy=None))
        self._tasks: list[asyncio.Task[Any]] = []
        tasks = cast(Tasks, SimpleNamespace(spawn=self._spawn))
        self.topics = StreamsTopics(runtime, tasks, cast(Any, self), DEFAULT)

    def _spawn(self, work: Any, *, name: str) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def create_topics(self, topics: Sequence[NewTopic], _chance: Any, _client: Any) -> Any:
        self.asked += topics
        if isinstance(self.answer, Exception):
            raise self.answer
        return {topic.name: self.answer for topic in topics}

    async def create(self, *topics: InternalTopic) -> list[tuple[str, str]]:
        told = self.topics.create(topics, CLIENT)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        return told


def topic(name: str = "log", *, factor: int = 0) -> InternalTopic:
    return InternalTopic(name, 4, factor, (KeyValue("cleanup.policy", "compact"),))


@pytest.mark.parametrize(("given", "factor"), [(0, DEFAULT), (-1, DEFAULT), (1, 1), (2, 2), (-2, -2)])
def test_a_topology_without_a_replication_factor_gets_the_brokers_default(given: int, factor: int) -> None:
    """Kafka Streams sends -1 if its setting ``replication.factor`` is not set. An active controller that is
    asked for -1 replicas would place one."""
    world = World()
    assert asyncio.run(world.create(topic(factor=given))) == []
    [asked] = world.asked
    assert (asked.num_partitions, asked.replication_factor) == (4, factor)
    assert asked.configs == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ErrorCode.policy_violation, "POLICY_VIOLATION"),
        (KafkaError(ErrorCode.invalid_request, "No."), "No."),
        (RuntimeError("not foreseen"), "UNKNOWN_SERVER_ERROR"),
    ],
)
def test_a_failure_is_told_for_a_while_and_then_the_topic_is_tried_again(
    answer: ErrorCode | Exception, why: str
) -> None:
    async def run() -> None:
        world = World()
        world.answer = answer
        assert await world.create(topic()) == []
        assert await world.create(topic()) == [("log", why)]
        assert len(world.asked) == 1
        world.now_ms += TOLD_FOR_MS
        assert await world.create(topic()) == []
        assert len(world.asked) == 2

    asyncio.run(run())


def test_many_topics_are_created_by_several_decisions(caplog: pytest.LogCaptureFixture) -> None:
    """One line of the log says that some failed; others' topics are created although many have failed."""

    async def run() -> None:
        world = World()
        sizes: list[int] = []
        create = world.create_topics

        async def count(topics: Sequence[NewTopic], _chance: Any, _client: Any) -> Any:
            sizes.append(len(topics))
            if topics[0].name == many[CREATED_AT_ONCE].name:
                raise KafkaError(ErrorCode.not_controller, "It moves.")
            return await create(topics, _chance, _client)

        world.create_topics = count
        many = [topic(f"t{number:05}") for number in range(2 * CREATED_AT_ONCE + 1)]
        assert await world.create(*many) == []
        assert sizes == [CREATED_AT_ONCE, CREATED_AT_ONCE, 1]
        failed = dict(await world.create(*many))
        assert failed == {each.name: "It moves." for each in many[CREATED_AT_ONCE : 2 * CREATED_AT_ONCE]}
        assert len(caplog.records) == 1

        sizes.clear()
        await world.create(*(InternalTopic(f"wide{number}", 400, 1, ()) for number in range(5)))
        assert sizes == [2, 2, 1]

        world.answer = ErrorCode.invalid_replication_factor
        await world.create(*(topic(f"bad{number}") for number in range(KNOWN_MAX - len(many) - 5)))
        world.answer, world.asked = ErrorCode.none, []
        assert await world.create(topic("another")) == []
        assert [each.name for each in world.asked] == ["another"]

    asyncio.run(run())
