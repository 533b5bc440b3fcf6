"""The clients that the console keeps: none is left open, whichever way a page ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from nilometer.console.reading import connection
from nilometer.console.reading.connection import ClusterConnection
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError


class Opened:
    """Stands for every client: counts those that are open."""

    def __init__(self) -> None:
        self.open = 0
        self.made = 0
        self.may_start = asyncio.Event()
        self.failure: Exception | None = None

    def __call__(self, *_: object) -> Opened:
        self.made += 1
        return self

    @property
    def client(self) -> Opened:
        return self

    async def start(self) -> None:
        self.open += 1
        await self.may_start.wait()
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        self.open -= 1


class Survey:
    def __init__(self, *_: object) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


def cluster() -> ClusterConnection:
    return ClusterConnection(Runtime.system(), {"bootstrap.servers": "127.0.0.1:1"})


@pytest.mark.parametrize("fails", [True, False])
def test_a_page_that_ends_while_its_client_connects_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    async def run() -> None:
        admin = Opened()
        monkeypatch.setattr(connection, "Admin", admin)
        console = cluster()
        page = asyncio.create_task(console.admin())
        await asyncio.sleep(0)
        assert admin.open == 1
        if fails:
            admin.failure = KafkaError(ErrorCode.network_exception)
            admin.may_start.set()
        else:
            page.cancel()
        with pytest.raises(KafkaError if fails else asyncio.CancelledError):
            await page
        assert admin.open == 0
        admin.failure = None
        admin.may_start.set()
        assert cast(Any, await console.admin()) is cast(Any, await console.admin()) is admin
        assert (admin.open, admin.made) == (1, 2)
        await console.close()
        assert admin.open == 0

    asyncio.run(run())


def test_a_survey_that_ends_after_the_console_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        made: list[Survey] = []

        def make(*_: object) -> Survey:
            made.append(Survey())
            return made[-1]

        monkeypatch.setattr(connection, "ReplicaSurvey", cast(Callable[..., Any], make))
        console = cluster()
        async with console.survey():
            pass
        async with console.survey():
            async with console.survey():
                pass
            assert len(made) == 2
            await console.close()
            assert [one.is_open for one in made] == [True, False]
        assert not any(one.is_open for one in made)

    asyncio.run(run())
