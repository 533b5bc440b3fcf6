"""A coordinator whose log could not be read reads it again, until it serves or is unloaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker import coordinator_shell as shells
from nilometer.broker.coordinator_shell import CoordinatorShell, ShellState
from nilometer.broker.tasks import Tasks
from nilometer.coordinators import Effects
from nilometer.wire.errors import ErrorCode, KafkaError

CLOCK = SimpleNamespace(monotonic_ms=lambda: 0, monotonic_us=lambda: 0, wall_ms=lambda: 0)
DELETED = FileNotFoundError("a segment was deleted meanwhile")
KIND: dict[str, Any] = {"name": "test", "commit_timeout_ms": 5_000, "carry_out": lambda *_: None}
FAILURES = {
    "a file": DELETED,
    "the log": KafkaError(ErrorCode.kafka_storage_error),
    "a record": ValueError("a record of an unknown version"),
}


class Shard:
    def __init__(self) -> None:
        self.records: list[object] = []

    def replay(self, record: object) -> None:
        self.records.append(record)

    def on_loaded(self, *_: int) -> Generator[int, None, Effects[Any, Any, Any]]:
        yield 1
        return Effects(actions=("finish a prepared transaction",))

    def next_deadline_ms(self) -> None:
        return None


class Shell:
    """A shell over a log of two records, each read of which fails after the first one, ``failures`` times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int, error: Exception) -> None:
        self.shards: list[Shard] = []
        self.read_errors: list[OSError] = []
        self.reads = 0
        self.pauses: list[float] = []
        self.at_pause: Callable[[], None] = self._is_refused
        self.may_write = True
        self._failures, self._error = failures, error
        monkeypatch.setattr(shells, "read_records", self._read)
        monkeypatch.setattr(shells, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": self._sleep}))
        partition = SimpleNamespace(
            leader_epoch=1,
            log=SimpleNamespace(log_start_offset=0, log_end_offset=2),
            replica=self,
            hold_until_committed=self._hold,
            is_led_here=True,
            on_read_error=self.read_errors.append,
        )
        self.shell = CoordinatorShell[Any, Any, Any, Any](
            cast(Any, partition),
            cast(Any, SimpleNamespace(clock=CLOCK)),
            Tasks(),
            cast(Any, SimpleNamespace(**KIND, make_shard=self._make_shard)),
            lambda _: None,
        )

    @property
    def high_watermark(self) -> int:
        return 2 if self.may_write else 0

    def _hold(self, offset: int, wait: object) -> None:
        if not self.may_write:
            raise KafkaError(ErrorCode.not_leader_or_follower)

    def _make_shard(self) -> Shard:
        self.shards.append(Shard())
        return self.shards[-1]

    async def _read(self, *_: object) -> AsyncIterator[list[str]]:
        self.reads += 1
        yield ["first"]
        if self.reads <= self._failures:
            raise self._error
        yield ["second"]

    async def _sleep(self, delay_s: float) -> None:
        self.pauses.append(delay_s)
        self.at_pause()
        await asyncio.sleep(0)

    def _is_refused(self) -> None:
        assert self.shell.state is ShellState.FAILED
        with pytest.raises(KafkaError) as refused:
            self.shell.submit("request", lambda _: None)
        assert refused.value.code is ErrorCode.not_coordinator

    async def until(self, state: ShellState) -> None:
        async with asyncio.timeout(60):
            while self.shell.state is not state:  # noqa: ASYNC110
                await asyncio.sleep(0)


@pytest.mark.parametrize("error", FAILURES.values(), ids=FAILURES)
async def test_a_log_is_read_again_from_its_start(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Shell(monkeypatch, 8, error)
    tried.shell.load()
    await tried.until(ShellState.ACTIVE)
    assert tried.pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [shard.records for shard in tried.shards] == [["first"]] * 8 + [["first", "second"]]
    assert tried.read_errors == ([error] * 8 if isinstance(error, OSError) else [])


async def test_an_unloaded_coordinator_reads_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Shell(monkeypatch, 1_000_000, DELETED)
    tried.at_pause = lambda: tried.shell.unload() if tried.reads == 3 else None
    tried.shell.load()
    await tried.until(ShellState.UNLOADED)
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
    assert tried.reads == 3
    assert tried.shell.state is ShellState.UNLOADED


async def test_a_broker_that_may_not_write_does_not_read_its_log_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is left to do after a load cannot be done while the broker's session is in doubt."""
    tried = Shell(monkeypatch, 0, DELETED)
    tried.may_write = False

    def is_allowed_in_the_end() -> None:
        tried.may_write = len(tried.pauses) == 3

    tried.at_pause = is_allowed_in_the_end
    tried.shell.load()
    await tried.until(ShellState.ACTIVE)
    assert tried.pauses == [0.5] * 3
    assert tried.reads == 4
