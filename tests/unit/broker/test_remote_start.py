"""A follower goes on behind remote storage: what it asks of its leader and of remote storage, and what comes
of an attempt that fails or comes too late."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.replicas import remote_start
from nilometer.broker.replicas.remote_start import EARLIEST_LOCAL, RemoteStarts
from nilometer.broker.tasks import Tasks
from nilometer.identifiers import BrokerId
from nilometer.replication.follower import FollowerRole
from nilometer.simulation.model_check.processes import ModelLog
from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError

LEADER = BrokerId(3)
LOCAL_START = 40
EPOCHS = ((0, 5), (2, 20))


class Leader:
    """Tells where its log begins; ``errors``: what it answers instead, one time after the other."""

    def __init__(self, *errors: ErrorCode) -> None:
        self._errors = list(errors)
        self.asked: list[Any] = []
        self.open = 0

    def locate(self, broker_id: int) -> tuple[str, int] | None:
        return ("host", 9092) if broker_id == LEADER else None

    async def connect(self, _broker_id: int, _host: str, _port: int, *, client_id: str) -> Leader:
        self.open += 1
        return self

    def api(self, key: ApiKey) -> messages.Api:
        return messages.api(key, 11)

    async def send(self, request: Any) -> Any:
        self.asked.append(request)
        error = self._errors.pop(0) if self._errors else ErrorCode.none
        found = SimpleNamespace(error_code=error, offset=LOCAL_START)
        return SimpleNamespace(topics=[SimpleNamespace(partitions=[found])])

    def close(self) -> None:
        self.open -= 1


class Following:
    """A follower, and what becomes of it."""

    def __init__(self) -> None:
        registration = SimpleNamespace(leader=LEADER, leader_epoch=7)
        role = FollowerRole(
            cast(Any, registration), ModelLog(), broker_id=1, broker_epoch=1, high_watermark=0
        )
        role.is_starting_in_tier = True
        self.replica = SimpleNamespace(role=role)
        self.topic, self.key = "t", SimpleNamespace(partition=2)
        self.begun: list[tuple[Any, ...]] = []
        self.failures: list[str] = []
        self.given_up = asyncio.Event()

    def start_in_tier(self, _role: FollowerRole, *state: Any) -> None:
        self.begun.append(state)

    def give_up_start_in_tier(self, role: FollowerRole) -> None:
        role.give_up_start_in_tier()
        self.given_up.set()

    def on_failure(self, _work: str, error: Exception) -> None:
        self.failures.append(str(error))

    def on_success(self, _work: str) -> None: ...


class Store:
    def __init__(self, follower: Following, *, fails: bool = False, is_late: bool = False) -> None:
        self._follower, self._fails, self._is_late = follower, fails, is_late
        self.asked: list[int] = []

    async def state_at(self, _partition: Any, offset: int) -> Any:
        self.asked.append(offset)
        if self._is_late:
            self._follower.replica.role = None
        if self._fails:
            raise KafkaError(ErrorCode.kafka_storage_error, "the store is down")
        return SimpleNamespace(start_offset=offset + 2, epochs=EPOCHS, producers=b"snapshot")


async def started(follower: Following, leader: Leader, store: Store) -> None:
    tasks = Tasks()
    starts = RemoteStarts(BrokerId(1), tasks, cast(Any, leader), cast(Any, store), leader.locate)
    starts.begin(cast(Any, follower), 5)
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
    assert leader.open == 0


def test_it_goes_on_where_remote_storage_ends_behind_the_leaders_start() -> None:
    async def main() -> None:
        follower, leader = Following(), Leader()
        store = Store(follower)
        await started(follower, leader, store)
        request, again = leader.asked
        assert again == request, "what it has read meanwhile must be of its leader's log"
        (asked,) = request.topics[0].partitions
        assert (request.replica_id, request.topics[0].name) == (1, "t")
        assert (asked.partition_index, asked.current_leader_epoch) == (2, 7)
        assert asked.timestamp == EARLIEST_LOCAL
        assert store.asked == [LOCAL_START]
        assert follower.begun == [(LOCAL_START + 2, 5, EPOCHS, b"snapshot")]
        assert not follower.failures

    asyncio.run(main())


@pytest.mark.parametrize(
    ("errors", "fails", "why"),
    [
        ([], True, "the store is down"),
        ([ErrorCode.not_leader_or_follower], False, "did not tell where its log"),
        ([ErrorCode.none, ErrorCode.kafka_storage_error], False, "did not tell where its log"),
    ],
)
def test_an_attempt_that_fails_is_given_up_and_the_follower_fetches_again(
    errors: list[ErrorCode],
    fails: bool,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(remote_start, "RETRY_S", 0)
    caplog.set_level(logging.INFO)

    async def main() -> None:
        follower, leader = Following(), Leader(*errors)
        await started(follower, leader, Store(follower, fails=fails))
        assert why in caplog.text
        assert not follower.failures, "it is no failure of this broker"
        assert follower.given_up.is_set()
        assert not follower.replica.role.is_starting_in_tier
        assert not follower.begun

    asyncio.run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_an_attempt_that_ends_in_a_later_role_has_no_effect(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_start, "RETRY_S", 0)

    async def main() -> None:
        follower = Following()
        await started(follower, Leader(), Store(follower, fails=fails, is_late=True))
        assert not follower.begun
        assert not follower.given_up.is_set()

    asyncio.run(main())
