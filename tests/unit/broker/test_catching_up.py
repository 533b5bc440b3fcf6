"""A broker whose store lags acts on a controller's answer only with what that controller knew."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.control.controller import Controller
from nilometer.broker.control.controller_channel import ControllerChannel
from nilometer.broker.control.controller_link import ControllerLink
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import Turns
from nilometer.cluster.controller.controllership import controllership_entry
from nilometer.cluster.entries import encode_entry
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import CoordinationStore, Entry, StoreRefused
from nilometer.identifiers import BrokerId, Incarnation, TopicId, TopicIdPartition
from nilometer.runtime.runtime import SeededEntropy
from nilometer.wire.errors import ErrorCode
from support.step_clock import StepClock

ENTROPY = SeededEntropy(random.Random(1))
CONTROLLER = BrokerId(2)


class LaggingStore:
    """Reads show nothing of what was appended since, until they are made to."""

    def __init__(self) -> None:
        entry = controllership_entry(ClusterImage(), CONTROLLER, Incarnation("7"), ENTROPY)
        self._appended = [Entry(0, encode_entry(entry))]
        self._shown: list[Entry] = []

    def append_another(self) -> None:
        self._appended.append(Entry(len(self._appended), self._appended[-1].data))
        self._shown = list(self._appended)

    async def sync(self) -> None:
        self._shown = list(self._appended)

    async def read(self, from_number: int, limit: int) -> list[Entry]:
        return self._shown[from_number : from_number + limit]


class AnsweringChannel:
    """The controller has decided, and answers."""

    def __init__(self) -> None:
        outcome = SimpleNamespace(error_code=0, message="")
        self.answer = SimpleNamespace(error_code=ErrorCode.none, message="", topics=(), outcomes=(outcome,))

    async def call(self, *_: object) -> Any:
        return self.answer


PARTITION = TopicIdPartition(TopicId("AAAAAAAAAAAAAAAAAAAAAQ"), 0)
Ask = Callable[[ControllerLink], Awaitable[object]]
QUESTIONS: dict[str, Ask] = {
    "alter_partitions": lambda link: link.alter_partitions(1, []),
    "create_topics": lambda link: link.create_topics([], ENTROPY),
    "forfeit_replica": lambda link: link.forfeit_replica(PARTITION),
    "announce_shutdown": lambda link: link.announce_shutdown(),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_the_controller_knew_is_folded_before_its_answer_counts(question: str) -> None:
    store = cast(CoordinationStore, LaggingStore())
    metadata = MetadataLog(store)
    link = ControllerLink(
        1,
        Controller(1, store, metadata, Tasks(), Turns(StepClock())),
        cast(ControllerChannel, AnsweringChannel()),
        metadata,
    )

    async def ask() -> None:
        await metadata.catch_up()
        assert metadata.image.number == -1, "the server in use lags"
        await QUESTIONS[question](link)
        assert metadata.image.controller_id == CONTROLLER

    asyncio.run(ask())


def test_a_store_that_lags_is_no_store_that_lost_what_it_held() -> None:
    metadata = MetadataLog(cast(CoordinationStore, LaggingStore()))

    async def check() -> None:
        await metadata.catch_up()
        await metadata.check_reaches(0)
        with pytest.raises(StoreRefused, match="ends with entry 0, but entry 1"):
            await metadata.check_reaches(1)

    asyncio.run(check())


def test_an_entry_is_applied_to_its_end_before_the_next_one_although_its_reader_is_cancelled() -> None:
    store = LaggingStore()
    metadata = MetadataLog(cast(CoordinationStore, store))
    told: list[tuple[str, int]] = []

    async def check() -> None:
        await store.sync()
        may_end = asyncio.Event()

        async def rest(number: int) -> None:
            await may_end.wait()
            told.append(("applied", number))

        metadata.subscribe(lambda delta, _image: rest(delta.number), lambda _image: None)
        metadata.subscribe(lambda delta, _image: told.append(("after", delta.number)), lambda _image: None)
        reader = asyncio.ensure_future(metadata.catch_up())
        await asyncio.sleep(0)
        store.append_another()
        other = asyncio.ensure_future(metadata.catch_up())
        for _ in range(3):
            reader.cancel()
            await asyncio.sleep(0)
        assert not told and not reader.done(), "the entry is in the image already"
        may_end.set()
        await asyncio.gather(reader, return_exceptions=True)
        assert reader.cancelled()
        await other
        assert told == [("applied", 0), ("after", 0), ("applied", 1), ("after", 1)]

    asyncio.run(check())
